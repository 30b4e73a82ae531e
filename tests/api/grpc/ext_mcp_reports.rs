//! Tests of the outcomes that agentgateway reports with `CheckResponse`.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use macro_rules_attribute::apply;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::time::timeout;

use super::ext_mcp::{
    LS, REQUEST, REQUIRED, RESPONSE, guardrails, guardrails_yaml, message, request,
};
use super::*;
use crate::api::approval_cycle::on_both;
use crate::api::logs::{address, start};
use crate::support::database::Database;
use crate::support::http_client;
use crate::support::test_app::On;

const OPTIONAL: &str = "hold: 0s\n    report: optional\n    ext_authz: { user_header: x-user }";
const DONE: &str = r#"{"content":[{"type":"text","text":"a.txt"}]}"#;
/// A time that is longer than the deadlines of the tests' reports, and shorter than the time that
/// the service gives a body to arrive.
const SOON: Duration = Duration::from_secs(30);

pub(super) fn response(task: &str, result: &str) -> Vec<u8> {
    let unknown = pair("other", &field(3, b"x"));
    let named = pair("holdpoint_call", &field(3, task.as_bytes()));
    [
        field(1, b"up"),
        field(2, b"tools/call"),
        field(3, &[field(1, &unknown), field(1, &named)].concat()),
        field(4, result.as_bytes()),
    ]
    .concat()
}

/// Reports a result with the API key `key`. Asserts that the service lets the result pass, as it
/// does with every report.
async fn report_as(grpc: &mut Grpc, key: &str, task: &str, result: &str) {
    let answered = grpc.call(RESPONSE, key, &response(task, result)).await;
    let told = (answered.status, fields(&answered.message));
    assert_eq!(told, (Some(0), vec![(1, vec![])]), "it passes");
}

/// Sends a report with one more header. Asserts that the service lets the result pass within
/// [`SOON`].
async fn send_report(grpc: &mut Grpc, header: (&str, &str), body: impl Into<Body>) {
    let key = format!("Bearer {EDGE}");
    let headers = [
        ("content-type", "application/grpc"),
        ("authorization", key.as_str()),
        header,
    ];
    let answered = timeout(SOON, grpc.send(RESPONSE, &headers, body)).await;
    let answered = answered.expect("the answer comes in time").unwrap();
    let told = (answered.status, fields(&answered.message));
    assert_eq!(told, (Some(0), vec![(1, vec![])]), "{header:?}");
}

async fn report(grpc: &mut Grpc, task: &str, result: &str) {
    report_as(grpc, EDGE, task, result).await;
}

/// Returns the type, the outcome and the content of each result in a task's journal.
pub(super) async fn results(app: &TestApp, task: &str) -> Vec<(String, String, String)> {
    let reply = app.owner().items(task).await;
    let text = |item: &Value, member: &str| item[member].as_str().unwrap().to_owned();
    let items = reply.body["items"].as_array().unwrap();
    items
        .iter()
        .filter(|item| item["content"].is_string())
        .map(|item| {
            (
                text(item, "type"),
                text(item, "outcome"),
                text(item, "content"),
            )
        })
        .collect()
}

fn result(kind: &str, outcome: &str, content: &str) -> (String, String, String) {
    (kind.to_owned(), outcome.to_owned(), content.to_owned())
}

