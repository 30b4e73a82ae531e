//! Tests permits. A permit is given to a single runner, and it runs out. A new attempt of a call
//! gets a new permit.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::{
    AGENT, answer_as, ask, ask_as, ask_by_key, assert_call, bash, call_summary, decide_as, gate,
    items, yaml,
};
use super::{read_call, report};
use crate::api::approval_cycle::on_both;
use crate::support::test_app::{On, TestApp};

#[apply(on_both)]
async fn permit_is_given_to_one_runner(on: On) {
    let app = gate(on, "").await;
    let held = ask_by_key(&app, "k1", &bash("make"), 0).await;
    decide_as(app.owner(), &held, "approve").await;
    let runner = |name: &str| {
        app.actor(AGENT)
            .keyed("k1")
            .header("holdpoint-runner", name)
    };
    let first = ask_as(runner("r1"), &bash("make"), 5).await;
    assert_call(&first, 200, "allow", "started", Value::Null);
    assert!(first.body["permit"].is_object());
    let again = ask_as(runner("r1"), &bash("make"), 5).await;
    assert_eq!(
        (call_summary(&again), again.header("idempotency-replayed")),
        (call_summary(&first), "true")
    );
    assert_eq!(
        again.body["permit"]["attempt"],
        first.body["permit"]["attempt"]
    );
    for other in [runner("r2"), app.actor(AGENT).keyed("k1")] {
        let refused = ask_as(other, &bash("make"), 0).await;
        refused.assert_code(409, "call_in_hand");
        let end = refused.str("/call/expires_at");
        assert_eq!(
            refused.str("/detail"),
            format!("Another runner has the permit of this call until {end}.")
        );
        assert_eq!(
            (
                refused.str("/call/state").as_str(),
                &refused.body["call"]["permit"]
            ),
            ("started", &Value::Null)
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn permit_that_runs_out_makes_a_once_call_doubtful_and_its_report_answers(on: On) {
    // `run_within` is so long that the permit is still valid when the service answers, even on
    // a busy machine.
    let app = gate(on, "run_within: 5s").await;
    let call = ask(&app, &bash("ls"), 5).await;
    assert_call(&call, 200, "allow", "started", Value::Null);
    let mut now = read_call(&app, &call, 0).await;
    while now.str("/state") == "started" {
        now = read_call(&app, &call, 1).await;
    }
    assert_call(&now, 200, "pending", "doubtful", Value::Null);
    assert_eq!(now.str("/request/kind"), "reconcile");
    let details = &now.body["request"]["details"];
    let problem = "The caller was given leave to run the call and reported no outcome in time.";
    assert_eq!(
        (&details["problem"], &details["replica"]),
        (&json!(problem), &json!("elsewhere")),
        "{}",
        now.text
    );
    let second = ask(&app, &bash("ls"), 0).await;
    assert_ne!(second.str("/task_id"), call.str("/task_id"));
    assert_eq!(second.str("/decision"), "pending", "{}", second.text);
    let done = report(
        &app,
        &json!({"task_id": call.str("/task_id"), "outcome": "succeeded", "content": {"n": [1]}}),
    )
    .await;
    assert_call(&done, 200, "allow", "settled", "succeeded");
    let all = items(&app, &call).await;
    let closed = all
        .iter()
        .find(|item| item["type"] == "request_closed")
        .unwrap();
    assert_eq!(closed["reason"], "answered_late");
    assert_eq!(
        all.iter()
            .find(|item| item["type"] == "tool_result")
            .unwrap()["content"],
        "{\"n\":[1]}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn ask_without_a_key_gets_the_attempt_that_a_person_has_approved(on: On) {
    let app = gate(on, "").await;
    let call = ask(&app, &bash("ls"), 5).await;
    assert_call(&call, 200, "allow", "started", Value::Null);
    assert_eq!(call.body["permit"]["attempt"], 1);
    // While the permit of a call is in use, a proposal of an equal call begins a new call.
    let beside = ask(&app, &bash("ls"), 0).await;
    assert_call(&beside, 202, "pending", "pending", Value::Null);
    assert_ne!(beside.str("/task_id"), call.str("/task_id"));
    assert!(
        beside
            .str("/reason")
            .contains("The same call is being run."),
        "{}",
        beside.text
    );
    let unknown = report(
        &app,
        &json!({"task_id": call.str("/task_id"), "outcome": "unknown"}),
    )
    .await;
    answer_as(app.owner(), &unknown, &json!({"action": "retry"})).await;
    // A second report about the first attempt does not undo the decision `retry`. The service
    // would not store an identical report again, so this report adds a content.
    let other =
        json!({"task_id": call.str("/task_id"), "outcome": "unknown", "content": "no answer"});
    let again = report(&app, &other).await;
    again.assert_text(200, "/state", "approved");
    let second = ask(&app, &bash("ls"), 5).await;
    assert_eq!(
        (second.str("/task_id"), &second.body["permit"]["attempt"]),
        (call.str("/task_id"), &json!(2)),
        "{}",
        second.text
    );
    // The permit of the second attempt is in use, so this equal proposal begins a new call.
    let third = ask(&app, &bash("ls"), 0).await;
    assert_ne!(third.str("/task_id"), call.str("/task_id"));
    assert_eq!(
        (third.status, &third.body["permit"]),
        (202, &Value::Null),
        "{}",
        third.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn ask_without_a_key_gets_another_attempt_of_a_repeatable_call(on: On) {
    let all = yaml("");
    let held = all.replacen(
        "tools: [Read], decide: allow",
        "tools: [Read], decide: hold, approvers: { owner: true }",
        1,
    );
    assert_ne!(held, all);
    let app = TestApp::with(on, &held).await;
    let body = json!({"tool": "Read", "arguments": {"path": "a"}});
    let call = ask(&app, &body, 0).await;
    decide_as(app.owner(), &call, "approve").await;
    for attempt in [1, 2] {
        let permitted = ask(&app, &body, 5).await;
        assert_eq!(
            (
                permitted.str("/task_id"),
                &permitted.body["permit"]["attempt"]
            ),
            (call.str("/task_id"), &json!(attempt)),
            "{}",
            permitted.text
        );
        let given_back = report(
            &app,
            &json!({"task_id": call.str("/task_id"), "outcome": "unknown"}),
        )
        .await;
        assert_eq!(given_back.str("/state"), "started", "{}", given_back.text);
    }
    app.stop().await;
}
