//! Tests `/metrics`: the values after tasks, messages, standing decisions and asks at a gate, and
//! how long the service reuses its counts of tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdpoint::task::time::Time;
use holdpoint::world::{Clock, SystemClock};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::served_binary::{Folder, Served, fakes};
use crate::notify::NEW;
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::fake_receiver::FakeReceiver;
use crate::support::test_app::{On, TestApp, refunds};
use crate::support::{eventually, until};

/// Returns the value of a series; `None` if there is no such series.
fn value<T: std::str::FromStr>(metrics: &str, series: &str) -> Option<T> {
    let mut lines = metrics.lines();
    lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

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
        .then(text_answer("done"));
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
        "holdpoint_unknown_outcomes_total{tool=\"pay\"} 0",
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

/// The entry `down` has a receiver that refuses its message. The receiver of the entry `up` answers
/// only after the test has seen this failure.
#[tokio::test(flavor = "multi_thread")]
async fn message_is_timed_from_its_commit_to_its_delivery_and_an_undelivered_one_is_not() {
    let (model, hook, folder) = (
        FakeModel::start().await,
        FakeReceiver::start().await,
        Folder::new(),
    );
    hook.answers_by(|message| (if message.path == "/up" { 204 } else { 500 }, Vec::new()));
    hook.close_to(|message| message.path == "/up");
    let entry = |name: &str| {
        format!(
            "    - {{ name: {name}, webhook: {{ url: '{}/{name}', secrets: ['{NEW}'] }}, events: [task.completed] }}\n",
            hook.url
        )
    };
    let yaml = format!(
        "models: {{ m: {{ provider: openai, model: x, base_url: '{}' }} }}
agents: {{ a: {{ model: m }} }}
notify:
  to:
{}{}",
        model.base_url,
        entry("up"),
        entry("down")
    );
    let served = Served::start(folder.path(), &yaml, &[]);
    let begun = Instant::now();
    assert_eq!(served.task("go").await["status"], "Completed");
    hook.reached(2).await;
    let arrived = Instant::now();
    let failed = "holdpoint_deliveries_total{outcome=\"failed\",target=\"down\"}";
    // On a slow machine, a second attempt may fail before the test reads the counter.
    let has_failed = async || value::<u64>(&served.get("/metrics").await, failed) >= Some(1);
    until("the failed attempt is counted", has_failed).await;
    let held_back = arrived.elapsed();
    hook.open();
    let count =
        |target: &str| format!("holdpoint_delivery_lag_seconds_count{{target=\"{target}\"}}");
    let metrics = eventually("the delivery is timed", async || {
        let metrics = served.get("/metrics").await;
        (value(&metrics, &count("up")) == Some(1)).then_some(metrics)
    });
    let metrics = metrics.await;
    let lag: f64 = value(
        &metrics,
        "holdpoint_delivery_lag_seconds_sum{target=\"up\"}",
    )
    .unwrap();
    let bounds = held_back.as_secs_f64()..=begun.elapsed().as_secs_f64();
    assert!(bounds.contains(&lag), "{lag} seconds, {bounds:?}");
    assert_eq!(value::<u64>(&metrics, &count("down")), None, "{metrics}");
}

/// Alerts in `docs/operations.md` use the series that this test reads. Alice, who may decide, has
/// no mail address.
#[tokio::test(flavor = "multi_thread")]
async fn question_that_no_approver_gets_by_mail_and_message_that_dies_are_counted() {
    let (model, tool, folder) = fakes().await;
    let hook = FakeReceiver::start().await;
    hook.answers(410);
    let yaml = format!(
        "models: {{ m: {{ provider: openai, model: x, base_url: '{}' }} }}
tools: {{ pay: {{ http: {{ url: '{}/pay' }} }} }}
agents: {{ clerk: {{ model: m, tools: [pay] }} }}
auth:
  api_keys: [ {{ user: alice, key: alice-key-0123456789 }}, {{ user: carol, key: carol-key-0123456789 }} ]
  people: [ {{ user: carol, email: carol@acme.com }} ]
notify:
  mail: {{ url: 'smtp://127.0.0.1:9', from: holdpoint@acme.com }}
  to:
    - {{ name: by-mail, mail: {{}} }}
    - {{ name: backend, webhook: {{ url: '{}/backend', secrets: ['{NEW}'] }}, events: [request.created] }}
",
        model.base_url, tool.url, hook.url
    );
    let served = Served::start(folder.path(), &yaml, &[]).bearer("alice-key-0123456789");
    model
        .then(calls(&[("pay", "{}")]))
        .then(text_answer("done"));
    let held = served.task("go").await;
    assert_eq!(held["status"], "Paused", "{held}");
    let oldest = "holdpoint_request_oldest_seconds{kind=\"approval\"}";
    let are_counted = async || {
        let metrics = served.get("/metrics").await;
        let counted = |series: &str| value::<u64>(&metrics, &format!("holdpoint_{series}"));
        counted("requests_unreachable_total{target=\"by-mail\"}") == Some(1)
            && counted("deliveries_total{outcome=\"dead\",target=\"backend\"}") == Some(1)
            && counted("requests_open{kind=\"approval\"}") == Some(1)
            && value::<f64>(&metrics, oldest).is_some()
    };
    until("they are counted", are_counted).await;
    assert_eq!(served.approve(&held).await["status"], "Completed");
    let metrics = served.get("/metrics").await;
    let decided =
        "holdpoint_requests_decided_total{action=\"approve\",door=\"key\",kind=\"approval\"}";
    assert_eq!(value(&metrics, decided), Some(1), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn receiver_for_which_nothing_waits_has_gauges_of_0() {
    let folder = Folder::new();
    let yaml = format!(
        "models: {{ m: {{ provider: openai, model: x, base_url: 'http://127.0.0.1:9/v1' }} }}
agents: {{ a: {{ model: m }} }}
notify: {{ to: [ {{ name: backend, webhook: {{ url: 'http://127.0.0.1:9/backend', secrets: ['{NEW}'] }} }} ] }}
"
    );
    let served = Served::start(folder.path(), &yaml, &[]);
    let metrics = served.get("/metrics").await;
    for gauge in [
        "holdpoint_deliveries_waiting",
        "holdpoint_delivery_oldest_seconds",
    ] {
        let series = format!("{gauge}{{target=\"backend\"}}");
        assert_eq!(value::<u64>(&metrics, &series), Some(0), "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn call_that_a_standing_decision_lets_through_is_counted_under_its_rule() {
    let (model, tool, folder) = fakes().await;
    let yaml = format!(
        "models: {{ m: {{ provider: openai, model: x, base_url: '{}' }} }}
agents: {{ a: {{ model: m, tools: [refund] }} }}
tools: {{ refund: {{ http: {{ url: '{}/refund' }}, parameters: {{ type: object, properties: {{ amount: {{ type: number }} }} }} }} }}
policy:
  - {{ name: large, tools: [refund], decide: hold, remember: {{ when: 'args.amount <= 500.0', for: [owner], most: 4h, uses: 3 }} }}
",
        model.base_url, tool.url
    );
    let served = Served::start(folder.path(), &yaml, &[]);
    for _ in 0..3 {
        let refund = calls(&[("refund", r#"{"amount":120}"#)]);
        model.then(refund).then(text_answer("done"));
    }
    let held = served.task("go").await;
    let request = held["pending"][0]["request_id"].as_str().unwrap();
    let wish = json!({"action": "approve", "remember": {"for": "owner", "expires_in": "1h"}});
    let approved = served.post(&format!("/resume/{request}"), &wish).await;
    assert_eq!(approved["status"], "Completed", "{approved}");
    let series = "holdpoint_grants_used_total{rule=\"large\"}";
    let used = async || value::<u64>(&served.get("/metrics").await, series);
    assert_eq!(used().await, None, "a person approved the first call");
    for expected in 1..=2 {
        assert_eq!(served.task("again").await["status"], "Completed");
        assert_eq!(used().await, Some(expected));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn asks_at_a_gate_are_counted_and_timed_and_those_that_wait_are_shown() {
    let folder = Folder::new();
    let yaml = r#"
models: { m: { provider: openai, model: x, base_url: "http://127.0.0.1:9/v1" } }
agents: { a: { model: m } }
tools:
  Bash: { external: {}, parameters: { type: object, properties: { command: { type: string } }, required: [command] } }
  Read: { effect: read_only, external: {}, parameters: { type: object, properties: { path: { type: string } } } }
gates:
  coding: { description: Agents., tools: [Bash] }
  busy: { description: Readers., tools: [Read], record: held }
policy:
  - { name: reads, tools: [Read], decide: allow }
  - { name: quick, tools: [Bash], when: "args.command == \"ls\"", decide: allow }
  - { name: never, tools: [Bash], when: "args.command == \"rm\"", decide: deny }
"#;
    let served = Served::start(folder.path(), yaml, &[]);
    let post = async |body: Value, wait: &str| {
        let headers = [("content-type", "application/json"), ("prefer", wait)];
        let path = "/v1/gate/calls";
        let answer = served.exchange("POST", path, &headers, body.to_string());
        answer.await.str("/decision")
    };
    let ask = async |command: &str, wait: &str| {
        let arguments = json!({"command": command});
        let body = json!({"gate": "coding", "tool": "Bash", "arguments": arguments});
        post(body, wait).await
    };
    for path in ["a", "b"] {
        let body = json!({"gate": "busy", "tool": "Read", "arguments": {"path": path}});
        assert_eq!(post(body, "wait=10").await, "allow");
    }
    assert_eq!(ask("ls", "wait=10").await, "allow");
    assert_eq!(ask("rm", "wait=10").await, "deny");
    assert_eq!(ask("make", "wait=0").await, "pending");
    let decide = async {
        let waiting =
            async || value::<u64>(&served.get("/metrics").await, "holdpoint_gate_waiting");
        until("one ask waits", async || waiting().await == Some(1)).await;
        let began = Instant::now();
        let request = eventually("its request is open", async || {
            let listed: Value = serde_json::from_str(&served.get("/v1/requests").await).unwrap();
            let mut requests = listed["requests"].as_array().unwrap().iter();
            let own = |one: &&Value| one["tool_calls"][0]["arguments"]["command"] == "cat";
            let found = requests.find(own)?;
            Some(found["request_id"].as_str().unwrap().to_owned())
        });
        let path = format!("/resume/{}/reject", request.await);
        let waited = began.elapsed();
        served.post(&path, &json!({})).await;
        waited
    };
    let (decision, waited) = tokio::join!(ask("cat", "wait=60"), decide);
    assert_eq!(decision, "deny");
    let metrics = served.get("/metrics").await;
    for (series, expected) in [
        ("calls_total{decision=\"allow\",gate=\"coding\"}", 1),
        ("calls_total{decision=\"deny\",gate=\"coding\"}", 2),
        ("calls_total{decision=\"pending\",gate=\"coding\"}", 1),
        // The gate `busy` stores none of its allowed calls, but counts them.
        ("calls_total{decision=\"allow\",gate=\"busy\"}", 2),
        ("ask_seconds_count{door=\"rest\",gate=\"coding\"}", 4),
        ("waiting", 0),
    ] {
        let found = value(&metrics, &format!("holdpoint_gate_{series}"));
        assert_eq!(found, Some(expected), "{series}\n{metrics}");
    }
    let sum = "holdpoint_gate_ask_seconds_sum{door=\"rest\",gate=\"coding\"}";
    let seconds: f64 = value(&metrics, sum).unwrap();
    assert!(seconds >= waited.as_secs_f64(), "{seconds} of {waited:?}");
}

/// The machine's clock, but with an uptime in milliseconds that the test sets.
struct UptimeClock(AtomicU64);

#[async_trait::async_trait]
impl Clock for UptimeClock {
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
    let clock = Arc::new(UptimeClock(AtomicU64::new(1_000_000)));
    let yaml = refunds("{ owner: true }");
    let app = TestApp::timed(On::Sqlite, &yaml, Arc::<UptimeClock>::clone(&clock)).await;
    let paused = async || {
        let metrics = app.anonymous().get("/metrics").await.text;
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
