//! Tests of clients that cancel a call that waits, and of clients that wait at a shutdown.

use holdpoint::task::time::Time;
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    about, answer, answer_task, asker_until, call, newest, older, post, post_as, refund,
    result_text, with_state,
};
use crate::api::gate::{AGENT, gate};
use crate::support::test_app::{Actor, On, TestApp};
use crate::support::{eventually, until};

/// Returns the messages of an event stream, given the response's content type and body.
pub(super) fn messages(content_type: &str, text: &str) -> Vec<Value> {
    assert!(content_type.starts_with("text/event-stream"), "{text}");
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Waits until the approver has a pending request. Returns the first of the pending requests.
pub(super) async fn until_held(app: &TestApp) -> Value {
    let first = async || {
        let inbox = app.approver().get("/v1/requests?status=pending").await;
        inbox.body["requests"].get(0).cloned()
    };
    eventually("the approver has a request", first).await
}

/// Cancels the JSON-RPC request with the id `seven`.
async fn cancel(actor: &Actor<'_>) {
    let params = json!({"requestId": "seven", "reason": "no time"});
    let message = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
    let reply = actor.post("/mcp/refunds", &message).await;
    assert_eq!(reply.status, 202, "{}", reply.text);
}

#[tokio::test]
async fn canceled_request_gets_no_answer_and_its_approval_waits_for_the_next_call() {
    let app = gate(On::Sqlite, "").await;
    let mut message = older("tools/call", &refund(120));
    message["id"] = json!("seven");
    let leaves = async {
        let request = until_held(&app).await;
        cancel(&app.actor(AGENT)).await;
        request["task_id"].as_str().unwrap().to_owned()
    };
    let (reply, task) = tokio::join!(post(&app, "60", &message), leaves);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let said = messages(reply.header("content-type"), &reply.text);
    assert_eq!(said, Vec::<Value>::new(), "{}", reply.text);
    // Only after its reply, the service stores that the client no longer waits: it stores time 0.
    let is_stored = async || asker_until(&app, &task).await == Some(Time(0));
    until("the client counts as gone", is_stored).await;
    let held = call(&app, "0", &refund(120)).await;
    assert_eq!(about(&held)["state"], "pending");
    answer(&app, &held, &json!({"action": "approve"})).await;
    assert_eq!(app.tool.count(), 0);
    call(&app, "10", &refund(120)).await;
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[tokio::test]
async fn cancellation_ends_no_wait_for_an_equal_id_in_another_session() {
    let app = gate(On::Sqlite, "").await;
    let mut message = older("tools/call", &refund(120));
    message["id"] = json!("seven");
    let agent = |session: &str| {
        let agent = app.actor(AGENT).prefer("wait=60");
        agent.header("holdpoint-session", session)
    };
    let leaves = async {
        let both_wait = async || {
            let inbox = app.approver().get("/v1/requests?status=pending").await;
            let requests = inbox.body["requests"].as_array().unwrap();
            let mut stays = requests.iter().filter(|one| one["session_id"] == "stays");
            stays.next().filter(|_| requests.len() == 2).cloned()
        };
        let request = eventually("both calls wait", both_wait).await;
        cancel(&agent("leaves")).await;
        let id = request["request_id"].as_str().unwrap();
        let approver = app.approver().prefer("wait=0");
        approver.approve(id).await;
    };
    let (left, stayed) = (agent("leaves"), agent("stays"));
    let (_, reply, ()) = tokio::join!(post_as(left, &message), post_as(stayed, &message), leaves);
    assert_eq!(result_text(&reply), ("{\"ok\":true}".to_owned(), false));
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_of_the_newest_revision_continues_its_call_after_a_restart_of_the_service() {
    let mut app = gate(On::Sqlite, "").await;
    let message = newest("tools/call", refund(120));
    let body = Some(("application/json", message.to_string().into_bytes()));
    // The response is an event stream. Its head arrives while the call still waits.
    let waiting = app
        .actor(AGENT)
        .prefer("wait=300")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", "refund")
        .sent(Method::POST, "/mcp/refunds", body)
        .await;
    let request = until_held(&app).await;
    let (text, ()) = tokio::join!(waiting.text(), app.restart());
    let said = messages("text/event-stream", &text.unwrap());
    let [told] = said.as_slice() else {
        panic!("one answer: {said:?}")
    };
    let result = &told["result"];
    assert_eq!(result["resultType"], "input_required", "{told}");
    answer_task(
        &app,
        request["task_id"].as_str().unwrap(),
        &json!({"action": "approve"}),
    )
    .await;
    let done = with_state(&app, &result["requestState"], 120, "10").await;
    assert_eq!(result_text(&done), ("{\"ok\":true}".to_owned(), false));
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}
