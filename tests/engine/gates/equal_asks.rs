//! Tests asks that meet at an equal call: asks on two replicas that come at the same moment, and
//! asks beside a call that is approved or whose outcome is unknown.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::gate::{GateState, Proposal};
use holdpoint::engine::{Engine, EngineParts};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Outcome;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;
use sqlx::{AssertSqlSafe, Executor as _};
use tokio::task::JoinHandle;

use super::super::call_slots::limit_refund;
use super::super::engine_harness::EngineHarness;
use super::super::two_replicas::Pair;
use super::failures::{by_key, waiting_for_a_slot};
use super::{
    LONG, abort, agent, approve, approved, ask, asking, asking_by, asks, bash, driven_until,
    every_call, harness, proposal, refund, reject_in_vain, small, until_asked, until_at_rest,
    until_present, until_proposed, until_running,
};
use crate::store::store_fixture::{ManualClock, StoreFixture, TASKS, both};
use crate::support::{eventually, until};

/// Waits until the gate has a call besides that of `first`. Returns the second call's task.
pub async fn until_second(harness: &EngineHarness, first: TaskId) -> TaskId {
    let second = async || {
        let calls = harness.fixture.store.tasks(&every_call()).await.unwrap();
        let mut tasks = calls.rows.iter().map(|row| row.task_id);
        tasks.find(|task| *task != first)
    };
    eventually("a second call is stored", second).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_asks_that_meet_at_a_call_without_an_asker_are_two_calls() {
    let pair = Pair::of(harness(StoreFixture::postgres().await).await).await;
    let harness = &pair.harness;
    let task = ask(&pair.here, 1, Duration::ZERO).await.call.task_id;
    // The lock stops both asks after they have compared their proposals with the call, and before
    // they store their presence.
    let mut other = harness.fixture.holding(TASKS, task.0).await;
    let asks = [asking(&pair.here, 1), asking(&pair.there, 1)];
    harness.fixture.until_locked_out(2).await;
    other.execute("rollback").await.unwrap();
    let second = until_second(harness, task).await;
    for waiting in [task, second] {
        until_present(harness, waiting, |until| until > Time(0)).await;
        assert_eq!(harness.open(waiting).await.len(), 1);
    }
    let held = pair
        .here
        .gates()
        .read_call(&agent(), second, Duration::ZERO)
        .await;
    let says = held.unwrap().message();
    assert!(says.contains("The same call waits already."), "{says}");
    let third = ask(&pair.there, 1, Duration::ZERO).await.call.task_id;
    assert!(third != task && third != second);
    asks.iter().for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_asks_that_meet_at_an_approved_call_get_one_permit_and_a_second_call() {
    for (report, reason, runner) in [
        ("required", "The same call is being run.", None),
        ("optional", "The same call ran at", None),
        ("required", "The same call is being run.", Some("r1")),
        ("optional", "The same call ran at", Some("r1")),
    ] {
        let mut harness = harness(StoreFixture::postgres().await).await;
        let gate = format!("  coding: {{ report: {report},");
        harness.configure(|yaml| yaml.replacen("  coding: {", &gate, 1));
        let pair = Pair::of(harness).await;
        let task = approved(&pair.harness, &pair.here, &bash(Duration::ZERO)).await;
        until_at_rest(&pair.harness, task).await;
        let mut other = pair.harness.fixture.holding(TASKS, task.0).await;
        let wanted = || Proposal {
            runner: runner.map(str::to_owned),
            ..bash(LONG)
        };
        let asks = [&pair.here, &pair.there].map(|engine| asking_by(engine, wanted()));
        pair.harness.fixture.until_locked_out(2).await;
        other.execute("rollback").await.unwrap();
        let second = until_second(&pair.harness, task).await;
        let held = pair
            .here
            .gates()
            .read_call(&agent(), second, Duration::ZERO)
            .await;
        let held = held.unwrap();
        assert_eq!(held.state, GateState::Pending);
        let says = held.message();
        assert!(says.contains(reason), "{says}");
        let has_answered = async || asks.iter().any(JoinHandle::is_finished);
        until("an ask has the permit", has_answered).await;
        let mut calls = Vec::new();
        for ask in asks {
            ask.abort();
            if let Ok(answer) = ask.await {
                calls.push(answer.unwrap().call);
            }
        }
        let [call] = &calls[..] else {
            panic!("one answer: {calls:?}")
        };
        assert!(
            call.task_id == task && call.permit.is_some(),
            "{report}: {call:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asker_that_leaves_while_its_call_changes_keeps_its_call() {
    let harness = harness(StoreFixture::postgres().await).await;
    let engine = harness.engine(8);
    let task = ask(&engine, 1, Duration::ZERO).await.call.task_id;
    let asking = asking(&engine, 1);
    until_present(&harness, task, |until| until > Time(0)).await;
    let mut other = harness.fixture.holding(TASKS, task.0).await;
    // The shutdown ends the ask. The commit that ends the asker's presence waits for the lock.
    engine.shut_down(LONG).await;
    harness.fixture.until_locked_out(1).await;
    let changed = format!("update agent_task set version = version + 1 where task_id = '{task}'");
    other.execute(AssertSqlSafe(changed)).await.unwrap();
    other.execute("commit").await.unwrap();
    let answer = asking.await.unwrap().unwrap();
    assert_eq!(answer.call.task_id, task);
    assert_eq!(answer.call.state, GateState::Pending);
    let until = harness.journal(task).await.row.asker_until;
    assert_eq!(until, Some(Time(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_of_a_call_is_shown_once_the_presence_of_its_asker_is_stored() {
    let harness = harness(StoreFixture::postgres().await).await;
    let engine = harness.engine(8);
    let task = ask(&engine, 1, Duration::ZERO).await.call.task_id;
    let mut other = harness.fixture.holding(TASKS, task.0).await;
    let again = refund(1, LONG);
    let progress = again.progress.clone();
    let asking = asking_by(&engine, again);
    harness.fixture.until_locked_out(1).await;
    assert!(progress.request().is_none());
    other.execute("rollback").await.unwrap();
    let is_shown = async || progress.request().is_some();
    until("the request is shown", is_shown).await;
    assert!(harness.journal(task).await.row.asker_until > Some(Time(0)));
    asking.abort();
}

#[apply(both)]
async fn request_of_a_call_is_shown_until_a_person_has_answered_it(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let held = refund(1, LONG);
    let progress = held.progress.clone();
    let asking = asking_by(&engine, held);
    let task = until_asked(&harness, RequestKind::Approval).await;
    let is_shown = async || progress.request().is_some();
    until("the request is shown", is_shown).await;
    harness.tool.close();
    approve(&harness, &engine, task).await;
    harness.tool.reached(1).await;
    let is_over = async || progress.request().is_none();
    until("the answered request is not shown any more", is_over).await;
    harness.tool.open();
    let answer = asking.await.unwrap().unwrap();
    assert_eq!(answer.call.outcome, Some(Outcome::Succeeded));
}

#[apply(both)]
async fn ask_that_leaves_ends_no_presence_of_a_later_ask(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engines = [(); 3].map(|()| harness.engine(8));
    let one = |wait| by_key("k", None, refund(1, wait));
    let (mut asks, mut task) = (Vec::new(), None);
    for (engine, minutes) in engines.iter().zip([10, 20, 30]) {
        asks.push(asking_by(engine, one(Duration::from_mins(minutes))));
        let proposed = until_proposed(&harness).await;
        let soon = harness.fixture.store.now().await.unwrap() + Duration::from_mins(minutes - 5);
        until_present(&harness, proposed, |until| until > soon).await;
        task = Some(proposed);
    }
    let task = task.unwrap();
    let until = harness.journal(task).await.row.asker_until;
    // `asks[0]` ends with its connection, `asks[1]` ends with the shutdown of its engine, and the
    // ask `polled` returns at once. The row keeps the presence that `asks[2]` has stored.
    asks[0].abort();
    let _ = (&mut asks[0]).await;
    until_running(&engines[0], 0).await;
    engines[1].shut_down(LONG).await;
    let over = (&mut asks[1]).await.unwrap().unwrap().call;
    let polled = engines[2]
        .gates()
        .ask(&agent(), &one(Duration::ZERO), None)
        .await
        .unwrap()
        .call;
    for call in [over, polled] {
        assert_eq!((call.task_id, call.state), (task, GateState::Pending));
    }
    assert_eq!(harness.journal(task).await.row.asker_until, until);
    asks[2].abort();
}

#[apply(both)]
async fn ask_that_names_its_call_ends_a_presence_that_an_earlier_ask_left_behind(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let polled = by_key("k", None, refund(1, Duration::ZERO));
    let task = asks(&engine, &polled).await.task_id;
    until_at_rest(&harness, task).await;
    // Simulates an earlier ask whose end was not stored. The row still shows the asker as
    // present.
    let until = harness.fixture.store.now().await.unwrap() + LONG;
    let left = format!("update agent_task set asker_until = {}", until.0);
    harness.fixture.database().execute(&left).await;
    let again = asks(&engine, &polled).await;
    assert_eq!((again.task_id, again.state), (task, GateState::Pending));
    assert_eq!(harness.journal(task).await.row.asker_until, Some(Time(0)));
}

#[apply(both)]
async fn answer_that_is_not_handed_over_ends_no_reservation_of_a_later_ask(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let (here, there) = (harness.engine(8), harness.engine(8));
    let task = ask(&here, 1, Duration::ZERO).await.call.task_id;
    approve(&harness, &here, task).await;
    drop(ask(&here, 1, LONG).await);
    let earlier = ask(&here, 1, Duration::ZERO).await;
    harness.fixture.forward(Duration::from_secs(6));
    let later = ask(&there, 1, Duration::ZERO).await;
    for answer in [&earlier, &later] {
        assert_eq!(answer.call.task_id, task);
        assert_eq!(answer.call.outcome, Some(Outcome::Succeeded));
    }
    let until = harness.journal(task).await.row.asker_until;
    drop(earlier);
    until_running(&here, 0).await;
    assert_eq!(harness.journal(task).await.row.asker_until, until);
    drop(later);
}

#[apply(both)]
async fn equal_ask_beside_a_call_of_unknown_outcome_says_so_and_the_next_one_continues_that_call(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    harness.tool.answers(504, "late");
    let asking = asking_by(&engine, small(1, Duration::from_mins(5)));
    let task = until_asked(&harness, RequestKind::Reconcile).await;
    harness.tool.answers(200, "{}");
    let beside = asks(&engine, &small(1, Duration::ZERO)).await;
    let says = beside.message();
    assert_ne!(beside.task_id, task);
    assert!(
        says.contains(
            "The same call is being run or may have run: a person is asked about its outcome."
        ),
        "{says}"
    );
    abort(asking).await;
    until_present(&harness, task, |until| until == Time(0)).await;
    let again = asks(&engine, &small(1, Duration::ZERO)).await;
    assert_eq!(again.task_id, task);
    assert_eq!(again.state, GateState::OutcomeUnknown);
    assert_eq!(harness.tool.count(), 1);
}

#[apply(both)]
async fn equal_ask_beside_an_approved_call_says_so_and_the_next_one_continues_that_call(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let slots = limit_refund(&mut harness);
    let engine = harness.engine(8);
    let (task, asking, slot) = waiting_for_a_slot(&harness, &engine, slots).await;
    let beside = ask(&engine, 1, Duration::ZERO).await.call;
    let says = beside.message();
    assert_ne!(beside.task_id, task);
    assert!(
        says.contains("The same call was approved and waits for its asker."),
        "{says}"
    );
    abort(asking).await;
    until_present(&harness, task, |until| until == Time(0)).await;
    drop(slot);
    until_at_rest(&harness, task).await;
    let again = ask(&engine, 1, LONG).await.call;
    assert_eq!(again.task_id, task);
    assert_eq!(again.outcome, Some(Outcome::Succeeded));
}

#[apply(both)]
async fn call_held_beside_an_equal_one_stays_held_when_its_tool_changes(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    let engine = harness.engine(8);
    harness.tool.close();
    let running = asking_by(&engine, small(1, Duration::from_mins(5)));
    harness.tool.reached(1).await;
    let held = asks(&engine, &small(1, Duration::ZERO)).await;
    assert_eq!(held.reason.as_deref(), Some("The same call is being run."));
    harness.configure(|yaml| yaml.replacen("exclusiveMinimum: 0", "exclusiveMinimum: 1", 1));
    let changed = harness.engine(8);
    reject_in_vain(&harness, &changed, held.task_id).await;
    harness.tool.open();
    assert_eq!(
        running.await.unwrap().unwrap().call.outcome,
        Some(Outcome::Succeeded)
    );
    assert_eq!(harness.tool.count(), 1);
}

#[apply(both)]
async fn queued_call_that_equal_asks_do_not_continue_says_so_and_runs_without_its_asker(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    // The engine of the asks has no slot, so another engine runs the calls.
    let (without_slots, engine) = (harness.engine(0), harness.engine(8));
    let lookup = proposal("lookup", r#"{"order":1}"#, Duration::ZERO);
    let queued = asks(&without_slots, &lookup).await;
    assert_eq!(queued.state, GateState::Approved);
    let says = "Allowed; the call is queued and starts by itself. Read it to get its result: the same call without its key is run again.";
    assert_eq!(queued.message(), says);
    let again = asks(&without_slots, &lookup).await;
    assert_ne!(again.task_id, queued.task_id);
    for task in [queued.task_id, again.task_id] {
        driven_until(&harness, &engine, task, TaskStatus::Completed).await;
    }
    assert_eq!(harness.tool.count(), 2);
}

#[apply(both)]
async fn ask_without_a_key_is_held_beside_a_running_call_with_a_key_and_another_key_runs(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    harness.tool.close();
    let named = |key| by_key(key, None, small(1, Duration::from_mins(5)));
    let running = asking_by(&engine, named("k1"));
    harness.tool.reached(1).await;
    let task = until_proposed(&harness).await;
    let beside = asks(&engine, &small(1, Duration::ZERO)).await;
    assert_ne!(beside.task_id, task);
    assert_eq!(
        beside.reason.as_deref(),
        Some("The same call is being run.")
    );
    let other = asking_by(&engine, named("k2"));
    harness.tool.reached(2).await;
    harness.tool.open();
    for ask in [running, other] {
        let call = ask.await.unwrap().unwrap().call;
        assert_eq!(call.outcome, Some(Outcome::Succeeded));
    }
    assert_eq!(harness.tool.count(), 2);
}

#[apply(both)]
async fn ask_without_a_key_is_held_beside_a_running_call_with_a_key_whose_asker_is_gone(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    harness.tool.close();
    let running = asking_by(&engine, by_key("k", None, small(1, LONG)));
    harness.tool.reached(1).await;
    let task = until_proposed(&harness).await;
    abort(running).await;
    until_present(&harness, task, |until| until == Time(0)).await;
    let beside = asks(&engine, &small(1, Duration::ZERO)).await;
    assert_eq!(beside.state, GateState::Pending);
    assert_ne!(beside.task_id, task);
    assert_eq!(
        beside.reason.as_deref(),
        Some("The same call is being run.")
    );
    harness.tool.open();
    let has_ended = async || harness.status(task).await.is_terminal();
    until("the call has ended", has_ended).await;
    assert_eq!(harness.tool.count(), 1);
}

#[apply(both)]
async fn ask_without_a_key_beside_a_call_with_a_key_that_waits_says_so(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let waiting = asking_by(&engine, by_key("k", None, refund(1, LONG)));
    let task = until_asked(&harness, RequestKind::Approval).await;
    until_present(&harness, task, |until| until > Time(0)).await;
    let beside = ask(&engine, 1, Duration::ZERO).await.call;
    assert_ne!(beside.task_id, task);
    let says = beside.message();
    assert!(says.contains("The same call waits already."), "{says}");
    abort(waiting).await;
}

#[apply(both)]
async fn ask_without_a_key_gets_no_result_of_a_call_with_a_key(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let named = asks(&engine, &by_key("k", None, small(1, LONG))).await;
    until_present(&harness, named.task_id, |until| until == Time(0)).await;
    let own = asks(&engine, &small(1, LONG)).await;
    assert_ne!(own.task_id, named.task_id);
    assert_eq!(own.outcome, Some(Outcome::Succeeded));
    assert_eq!(harness.tool.count(), 2);
}

/// The age of an ended call counts by the database's clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undelivered_result_is_found_by_a_replica_with_a_fast_clock() {
    let harness = harness(StoreFixture::postgres().await).await;
    let engine = harness.engine(8);
    let task = asks(&engine, &small(1, LONG)).await.task_id;
    until_present(&harness, task, |until| until == Time(0)).await;
    let in_the_year_2200 = ManualClock::at(7_258_118_400_000_000);
    let replica = Engine::new(EngineParts {
        clock: Arc::new(in_the_year_2200),
        ..harness.parts(8)
    });
    let again = asks(&replica, &small(1, LONG)).await;
    let result = (again.task_id, again.outcome);
    assert_eq!(result, (task, Some(Outcome::Succeeded)));
    assert_eq!(harness.tool.count(), 1);
}
