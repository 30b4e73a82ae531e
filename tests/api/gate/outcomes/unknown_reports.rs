//! Tests reports that the outcome of a call is unknown.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::{answer_as, ask_by_key, assert_call, bash, gate, items, types};
use super::{read_call, report};
use crate::api::approval_cycle::on_both;
use crate::support::test_app::On;

#[apply(on_both)]
async fn unknown_report_of_a_once_call_asks_a_person_and_a_retry_needs_another_ask(on: On) {
    let app = gate(on, "").await;
    let call = ask_by_key(&app, "k1", &bash("ls"), 5).await;
    let unknown = report(&app, &json!({"key": "k1", "outcome": "unknown"})).await;
    assert_call(&unknown, 200, "pending", "doubtful", Value::Null);
    let problem =
        "The caller was given leave to run the call and reported that its outcome is unknown.";
    assert_eq!(
        unknown.str("/request/details/problem"),
        problem,
        "{}",
        unknown.text
    );
    answer_as(app.owner(), &unknown, &json!({"action": "retry"})).await;
    assert_eq!(read_call(&app, &call, 0).await.str("/state"), "approved");
    let second = ask_by_key(&app, "k1", &bash("ls"), 5).await;
    assert_call(&second, 200, "allow", "started", Value::Null);
    assert_eq!(second.body["permit"]["attempt"], 2);
    let old = report(
        &app,
        &json!({"key": "k1", "attempt": 1, "outcome": "succeeded"}),
    )
    .await;
    old.assert_text(422, "/errors/0/pointer", "/attempt");
    app.stop().await;
}

#[apply(on_both)]
async fn unknown_report_of_a_repeatable_call_gives_another_attempt_at_the_next_ask(on: On) {
    let app = gate(on, "").await;
    let body = json!({"tool": "Read", "arguments": {"path": "a"}});
    let call = ask_by_key(&app, "k1", &body, 5).await;
    assert_call(&call, 200, "allow", "started", Value::Null);
    let given_back = report(&app, &json!({"key": "k1", "outcome": "unknown"})).await;
    assert_eq!(given_back.str("/state"), "started", "{}", given_back.text);
    for attempt in [2, 3] {
        let again = ask_by_key(&app, "k1", &body, 5).await;
        assert_eq!(
            again.body["permit"]["attempt"],
            json!(attempt),
            "{}",
            again.text
        );
        report(&app, &json!({"key": "k1", "outcome": "unknown"})).await;
    }
    let over = ask_by_key(&app, "k1", &body, 5).await;
    assert_call(&over, 200, "allow", "settled", "failed");
    app.stop().await;
}

#[apply(on_both)]
async fn first_report_of_a_call_that_the_service_gave_up_is_kept_as_a_late_result(on: On) {
    let app = gate(on, "").await;
    let body = json!({"tool": "Read", "arguments": {"path": "a"}});
    for attempt in [1, 2, 3] {
        let permitted = ask_by_key(&app, "k1", &body, 5).await;
        assert_eq!(
            permitted.body["permit"]["attempt"],
            json!(attempt),
            "{}",
            permitted.text
        );
        report(&app, &json!({"key": "k1", "outcome": "unknown"})).await;
    }
    let over = ask_by_key(&app, "k1", &body, 5).await;
    assert_call(&over, 200, "allow", "settled", "failed");
    let late = json!({"key": "k1", "attempt": 3, "outcome": "succeeded", "content": "a.txt"});
    for _ in 0..2 {
        let kept = report(&app, &late).await;
        assert_call(&kept, 200, "allow", "settled", "failed");
    }
    let other = report(&app, &json!({"key": "k1", "outcome": "failed"})).await;
    other.assert_code(409, "call_settled");
    let all = items(&app, &over).await;
    let ends = all
        .iter()
        .filter(|item| matches!(item["outcome"].as_str(), Some("failed" | "succeeded")));
    let ends: Vec<_> = ends
        .map(|item| (item["type"].as_str(), item["content"].as_str()))
        .collect();
    let given_up = "There was no answer in 3 attempts. The call may have taken effect.";
    assert_eq!(
        ends,
        [
            (Some("tool_result"), Some(given_up)),
            (Some("late_result"), Some("a.txt"))
        ]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn unknown_report_of_a_call_with_another_outcome_is_refused(on: On) {
    let app = gate(on, "").await;
    let call = ask_by_key(&app, "k1", &bash("ls"), 5).await;
    let done = json!({"key": "k1", "outcome": "succeeded", "content": "a.txt"});
    assert_eq!(report(&app, &done).await.status, 200);
    for _ in 0..2 {
        let unknown = report(&app, &json!({"key": "k1", "outcome": "unknown"})).await;
        unknown.assert_code(409, "call_settled");
    }
    assert_eq!(report(&app, &done).await.status, 200);
    assert_eq!(items(&app, &call).await.len(), 7);
    app.stop().await;
}

#[apply(on_both)]
async fn unknown_report_of_a_released_call_is_kept_until_its_outcome_is_reported(on: On) {
    let app = gate(on, "report: optional").await;
    let call = ask_by_key(&app, "k1", &bash("ls"), 5).await;
    let unknown = json!({"key": "k1", "outcome": "unknown"});
    for _ in 0..2 {
        let kept = report(&app, &unknown).await;
        assert_call(&kept, 200, "allow", "settled", "released");
    }
    let other = report(
        &app,
        &json!({"key": "k1", "outcome": "unknown", "content": "lost"}),
    )
    .await;
    let known = report(&app, &json!({"key": "k1", "outcome": "succeeded"})).await;
    let again = report(&app, &unknown).await;
    assert_eq!(
        (other.status, known.status, again.status),
        (409, 200, 200),
        "{} {}",
        known.text,
        again.text
    );
    let all = items(&app, &call).await;
    assert_eq!(
        types(&all)[4..],
        [
            "tool_started",
            "tool_result",
            "task_status",
            "late_result",
            "late_result"
        ]
    );
    assert_eq!(
        (&all[7]["outcome"], &all[8]["outcome"]),
        (&json!("unknown"), &json!("succeeded"))
    );
    app.stop().await;
}
