//! Tests calls at a gate in the engine. The asker of a call (the client that waits for the verdict)
//! leaves, comes back or crashes. Meanwhile people decide, clocks advance, rules change and
//! replicas compete.

mod crashes;
mod equal_asks;
mod failures;
mod guards;
mod quarantine;
mod questions;
mod standing_decisions;

use std::sync::{Arc, Once};
use std::time::Duration;

use holdpoint::engine::gate::{
    AskProgress, GateAnswer, GateCall, GateDecision, GateRefusal, GateState, Identity, Proposal,
    ResultDelivery,
};
use holdpoint::engine::{Engine, Refusal};
use holdpoint::people::{Caller, Permissions};
use holdpoint::store::TaskFilter;
use holdpoint::task::change::ASKER_UNTIL_DELIVERED;
use holdpoint::task::decision::Action;
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::engine_harness::{
    EngineHarness, alice, alice_decides, alice_is_refused, claimed, join, outcomes, whole,
};
use super::two_replicas::Pair;
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::{eventually, repetitions, until};

const LONG: Duration = Duration::from_mins(1);
const GATE: &str = "
gates:
  coding: { tools: [refund, lookup, Bash], use_within: 1h, run_within: 10m }
";
const BASH: &str = "
  Bash: { external: {}, parameters: { type: object, properties: { command: { type: string } } } }
agents:";

type AskTask = JoinHandle<Result<GateAnswer, GateRefusal>>;

async fn harness(fixture: StoreFixture) -> EngineHarness {
    let mut harness = EngineHarness::new(fixture, &[]).await;
    harness.configure(|yaml| yaml.replacen("\nagents:", BASH, 1) + GATE);
    harness
}

/// Returns Alice's agent, whose key may only propose calls.
pub fn agent() -> Caller {
    let permissions = Permissions {
        create: false,
        read: false,
        decide: false,
        gate: true,
    };
    Caller {
        permissions,
        ..alice()
    }
}

fn proposal(tool: &str, arguments: &str, wait: Duration) -> Proposal {
    Proposal {
        gate: None,
        tool: tool.to_owned(),
        arguments_text: arguments.to_owned(),
        session_id: None,
        context: String::new(),
        metadata: "{}".to_owned(),
        identity: Identity::Value,
        runner: None,
        wait,
        run_wait: Duration::ZERO,
        returns_within: Duration::ZERO,
        progress: AskProgress::default(),
    }
}

