//! Tests `/metrics`: the values after two tasks, and how long the service reuses its counts of
//! tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdpoint::task::time::Time;
use holdpoint::world::{Clock, SystemClock};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::served_binary::{Folder, Served, fakes};
use crate::support::fake_chat_completions::{calls, says};
use crate::support::test_app::{On, TestApp, refunds};

#[tokio::test(flavor = "multi_thread")]
async fn cycle_is_counted_under_the_metric_names_of_the_contract() {
    let (model, tool, folder) = fakes().await;
    let yaml = format!(
        "models: {{ main: {{ provider: openai, model: x, base_url: '{}' }} }}
agents: {{ a: {{ model: main, tools: [pay] }} }}
tools: {{ pay: {{ http: {{ url: '{}/pay' }} }} }}
",
        model.base_url, tool.url
    );
    let served = Served::start(folder.path(), &yaml, &[]);
    model
        .then(calls(&[("pay", "{}")]))
        .then(calls(&[("pay", "{}")]))
        .then(says("done"));
    let done = served.task("pay").await;
    let open = served.task("and another one, which stays open").await;
    // A client opens the event stream of the open task and keeps it open.
    let mut watching = TcpStream::connect(&served.address).await.unwrap();
    let path = format!("/v1/tasks/{}/events", open["task_id"].as_str().unwrap());
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", served.address);
    watching.write_all(request.as_bytes()).await.unwrap();
    watching.read_exact(&mut [0; 15]).await.unwrap();
    assert_eq!(served.approve(&done).await["status"], "Completed");
    let metrics = served.get("/metrics").await;
    for line in [
        "holdpoint_http_request_duration_seconds_count{operation=\"create_task\",status=\"201\"} 2",
        "holdpoint_tasks{status=\"Completed\"} 1",
        "holdpoint_tasks{status=\"Paused\"} 1",
        "holdpoint_requests_open{kind=\"approval\"} 1",
        "holdpoint_model_call_duration_seconds_count{model=\"main\",outcome=\"answered\"} 3",
        "holdpoint_tool_call_duration_seconds_count{outcome=\"succeeded\",tool=\"pay\"} 1",
        "holdpoint_requests_decided_total{action=\"approve\",door=\"none\",kind=\"approval\"} 1",
        "holdpoint_requests_closed_total{kind=\"approval\",outcome=\"approve\"} 1",
        "holdpoint_request_wait_seconds_count{kind=\"approval\"} 1",
        "holdpoint_event_streams 1",
        concat!(
            "holdpoint_build_info{version=\"",
            env!("CARGO_PKG_VERSION"),
            "\"} 1"
        ),
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line}\n{metrics}"
        );
    }
    let batches = metrics
        .lines()
        .find_map(|line| line.strip_prefix("holdpoint_commit_batch_size_sum "));
    assert!(
        batches
            .and_then(|sum| sum.parse::<f64>().ok())
            .is_some_and(|sum| sum >= 4.0),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_name_that_an_agent_makes_up_at_a_gate_is_in_no_metric_and_no_log_line() {
    let folder = Folder::new();
    let yaml = r#"
models: { m: { provider: openai, model: x, base_url: "http://127.0.0.1:9/v1" } }
agents: { a: { model: m } }
gates: { coding: { description: Agents., tools: [], other_tools: judge, report: required } }
policy: [ { name: any, tools: ["*"], decide: allow } ]
auth: { api_keys: [ { user: alice, tenant: acme, key: "agent-key-0123456789", may: [gate] } ] }
"#;
    let mut served = Served::start(folder.path(), yaml, &[]).bearer("agent-key-0123456789");
    for outcome in ["failed", "unknown"] {
        let call = json!({"tool": "Mk7qZ", "arguments": {"report": outcome}});
        let allowed = served.post("/v1/gate/calls", &call).await;
        assert_eq!(allowed["state"], "started", "{allowed}");
        let report = json!({"task_id": allowed["task_id"], "outcome": outcome});
        let reported = served.post("/v1/gate/outcomes", &report).await;
        assert_eq!(reported["task_id"], allowed["task_id"], "{reported}");
    }
    let metrics = served.get("/metrics").await;
    let line = "holdpoint_unknown_outcomes_total{tool=\"(unconfigured)\"} 1";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
    assert!(served.terminate().success());
    let log = served.log();
    assert!(log.contains("a tool call failed"), "{log}");
    assert!(
        !metrics.contains("Mk7qZ") && !log.contains("Mk7qZ"),
        "{metrics}\n{log}"
    );
}

/// The machine's clock, but with an uptime in milliseconds that the test sets.
struct Up(AtomicU64);

#[async_trait::async_trait]
impl Clock for Up {
    fn now(&self) -> Time {
        SystemClock.now()
    }

    fn uptime(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    async fn sleep(&self, time: Duration) {
        SystemClock.sleep(time).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scrapes_of_15_seconds_show_tasks_as_the_first_one_counted_them() {
    let clock = Arc::new(Up(AtomicU64::new(1_000_000)));
    let yaml = refunds("{ owner: true }");
    let app = TestApp::timed(On::Sqlite, &yaml, Arc::<Up>::clone(&clock)).await;
    let paused = async || {
        let metrics = app.nobody().get("/metrics").await.text;
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("holdpoint_tasks{status=\"Paused\"} "));
        line.map_or(0, |count| count.parse::<u32>().unwrap())
    };
    assert_eq!(paused().await, 0);
    app.held().await;
    for (passed, expected) in [(0, 0), (14_999, 0), (1, 1)] {
        clock.0.fetch_add(passed, Ordering::SeqCst);
        assert_eq!(paused().await, expected, "{passed} ms later");
    }
    app.stop().await;
}
