//! Tests reports that come after a person has answered, or about an earlier attempt.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::Engine;
use holdpoint::engine::gate::{
    GateRefusal, GateState, Identity, OutcomeReport, Proposal, ReportedOutcome, ResultDelivery,
};
use holdpoint::task::change::ASKER_UNTIL_DELIVERED;
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;
use serde_json::Value;

use super::super::failures::reported;
use super::super::{LONG, agent, approve, approved, asks, bash, driven, harness, until_present};
use crate::engine::engine_harness::{EngineHarness, alice_decides, outcomes, whole};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::until;

/// Gets a permit for a repeatable call, changes the call's tool, and lets the permit expire. Then
/// asks for the next attempt. A person must approve this attempt, because the tool has changed.
/// Returns the engine with the changed tool, and the call's task.
async fn held_again(harness: &mut EngineHarness) -> (Arc<Engine>, TaskId) {
    harness.configure(|yaml| {
        yaml.replacen("Bash: { external", "Bash: { effect: read_only, external", 1)
    });
    let engine = harness.engine(8);
    let task = approved(harness, &engine, &bash(Duration::ZERO)).await;
    assert!(asks(&engine, &bash(LONG)).await.permit.is_some());
    harness.configure(|yaml| {
        yaml.replacen(
            "command: { type: string }",
            "command: { type: string, maxLength: 99 }",
            1,
        )
    });
    let changed = harness.engine(8);
    harness.fixture.forward(Duration::from_mins(11));
    let held = asks(&changed, &bash(Duration::ZERO)).await;
    assert_eq!(
        (held.task_id, held.state, held.attempts),
        (task, GateState::Pending, 1)
    );
    (changed, task)
}

#[apply(both)]
async fn report_after_a_persons_answer_is_kept_as_a_late_result(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    for (said, outcome) in [
        (
            whole(Action::Respond, Some(Value::from("it ran"))),
            Outcome::Responded,
        ),
        (whole(Action::Reject, None), Outcome::Failed),
    ] {
        let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
        assert!(asks(&engine, &bash(LONG)).await.permit.is_some());
        harness.fixture.forward(Duration::from_mins(11));
        driven(&engine).await;
        let request = harness.only_request(task, RequestKind::Reconcile).await;
        alice_decides(&engine, request, said).await;
        let has_ended = async || harness.status(task).await.is_terminal();
        until("the call has ended", has_ended).await;
        let report = |outcome| OutcomeReport {
            call: Ok(task),
            attempt: None,
            outcome,
            content: "made with tool-secret-0123456789".to_owned(),
        };
        for _ in 0..2 {
            let reported = engine
                .gates()
                .report(&agent(), &report(ReportedOutcome::Succeeded), None)
                .await;
            assert_eq!(reported.unwrap().0.outcome, Some(outcome));
        }
        let other = engine
            .gates()
            .report(&agent(), &report(ReportedOutcome::Failed), None)
            .await;
        assert!(matches!(other, Err(GateRefusal::Settled(call)) if call.task_id == task));
        let journal = harness.journal(task).await;
        let late: Vec<_> = journal
            .items
            .iter()
            .filter_map(|item| {
                let Fact::LateResult(result) = &item.fact else {
                    return None;
                };
                Some(result.content.as_str())
            })
            .collect();
        assert_eq!(late, ["made with [secret TOOL_SECRET]"]);
        assert_eq!(outcomes(&journal), [outcome]);
        // Asks for the settled call and marks its result as delivered. Otherwise the equal
        // proposal of the next round would get this result instead of a new call.
        let key = Proposal {
            identity: Identity::Call(task),
            ..bash(LONG)
        };
        engine
            .gates()
            .ask(&agent(), &key, None)
            .await
            .unwrap()
            .delivery
            .into_iter()
            .for_each(ResultDelivery::delivered);
        until_present(&harness, task, |until| until == ASKER_UNTIL_DELIVERED).await;
    }
}

#[apply(both)]
async fn late_report_leaves_a_call_that_is_held_again_to_the_next_ask(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    let (engine, task) = held_again(&mut harness).await;
    for _ in 0..2 {
        let call = reported(&engine, task, ReportedOutcome::Succeeded).await;
        assert_eq!((call.state, call.outcome), (GateState::Pending, None));
    }
    let journal = harness.journal(task).await;
    let late = journal
        .items
        .iter()
        .filter(|item| matches!(item.fact, Fact::LateResult(_)));
    assert_eq!((late.count(), journal.row.asker_until), (1, Some(Time(0))));
    assert_eq!(asks(&engine, &bash(Duration::ZERO)).await.task_id, task);
    approve(&harness, &engine, task).await;
    let second = asks(&engine, &bash(LONG)).await;
    assert_eq!(second.task_id, task);
    assert_eq!(second.permit.map(|permit| permit.attempt), Some(2));
}

#[apply(both)]
async fn report_settles_its_attempt_although_it_equals_a_late_report_about_an_earlier_attempt(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let (engine, task) = held_again(&mut harness).await;
    let held = reported(&engine, task, ReportedOutcome::Succeeded).await;
    assert_eq!(held.state, GateState::Pending);
    approve(&harness, &engine, task).await;
    assert!(asks(&engine, &bash(LONG)).await.permit.is_some());
    let settled = reported(&engine, task, ReportedOutcome::Succeeded).await;
    assert_eq!(settled.state, GateState::Settled);
    assert_eq!(settled.outcome, Some(Outcome::Succeeded));
    assert_eq!(
        harness.journal(task).await.row.asker_until,
        Some(ASKER_UNTIL_DELIVERED)
    );
}
