//! Tests changes by a process that read a task before a promotion. The promoted server lacks the
//! last commits of the former server, and its tasks may reach the same versions again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdpoint::engine::Refusal;
use holdpoint::store::{Settings, Store};
use holdpoint::task::change::TaskRow;
use holdpoint::task::decision::Action;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use tokio::runtime::Handle;

use super::super::engine_harness::{
    EngineHarness, alice, alice_writes, go, message, outcomes, turn, whole,
};
use super::{LARGE, LOOKUP, MARK_RESTORED, SMALL, mark_restored, only_open_request};
use crate::store::store_fixture::{StoreFixture, claim};
use crate::support::until;

/// Another process has marked the restore. Each connection of this process was opened before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_of_a_process_that_does_not_know_of_a_restore_completes_and_tells_the_process() {
    let mut fixture = StoreFixture::postgres().await;
    // The least number of connections: all of them are open before the restore.
    let settings = Settings {
        max_connections: 5,
        ..fixture.settings.clone()
    };
    let store = Store::open(&settings, fixture.clock.clone()).await.unwrap();
    until("the relay is connected", async || store.ends_presence()).await;
    fixture.store = store;
    let harness = EngineHarness::new(fixture, LOOKUP).await;
    let (engine, store) = (harness.engine(2), &harness.fixture.store);
    let create = async || {
        let accepted = engine.create(&alice(), go(), None).await.unwrap();
        harness.until_stopped(accepted.task_id).await;
        accepted.task_id
    };
    create().await;
    mark_restored(&harness).await;
    assert_eq!(store.history_uncertain_until(), None);
    let journal = harness.journal(create().await).await;
    assert_eq!(journal.row.status, TaskStatus::Completed);
    assert_eq!(harness.prompt_count(), 4, "no prompt is repeated");
    let known = store.history_uncertain_until();
    assert!(known.is_some() && known == journal.history_uncertain_until);
}

/// The store knows of a restore. The journal is still that of the former server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_that_reads_the_journal_of_a_former_server_pauses_between_its_tries() {
    let harness = EngineHarness::new(StoreFixture::sqlite().await, LARGE).await;
    let task = harness.held().await;
    let (request, _) = only_open_request(&harness, task).await;
    let (store, clock) = (&harness.fixture.store, &harness.fixture.clock);
    store.learn_uncertain_until(Some(Time(i64::MAX)));
    let before = clock.sleeps();
    // Each try finds a free slot, also if the driver of the last try has not ended.
    let (engine, alice) = (harness.engine(256), alice());
    let decided = engine.decide(&alice, request, whole(Action::Approve, None), None);
    let decided = decided.await;
    assert!(matches!(decided, Err(Refusal::Unavailable)), "{decided:?}");
    assert!(clock.sleeps() > before + 100, "{}", clock.sleeps());
    assert!(harness.tool.ledger().is_empty());
}

/// Returns statements that remove the commits since the read of `replicated`, the row of the only
/// task. The database is then in the state of a promoted standby that lacks these commits.
fn without_later_commits(replicated: &TaskRow) -> String {
    let TaskRow {
        version,
        last_seq,
        next_event,
        status,
        busy,
        open_requests,
        ..
    } = replicated;
    format!(
        "alter table intervention_request disable trigger user;
        delete from decision;
        delete from claimable_task;
        delete from agent_task_item where seq > {last_seq};
        update intervention_request set status = 'pending', closed_seq = null;
        update agent_task set version = {version}, last_seq = {last_seq}, next_event = {next_event},
            status = '{status:?}', busy = {busy}, open_requests = {open_requests}, phase = 'parked', lease_owner = null,
            lease_until = null, status_seq = (select max(seq) from agent_task_item where type = 'task_status');
        {MARK_RESTORED}"
    )
}

fn numbers(row: &TaskRow) -> (i64, i64) {
    (row.version, row.last_seq)
}

/// The approval of the call is lost. The new history has a cancel instead, after which the task has
/// the version and the number of items that it had after the approval.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn result_of_a_call_of_a_lost_history_is_a_late_result_of_the_task_that_was_canceled_since() {
    let harness = EngineHarness::new(StoreFixture::postgres().await, LARGE).await;
    let task = harness.held().await;
    let replicated = harness.fixture.row(task).await;
    harness.tool.close();
    let engine = harness.engine(1);
    harness.answer_all(&engine, task).await;
    harness.tool.reached(1).await;
    let lost = harness.fixture.row(task).await;
    let promoted = without_later_commits(&replicated);
    harness.fixture.database().execute(&promoted).await;
    let other = harness.engine(0);
    other.cancel(&alice(), task, None).await.unwrap();
    let canceled = harness.fixture.row(task).await;
    assert_eq!(numbers(&canceled), numbers(&lost), "the numbers come back");
    harness.tool.open();
    let is_stored = async || harness.fixture.row(task).await.last_seq > canceled.last_seq;
    until("the result is stored", is_stored).await;
    engine.shut_down(Duration::from_mins(1)).await;
    let journal = harness.journal(task).await;
    assert_eq!(outcomes(&journal), [Outcome::Unknown]);
    let is_late = |fact: &Fact| matches!(fact, Fact::LateResult(_));
    let late = journal.items.iter().filter(|item| is_late(&item.fact));
    assert_eq!(late.count(), 1);
    assert_eq!(harness.prompt_count(), 1, "the model is not asked again");
    let (status, busy) = (journal.row.status, journal.row.busy);
    assert_eq!((status, busy), (TaskStatus::Canceled, 0));
}

/// While the model answers the user's message, this message is lost. The new history has another
/// message instead, and another process has claimed the task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_to_a_message_of_a_lost_history_starts_nothing_in_the_new_history() {
    let harness = EngineHarness::new(StoreFixture::postgres().await, &[]).await;
    let task = harness.stopped().await;
    let replicated = harness.fixture.row(task).await;
    let (database, other) = (harness.fixture.database(), harness.engine(0));
    let (store, is_promoted) = (harness.fixture.store.clone(), AtomicBool::new(false));
    harness.script(move |_| {
        if is_promoted.swap(true, Ordering::Relaxed) {
            return Ok(turn(&[]));
        }
        let promoted = async {
            let lost = store.task(task).await.unwrap().unwrap();
            database.execute(&without_later_commits(&replicated)).await;
            alice_writes(&other, task, message("Refund order 2.")).await;
            assert_eq!(claim(&store, "another", 1).await, [task]);
            let claimed = store.task(task).await.unwrap().unwrap();
            assert_eq!(numbers(&claimed), numbers(&lost), "the numbers come back");
        };
        tokio::task::block_in_place(|| Handle::current().block_on(promoted));
        Ok(turn(SMALL))
    });
    alice_writes(&harness.engine(0), task, message("Refund order 1.")).await;
    harness.run().await;
    let row = harness.fixture.row(task).await;
    assert_eq!(row.lease_owner.as_deref(), Some("another"));
    harness.later();
    harness.run().await;
    let journal = harness.journal(task).await;
    assert_eq!(journal.row.status, TaskStatus::Completed);
    assert_eq!(outcomes(&journal), []);
    assert!(harness.tool.ledger().is_empty());
}
