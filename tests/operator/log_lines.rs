//! Tests the log as an operator reads it. Each pause, decision and failure has one line, with ids
//! and names. An unreachable database is reported with its address and the reason. The log shows no
//! health check and nothing that a client sent.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::served_binary::{Folder, Served, fakes};
use crate::support::database::Database;
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::fake_tool::FakeTool;
use crate::support::postgres::PrivateCluster;

/// A marker in every text that the client, the model and the tool send.
const MARK: &str = "Mk7qZ";
const ALICE: &str = "alice-key-0123456789";

fn yaml(model: &FakeModel, tool: &FakeTool) -> String {
    format!(
        "models:
  main: {{ provider: openai, model: x, base_url: '{}', retries: 1 }}
  gone: {{ provider: openai, model: x, base_url: 'http://127.0.0.1:9', retries: 0 }}
tools: {{ pay: {{ http: {{ url: '{}/pay' }}, parameters: {{ type: object, properties: {{ to: {{ type: string }} }} }} }} }}
agents: {{ clerk: {{ model: main, tools: [pay] }}, lost: {{ model: gone }} }}
default_agent: clerk
auth: {{ api_keys: [ {{ user: alice, key: {ALICE} }} ] }}
",
        model.base_url, tool.url
    )
}

/// Returns the lines with this message, without the fields that every line has.
fn lines(log: &str, message: &str) -> Vec<Value> {
    let all = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = all
        .filter(|line| line["message"] == message)
        .map(|mut line| {
            for name in ["timestamp", "level", "target", "message"] {
                line.as_object_mut().unwrap().remove(name).unwrap();
            }
            line
        });
    found.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn log_tells_pauses_decisions_and_failures_by_ids_and_names() {
    let (model, tool, folder) = fakes().await;
    let mut served = Served::start(folder.path(), &yaml(&model, &tool), &[]).bearer(ALICE);
    let arguments = json!({"to": MARK}).to_string();
    let body = format!("it broke: {MARK}");

    tool.answers(500, body.as_str());
    model
        .then(calls(&[("pay", &arguments), (MARK, &arguments)]))
        .then(text_answer(MARK));
    let held = served.task(MARK).await;
    let approved = served.approve(&held).await;
    assert_eq!(
        (&held["status"], &approved["status"]),
        (&json!("Paused"), &json!("Completed")),
        "{approved}"
    );

    tool.answers(502, body.as_str());
    model.then(calls(&[("pay", &arguments)]));
    let unsure = served.task(MARK).await;
    let unsure = served.approve(&unsure).await;
    assert_eq!(unsure["pending"][0]["kind"], "reconcile", "{unsure}");

    model.then_fails_with(503, json!({"error": {"message": MARK}}));
    model.then_fails_with(401, json!({"error": {"message": MARK}}));
    let refused = served.task(MARK).await;
    let unreached = served
        .post("/v1/tasks", &json!({"input": MARK, "agent": "lost"}))
        .await;
    for _ in 0..3 {
        assert_eq!(served.status("/healthz").await, 200);
        assert_eq!(served.status("/readyz").await, 200);
    }
    let asked = served
        .exchange(
            "GET",
            "/v1/me",
            &[("authorization", &format!("Bearer {ALICE}"))],
            "",
        )
        .await;
    assert!(served.terminate().success());
    let log = served.log();

    tells_pauses_and_decisions(&log, &held, &unsure);
    tells_failures(&log, &held, &unsure, [&refused, &unreached]);
    tells_answers(&log, asked.header("x-request-id"));
    assert!(!log.contains(MARK) && !log.contains(ALICE), "{log}");
}

/// Asserts that each pause, question and decision has one line.
fn tells_pauses_and_decisions(log: &str, held: &Value, unsure: &Value) {
    let (first, second) = (&held["task_id"], &unsure["task_id"]);
    let request = |task: &Value| task["pending"][0]["request_id"].clone();
    let (held_request, doubt) = (request(held), request(unsure));
    let waits = lines(log, "the task waits for people");
    let pause = |task: &Value, request: &Value| json!({"task": task, "root_task_id": task, "agent": "clerk", "request_ids": request});
    assert_eq!(
        (waits.len(), &waits[0], &waits[2]),
        (3, &pause(first, &held_request), &pause(second, &doubt)),
        "{log}"
    );
    let asks = lines(log, "a person is asked");
    let question = json!({"task": first, "root_task_id": first, "agent": "clerk", "request_id": held_request, "kind": "approval"});
    assert_eq!((asks.len(), &asks[0]), (2, &question));
    let decisions = lines(log, "a person decided");
    let decision = json!({"task": first, "root_task_id": first, "request_id": held_request, "action": "approve", "by": "alice", "door": "key"});
    assert_eq!((decisions.len(), &decisions[0]), (2, &decision));
}

/// Asserts that each failure of a call, of the model and of a task has one line.
fn tells_failures(log: &str, held: &Value, unsure: &Value, [refused, unreached]: [&Value; 2]) {
    let (first, second) = (&held["task_id"], &unsure["task_id"]);
    let doubt = &unsure["pending"][0]["request_id"];
    let call = |task: &Value| task["pending"][0]["tool_calls"][0]["tool_call_id"].clone();
    assert_eq!(
        lines(log, "a tool call failed"),
        [
            json!({"task": first, "root_task_id": first, "tool_call_id": call(held), "tool": "pay", "status": 500})
        ]
    );
    assert_eq!(
        lines(
            log,
            "the outcome of a tool call is unknown; a person is asked"
        ),
        [
            json!({"task": second, "root_task_id": second, "tool_call_id": call(unsure), "tool": "pay", "request_id": doubt})
        ]
    );
    let misfits = lines(
        log,
        "a call was proposed that does not fit (unknown tool or arguments)",
    );
    assert_eq!(
        (misfits.len(), &misfits[0]["task"], &misfits[0]["tool"]),
        (1, first, &Value::Null),
        "{misfits:?}"
    );
    let again = lines(log, "the model is asked again");
    assert_eq!(
        (again.len(), &again[0]["model"], &again[0]["status"]),
        (1, &json!("main"), &json!(503)),
        "{again:?}"
    );
    assert_eq!(
        lines(log, "the model failed"),
        [
            json!({"task": refused["task_id"], "model": "main", "status": 401}),
            json!({"task": unreached["task_id"], "model": "gone", "reason": "the connection was refused"}),
        ]
    );
    let failures = lines(log, "the task failed");
    assert_eq!(
        (failures.len(), &failures[0]["code"]),
        (2, &json!("model_failed")),
        "{failures:?}"
    );
}

/// Asserts that HTTP requests are logged by operation and `http_request_id`, and that health checks
/// are not logged.
fn tells_answers(log: &str, request_id: &str) {
    let answered = lines(log, "answered");
    let operations: Vec<_> = answered
        .iter()
        .map(|line| line["operation"].as_str().unwrap())
        .collect();
    assert!(
        operations.contains(&"create_task")
            && !operations
                .iter()
                .any(|id| id.contains("health") || id.contains("readi")),
        "{operations:?}"
    );
    let me = answered
        .iter()
        .find(|line| line["operation"] == "get_me")
        .unwrap();
    assert_eq!(me["http_request_id"].as_str(), Some(request_id));
    assert_eq!(me["request_id"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn cause_of_an_internal_error_is_logged_before_the_line_with_the_id_of_its_instance() {
    let (model, tool, folder) = fakes().await;
    let mut served = Served::start(folder.path(), &yaml(&model, &tool), &[]).bearer(ALICE);
    model.then(calls(&[("pay", "{}")]));
    let held = served.task("go").await;
    let request = held["pending"][0]["request_id"].as_str().unwrap();
    let file = folder.file("holdpoint.db");
    let database = Database::at(&format!("sqlite://{}", file.display()));
    let id = database.id(request);
    let damage = format!("update agent_task_item set body = '{{' where request_id = {id}");
    database.execute(&damage).await;
    let (path, key) = (format!("/resume/{request}"), format!("Bearer {ALICE}"));
    let headers = [("authorization", key.as_str())];
    let failed = served.exchange("GET", &path, &headers, "").await;
    assert_eq!(failed.status, 500, "{}", failed.text);
    let instance = failed.str("/instance");
    assert!(served.terminate().success());
    let log = served.log();
    let (before, _) = log.split_once(&instance).expect("a line with the id");
    let causes = lines(before, "an internal error");
    let [cause] = &causes[..] else {
        panic!("{log}");
    };
    let cause = cause["cause"].as_str().unwrap();
    assert!(cause.starts_with("stored data cannot be read: "), "{log}");
    let answered = lines(&log, "answered");
    let answered = answered.iter().find(|line| line["status"] == 500);
    assert_eq!(answered.unwrap()["http_request_id"], instance, "{log}");
}

/// Asserts that every warning names the unreachable database and a reason. The number of warnings
/// is at least 1, and at most 1 plus the number of full 10 s since `since`.
fn tells_an_outage(log: &str, since: Instant) {
    let warnings: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|line: &Value| line["level"] == "WARN" || line["level"] == "ERROR")
        // Leaves out the warning that this service has no accounts.
        .filter(|line| {
            !line["message"]
                .as_str()
                .is_some_and(|message| message.starts_with("there are no accounts"))
        })
        .collect();
    let most = 1 + usize::try_from(since.elapsed().as_secs() / 10).unwrap();
    assert!(
        (1..=most).contains(&warnings.len()),
        "{most} at most: {log}"
    );
    for line in &warnings {
        assert_eq!(line["message"], "the database cannot be reached", "{log}");
        assert!(
            line["database"]
                .as_str()
                .is_some_and(|place| place.contains("holdpoint-pg-")),
            "{line}"
        );
        assert!(
            line["reason"]
                .as_str()
                .is_some_and(|reason| !reason.is_empty()),
            "{line}"
        );
    }
    let back = lines(log, "the database answers again").len();
    assert!((1..=warnings.len()).contains(&back), "{log}");
    assert!(!log.contains("hunter2"), "{log}");
}

const SMALL: &str = "models: { m: { provider: scripted, script: 'builtin:refunds' } }\nagents: { a: { model: m } }\n";

#[tokio::test(flavor = "multi_thread")]
async fn database_outage_is_logged_once_with_place_and_reason_and_once_when_it_ends() {
    let (cluster, folder) = (PrivateCluster::start(), Folder::new());
    let url = cluster
        .url("postgres")
        .replace("postgres@", "postgres:hunter2@");
    let mut served = Served::start(folder.path(), SMALL, &[("HOLDPOINT_DATABASE__URL", &url)]);
    let since = Instant::now();
    cluster.crash();
    // Waits for two refusals, so that more than one attempt has failed.
    for _ in 0..2 {
        while served.status("/readyz").await != 503 {
            crate::support::pause().await;
        }
    }
    cluster.start_again();
    while served.status("/readyz").await != 200 {
        crate::support::pause().await;
    }
    assert!(served.terminate().success());
    tells_an_outage(&served.log(), since);
}

/// A gate does not store a call that it only counts, so it could answer without the database. But
/// while the database is down, the gate refuses this call like any other call.
#[tokio::test(flavor = "multi_thread")]
async fn call_that_a_gate_only_counts_is_not_allowed_while_the_database_is_down() {
    let (cluster, folder) = (PrivateCluster::start(), Folder::new());
    let url = cluster.url("postgres");
    let yaml = format!(
        "{SMALL}tools: {{ read: {{ effect: read_only, external: {{}} }} }}
gates: {{ g: {{ description: Readers., tools: [read], record: held }} }}
policy: [ {{ name: reads, tools: [read], decide: allow }} ]
"
    );
    let served = Served::start(folder.path(), &yaml, &[("HOLDPOINT_DATABASE__URL", &url)]);
    let ask = async || {
        let headers = [("content-type", "application/json"), ("prefer", "wait=0")];
        let body = json!({"gate": "g", "tool": "read", "arguments": {}}).to_string();
        let answer = served.exchange("POST", "/v1/gate/calls", &headers, body);
        answer.await.status
    };
    assert_eq!(ask().await, 200);
    cluster.crash();
    while served.status("/readyz").await != 503 {
        crate::support::pause().await;
    }
    assert_eq!(ask().await, 503);
    cluster.start_again();
    while served.status("/readyz").await != 200 {
        crate::support::pause().await;
    }
    assert_eq!(ask().await, 200);
}

#[test]
fn database_outage_at_the_start_is_logged_once_with_place_and_reason() {
    let (cluster, folder) = (PrivateCluster::start(), Folder::new());
    let url = cluster
        .url("postgres")
        .replace("postgres@", "postgres:hunter2@");
    cluster.crash();
    std::fs::write(folder.file("holdpoint.yaml"), SMALL).unwrap();
    let since = Instant::now();
    let mut process = Command::new(env!("CARGO_BIN_EXE_holdpoint"))
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env_clear()
        .env("HOLDPOINT_DATABASE__URL", &url)
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = String::new();
    for line in BufReader::new(process.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        log.push_str(&line);
        log.push('\n');
        if line.contains("cannot be reached") && log.matches("cannot be reached").count() == 1 {
            cluster.start_again();
        }
        if line.contains("\"listening\"") {
            break;
        }
    }
    process.kill().unwrap();
    process.wait().unwrap();
    tells_an_outage(&log, since);
}
