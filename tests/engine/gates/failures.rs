//! Tests of gate calls whose askers, runners, people and replicas leave, fail, repeat or act at the
//! same time.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::gate::{
    GateCall, GateDecision, GateRefusal, GateState, Identity, OutcomeReport, Proposal,
    ReportedOutcome, ResultDelivery,
};
use holdpoint::engine::{Engine, Refusal};
use holdpoint::people::Caller;
use holdpoint::task::change::ASKER_UNTIL_DELIVERED;
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{CloseReason, Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Executor as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::call_slots::limit_refund;
use super::super::engine_harness::{EngineHarness, alice, claimed, outcomes, person, whole};
use super::{
    AskTask, GATE, LONG, abort, agent, approve, approved, ask, asking, asking_by, asks, bash,
    driven, driven_until, harness, refund, small, until_at_rest, until_open, until_present,
    until_proposed,
};
use crate::store::store_fixture::{StoreFixture, TASKS, both, fresh};

const DOUBT: &str = "update database_identity set doubted_at = (select max(updated_at) from agent_task) returning doubted_at";

/// Returns the same proposal, but identified by the key `key` and sent by the runner `runner`.
pub fn by_key(key: &str, runner: Option<&str>, proposal: Proposal) -> Proposal {
    Proposal {
        identity: Identity::Key {
            key: key.to_owned(),
            attach: false,
        },
        runner: runner.map(str::to_owned),
        ..proposal
    }
}

pub fn report_of(task: TaskId, outcome: ReportedOutcome) -> OutcomeReport {
    OutcomeReport {
        call: Ok(task),
        attempt: None,
        outcome,
        content: "made".to_owned(),
    }
}

/// Asks for a call whose outcome becomes unknown. Returns the call as an asker sees it after that.
pub async fn in_doubt(
    harness: &EngineHarness,
    engine: &Arc<Engine>,
    proposal: Proposal,
) -> GateCall {
    let call = asks(engine, &proposal).await;
    if call.state == GateState::OutcomeUnknown {
        return call;
    }
    // The ask returned before the unknown outcome was stored.
    until_open(harness, call.task_id, RequestKind::Reconcile).await;
    let known = Proposal {
        identity: Identity::Call(call.task_id),
        ..proposal
    };
    asks(engine, &known).await
}

/// Approves a call of a tool with one slot, and asks for the call while the slot is taken, so that
/// the call's driver waits. Returns the call's task, the ask and the slot.
pub async fn waiting_for_a_slot(
    harness: &EngineHarness,
    engine: &Arc<Engine>,
    slots: Arc<Semaphore>,
) -> (TaskId, AskTask, OwnedSemaphorePermit) {
    let task = approved(harness, engine, &refund(1, Duration::ZERO)).await;
    until_at_rest(harness, task).await;
    let slot = slots.acquire_owned().await.unwrap();
    let asking = asking(engine, 1);
    // The call's driver stores the presence of the asker right before it waits for the slot.
    until_present(harness, task, |until| until > Time(0)).await;
    (task, asking, slot)
}

#[apply(both)]
async fn asker_that_leaves_while_its_call_is_being_stored_is_gone(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    for order in 1..=40 {
        let asking = asking(&engine, order);
        for _ in 0..order {
            tokio::task::yield_now().await;
        }
        abort(asking).await;
        // The first asker may have left before it proposed the call. In that case this second
        // ask proposes the call.
        let task = ask(&engine, order, Duration::ZERO).await.call.task_id;
        until_present(&harness, task, |until| until == Time(0)).await;
        approve(&harness, &engine, task).await;
        claimed(&engine).await;
        assert_eq!(harness.executions(task, "/refund"), 0, "order {order}");
    }
}

#[apply(both)]
async fn approved_call_that_waits_for_a_slot_does_not_start_without_its_asker(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let slots = limit_refund(&mut harness);
    let engine = harness.engine(8);
    let (task, asking, slot) = waiting_for_a_slot(&harness, &engine, slots).await;
    abort(asking).await;
    until_present(&harness, task, |until| until == Time(0)).await;
    drop(slot);
    until_at_rest(&harness, task).await;
    assert_eq!(outcomes(&harness.journal(task).await), []);
    let again = ask(&engine, 1, LONG).await.call;
    assert_eq!(
        (again.task_id, again.outcome),
        (task, Some(Outcome::Succeeded))
    );
}

#[apply(both)]
async fn result_that_is_not_handed_over_is_there_for_the_next_ask_at_once(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    for _ in 0..3 {
        let lost = ask(&engine, 1, LONG).await;
        assert_eq!(
            (lost.call.task_id, lost.call.outcome),
            (task, Some(Outcome::Succeeded))
        );
        drop(lost.delivery);
        until_present(&harness, task, |until| until == Time(0)).await;
    }
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn call_whose_asker_leaves_while_it_runs_keeps_its_result_for_the_next_ask(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    harness.tool.close();
    let asking = asking(&engine, 1);
    harness.tool.reached(1).await;
    abort(asking).await;
    harness.tool.open();
    harness.until_stopped(task).await;
    let again = ask(&engine, 1, LONG).await;
    assert_eq!(
        (again.call.task_id, again.call.outcome),
        (task, Some(Outcome::Succeeded))
    );
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn call_of_unknown_outcome_is_told_as_one_that_may_have_run(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    harness.tool.answers(504, "late");
    // An ask lasts for its whole wait, because the outcome of the call stays unknown.
    let proposal = small(1, Duration::from_secs(1));
    let call = in_doubt(&harness, &engine, proposal.clone()).await;
    assert_eq!(
        (call.state, call.decision),
        (GateState::OutcomeUnknown, GateDecision::Pending)
    );
    assert!(
        call.message().contains("may have run"),
        "{}",
        call.message()
    );
    // The outcome is unknown, so a proposal of an equal call does not send the call again, but
    // waits for the answer to the same reconcile request.
    harness.tool.answers(200, "{}");
    let again = asks(&engine, &proposal).await;
    assert_eq!(
        (again.task_id, again.state),
        (call.task_id, GateState::OutcomeUnknown)
    );
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
    assert_eq!(
        (held.state, held.decision),
        (GateState::Pending, GateDecision::Pending)
    );
    assert!(held.reason.unwrap().contains("its outcome is not known"));
    let elsewhere = asks(&engine, &small_of(3, "b", LONG)).await;
    assert_eq!(elsewhere.outcome, Some(Outcome::Succeeded));
    let [(request, RequestKind::Reconcile)] = harness.open(doubtful.task_id).await[..] else {
        panic!("one reconcile request")
    };
    let said = whole(Action::Respond, Some(Value::from("it ran")));
    engine.decide(&alice(), request, said, None).await.unwrap();
    let after = asks(&engine, &small_of(4, "a", LONG)).await;
    assert_eq!(after.outcome, Some(Outcome::Succeeded));
}

#[apply(both)]
async fn call_whose_server_is_down_has_failed_at_once(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    harness.configure(|yaml| yaml.replace("{tool}/refund", "http://127.0.0.1:9/refund"));
    let engine = harness.engine(8);
    let call = asks(&engine, &small(1, LONG)).await;
    assert_eq!(
        (call.state, call.outcome),
        (GateState::Settled, Some(Outcome::Failed))
    );
}

#[apply(both)]
async fn two_equal_calls_of_one_turn_are_two_requests_and_two_runs(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let first = asking(&engine, 1);
    let task = until_proposed(&harness).await;
    let second = ask(&engine, 1, Duration::ZERO).await.call;
    assert_ne!(second.task_id, task);
    let says = second.message();
    assert!(
        says.contains("Reason:") && says.contains("The same call waits already."),
        "{says}"
    );
    approve(&harness, &engine, task).await;
    assert_eq!(
        first.await.unwrap().unwrap().call.outcome,
        Some(Outcome::Succeeded)
    );
    approve(&harness, &engine, second.task_id).await;
    let known = Proposal {
        identity: Identity::Call(second.task_id),
        ..refund(1, LONG)
    };
    let call = asks(&engine, &known).await;
    assert_eq!(
        (call.task_id, call.outcome),
        (second.task_id, Some(Outcome::Succeeded))
    );
    assert_eq!(
        (
            harness.executions(task, "/refund"),
            harness.executions(second.task_id, "/refund")
        ),
        (1, 1)
    );
}

#[apply(both)]
async fn id_of_a_call_is_a_handle_for_its_user_session_tool_and_arguments_only(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    let known = |proposal: Proposal| Proposal {
        identity: Identity::Call(task),
        ..proposal
    };
    let carol = Caller {
        permissions: agent().permissions,
        ..person("carol")
    };
    let elsewhere = Proposal {
        session_id: Some("other".to_owned()),
        ..refund(1, Duration::ZERO)
    };
    for (caller, proposal) in [
        (carol, refund(1, Duration::ZERO)),
        (agent(), elsewhere),
        (agent(), refund(2, Duration::ZERO)),
        (agent(), bash(Duration::ZERO)),
    ] {
        let other = engine
            .gates()
            .ask(&caller, &known(proposal), None)
            .await
            .unwrap()
            .call;
        assert_ne!(other.task_id, task);
        assert_eq!(other.state, GateState::Pending);
    }
    assert_eq!(harness.executions(task, "/refund"), 0);
    let own = known(refund(1, LONG));
    for _ in 0..2 {
        let answer = engine.gates().ask(&agent(), &own, None).await.unwrap();
        assert_eq!(
            (answer.call.task_id, answer.call.outcome),
            (task, Some(Outcome::Succeeded))
        );
        answer
            .delivery
            .into_iter()
            .for_each(ResultDelivery::delivered);
        until_present(&harness, task, |until| until == ASKER_UNTIL_DELIVERED).await;
    }
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn request_that_expires_denies_its_call_even_if_its_rule_cancels_the_task(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let held = "name: large, tools: [refund], decide: hold,";
    harness.configure(|yaml| yaml.replace(held, &format!("{held} expires_in: 10m,")));
    for (order, end) in [(1, TaskStatus::Completed), (2, TaskStatus::Canceled)] {
        if end == TaskStatus::Canceled {
            harness.configure(|yaml| yaml.replace(held, &format!("{held} on_expiry: cancel,")));
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
        assert_eq!(
            (call.decision, call.outcome),
            (GateDecision::Deny, Some(Outcome::Expired))
        );
        assert!(
            call.message().contains("expired without a decision"),
            "{}",
            call.message()
        );
        assert_eq!(
            (
                harness.status(task).await,
                harness.executions(task, "/refund")
            ),
            (end, 0)
        );
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
    assert_eq!(
        (call.decision, call.outcome),
        (GateDecision::Deny, Some(Outcome::Canceled))
    );

    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    let permitted = asks(&engine, &bash(LONG)).await;
    assert!(permitted.permit.is_some());
    engine.cancel(&alice(), task, None).await.unwrap();
    let report = report_of(task, ReportedOutcome::Succeeded);
    let (call, _) = engine
        .gates()
        .report(&agent(), &report, None)
        .await
        .unwrap();
    assert_eq!(
        (call.decision, call.outcome),
        (GateDecision::Allow, Some(Outcome::Unknown))
    );
    let journal = harness.journal(task).await;
    let late = journal
        .items
        .iter()
        .filter(|item| matches!(&item.fact, Fact::LateResult(result) if result.content == "made"));
    assert_eq!(
        (late.count(), outcomes(&journal)),
        (1, vec![Outcome::Unknown])
    );
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
    let report = report_of(task, ReportedOutcome::Succeeded);
    let (call, _) = engine
        .gates()
        .report(&agent(), &report, None)
        .await
        .unwrap();
    assert_eq!(
        (call.state, call.outcome),
        (GateState::Settled, Some(Outcome::Succeeded))
    );
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

#[apply(both)]
async fn late_report_of_a_call_of_a_removed_gate_is_kept(fixture: StoreFixture) {
    let optional = GATE.replacen("  coding: {", "  coding: { report: optional,", 1);
    let mut harness = harness(fixture).await;
    harness.configure(|yaml| yaml.replace(GATE, &optional));
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    let released = asks(&engine, &bash(LONG)).await;
    assert_eq!(
        (released.task_id, released.outcome),
        (task, Some(Outcome::Released))
    );
    harness.configure(|yaml| yaml.replace(&optional, ""));
    let without = harness.engine(8);
    let report = report_of(task, ReportedOutcome::Succeeded);
    let (call, _) = without
        .gates()
        .report(&agent(), &report, None)
        .await
        .unwrap();
    assert_eq!(call.outcome, Some(Outcome::Released));
    let journal = harness.journal(task).await;
    let late = journal
        .items
        .iter()
        .filter(|item| matches!(&item.fact, Fact::LateResult(result) if result.content == "made"));
    assert_eq!(
        (late.count(), journal.row.status),
        (1, TaskStatus::Completed)
    );
}

#[apply(both)]
async fn started_call_of_a_removed_gate_has_an_unknown_outcome(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    assert!(asks(&engine, &bash(LONG)).await.permit.is_some());
    until_at_rest(&harness, task).await;
    harness.configure(|yaml| yaml.replace(GATE, ""));
    let without = harness.engine(8);
    harness.fixture.forward(Duration::from_mins(11));
    driven_until(&harness, &without, task, TaskStatus::Failed).await;
    let call = without
        .gates()
        .read_call(&agent(), task, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(
        (call.state, call.decision, call.outcome),
        (
            GateState::Settled,
            GateDecision::Allow,
            Some(Outcome::Unknown)
        )
    );
    assert_eq!(
        call.message(),
        "The outcome of the call is not known. It may have run. Do not repeat it."
    );
}

#[apply(both)]
async fn process_that_goes_down_answers_its_waiting_askers(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let asking = asking(&engine, 1);
    let task = until_proposed(&harness).await;
    engine.shut_down(LONG).await;
    let answer = asking.await.unwrap().unwrap();
    assert_eq!(
        (answer.call.task_id, answer.call.state),
        (task, GateState::Pending)
    );
    let next = harness.engine(8);
    approve(&harness, &next, task).await;
    assert_eq!(
        ask(&next, 1, LONG).await.call.outcome,
        Some(Outcome::Succeeded)
    );
    assert_eq!(harness.executions(task, "/refund"), 1);
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
    assert_eq!(
        (call.task_id, call.state),
        (task, GateState::OutcomeUnknown)
    );
    assert_eq!(harness.executions(task, "/refund"), 0);
    let lost = report_of(TaskId(fresh()), ReportedOutcome::Succeeded);
    let unknown = engine.gates().report(&agent(), &lost, None).await;
    assert!(matches!(
        unknown,
        Err(GateRefusal::Command(Refusal::NotFound))
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_runners_with_one_key_on_two_replicas_get_one_permit() {
    let harness = harness(StoreFixture::postgres().await).await;
    let (here, there) = (harness.engine(8), harness.engine(8));
    let one = |runner| by_key("k", Some(runner), bash(Duration::from_mins(5)));
    let first = asking_by(&here, one("r1"));
    let task = until_proposed(&harness).await;
    let second = asking_by(&there, one("r2"));
    approve(&harness, &there, task).await;
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    let permits = [&first, &second].map(|answer| {
        answer
            .as_ref()
            .is_ok_and(|answer| answer.call.permit.is_some())
    });
    assert_eq!(
        permits.iter().filter(|has| **has).count(),
        1,
        "{first:?} {second:?}"
    );
    let refused = [first, second].into_iter().find_map(Result::err);
    assert!(matches!(refused, Some(GateRefusal::InHand(call)) if call.task_id == task));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asker_that_alternates_between_replicas_gets_the_permit_of_its_one_call() {
    let harness = harness(StoreFixture::postgres().await).await;
    let replicas = [harness.engine(8), harness.engine(8)];
    let mut tasks = Vec::new();
    for leg in 0..6 {
        let answer = replicas[leg % 2]
            .gates()
            .ask(&agent(), &bash(Duration::ZERO), None)
            .await;
        tasks.push(answer.unwrap().call.task_id);
    }
    tasks.dedup();
    let [task] = tasks[..] else {
        panic!("one call: {tasks:?}")
    };
    let asking = asking_by(&replicas[0], bash(Duration::from_mins(5)));
    until_present(&harness, task, |until| until > Time(0)).await;
    approve(&harness, &replicas[1], task).await;
    let answer = asking.await.unwrap().unwrap();
    assert!(answer.call.permit.is_some());
    assert_eq!(
        (answer.call.task_id, answer.call.state),
        (task, GateState::Started)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_that_loses_against_another_commit_is_repeated_at_once() {
    let harness = harness(StoreFixture::postgres().await).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    until_at_rest(&harness, task).await;
    let mut other = harness.fixture.holding(TASKS, task.0).await;
    let asking = asking_by(&engine, bash(Duration::from_mins(5)));
    harness.fixture.until_locked_out(1).await;
    // Simulates the commit of another replica that ends the presence of an asker. The service gets
    // no notification of this commit.
    let left = format!(
        "update agent_task set version = version + 1, asker_until = 0 where task_id = '{task}'"
    );
    other.execute(AssertSqlSafe(left)).await.unwrap();
    other.execute("commit").await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(20), asking).await;
    let answer = answer.expect("an answer at once").unwrap().unwrap();
    assert_eq!(answer.call.task_id, task);
    assert!(answer.call.permit.is_some());
}