#[apply(on_both)]
async fn reported_outcome_settles_the_call_once(on: On) {
    let app = guardrails(on, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    let task = request(&mut grpc, LS).await.task();
    report(&mut grpc, &task, DONE).await;
    let stored = vec![result("tool_result", "succeeded", DONE)];
    assert_eq!(results(&app, &task).await, stored);
    // A repeated report, or a different report, does not change the stored results.
    report(&mut grpc, &task, DONE).await;
    report(&mut grpc, &task, r#"{"isError":true,"content":[]}"#).await;
    assert_eq!(results(&app, &task).await, stored);
    let failed = request(&mut grpc, LS).await.task();
    assert_ne!(failed, task);
    let error = r#"{"content":[],"isError":true}"#;
    report(&mut grpc, &failed, error).await;
    assert_eq!(
        results(&app, &failed).await,
        [result("tool_result", "failed", error)]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn each_header_of_a_call_that_passes_names_it_in_a_report(on: On) {
    let app = guardrails(on, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    for at in 0..2 {
        let told = request(&mut grpc, LS).await;
        let (name, value) = told.headers().swap_remove(at);
        report(&mut grpc, &value, DONE).await;
        let stored = results(&app, &told.task()).await;
        assert_eq!(stored, [result("tool_result", "succeeded", DONE)], "{name}");
    }
    app.stop().await;
}

#[apply(on_both)]
async fn header_of_a_call_is_its_id_and_names_a_later_attempt_too(on: On) {
    let app = guardrails(on, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    let first = request(&mut grpc, LS).await;
    let path = format!("/v1/gate/calls/{}", first.task());
    let shown = app.actor(gate::AGENT).get(&path).await;
    assert_eq!(
        shown.str("/tool_call_id"),
        first.headers().swap_remove(0).1,
        "{}",
        shown.text
    );
    let unknown = json!({"task_id": first.task(), "outcome": "unknown"});
    let reported = app
        .actor(gate::AGENT)
        .post("/v1/gate/outcomes", &unknown)
        .await;
    gate::answer_as(app.owner(), &reported, &json!({"action": "retry"})).await;
    let second = request(&mut grpc, LS).await;
    let (_, value) = second.headers().swap_remove(0);
    assert_eq!(
        (&value, &second.attempt()),
        (&first.task(), &format!("{value}.2"))
    );
    report(&mut grpc, &value, DONE).await;
    assert_eq!(
        results(&app, &value).await,
        [
            result("late_result", "unknown", ""),
            result("tool_result", "succeeded", DONE)
        ]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn report_at_a_gate_where_it_is_optional_is_a_late_result(on: On) {
    let app = guardrails(on, OPTIONAL).await;
    let mut grpc = Grpc::to(&app).await;
    let task = request(&mut grpc, LS).await.task();
    let released = results(&app, &task).await;
    assert_eq!((released.len(), released[0].1.as_str()), (1, "released"));
    for _ in 0..2 {
        report(&mut grpc, &task, DONE).await;
    }
    let late = results(&app, &task).await;
    assert_eq!(late[1..], [result("late_result", "succeeded", DONE)]);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reported_content_is_cut_at_one_mebibyte() {
    let app = guardrails(On::Sqlite, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    let task = request(&mut grpc, LS).await.task();
    let long = format!(r#"{{"content":"{}"}}"#, "é".repeat(520 * 1024));
    assert!(long.len() > 1024 * 1024);
    report(&mut grpc, &task, &long).await;
    let stored = results(&app, &task).await;
    assert_eq!(stored[0].1, "succeeded");
    assert!(
        (1024 * 1024 - 1..=1024 * 1024).contains(&stored[0].2.len()),
        "{}",
        stored[0].2.len()
    );
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn result_of_any_size_passes_and_its_outcome_is_stored_up_to_four_mebibytes() {
    const MIB: usize = 1024 * 1024;
    let app = guardrails(On::Sqlite, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    for (size, outcome) in [(3 * MIB, Some("failed")), (4 * MIB + 64 * 1024, None)] {
        let task = request(&mut grpc, LS).await.task();
        let image = "x".repeat(size);
        let result = format!(r#"{{"content":"{image}","isError":true}}"#);
        report(&mut grpc, &task, &result).await;
        let stored = results(&app, &task).await;
        let stored = stored.first().map(|(_, outcome, _)| outcome.as_str());
        assert_eq!(stored, outcome, "{size} bytes");
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn result_that_is_reported_during_the_shutdown_passes_and_is_stored() {
    let mut app = guardrails(On::Sqlite, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    let task = request(&mut grpc, LS).await.task();
    // The shutdown lasts until this call of a tool of the service has ended.
    let tool = app.tool.clone();
    tool.close();
    let mut agent = Grpc::to(&app).await;
    TaskTracker::new().spawn(async move {
        let key = format!("Bearer {}", gate::AGENT);
        let headers = [
            ("content-type", "application/json"),
            ("authorization", key.as_str()),
        ];
        let body = json!({"gate": "refunds", "tool": "tag", "arguments": {"text": "slow"}});
        let body = body.to_string();
        let _ = agent.send("/v1/gate/calls", &headers, body).await;
    });
    tool.reached(1).await;
    let reports = async {
        let check = message(&["up"], "tools/call", LS, "alice");
        // The service refuses checks as soon as the shutdown has begun.
        while grpc.call(REQUEST, EDGE, &check).await.status != Some(14) {
            crate::support::pause().await;
        }
        report(&mut grpc, &task, DONE).await;
        tool.open();
    };
    tokio::join!(app.restart(), reports);
    let stored = results(&app, &task).await;
    assert_eq!(stored, [result("tool_result", "succeeded", DONE)]);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn report_that_cannot_be_read_or_does_not_arrive_in_time_lets_the_result_pass() {
    let app = guardrails(On::Sqlite, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    let usual = ("te", "trailers");
    let whole = framed(&response("", DONE));
    send_report(&mut grpc, usual, framed(&[0x80])).await;
    send_report(&mut grpc, usual, [whole.clone(), whole.clone()].concat()).await;
    send_report(&mut grpc, ("grpc-encoding", "gzip"), whole.clone()).await;
    send_report(&mut grpc, ("grpc-timeout", "soon"), whole.clone()).await;
    let beginning = stream::iter([Ok::<_, Infallible>(whole[..9].to_vec())]);
    let stalled = Body::from_stream(beginning.chain(stream::pending()));
    send_report(&mut grpc, ("grpc-timeout", "1S"), stalled).await;
    app.stop().await;
}

/// A lock of the test keeps the database from answering before the gateway's deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn result_passes_in_time_and_its_outcome_is_stored_once_the_database_answers() {
    let database = Database::postgres().await;
    let mut app = TestApp::at_with(database.url(), &guardrails_yaml(REQUIRED)).await;
    app.restart_with(|yaml| yaml.replace("statement_timeout: 2s", "statement_timeout: 1h"))
        .await;
    let mut grpc = Grpc::to(&app).await;
    let task = request(&mut grpc, LS).await.task();
    let mut locking = PgConnection::connect(database.url()).await.unwrap();
    locking
        .execute("begin; lock table agent_task in access exclusive mode")
        .await
        .unwrap();
    let sent = framed(&response(&task, DONE));
    send_report(&mut grpc, ("grpc-timeout", "1S"), sent).await;
    locking.execute("rollback").await.unwrap();
    let stored = [result("tool_result", "succeeded", DONE)];
    let is_stored = async || results(&app, &task).await == stored;
    crate::support::until("the outcome is stored", is_stored).await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn report_about_no_call_of_this_gateway_changes_nothing() {
    let app = guardrails(On::Sqlite, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    let body = json!({"gate": "other", "tool": "Bash", "arguments": {"command": "ls"}});
    let foreign = gate::ask(&app, &body, 0).await.str("/task_id");
    let own = request(&mut grpc, LS).await.task();
    for task in [
        "",
        "nonsense",
        "00000000-0000-7000-8000-000000000000",
        &foreign,
    ] {
        report(&mut grpc, task, DONE).await;
    }
    // A report whose key may not speak for the owner of the call changes nothing.
    report_as(&mut grpc, gate::CAROLS_AGENT, &own, DONE).await;
    // Reports with another method, or with a task id that is not a string, change nothing.
    let list = [
        field(2, b"tools/list"),
        response(&own, DONE)[4 + 12..].to_vec(),
    ]
    .concat();
    assert_eq!(grpc.call(RESPONSE, EDGE, &list).await.status, Some(0));
    let number = [
        field(2, b"tools/call"),
        field(
            3,
            &field(1, &pair("holdpoint_call", &[0x11, 0, 0, 0, 0, 0, 0, 0, 0])),
        ),
    ]
    .concat();
    assert_eq!(grpc.call(RESPONSE, EDGE, &number).await.status, Some(0));
    for task in [&foreign, &own] {
        assert_eq!(results(&app, task).await, [], "{task}");
    }
    app.stop().await;
}

/// Returns the ids of the tasks in the log's warnings about reports that were not stored. Asserts
/// that each warning has a reason.
fn unstored(folder: &Path) -> Vec<String> {
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let warnings = lines
        .filter(|line| line["message"] == "the outcome that a gateway reported was not stored");
    let task = |line: Value| {
        let reason = line["error"].as_str().unwrap_or_default();
        assert!(!reason.is_empty(), "{line}");
        line["task"].as_str().unwrap().to_owned()
    };
    warnings.map(task).collect()
}

/// At a gate with `record: held`, a call without a task may have been only counted. Its report is
/// then not due, so it is no warning.
#[tokio::test(flavor = "multi_thread")]
async fn report_that_is_not_stored_is_a_warning_unless_its_call_may_have_been_counted() {
    const MISSING: &str = "00000000-0000-7000-8000-000000000000";
    for (record, is_due) in [("all", true), ("held", false)] {
        let folder = tempfile::tempdir().unwrap();
        let yaml = guardrails_yaml(&format!("record: {record}\n    {REQUIRED}"))
            .replace("{model}", "http://127.0.0.1:9")
            .replace("{tool}", "http://127.0.0.1:9");
        let mut binary = start(folder.path(), &yaml);
        let url = address(folder.path(), &mut binary).await;
        let mut grpc = Grpc::at(&url).await;
        let own = request(&mut grpc, LS).await.task();
        let body = json!({"gate": "other", "tool": "Bash", "arguments": {"command": "ls"}});
        let asked = http_client()
            .post(format!("{url}/v1/gate/calls"))
            .bearer_auth(gate::AGENT)
            .json(&body);
        let asked: Value = asked.send().await.unwrap().json().await.unwrap();
        let foreign = asked["task_id"].as_str().unwrap().to_owned();
        for task in ["", "nonsense", MISSING, &foreign] {
            report(&mut grpc, task, DONE).await;
        }
        // This key may not speak for the owner of the call.
        report_as(&mut grpc, gate::CAROLS_AGENT, &own, DONE).await;
        let elsewhere = ("holdpoint-gate", "other");
        send_report(&mut grpc, elsewhere, framed(&response(&own, DONE))).await;
        let missing = is_due.then(|| MISSING.to_owned());
        let expected: Vec<String> = missing
            .into_iter()
            .chain([foreign, own.clone(), own])
            .collect();
        let is_logged = async || unstored(folder.path()).len() >= expected.len();
        crate::support::until("the warnings are logged", is_logged).await;
        assert_eq!(unstored(folder.path()), expected, "{record}");
    }
}
