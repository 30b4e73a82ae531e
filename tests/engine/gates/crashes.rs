//! Tests gate calls after a failure of the replica at which the asker waited. The replica crashed,
//! was suspended, or did not get the database's answer to a commit. The next equal proposal
//! continues the call.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdpoint::engine::gate::GateState;
use holdpoint::engine::{Engine, EngineParts};
use holdpoint::secret::Secret;
use holdpoint::store::{Settings, Store};
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Outcome;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use holdpoint::world::Clock as _;
use macro_rules_attribute::apply;

use super::super::engine_harness::{EngineHarness, alice_decides, whole};
use super::super::random_gates::Replica;
use super::equal_asks::until_second;
use super::questions::served;
use super::{
    LONG, agent, approve, approved, ask, asking, asking_by, driven, driven_until, harness, refund,
    small, until_at_rest, until_present, until_proposed,
};
use crate::store::connection_loss::lossy;
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::until;

/// The bytes by which the lossy proxy recognizes the commit that reserves the result of a call for
/// an ask. They are the length of the reservation, 5 seconds in microseconds, as Postgres encodes
/// an element of an array parameter.
const RESERVATION: &[u8] = &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0x4c, 0x4b, 0x40];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asker_of_a_sqlite_file_is_gone_after_a_crash() {
    let harness = harness(StoreFixture::sqlite().await).await;
    let engine = harness.engine(8);
    let task = ask(&engine, 1, Duration::ZERO).await.call.task_id;
    let waiting = asking(&engine, 1);
    until_present(&harness, task, |until| until > Time(0)).await;
    // The copied files are as a crash would leave them: the asker still waits, so the file has no
    // commit that ends the asker's presence.
    let url = harness.fixture.settings.url.reveal();
    let file = url.strip_prefix("sqlite://").unwrap();
    for suffix in ["", "-wal"] {
        let (from, to) = (format!("{file}{suffix}"), format!("{file}.crashed{suffix}"));
        std::fs::copy(from, to).unwrap();
    }
    let settings = Settings {
        url: Secret::new(format!("{url}.crashed")),
        ..Settings::default()
    };
    let store = Store::open(&settings, harness.fixture.clock.clone())
        .await
        .unwrap();
    let row = store.journal(task).await.unwrap().unwrap().row;
    assert_eq!(row.status, TaskStatus::Paused);
    assert_eq!(row.asker_until, Some(Time(0)));
    waiting.abort();
}

/// Lets an asker wait for a call at this replica for five minutes, or until the replica crashes.
fn asking_at(replica: &Replica) {
    let engine = Arc::clone(&replica.engine);
    let proposal = refund(1, Duration::from_mins(5));
    replica.spawn(async move { engine.gates().ask(&agent(), &proposal, None).await });
}

/// Approves a call and crashes the replica that runs it for an asker who waits for five minutes.
async fn crashed_on_the_way(harness: &EngineHarness) -> TaskId {
    let engine = harness.engine(8);
    let task = approved(harness, &engine, &refund(1, Duration::ZERO)).await;
    harness.tool.close();
    let replica = Replica::start(&harness.parts(8));
    asking_at(&replica);
    harness.tool.reached(1).await;
    replica.crash();
    harness.tool.open();
    task
}

/// A process on the Postgres of a harness, with a store of its own.
struct Process {
    replica: Replica,
    store: Store,
}

impl Process {
    async fn start(harness: &EngineHarness) -> Self {
        let fixture = &harness.fixture;
        let store = Store::open(&fixture.settings, fixture.clock.clone())
            .await
            .unwrap();
        let has_lock = async || store.ends_presence() && fixture.store.ends_presence();
        until("the presence of askers ends with their processes", has_lock).await;
        let parts = EngineParts {
            store: store.clone(),
            ..harness.parts(8)
        };
        Self {
            replica: Replica::start(&parts),
            store,
        }
    }

    /// Proposes a held call for an asker who waits for five minutes. Returns the call's task.
    async fn propose_held(&self, harness: &EngineHarness) -> TaskId {
        asking_at(&self.replica);
        let task = until_proposed(harness).await;
        let is_paused = async || harness.status(task).await == TaskStatus::Paused;
        until("the call waits for a person", is_paused).await;
        until_present(harness, task, |until| until > Time(0)).await;
        task
    }

    /// Ends the process as a crash does: no commit ends the presence of its askers.
    async fn die(self, harness: &EngineHarness, task: TaskId) {
        self.replica.crash();
        self.store.close().await;
        until_present(harness, task, |until| until == Time(0)).await;
    }
}

