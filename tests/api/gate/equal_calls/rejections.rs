//! Tests that a rejection answers equal calls for a time, unless a newer decision lifts it.

use std::time::Duration;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::{answer_as, ask_by_key, assert_call, decide, gate, refund, yaml};
use crate::api::approval_cycle::on_both;
use crate::support::test_app::{On, Reply, TestApp};
use crate::support::test_clock::TestClock;

async fn reject(app: &TestApp, call: &Reply) {
    let request = call.str("/request/request_id");
    let answer = json!({"action": "reject"});
    let reply = app.approver().answer(&request, &answer).await;
    assert_eq!(reply.str("/status"), "Canceled", "{}", reply.text);
}

#[apply(on_both)]
async fn newest_decision_about_equal_calls_counts_and_not_the_last_end(on: On) {
    let app = gate(on, "").await;
    // A rejection still holds after an equal call is canceled.
    let rejected = ask_by_key(&app, "a1", &refund(120), 0).await;
    let canceled = ask_by_key(&app, "a2", &refund(120), 0).await;
    reject(&app, &rejected).await;
    let path = format!("/v1/tasks/{}/cancel", canceled.str("/task_id"));
    assert_eq!(app.owner().hit(&path).await.str("/status"), "Canceled");
    let again = ask_by_key(&app, "a3", &refund(120), 5).await;
    assert_call(&again, 200, "deny", "settled", "rejected");
    // A rejection also still holds if an equal call was approved before the rejection and runs
    // after the rejection.
    let approved = ask_by_key(&app, "b1", &refund(130), 0).await;
    let rejected = ask_by_key(&app, "b2", &refund(130), 0).await;
    decide(&app, &approved, "approve").await;
    reject(&app, &rejected).await;
    let ran = ask_by_key(&app, "b1", &refund(130), 10).await;
    assert_call(&ran, 200, "allow", "settled", "succeeded");
    let again = ask_by_key(&app, "b3", &refund(130), 5).await;
    assert_call(&again, 200, "deny", "settled", "rejected");
    // A rejection no longer holds once an equal call is approved after the rejection.
    let approved = ask_by_key(&app, "c1", &refund(140), 0).await;
    let rejected = ask_by_key(&app, "c2", &refund(140), 0).await;
    reject(&app, &rejected).await;
    decide(&app, &approved, "approve").await;
    let ran = ask_by_key(&app, "c1", &refund(140), 10).await;
    assert_call(&ran, 200, "allow", "settled", "succeeded");
    let again = ask_by_key(&app, "c3", &refund(140), 0).await;
    assert_call(&again, 202, "pending", "pending", Value::Null);
    assert_eq!(app.tool.count(), 2);
    // An approval with edited arguments does not end the rejection of the original arguments.
    let edited = ask_by_key(&app, "d1", &refund(150), 0).await;
    let rejected = ask_by_key(&app, "d2", &refund(150), 0).await;
    reject(&app, &rejected).await;
    let call = edited.str("/request/tool_calls/0/tool_call_id");
    let mut decisions = serde_json::Map::new();
    decisions.insert(
        call,
        json!({"action": "edit", "arguments": {"order": 17, "amount": 20}}),
    );
    answer_as(app.approver(), &edited, &json!({"decisions": decisions})).await;
    let ran = ask_by_key(&app, "d1", &refund(150), 10).await;
    assert_call(&ran, 200, "allow", "settled", "succeeded");
    let again = ask_by_key(&app, "d3", &refund(150), 5).await;
    assert_call(&again, 200, "deny", "settled", "rejected");
    app.stop().await;
}

#[apply(on_both)]
async fn rejection_answers_no_other_call_where_no_lasts_is_zero(on: On) {
    let app = gate(on, "no_lasts: 0s").await;
    let rejected = ask_by_key(&app, "k1", &refund(120), 0).await;
    reject(&app, &rejected).await;
    let next = ask_by_key(&app, "k2", &refund(120), 0).await;
    assert_call(&next, 202, "pending", "pending", Value::Null);
    app.stop().await;
}

/// The test runs on `SQLite`, where the service compares the time with the clock that the test
/// moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejection_answers_the_same_call_for_ten_minutes_and_not_longer() {
    let clock = TestClock::new();
    let app = TestApp::timed(On::Sqlite, &yaml(""), clock.clone()).await;
    let rejected = ask_by_key(&app, "k1", &refund(120), 0).await;
    reject(&app, &rejected).await;
    clock.advance(Duration::from_mins(9));
    let within = ask_by_key(&app, "k2", &refund(120), 5).await;
    assert_call(&within, 200, "deny", "settled", "rejected");
    // The answer to the second call is the service's own and not a decision of a person. So it does
    // not prolong the ten minutes for which the rejection counts.
    clock.advance(Duration::from_mins(2));
    let after = ask_by_key(&app, "k3", &refund(120), 0).await;
    assert_call(&after, 202, "pending", "pending", Value::Null);
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}