/// Returns a proposal of a refund that a person must approve.
fn refund(order: u32, wait: Duration) -> Proposal {
    let arguments = format!(r#"{{"order":{order},"amount":120}}"#);
    proposal("refund", &arguments, wait)
}

/// Returns a proposal of a refund that a rule allows.
fn small(order: u32, wait: Duration) -> Proposal {
    let arguments = format!(r#"{{"order":{order},"amount":5}}"#);
    proposal("refund", &arguments, wait)
}

fn bash(wait: Duration) -> Proposal {
    proposal("Bash", r#"{"command":"make"}"#, wait)
}

async fn asks(engine: &Arc<Engine>, proposal: &Proposal) -> GateCall {
    engine
        .gates()
        .ask(&agent(), proposal, None)
        .await
        .unwrap()
        .call
}

/// Reads a call as its asker does. The read does not wait.
async fn read(engine: &Arc<Engine>, task: TaskId) -> GateCall {
    let gates = engine.gates();
    let call = gates.read_call(&agent(), task, Duration::ZERO).await;
    call.unwrap()
}

async fn ask(engine: &Arc<Engine>, order: u32, wait: Duration) -> GateAnswer {
    engine
        .gates()
        .ask(&agent(), &refund(order, wait), None)
        .await
        .unwrap()
}

#[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
fn asking_by(engine: &Arc<Engine>, proposal: Proposal) -> AskTask {
    let engine = Arc::clone(engine);
    tokio::spawn(async move { engine.gates().ask(&agent(), &proposal, None).await })
}

fn asking(engine: &Arc<Engine>, order: u32) -> AskTask {
    asking_by(engine, refund(order, Duration::from_mins(5)))
}

/// Ends an ask without an answer, as the end of its client's connection does.
async fn abort(asking: AskTask) {
    asking.abort();
    let _ = asking.await;
}

fn every_call() -> TaskFilter {
    TaskFilter {
        tenant: "acme".to_owned(),
        agents: vec!["coding".to_owned()],
        limit: 10,
        ..TaskFilter::default()
    }
}

/// Waits until `is` accepts the row's `asker_until`, the time until which the asker of the call
/// counts as present.
async fn until_present(harness: &EngineHarness, task: TaskId, is: impl Fn(Time) -> bool) {
    let is_expected = async || harness.journal(task).await.row.asker_until.is_some_and(&is);
    until("the presence of the asker is as expected", is_expected).await;
}

async fn until_at_rest(harness: &EngineHarness, task: TaskId) {
    let is_released = async || harness.journal(task).await.row.lease_owner.is_none();
    until("no replica drives the task", is_released).await;
}

/// Waits until exactly `count` futures that the engine has spawned still run, such as drivers. Each
/// of them holds the engine, as the test does.
async fn until_running(engine: &Arc<Engine>, count: usize) {
    let are_running = async || Arc::strong_count(engine) == count + 1;
    until("all other futures of the engine have ended", are_running).await;
}

/// Executes an SQL statement right before the next commit is sent.
fn execute_before_next_commit(harness: &EngineHarness, sql: &'static str) {
    let (database, once) = (harness.fixture.database(), Once::new());
    harness.fixture.store.observe_batches(move |_| {
        once.call_once(|| {
            let executed = database.execute(sql);
            tokio::task::block_in_place(|| Handle::current().block_on(executed));
        });
    });
}

/// Waits until the gate has a call, which must be its only call. Returns the call's task.
async fn until_proposed(harness: &EngineHarness) -> TaskId {
    let only_call = async || {
        let calls = harness.fixture.store.tasks(&every_call()).await.unwrap();
        assert!(calls.rows.len() <= 1, "{} calls", calls.rows.len());
        calls.rows.first().map(|row| row.task_id)
    };
    eventually("the call is stored", only_call).await
}

/// Waits until a request of this kind, and no other, is open at the call.
async fn until_open(harness: &EngineHarness, task: TaskId, kind: RequestKind) {
    let is_open = async || {
        let ended = harness.status(task).await.is_terminal();
        assert!(!ended, "the call has ended");
        matches!(harness.open(task).await[..], [(_, open)] if open == kind)
    };
    until("a person is asked", is_open).await;
}

/// Sends a rejection of the only request of a call whose tool has changed. Asserts that the engine
/// refuses the rejection, and waits until a new request is open.
async fn reject_in_vain(harness: &EngineHarness, engine: &Arc<Engine>, task: TaskId) {
    let (request, _) = harness.only_open(task).await;
    let answer = whole(Action::Reject, None);
    let refused = engine.decide(&alice(), request, answer, None).await;
    assert!(refused.is_err());
    let is_asked_anew = async || {
        let open = harness.open(task).await;
        matches!(open[..], [(new, RequestKind::Approval)] if new != request)
    };
    until("a person is asked anew", is_asked_anew).await;
}

/// Waits until the gate has a call, and a request of this kind is open at this call. Returns the
/// call's task. Panics if the gate has a second call.
async fn until_asked(harness: &EngineHarness, kind: RequestKind) -> TaskId {
    let task = until_proposed(harness).await;
    until_open(harness, task, kind).await;
    task
}

async fn driven(engine: &Arc<Engine>) {
    join(claimed(engine).await).await;
}

/// Drives the due tasks until `task` has this status. A claim skips a task whose row is locked, so
/// one claim may not suffice.
async fn driven_until(
    harness: &EngineHarness,
    engine: &Arc<Engine>,
    task: TaskId,
    status: TaskStatus,
) {
    let is_there = async || {
        driven(engine).await;
        harness.status(task).await == status
    };
    until("the task has the expected status", is_there).await;
}

async fn approve(harness: &EngineHarness, engine: &Arc<Engine>, task: TaskId) {
    let (request, _) = harness.only_open(task).await;
    alice_decides(engine, request, whole(Action::Approve, None)).await;
}

/// Proposes a call, and approves it while no asker waits for it. Returns the call's task.
async fn approved(harness: &EngineHarness, engine: &Arc<Engine>, proposal: &Proposal) -> TaskId {
    let task = asks(engine, proposal).await.task_id;
    approve(harness, engine, task).await;
    task
}

/// Each round approves a call while the call's asker leaves. The call runs exactly once: either at
/// once, or when the next asker asks for it.
#[apply(both)]
async fn approval_against_a_leaving_asker_runs_the_call_once(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let times = repetitions(40, 500);
    let (mut ran_at_once, mut waited) = (0, 0);
    for order in 1..=u32::try_from(times).unwrap() {
        let task = ask(&engine, order, Duration::ZERO).await.call.task_id;
        let asking = asking(&engine, order);
        until_present(&harness, task, |until| until > Time(0)).await;
        tokio::join!(approve(&harness, &engine, task), abort(asking));
        // The asker has left. If the call has already run, its result is still waiting for an
        // asker.
        until_present(&harness, task, |until| until == Time(0)).await;
        // A commit of the result writes the same, and may come before the end of the ask.
        until_running(&engine, 0).await;
        let answer = ask(&engine, order, LONG).await;
        assert_eq!(answer.call.task_id, task);
        assert_eq!(answer.call.outcome, Some(Outcome::Succeeded));
        assert_eq!(harness.executions(task, "/refund"), 1);
        let approved = harness.journal(task).await.items;
        let yes = approved
            .iter()
            .position(|item| matches!(item.fact, Fact::Decision { .. }))
            .unwrap();
        let started = approved
            .iter()
            .position(|item| matches!(item.fact, Fact::ToolStarted { .. }))
            .unwrap();
        if approved[started].at.since(approved[yes].at) == Duration::ZERO {
            ran_at_once += 1;
        } else {
            waited += 1;
        }
        answer
            .delivery
            .into_iter()
            .for_each(ResultDelivery::delivered);
    }
    assert_eq!(ran_at_once + waited, times);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asker_on_one_replica_gets_the_result_of_an_approval_on_another() {
    for notifies in [true, false] {
        let pair = Pair::of(harness(StoreFixture::postgres().await).await).await;
        let harness = &pair.harness;
        if !notifies {
            harness.fixture.store.mute();
            pair.other.mute();
        }
        let wait = Duration::from_mins(5);
        // The service runs the refund, and the asker runs the other call.
        let ours = (refund(1, wait), Some(Outcome::Succeeded), 1);
        for (proposal, outcome, executions) in [ours, (bash(wait), None, 0)] {
            let unwaited = Proposal {
                wait: Duration::ZERO,
                ..proposal.clone()
            };
            let task = asks(&pair.here, &unwaited).await.task_id;
            let asking = asking_by(&pair.here, proposal);
            until_present(harness, task, |until| until > Time(0)).await;
            approve(harness, &pair.there, task).await;
            // An ask that misses the approval would wait for five minutes.
            let answer = timeout(LONG, asking).await.expect("the ask is woken");
            let call = answer.unwrap().unwrap().call;
            assert_eq!((call.task_id, call.outcome), (task, outcome));
            assert_eq!(call.permit.is_some(), outcome.is_none());
            assert_eq!(harness.executions(task, "/refund"), executions);
        }
    }
}

#[apply(both)]
async fn approved_call_without_its_asker_waits_and_expires_after_use_within(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    // The task must be parked before the clock advances, because its wake-up time is computed
    // when it is parked.
    until_at_rest(&harness, task).await;
    driven(&engine).await;
    assert_eq!(harness.status(task).await, TaskStatus::Running);
    harness.fixture.forward(Duration::from_mins(50));
    driven(&engine).await;
    assert_eq!(harness.status(task).await, TaskStatus::Running);
    harness.fixture.forward(Duration::from_mins(11));
    driven_until(&harness, &engine, task, TaskStatus::Completed).await;
    let journal = harness.journal(task).await;
    assert_eq!(journal.row.status, TaskStatus::Completed);
    assert_eq!(outcomes(&journal), [Outcome::Expired]);
    assert_eq!(harness.executions(task, "/refund"), 0);
}

#[apply(both)]
async fn result_whose_delivery_was_lost_is_answered_by_the_next_ask_and_runs_nothing(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    let lost = ask(&engine, 1, LONG).await;
    assert_eq!(lost.call.outcome, Some(Outcome::Succeeded));
    // Simulates a process that ends before it has delivered the body of the answer.
    drop(lost);
    let restarted = harness.engine(8);
    let again = ask(&restarted, 1, LONG).await;
    assert_eq!(again.call.task_id, task);
    assert_eq!(again.call.outcome, Some(Outcome::Succeeded));
    again.delivery.unwrap().delivered();
    until_present(&harness, task, |until| until == ASKER_UNTIL_DELIVERED).await;
    let third = ask(&restarted, 1, Duration::ZERO).await;
    assert_ne!(third.call.task_id, task);
    assert_eq!(third.call.decision, GateDecision::Pending);
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn gate_that_was_removed_fails_its_open_calls(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = ask(&engine, 1, Duration::ZERO).await.call.task_id;
    harness.replace(GATE, "");
    let without = harness.engine(8);
    let (request, _) = harness.only_open(task).await;
    let decided = alice_is_refused(&without, request, whole(Action::Approve, None)).await;
    assert_eq!(decided, Refusal::Withdrawn(request));
    driven_until(&harness, &without, task, TaskStatus::Failed).await;
    let error = harness.journal(task).await.row.error;
    assert_eq!(
        error.map(|error| error.code),
        Some(FailureCode::Configuration)
    );
    let call = read(&without, task).await;
    assert_eq!(call.state, GateState::Settled);
    assert_eq!(call.decision, GateDecision::Deny);
    assert_eq!(call.outcome, Some(Outcome::Withdrawn));
    let message =
        "The call was not run (withdrawn): The configuration has no agent or gate coding.";
    assert_eq!(call.message(), message);
    let refused = without
        .gates()
        .ask(&agent(), &refund(1, Duration::ZERO), None)
        .await;
    assert!(matches!(
        refused,
        Err(GateRefusal::Command(Refusal::Invalid(_)))
    ));
    assert_eq!(harness.executions(task, "/refund"), 0);
}

#[apply(both)]
async fn future_of_an_ask_takes_at_most_four_kibibytes(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let (caller, proposal) = (agent(), refund(1, LONG));
    let bytes = size_of_val(&engine.gates().ask(&caller, &proposal, None));
    assert!(bytes <= 4 * 1024, "{bytes} bytes");
}

#[apply(both)]
async fn parked_call_keeps_the_terms_of_its_making_and_todays_rules_tighten_them(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    let denied = approved(&harness, &engine, &refund(2, Duration::ZERO)).await;
    for parked in [task, denied] {
        until_at_rest(&harness, parked).await;
    }
    harness.replace("use_within: 1h", "use_within: 1m");
    let shorter = harness.engine(8);
    harness.fixture.forward(Duration::from_mins(30));
    let answer = ask(&shorter, 1, LONG).await;
    assert_eq!(answer.call.outcome, Some(Outcome::Succeeded));
    harness.replace(
        "name: large, tools: [refund], decide: hold",
        "name: large, tools: [refund], decide: deny",
    );
    let stricter = harness.engine(8);
    let key = Proposal {
        identity: Identity::Call(denied),
        ..refund(2, LONG)
    };
    let call = asks(&stricter, &key).await;
    assert_eq!(call.state, GateState::Settled);
    assert_eq!(call.outcome, Some(Outcome::Denied));
    assert_eq!(harness.executions(denied, "/refund"), 0);
}

#[apply(both)]
async fn asker_status_after_a_configuration_change_has_the_use_within_by_which_the_call_expires(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    harness.replace("use_within: 1h", "use_within: 2h");
    let longer = harness.engine(8);
    let gate = "coding".to_owned();
    let status = longer.gates().asker_status(task, Some(&gate)).await;
    let status = status.unwrap().unwrap();
    assert_eq!(status.use_within, Duration::from_hours(1));
    let call = read(&longer, task).await;
    let left = call.expires_at.map(|end| end.since(call.now));
    assert!(
        left.is_some_and(|left| left <= status.use_within),
        "{left:?}"
    );
}

#[apply(both)]
async fn permit_whose_runner_dies_ends_in_a_question_after_run_within(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    let call = asks(&engine, &bash(LONG)).await;
    assert!(call.permit.is_some());
    until_at_rest(&harness, task).await;
    harness.fixture.forward(Duration::from_mins(5));
    driven(&engine).await;
    assert_eq!(harness.open(task).await, []);
    harness.fixture.forward(Duration::from_mins(6));
    driven_until(&harness, &engine, task, TaskStatus::Paused).await;
    assert_eq!(harness.open(task).await.len(), 1);
}
