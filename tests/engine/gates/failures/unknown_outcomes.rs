//! Tests gate calls of unknown outcome, and later calls of their tools.

use std::time::Duration;

use holdpoint::engine::Refusal;
use holdpoint::engine::gate::{GateDecision, GateRefusal, GateState, Proposal, ReportedOutcome};
use holdpoint::task::change::ASKER_UNTIL_DELIVERED;
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{CloseReason, Fact, Outcome};
use holdpoint::task::request::RequestKind;
use macro_rules_attribute::apply;
use serde_json::Value;

use super::super::{
    LONG, agent, approved, asks, bash, driven, execute_before_next_commit, harness, refund, small,
    until_at_rest, until_open,
};
use super::{in_doubt, report_of, reported};
use crate::engine::engine_harness::{alice_decides, whole};
use crate::store::store_fixture::{StoreFixture, both, fresh};

const DOUBT: &str = "update database_identity set doubted_at = (select max(updated_at) from agent_task) returning doubted_at";

#[apply(both)]
async fn call_of_unknown_outcome_is_told_as_one_that_may_have_run(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    harness.tool.answers(504, "late");
    // The outcome of the call stays unknown, so each ask waits for the whole second.
    let proposal = small(1, Duration::from_secs(1));
    let call = in_doubt(&harness, &engine, proposal.clone()).await;
    assert_eq!(call.state, GateState::OutcomeUnknown);
    assert_eq!(call.decision, GateDecision::Pending);
    assert!(
        call.message().contains("may have run"),
        "{}",
        call.message()
    );
    // The outcome is unknown, so a proposal of an equal call does not send the call again, but
    // waits for the answer to the same reconcile request.
    harness.tool.answers(200, "{}");
    let again = asks(&engine, &proposal).await;
    assert_eq!(again.task_id, call.task_id);
    assert_eq!(again.state, GateState::OutcomeUnknown);
    assert_eq!(harness.executions(call.task_id, "/refund"), 1);
}

#[apply(both)]
async fn tool_in_doubt_is_held_in_its_session(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let small_of = |order, session: &str, wait| Proposal {
        session_id: Some(session.to_owned()),
        ..small(order, wait)
    };
    harness.tool.answers(504, "late");
    let doubtful = in_doubt(&harness, &engine, small_of(1, "a", Duration::from_secs(1))).await;
    harness.tool.answers(200, "{}");
    let held = asks(&engine, &small_of(2, "a", Duration::from_secs(1))).await;
    assert_eq!(held.state, GateState::Pending);
    assert_eq!(held.decision, GateDecision::Pending);
    assert!(held.reason.unwrap().contains("its outcome is not known"));
    let elsewhere = asks(&engine, &small_of(3, "b", LONG)).await;
    assert_eq!(elsewhere.outcome, Some(Outcome::Succeeded));
    let [(request, RequestKind::Reconcile)] = harness.open(doubtful.task_id).await[..] else {
        panic!("one reconcile request")
    };
    let said = whole(Action::Respond, Some(Value::from("it ran")));
    alice_decides(&engine, request, said).await;
    let after = asks(&engine, &small_of(4, "a", LONG)).await;
    assert_eq!(after.outcome, Some(Outcome::Succeeded));
}

#[apply(both)]
async fn late_report_answers_the_question_about_its_call(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    asks(&engine, &bash(LONG)).await;
    harness.fixture.forward(Duration::from_mins(11));
    driven(&engine).await;
    assert!(matches!(
        harness.open(task).await[..],
        [(_, RequestKind::Reconcile)]
    ));
    let call = reported(&engine, task, ReportedOutcome::Succeeded).await;
    assert_eq!(call.state, GateState::Settled);
    assert_eq!(call.outcome, Some(Outcome::Succeeded));
    let journal = harness.journal(task).await;
    assert!(journal.items.iter().any(|item| matches!(
        item.fact,
        Fact::RequestClosed {
            reason: CloseReason::AnsweredLate,
            ..
        }
    )));
    assert_eq!(journal.row.asker_until, Some(ASKER_UNTIL_DELIVERED));
}

/// The history of a `SQLite` file becomes uncertain only when a process opens the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approved_call_whose_history_is_lost_before_the_commit_of_its_permit_is_asked_about() {
    let harness = harness(StoreFixture::postgres().await).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    until_at_rest(&harness, task).await;
    // A promoted standby is in this state when the commit is the first statement on it.
    execute_before_next_commit(&harness, DOUBT);
    let call = asks(&engine, &bash(Duration::from_secs(1))).await;
    assert_eq!(call.task_id, task);
    assert!(call.permit.is_none(), "the call may have run");
    until_open(&harness, task, RequestKind::Reconcile).await;
    let items = harness.journal(task).await.items;
    let mut facts = items.iter().map(|item| &item.fact);
    assert!(!facts.any(|fact| matches!(fact, Fact::ToolStarted { .. })));
    let (request, _) = harness.only_open(task).await;
    alice_decides(&engine, request, whole(Action::Retry, None)).await;
    let call = asks(&engine, &bash(LONG)).await;
    assert_eq!(call.task_id, task);
    assert!(call.permit.is_some(), "a person let the call run");
}

#[apply(both)]
async fn approved_call_of_a_lost_history_is_asked_about_and_a_lost_permit_is_unknown(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    assert_eq!(harness.fixture.numbers(DOUBT).await.unwrap().len(), 1);
    let call = in_doubt(
        &harness,
        &harness.engine(8),
        refund(1, Duration::from_secs(1)),
    )
    .await;
    assert_eq!(call.task_id, task);
    assert_eq!(call.state, GateState::OutcomeUnknown);
    assert_eq!(harness.executions(task, "/refund"), 0);
    let lost = report_of(TaskId(fresh()), ReportedOutcome::Succeeded);
    let unknown = engine.gates().report(&agent(), &lost, None).await;
    assert!(matches!(
        unknown,
        Err(GateRefusal::Command(Refusal::NotFound))
    ));
}
