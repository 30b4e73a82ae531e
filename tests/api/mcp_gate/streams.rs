//! Tests of the event stream of a call that waits, and of clients that cancel.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{about, answer, call, older, post, refund};
use crate::api::gate::{AGENT, gate, yaml};
use crate::support::leaping_clock::Leaping;
use crate::support::test_app::{On, Reply, TestApp};

fn messages(reply: &Reply) -> Vec<Value> {
    assert!(
        reply
            .header("content-type")
            .starts_with("text/event-stream"),
        "{}",
        reply.text
    );
    let lines = reply
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Waits until the approver has a pending request, and returns the first one.
async fn until_held(app: &TestApp) -> Value {
    loop {
        let inbox = app.approver().get("/v1/requests?status=pending").await;
        if let Some(request) = inbox.body["requests"].get(0) {
            return request.clone();
        }
        crate::support::pause().await;
    }
}

#[tokio::test]
async fn call_that_waits_is_a_stream_with_comments_and_progress_and_then_its_result() {
    let clock = Leaping::new();
    let app = TestApp::timed(On::Sqlite, &yaml(""), clock.clone()).await;
    let mut params = refund(120);
    params["_meta"] = json!({"progressToken": "t1"});
    let message = older("tools/call", &params);
    let person = async {
        let request = until_held(&app).await;
        clock.leap(Duration::from_secs(2));
        clock.leap(Duration::from_secs(16));
        let path = format!(
            "/resume/{}/approve",
            request["request_id"].as_str().unwrap()
        );
        app.approver().header("prefer", "wait=0").hit(&path).await;
    };
    let (reply, ()) = tokio::join!(post(&app, "60", &message), person);
    assert!(reply.text.starts_with(":\n\n"), "{}", reply.text);
    let messages = messages(&reply);
    let (result, steps) = messages.split_last().unwrap();
    assert_eq!(result["result"]["content"][0]["text"], "{\"ok\":true}");
    assert!(!steps.is_empty(), "{}", reply.text);
    for (number, step) in (1..).zip(steps) {
        let params = json!({
            "progressToken": "t1", "progress": number, "message": "Waiting for finance to approve.",
        });
        assert_eq!(
            *step,
            json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        );
    }
    app.stop().await;
}

#[tokio::test]
async fn canceled_request_gets_no_answer_and_its_approval_waits_for_the_next_call() {
    let app = gate(On::Sqlite, "").await;
    let mut message = older("tools/call", &refund(120));
    message["id"] = json!("seven");
    let leaves = async {
        until_held(&app).await;
        let params = json!({"requestId": "seven", "reason": "no time"});
        let told = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        let body = Some(("application/json", told.to_string()));
        app.actor(AGENT)
            .send(Method::POST, "/mcp/refunds", body)
            .await
    };
    let (reply, told) = tokio::join!(post(&app, "60", &message), leaves);
    assert_eq!((told.status, reply.status), (202, 200));
    assert_eq!(messages(&reply), Vec::<Value>::new(), "{}", reply.text);
    let held = call(&app, "0", &refund(120)).await;
    assert_eq!(about(&held)["state"], "pending");
    answer(&app, &held, &json!({"action": "approve"})).await;
    assert_eq!(app.tool.count(), 0);
    call(&app, "10", &refund(120)).await;
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}
