//! Tests gate calls whose askers leave, whose server is down, or that are proposed again. Also has
//! functions that build proposals and reports for other tests of gates.

mod endings;
mod replicas;
mod unknown_outcomes;

use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::Engine;
use holdpoint::engine::gate::{
    GateCall, GateState, Identity, OutcomeReport, Proposal, ReportedOutcome, ResultDelivery,
};
use holdpoint::people::Caller;
use holdpoint::task::change::ASKER_UNTIL_DELIVERED;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::call_slots::limit_refund;
use super::super::changed_tools::serve_refund;
use super::super::engine_harness::{EngineHarness, claimed, outcomes, person};
use super::{
    AskTask, LONG, abort, agent, approve, approved, ask, asking, asking_by, asks, bash, harness,
    read, refund, small, until_asked, until_at_rest, until_open, until_present, until_proposed,
    until_running,
};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::until;

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

/// Reports this outcome of a call, as the call's asker does. Returns the call after the report.
pub async fn reported(engine: &Arc<Engine>, task: TaskId, outcome: ReportedOutcome) -> GateCall {
    let report = report_of(task, outcome);
    let (call, _) = engine
        .gates()
        .report(&agent(), &report, None)
        .await
        .unwrap();
    call
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
    assert_eq!(again.task_id, task);
    assert_eq!(again.outcome, Some(Outcome::Succeeded));
}

#[apply(both)]
async fn ask_that_does_not_wait_starts_its_approved_call_after_the_comparison_of_its_tool(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let server = serve_refund(&mut harness);
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    until_at_rest(&harness, task).await;
    let goes_on = server.hold_next();
    let asking = asking_by(&engine, refund(1, Duration::ZERO));
    server.until_held().await;
    // After its first commit, the ask would leave, and the call would wait for its return.
    let present_until = harness.journal(task).await.row.asker_until;
    assert_eq!(present_until, Some(Time(0)));
    goes_on.send(()).unwrap();
    assert_eq!(asking.await.unwrap().unwrap().call.task_id, task);
    until("the call has run", async || server.calls() == 1).await;
}

#[apply(both)]
async fn approved_call_whose_asker_leaves_during_the_comparison_of_its_tool_does_not_start(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let server = serve_refund(&mut harness);
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    until_at_rest(&harness, task).await;
    let goes_on = server.hold_next();
    let asking = asking(&engine, 1);
    server.until_held().await;
    // The driver of this ask has committed nothing yet, so the row still has the presence of the
    // first ask, which has ended.
    let present_until = harness.journal(task).await.row.asker_until;
    assert_eq!(present_until, Some(Time(0)));
    abort(asking).await;
    // The commit that ends the presence of this ask comes before the driver's commit.
    until_running(&engine, 1).await;
    goes_on.send(()).unwrap();
    until_running(&engine, 0).await;
    let left = read(&engine, task).await;
    assert_eq!((left.state, left.attempts), (GateState::Approved, 0));
    assert_eq!(server.calls(), 0);
    let again = ask(&engine, 1, LONG).await.call;
    let expected = (task, Some(Outcome::Succeeded));
    assert_eq!((again.task_id, again.outcome), expected);
    assert_eq!(server.calls(), 1);
}

#[apply(both)]
async fn approval_of_a_call_whose_asker_waits_is_stored_with_the_start_of_the_call(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let server = serve_refund(&mut harness);
    let engine = harness.engine(8);
    let asking = asking(&engine, 1);
    let task = until_asked(&harness, RequestKind::Approval).await;
    until_present(&harness, task, |until| until > Time(0)).await;
    approve(&harness, &engine, task).await;
    let answer = asking.await.unwrap().unwrap();
    assert_eq!(answer.call.outcome, Some(Outcome::Succeeded));
    assert_eq!(server.calls(), 1);
    // The items of one commit have the same time.
    let items = harness.journal(task).await.items;
    let first = |is: fn(&Fact) -> bool| items.iter().find(|item| is(&item.fact)).unwrap();
    let decided = first(|fact| matches!(fact, Fact::Decision { .. }));
    let started = first(|fact| matches!(fact, Fact::ToolStarted { .. }));
    assert_eq!(started.at, decided.at);
}

#[apply(both)]
async fn result_that_is_not_handed_over_is_there_for_the_next_ask_at_once(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    for _ in 0..3 {
        let lost = ask(&engine, 1, LONG).await;
        assert_eq!(lost.call.task_id, task);
        assert_eq!(lost.call.outcome, Some(Outcome::Succeeded));
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
    assert_eq!(again.call.task_id, task);
    assert_eq!(again.call.outcome, Some(Outcome::Succeeded));
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn call_whose_server_is_down_has_failed_at_once(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    harness.replace("{tool}/refund", "http://127.0.0.1:9/refund");
    let engine = harness.engine(8);
    let call = asks(&engine, &small(1, LONG)).await;
    assert_eq!(call.state, GateState::Settled);
    assert_eq!(call.outcome, Some(Outcome::Failed));
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
    assert_eq!(call.task_id, second.task_id);
    assert_eq!(call.outcome, Some(Outcome::Succeeded));
    assert_eq!(harness.executions(task, "/refund"), 1);
    assert_eq!(harness.executions(second.task_id, "/refund"), 1);
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
        assert_eq!(answer.call.task_id, task);
        assert_eq!(answer.call.outcome, Some(Outcome::Succeeded));
        answer
            .delivery
            .into_iter()
            .for_each(ResultDelivery::delivered);
        until_present(&harness, task, |until| until == ASKER_UNTIL_DELIVERED).await;
    }
    assert_eq!(harness.executions(task, "/refund"), 1);
}
