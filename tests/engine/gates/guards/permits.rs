//! Tests permits: their end, the permit of the next attempt, rules that deny a permit, and tools
//! that begin or cease to need a permit.

use std::time::Duration;

use holdpoint::engine::gate::{GateDecision, GateState, Identity, Proposal, ReportedOutcome};
use holdpoint::task::item::Outcome;
use holdpoint::task::request::RequestKind;
use macro_rules_attribute::apply;

use super::super::failures::{by_key, in_doubt, reported};
use super::super::{
    LONG, approve, approved, asking_by, asks, bash, harness, refund, until_at_rest, until_open,
};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn permit_that_is_over_is_not_answered_again(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let one = |wait| by_key("k", Some("r1"), bash(wait));
    approved(&harness, &engine, &one(Duration::ZERO)).await;
    for _ in 0..2 {
        let permit = asks(&engine, &one(LONG)).await.permit;
        assert_eq!(permit.map(|permit| permit.attempt), Some(1));
    }
    harness.fixture.forward(Duration::from_mins(11));
    let over = in_doubt(&harness, &engine, one(Duration::from_secs(1))).await;
    assert_eq!(
        (over.state, over.decision, over.permit),
        (GateState::OutcomeUnknown, GateDecision::Pending, None)
    );
}

#[apply(both)]
async fn equal_ask_gets_the_next_attempt_of_a_repeatable_call_whose_permit_is_over(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    harness.configure(|yaml| {
        yaml.replacen("Bash: { external", "Bash: { effect: read_only, external", 1)
    });
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    let first = asks(&engine, &bash(LONG)).await;
    assert_eq!(first.task_id, task);
    assert_eq!(first.permit.map(|permit| permit.attempt), Some(1));
    let beside = asks(&engine, &bash(Duration::ZERO)).await;
    assert_ne!(beside.task_id, task);
    assert!(
        beside
            .reason
            .unwrap()
            .contains("The same call is being run.")
    );
    harness.fixture.forward(Duration::from_mins(11));
    let second = asks(&engine, &bash(LONG)).await;
    assert_eq!(second.task_id, task);
    assert_eq!(second.permit.map(|permit| permit.attempt), Some(2));
    harness.fixture.forward(Duration::from_mins(11));
    let third = asks(&engine, &bash(LONG)).await;
    assert_eq!(third.task_id, task);
    assert_eq!(third.permit.map(|permit| permit.attempt), Some(3));
    harness.fixture.forward(Duration::from_mins(11));
    let known = Proposal {
        identity: Identity::Call(task),
        ..bash(LONG)
    };
    let over = asks(&engine, &known).await;
    assert_eq!(
        (over.task_id, over.state, over.outcome),
        (task, GateState::Settled, Some(Outcome::Failed))
    );
    assert_eq!(over.permit, None);
}

#[apply(both)]
async fn approved_call_that_its_caller_runs_gets_no_permit_under_a_rule_that_denies_it(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    harness.configure(|yaml| {
        yaml.replacen(
            "Not this one. }",
            "Not this one. }\n  - { name: shell, tools: [Bash], decide: deny }",
            1,
        )
    });
    let known = Proposal {
        identity: Identity::Call(task),
        ..bash(LONG)
    };
    let call = asks(&harness.engine(8), &known).await;
    assert_eq!(
        (call.decision, call.outcome, call.permit),
        (GateDecision::Deny, Some(Outcome::Denied), None)
    );
}

#[apply(both)]
async fn approved_call_whose_tool_this_service_runs_by_now_is_run_here_after_another_approval(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    until_at_rest(&harness, task).await;
    harness.replace(
        "Bash: { external: {}",
        r#"Bash: { http: { method: POST, url: "{tool}/bash" }"#,
    );
    let changed = harness.engine(8);
    let asking = asking_by(&changed, bash(LONG));
    until_open(&harness, task, RequestKind::Approval).await;
    let asked = harness.open_specs(task).await.remove(0);
    let target = &asked.pending_tool_calls[0].target;
    assert!(target.starts_with("POST "), "{target}");
    assert_eq!(harness.executions(task, "/bash"), 0);
    approve(&harness, &changed, task).await;
    let call = asking.await.unwrap().unwrap().call;
    assert_eq!(
        (call.task_id, call.outcome, call.permit),
        (task, Some(Outcome::Succeeded), None)
    );
    assert!(call.result.is_some());
    assert_eq!(harness.executions(task, "/bash"), 1);
}

#[apply(both)]
async fn approved_call_whose_tool_its_caller_runs_by_now_is_permitted_after_another_approval(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    until_at_rest(&harness, task).await;
    harness.replace(
        r#"http: { method: POST, url: "{tool}/refund", headers: { X-Secret: "${TOOL_SECRET}" }, timeout: 5s }"#,
        "external: {}",
    );
    let changed = harness.engine(8);
    let asking = asking_by(&changed, refund(1, LONG));
    until_open(&harness, task, RequestKind::Approval).await;
    approve(&harness, &changed, task).await;
    let call = asking.await.unwrap().unwrap().call;
    assert_eq!(
        (call.task_id, call.decision, call.outcome),
        (task, GateDecision::Allow, None)
    );
    assert_eq!(call.permit.map(|permit| permit.attempt), Some(1));
    assert_eq!(harness.executions(task, "/refund"), 0);
}

#[apply(both)]
async fn permit_of_a_released_call_ends_with_the_report(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    harness.configure(|yaml| yaml.replacen("  coding: {", "  coding: { report: optional,", 1));
    let engine = harness.engine(8);
    let one = |wait| by_key("k", Some("r1"), bash(wait));
    let task = approved(&harness, &engine, &one(Duration::ZERO)).await;
    for _ in 0..2 {
        let released = asks(&engine, &one(LONG)).await;
        assert_eq!(released.outcome, Some(Outcome::Released));
        assert_eq!(released.permit.map(|permit| permit.attempt), Some(1));
    }
    reported(&engine, task, ReportedOutcome::Succeeded).await;
    let over = asks(&engine, &one(LONG)).await;
    assert_eq!(
        (over.decision, over.outcome, over.permit),
        (GateDecision::Allow, Some(Outcome::Released), None)
    );
}
