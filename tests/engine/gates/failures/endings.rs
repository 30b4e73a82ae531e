//! Tests gate calls whose request expires, whose task is canceled, or whose gate is removed and
//! perhaps comes back.

use std::time::Duration;

use holdpoint::engine::gate::{GateDecision, GateState, Identity, Proposal, ReportedOutcome};
use holdpoint::task::change::LeaseChange;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::super::{
    GATE, LONG, approved, ask, asks, bash, driven, driven_until, harness, read, refund,
    until_at_rest,
};
use super::reported;
use crate::engine::engine_harness::{EngineHarness, alice, outcomes};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::until;

/// Permits a call, and removes the gate. The end of the permit then fails the call's task. Returns
/// this task.
async fn started_at_a_removed_gate(harness: &mut EngineHarness) -> TaskId {
    let engine = harness.engine(8);
    let task = approved(harness, &engine, &bash(Duration::ZERO)).await;
    assert!(asks(&engine, &bash(LONG)).await.permit.is_some());
    until_at_rest(harness, task).await;
    harness.replace(GATE, "");
    let without = harness.engine(8);
    harness.fixture.forward(Duration::from_mins(11));
    driven_until(harness, &without, task, TaskStatus::Failed).await;
    task
}

#[apply(both)]
async fn request_that_expires_denies_its_call_even_if_its_rule_cancels_the_task(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let held = "name: large, tools: [refund], decide: hold,";
    harness.replace(held, &format!("{held} expires_in: 10m,"));
    for (order, end) in [(1, TaskStatus::Completed), (2, TaskStatus::Canceled)] {
        if end == TaskStatus::Canceled {
            harness.replace(held, &format!("{held} on_expiry: cancel,"));
        }
        let engine = harness.engine(8);
        let task = ask(&engine, order, Duration::ZERO).await.call.task_id;
        harness.fixture.forward(Duration::from_mins(11));
        assert_eq!(engine.worker().expire().await.unwrap(), 1);
        let known = Proposal {
            identity: Identity::Call(task),
            ..refund(order, LONG)
        };
        let call = asks(&engine, &known).await;
        assert_eq!(call.decision, GateDecision::Deny);
        assert_eq!(call.outcome, Some(Outcome::Expired));
        assert!(
            call.message().contains("expired without a decision"),
            "{}",
            call.message()
        );
        assert_eq!(harness.status(task).await, end);
        assert_eq!(harness.executions(task, "/refund"), 0);
    }
}

#[apply(both)]
async fn cancel_denies_a_held_call_and_keeps_the_late_report_of_a_permit(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let held = ask(&engine, 1, Duration::ZERO).await.call.task_id;
    engine.cancel(&alice(), held, None).await.unwrap();
    let known = Proposal {
        identity: Identity::Call(held),
        ..refund(1, LONG)
    };
    let call = asks(&engine, &known).await;
    assert_eq!(call.decision, GateDecision::Deny);
    assert_eq!(call.outcome, Some(Outcome::Canceled));

    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    let permitted = asks(&engine, &bash(LONG)).await;
    assert!(permitted.permit.is_some());
    engine.cancel(&alice(), task, None).await.unwrap();
    let call = reported(&engine, task, ReportedOutcome::Succeeded).await;
    assert_eq!(call.decision, GateDecision::Allow);
    assert_eq!(call.outcome, Some(Outcome::Unknown));
    let journal = harness.journal(task).await;
    let late = journal
        .items
        .iter()
        .filter(|item| matches!(&item.fact, Fact::LateResult(result) if result.content == "made"));
    assert_eq!(late.count(), 1);
    assert_eq!(outcomes(&journal), [Outcome::Unknown]);
}

#[apply(both)]
async fn late_report_of_a_call_of_a_removed_gate_is_kept(fixture: StoreFixture) {
    let optional = GATE.replacen("  coding: {", "  coding: { report: optional,", 1);
    let mut harness = harness(fixture).await;
    harness.replace(GATE, &optional);
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    let released = asks(&engine, &bash(LONG)).await;
    assert_eq!(released.task_id, task);
    assert_eq!(released.outcome, Some(Outcome::Released));
    harness.replace(&optional, "");
    let without = harness.engine(8);
    let call = reported(&without, task, ReportedOutcome::Succeeded).await;
    assert_eq!(call.outcome, Some(Outcome::Released));
    let journal = harness.journal(task).await;
    let late = journal
        .items
        .iter()
        .filter(|item| matches!(&item.fact, Fact::LateResult(result) if result.content == "made"));
    assert_eq!(late.count(), 1);
    assert_eq!(journal.row.status, TaskStatus::Completed);
}

#[apply(both)]
async fn started_call_of_a_removed_gate_has_an_unknown_outcome(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    let task = started_at_a_removed_gate(&mut harness).await;
    let call = read(&harness.engine(8), task).await;
    assert_eq!(call.state, GateState::Settled);
    assert_eq!(call.decision, GateDecision::Allow);
    assert_eq!(call.outcome, Some(Outcome::Unknown));
    assert_eq!(
        call.message(),
        "The outcome of the call is not known. It may have run. Do not repeat it."
    );
}

#[apply(both)]
async fn report_of_an_unknown_outcome_gives_a_failed_call_no_timer(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    let task = started_at_a_removed_gate(&mut harness).await;
    harness.configure(|yaml| yaml.to_owned() + GATE);
    let engine = harness.engine(8);
    let call = reported(&engine, task, ReportedOutcome::Unknown).await;
    assert_eq!(call.outcome, Some(Outcome::Unknown));
    let journal = harness.journal(task).await;
    let last = journal.items.last().map(|item| &item.fact);
    assert!(
        matches!(last, Some(Fact::LateResult(result)) if result.outcome == Outcome::Unknown),
        "{last:?}"
    );
    assert_eq!(journal.row.status, TaskStatus::Failed);
    assert!(journal.row.parked);
}

#[apply(both)]
async fn failed_call_with_a_timer_is_parked_without_it_after_a_claim(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    let task = started_at_a_removed_gate(&mut harness).await;
    let without = harness.engine(8);
    harness.configure(|yaml| yaml.to_owned() + GATE);
    for engine in [without, harness.engine(8)] {
        let mut timer = harness.fixture.next(task).await;
        timer.lease = LeaseChange::Park {
            wake_in: Some(Duration::ZERO),
        };
        harness.fixture.write(timer).await.unwrap();
        assert!(!harness.journal(task).await.row.parked);
        let is_parked = async || {
            driven(&engine).await;
            harness.journal(task).await.row.parked
        };
        until("the task has neither a lease nor a timer", is_parked).await;
    }
}
