//! Tests of the event stream of a call that waits, and of clients that cancel.

use std::time::Duration;

use holdpoint::task::time::Time;
use reqwest::Method;
use serde_json::{Value, json};

use super::repeats::asker_until;
use super::{about, answer, call, older, post, post_as, refund, told};
use crate::api::gate::{AGENT, gate, yaml};
use crate::support::leaping_clock::Leaping;
use crate::support::test_app::{Actor, On, TestApp};
use crate::support::{eventually, until};

/// Returns the messages of an event stream, given the response's content type and body.
fn messages(content_type: &str, text: &str) -> Vec<Value> {
    assert!(content_type.starts_with("text/event-stream"), "{text}");
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Waits until the approver has a pending request, and returns the first one.
pub(super) async fn until_held(app: &TestApp) -> Value {
    let first = async || {
        let inbox = app.approver().get("/v1/requests?status=pending").await;
        inbox.body["requests"].get(0).cloned()
    };
    eventually("the approver has a request", first).await
}

#[tokio::test]
async fn call_that_waits_is_a_stream_with_comments_and_progress_and_then_its_result() {
    let clock = Leaping::new();
    let app = TestApp::timed(On::Sqlite, &yaml(""), clock.clone()).await;
    let mut params = refund(120);
    params["_meta"] = json!({"progressToken": "t1"});
    let body = older("tools/call", &params).to_string().into_bytes();
    let agent = app.actor(AGENT).header("prefer", "wait=300");
    let body = Some(("application/json", body));
    let held = async {
        let request = until_held(&app).await;
        clock.leap(Duration::from_secs(2));
        request
    };
    let (mut response, request) =
        tokio::join!(agent.sent(Method::POST, "/mcp/refunds", body), held);
    let content_type = response.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    // The waiting call reads the request a moment after it is stored. Until then, its progress
    // message is "The call is under way."
    let (under_way, waiting) = ("The call is under way.", "Waiting for finance to approve.");
    let mut text = String::new();
    while !text.contains(waiting) {
        clock.leap(Duration::from_secs(16));
        let chunk = response.chunk().await.unwrap().expect("it goes on");
        text += &String::from_utf8_lossy(&chunk);
    }
    let path = format!(
        "/resume/{}/approve",
        request["request_id"].as_str().unwrap()
    );
    app.approver().header("prefer", "wait=0").hit(&path).await;
    while let Some(chunk) = response.chunk().await.unwrap() {
        text += &String::from_utf8_lossy(&chunk);
    }
    assert!(text.starts_with(":\n\n"), "{text}");
    let messages = messages(&content_type, &text);
    let (result, steps) = messages.split_last().unwrap();
    assert_eq!(result["result"]["content"][0]["text"], "{\"ok\":true}");
    let mut is_waiting = false;
    for (number, step) in (1..).zip(steps) {
        is_waiting |= step["params"]["message"] == waiting;
        let message = if is_waiting { waiting } else { under_way };
        let params = json!({"progressToken": "t1", "progress": number, "message": message});
        assert_eq!(
            *step,
            json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        );
    }
    assert!(is_waiting, "{text}");
    app.stop().await;
}

/// Cancels the request whose id is `seven`.
async fn cancel(actor: &Actor<'_>) {
    let params = json!({"requestId": "seven", "reason": "no time"});
    let message = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
    let body = Some(("application/json", message.to_string()));
    let reply = actor.send(Method::POST, "/mcp/refunds", body).await;
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
    // A moment after the reply, the service stores that the client has left.
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
        let agent = app.actor(AGENT).header("prefer", "wait=60");
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
        let approver = app.approver().header("prefer", "wait=0");
        approver.hit(&format!("/resume/{id}/approve")).await;
    };
    let (left, stayed) = (agent("leaves"), agent("stays"));
    let (_, reply, ()) = tokio::join!(post_as(left, &message), post_as(stayed, &message), leaves);
    assert_eq!(told(&reply), ("{\"ok\":true}".to_owned(), false));
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}