/// Proposes a held call at a process on Postgres, which then dies. Returns the call's task.
async fn asked_by_a_dead_process() -> (EngineHarness, TaskId) {
    let harness = harness(StoreFixture::postgres().await).await;
    let process = Process::start(&harness).await;
    let task = process.propose_held(&harness).await;
    process.die(&harness, task).await;
    (harness, task)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approved_call_of_a_dead_process_runs_only_once_it_is_asked_for_again() {
    let (harness, task) = asked_by_a_dead_process().await;
    let engine = harness.engine(8);
    approve(&harness, &engine, task).await;
    until_at_rest(&harness, task).await;
    driven(&engine).await;
    assert_eq!(harness.executions(task, "/refund"), 0);
    let again = ask(&engine, 1, LONG).await.call;
    assert_eq!((again.task_id, again.state), (task, GateState::Settled));
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_ask_after_the_death_of_a_process_continues_its_pending_call() {
    let (harness, task) = asked_by_a_dead_process().await;
    let engine = harness.engine(8);
    let again = ask(&engine, 1, Duration::ZERO).await.call;
    assert_eq!((again.task_id, again.state), (task, GateState::Pending));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asker_of_a_living_process_is_present_again_once_its_relay_has_reconnected() {
    let harness = harness(StoreFixture::postgres().await).await;
    let engine = harness.engine(8);
    let process = Process::start(&harness).await;
    let task = process.propose_held(&harness).await;
    // The query leaves out the advisory lock that a starting process holds for the migrations.
    let locks =
        "select pid::bigint from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock'
        and (classid::bigint << 32 | objid::bigint) <> 7161402375501337
        and database = (select oid from pg_database where datname = current_database())";
    let sessions = async || harness.fixture.numbers(locks).await.unwrap();
    let before = sessions().await;
    assert_eq!(before.len(), 2);
    let end = format!("select count(pg_terminate_backend(pid::int)) from ({locks}) s (pid)");
    assert_eq!(harness.fixture.number(&end).await, 2);
    let have_reconnected = async || {
        let now = sessions().await;
        now.len() == 2 && now.iter().all(|session| !before.contains(session))
    };
    until("the relays hold their locks again", have_reconnected).await;
    until_present(&harness, task, |until| until > Time(0)).await;
    let equal = ask(&engine, 1, Duration::ZERO).await.call;
    assert_ne!(equal.task_id, task);
    process.die(&harness, task).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ask_gets_the_result_although_the_answer_to_its_reservation_was_lost() {
    let harness = harness(StoreFixture::postgres().await).await;
    let lost = harness
        .engine(8)
        .gates()
        .ask(&agent(), &small(1, LONG), None)
        .await
        .unwrap();
    let (task, outcome) = (lost.call.task_id, lost.call.outcome);
    assert_eq!(outcome, Some(Outcome::Succeeded));
    drop(lost);
    let way = lossy(&harness.fixture, RESERVATION).await;
    let clock = harness.fixture.clock.clone();
    let engine = Engine::new(EngineParts {
        store: way.store(clock).await,
        ..harness.parts(8)
    });
    way.swallow.store(1, Ordering::SeqCst);
    let again = engine
        .gates()
        .ask(&agent(), &small(1, Duration::ZERO), None)
        .await
        .unwrap();
    assert_eq!(way.swallow.load(Ordering::SeqCst), 0, "the answer was lost");
    assert_eq!((again.call.task_id, again.call.outcome), (task, outcome));
    assert_eq!(harness.tool.count(), 1);
}

#[apply(both)]
async fn call_that_a_crashed_replica_ran_is_continued_by_the_next_equal_ask(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = crashed_on_the_way(&harness).await;
    harness.later();
    let until = harness.journal(task).await.row.asker_until;
    assert!(
        until.is_some_and(|until| until > harness.fixture.clock.now()),
        "the stored presence lasts"
    );
    driven(&engine).await;
    let again = ask(&engine, 1, Duration::ZERO).await.call;
    assert_eq!(again.task_id, task);
    assert_eq!(again.state, GateState::OutcomeUnknown);
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn asker_after_a_crash_stays_present_when_another_replica_takes_the_call_over(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let (here, there) = (harness.engine(8), harness.engine(8));
    let task = crashed_on_the_way(&harness).await;
    harness.fixture.forward(Duration::from_mins(6));
    let waiting = asking(&here, 1);
    let now = harness.fixture.clock.now();
    until_present(&harness, task, |until| until > now).await;
    driven(&there).await;
    let is_paused = async || harness.status(task).await == TaskStatus::Paused;
    until("the task is paused", is_paused).await;
    until_present(&harness, task, |until| until > now).await;
    let equal = ask(&there, 1, Duration::ZERO).await.call;
    assert_ne!(equal.task_id, task);
    assert!(
        equal
            .reason
            .unwrap()
            .contains("The same call is being run or may have run: a person is asked")
    );
    assert_eq!(harness.executions(task, "/refund"), 1);
    waiting.abort();
}

/// The first replica is suspended during the second call. Another replica asks a person about the
/// outcome, and the person says not to count on the call.
#[apply(both)]
async fn result_as_its_server_wrote_it_is_told_only_if_the_journal_has_it(fixture: StoreFixture) {
    let (harness, server) = served(fixture, Vec::new()).await;
    let (here, there) = (harness.engine(8), harness.engine(8));
    let first = asking_by(&here, small(1, LONG)).await.unwrap().unwrap();
    assert_eq!(first.raw.as_deref(), Some("{}"));
    let closed = server.open.lock().await;
    let asking = asking_by(&here, small(2, LONG));
    let task = until_second(&harness, first.call.task_id).await;
    until("the call is sent", async || server.attempts() == 2).await;
    harness.later();
    driven_until(&harness, &there, task, TaskStatus::Paused).await;
    let (request, _) = harness.only_open(task).await;
    alice_decides(&there, request, whole(Action::Reject, None)).await;
    driven_until(&harness, &there, task, TaskStatus::Completed).await;
    drop(closed);
    let told = asking.await.unwrap().unwrap();
    assert_eq!(
        (told.call.task_id, told.call.outcome),
        (task, Some(Outcome::Failed))
    );
    assert_eq!(told.raw, None);
}
