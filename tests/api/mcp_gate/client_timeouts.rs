//! Tests approvals for MCP clients that time out, with one test for each demand of the issue
//! gridctl/gridctl#1150: progress while a call is held; the pending state as the answer if the wait
//! ends without a decision; a retry that attaches to the pending call or gets its settled outcome.
//! The service differs from the issue in two points. The pending state is an error (`isError`),
//! because clients reject a success without the structured content that the tool's schema demands.
//! A call that equals a call whose client still waits is a new call, because an agent may want to
//! make the same call twice.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::json;

use super::streams::{messages, until_held};
use super::{
    about, answer, asker_until, call, newest, older, post, post_as, refund, result_text, state_of,
    with_state,
};
use crate::api::approval_cycle::on_both;
use crate::api::gate::{AGENT, gate, yaml};
use crate::support::test_app::{On, TestApp};
use crate::support::test_clock::TestClock;

#[tokio::test]
async fn call_is_held_with_progress_notifications_and_runs_when_it_is_approved_in_time() {
    let clock = TestClock::new();
    let app = TestApp::timed(On::Sqlite, &yaml(""), clock.clone()).await;
    let mut params = refund(120);
    params["_meta"] = json!({"progressToken": "t1"});
    let body = older("tools/call", &params).to_string().into_bytes();
    let agent = app.actor(AGENT).prefer("wait=300");
    let body = Some(("application/json", body));
    let held = async {
        let request = until_held(&app).await;
        clock.advance(Duration::from_secs(2));
        request
    };
    let (mut response, request) =
        tokio::join!(agent.sent(Method::POST, "/mcp/refunds", body), held);
    let content_type = response.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    // The waiting call reads the request a moment after the request is stored. Until then, and
    // again after the approval, the call's progress message is "The call is under way."
    let (under_way, waiting) = ("The call is under way.", "Waiting for finance to approve.");
    let mut text = String::new();
    while !text.contains(waiting) {
        clock.advance(Duration::from_secs(16));
        let chunk = response.chunk().await.unwrap().expect("it goes on");
        text += &String::from_utf8_lossy(&chunk);
    }
    let path = format!(
        "/resume/{}/approve",
        request["request_id"].as_str().unwrap()
    );
    app.approver().prefer("wait=0").hit(&path).await;
    while let Some(chunk) = response.chunk().await.unwrap() {
        text += &String::from_utf8_lossy(&chunk);
    }
    assert!(text.starts_with(":\n\n"), "{text}");
    let messages = messages(&content_type, &text);
    let (result, steps) = messages.split_last().unwrap();
    assert_eq!(result["result"]["content"][0]["text"], "{\"ok\":true}");
    for (number, step) in (1..).zip(steps) {
        let message = &step["params"]["message"];
        assert!(*message == waiting || *message == under_way, "{step}");
        let params = json!({"progressToken": "t1", "progress": number, "message": message});
        assert_eq!(
            *step,
            json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn pending_record_has_the_tool_its_server_the_decoded_arguments_the_client_and_its_end(
    on: On,
) {
    let app = gate(on, "").await;
    let held = call(&app, "0", &refund(120)).await;
    let path = format!("/resume/{}", about(&held)["request_id"].as_str().unwrap());
    let record = app.approver().get(&path).await;
    let asked = &record.body["tool_calls"][0];
    assert_eq!(
        (&asked["name"], &asked["arguments"]),
        (&json!("refund"), &json!({"order": 17, "amount": 120})),
        "{}",
        record.text
    );
    assert_eq!(asked["target"], format!("POST {}/refund", app.tool.url));
    let task = app.owner().task(&record.str("/task_id")).await;
    assert_eq!(
        (
            task.str("/user_id").as_str(),
            task.str("/session_id").as_str()
        ),
        ("alice", "gate"),
        "{}",
        task.text
    );
    assert!(record.body["expires_at"].is_string(), "{}", record.text);
    assert_eq!(record.body["expires_at"], about(&held)["expires_at"]);
    app.stop().await;
}

#[apply(on_both)]
async fn declined_call_fails_with_the_decision_and_its_rule_named(on: On) {
    let app = gate(on, "").await;
    let mut params = refund(120);
    params["_meta"] = json!({"holdpoint/key": "run-7"});
    let held = call(&app, "0", &params).await;
    answer(
        &app,
        &held,
        &json!({"action": "reject", "reason": "No money."}),
    )
    .await;
    let declined = call(&app, "10", &params).await;
    let (text, is_error) = result_text(&declined);
    assert!(text.contains("rejected: No money.") && is_error, "{text}");
    let named = ["decision", "outcome", "rule"].map(|member| about(&declined)[member].clone());
    assert_eq!(named, [json!("deny"), json!("rejected"), json!("large")]);
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn hold_that_is_over_is_answered_with_the_pending_state_and_its_url_in_meta(on: On) {
    let app = gate(on, "hold: 0s").await;
    let began = Instant::now();
    let held = post_as(app.actor(AGENT), &older("tools/call", &refund(120))).await;
    // With the default `hold` of 45 seconds, the reply would take longer.
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
    let (text, is_error) = result_text(&held);
    assert!(text.starts_with("HELD.") && is_error, "{text}");
    let request = about(&held)["request_id"].as_str().unwrap();
    assert_eq!(
        (&about(&held)["state"], &about(&held)["url"]),
        (
            &json!("pending"),
            &json!(format!("{}/resume/{request}", app.url()))
        )
    );
    assert!(about(&held)["retry_after_ms"].is_u64(), "{}", held.text);
    app.stop().await;
}

#[apply(on_both)]
async fn repeated_identical_calls_attach_to_one_pending_record(on: On) {
    let app = gate(on, "").await;
    let first = call(&app, "0", &refund(120)).await;
    for _ in 0..4 {
        let again = call(&app, "0", &refund(120)).await;
        assert_eq!(
            about(&again)["request_id"],
            about(&first)["request_id"],
            "{}",
            again.text
        );
    }
    let inbox = app.approver().get("/v1/requests?status=pending").await;
    assert_eq!(inbox.count("requests"), 1, "{}", inbox.text);
    app.stop().await;
}

#[apply(on_both)]
async fn simultaneous_retries_consume_the_approved_record_once(on: On) {
    let app = gate(on, "").await;
    let held = call(&app, "0", &refund(120)).await;
    answer(&app, &held, &json!({"action": "approve"})).await;
    let params = refund(120);
    let retries = join_all((0..8).map(|_| call(&app, "0", &params))).await;
    let ran = retries.iter().filter(|retry| !result_text(retry).1).count();
    assert!(ran <= 1, "{ran} retries got the result");
    app.tool.reached(1).await;
    let starts = "select type from agent_task_item where type = 'tool_started'";
    assert_eq!(
        (app.database.texts(starts).await.len(), app.tool.count()),
        (1, 1)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn later_retry_by_its_key_replays_the_settled_outcome(on: On) {
    let app = gate(on, "").await;
    let mut params = refund(120);
    params["_meta"] = json!({"holdpoint/key": "run-7"});
    let held = call(&app, "0", &params).await;
    let account = about(&held);
    for member in [
        "state",
        "task_id",
        "request_id",
        "url",
        "expires_at",
        "retry_after_ms",
    ] {
        assert!(account.get(member).is_some(), "{member}: {}", held.text);
    }
    answer(&app, &held, &json!({"action": "approve"})).await;
    for _ in 0..2 {
        let reply = call(&app, "10", &params).await;
        assert_eq!(result_text(&reply), ("{\"ok\":true}".to_owned(), false));
        assert_eq!(
            (&about(&reply)["by"], &about(&reply)["state"]),
            (&json!(["bob"]), &json!("settled"))
        );
    }
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn client_of_the_newest_revision_comes_back_nine_times_and_then_gets_the_pending_result(
    on: On,
) {
    let app = gate(on, "").await;
    let mut reply = post(&app, "0", &newest("tools/call", refund(120))).await;
    let (_, task) = state_of(&reply);
    let mut until = asker_until(&app, &task).await;
    for repetition in 1..=9 {
        let (state, _) = state_of(&reply);
        assert_eq!(state, format!("hp1.{task}.{repetition}"));
        reply = with_state(&app, &state, 120, "0").await;
        let later = asker_until(&app, &task).await;
        // After the ninth repetition, the service expects no further repetition from the client,
        // so it does not postpone `asker_until`.
        assert_eq!(
            later > until,
            repetition < 9,
            "{repetition}: {later:?} after {until:?}"
        );
        until = later;
    }
    assert!(result_text(&reply).0.starts_with("HELD."), "{}", reply.text);
    assert_eq!(
        (&about(&reply)["state"], &about(&reply)["task_id"]),
        (&json!("pending"), &json!(task))
    );
    app.stop().await;
}
