//! Tests the demands of IBM/mcp-context-forge#5437 for a plugin whose hook `tool_pre_invoke` asks
//! before a gateway invokes a tool. Each demand has one test. The tests ask over REST, as such a
//! plugin does.

use std::time::Duration;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::outcomes::report;
use super::{
    AGENT, ask, ask_by_key, assert_call, bash, call_summary, decide, decide_as, gate, refund, yaml,
};
use crate::api::approval_cycle::on_both;
use crate::support::test_app::{On, TestApp};
use crate::support::test_clock::TestClock;

#[apply(on_both)]
async fn administrator_chooses_which_tools_are_approved_automatically_and_which_by_a_reviewer(
    on: On,
) {
    let mut app = gate(on, "").await;
    let read = json!({"tool": "Read", "arguments": {"path": "a"}});
    let asked = [
        ask(&app, &read, 5).await,
        ask(&app, &bash("make"), 0).await,
        ask(&app, &json!({"tool": "forbidden", "arguments": {}}), 5).await,
    ];
    let decisions = asked.map(|call| (call.str("/decision"), call.body["permit"].is_object()));
    assert_eq!(
        decisions,
        [
            ("allow".to_owned(), true),
            ("pending".to_owned(), false),
            ("deny".to_owned(), false)
        ]
    );
    app.restart_with(|yaml| {
        yaml.replace(
            "tools: [Read], decide: allow",
            "tools: [Read], decide: hold",
        )
    })
    .await;
    let held = ask(&app, &read, 0).await;
    assert_call(&held, 202, "pending", "pending", Value::Null);
    assert_eq!(held.str("/rule"), "files");
    app.stop().await;
}

#[apply(on_both)]
async fn reviewer_sees_the_tool_and_its_parameters_before_the_tool_is_invoked(on: On) {
    let app = gate(on, "").await;
    let held = ask(&app, &refund(120), 0).await;
    let shown = app
        .approver()
        .request(&held.str("/request/request_id"))
        .await;
    let call = &shown.body["tool_calls"][0];
    assert_eq!(
        (&call["name"], &call["arguments"]),
        (&json!("refund"), &json!({"order": 17, "amount": 120})),
        "{}",
        shown.text
    );
    assert_eq!(call["target"], format!("POST {}/refund", app.tool.url));
    assert_eq!(
        (&shown.body["status"], app.tool.count()),
        (&json!("pending"), 0)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn tool_is_invoked_once_and_only_after_its_reviewer_has_approved_it(on: On) {
    let app = gate(on, "").await;
    let ask_again = async |seconds| ask_by_key(&app, "invocation-1", &bash("make"), seconds).await;
    let held = ask_again(0).await;
    let look = app
        .actor(AGENT)
        .get(&format!("/v1/gate/calls/{}", held.str("/task_id")))
        .await;
    for undecided in [&held, &look, &ask_again(0).await] {
        assert_eq!(
            (
                undecided.str("/decision").as_str(),
                &undecided.body["permit"]
            ),
            ("pending", &Value::Null),
            "{}",
            undecided.text
        );
    }
    decide_as(app.owner(), &held, "approve").await;
    let approved = ask_again(5).await;
    assert_call(&approved, 200, "allow", "started", Value::Null);
    assert_eq!(approved.body["permit"]["attempt"], 1);
    assert_eq!(ask_again(0).await.str("/code"), "call_in_hand");
    let done = report(
        &app,
        &json!({"key": "invocation-1", "outcome": "succeeded"}),
    )
    .await;
    assert_call(&done, 200, "allow", "settled", "succeeded");
    let over = ask_again(0).await;
    assert_eq!(
        (call_summary(&over), &over.body["permit"]),
        (call_summary(&done), &Value::Null),
        "{}",
        over.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn tool_that_its_reviewer_rejects_is_not_invoked(on: On) {
    let app = gate(on, "").await;
    let held = ask_by_key(&app, "invocation-1", &refund(120), 0).await;
    decide(&app, &held, "reject").await;
    let rejected = ask_by_key(&app, "invocation-1", &refund(120), 5).await;
    assert_call(&rejected, 200, "deny", "settled", "rejected");
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

/// The test runs on `SQLite`, where the service compares the deadline with the clock that the test
/// moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approval_that_does_not_come_in_time_is_a_denial() {
    let clock = TestClock::new();
    let rule = "name: large, tools: [refund], decide: hold,";
    let yaml = yaml("").replace(rule, &format!("{rule} expires_in: 10m,"));
    let app = TestApp::timed(On::Sqlite, &yaml, clock.clone()).await;
    let held = ask_by_key(&app, "invocation-1", &refund(120), 0).await;
    assert_eq!(held.str("/state"), "pending", "{}", held.text);
    clock.advance(Duration::from_mins(11));
    let expired = ask_by_key(&app, "invocation-1", &refund(120), 30).await;
    assert_call(&expired, 200, "deny", "settled", "expired");
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}
