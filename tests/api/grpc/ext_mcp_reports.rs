//! Tests of the outcomes that agentgateway reports with `CheckResponse`.

use macro_rules_attribute::apply;

use super::ext_mcp::{LS, REQUIRED, RESPONSE, guardrails, request};
use super::*;
use crate::api::approval_cycle::on_both;
use crate::support::test_app::On;

const OPTIONAL: &str = "hold: 0s\n    report: optional\n    ext_authz: { user_header: x-user }";
const DONE: &str = r#"{"content":[{"type":"text","text":"a.txt"}]}"#;

fn response(task: &str, result: &str) -> Vec<u8> {
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

async fn report(grpc: &mut Grpc, task: &str, result: &str) {
    report_as(grpc, EDGE, task, result).await;
}

/// Returns the type, the outcome and the content of each result in a task's journal.
async fn results(app: &TestApp, task: &str) -> Vec<(String, String, String)> {
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
