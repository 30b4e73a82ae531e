//! Tests a driver that is dropped at any await point of a task's life, after which another replica
//! takes over.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use holdpoint::task::id::TaskId;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::engine_harness::{Calls, EngineHarness, alice, go};
use super::invariants::{check_ended, events_have_no_gaps, inbox_has_the_open_requests};
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::repetitions;

/// The moment at which a driver is dropped: at the await itself, or once the awaited event has
/// happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drop {
    AtOnce,
    Woken,
}

/// Returns the number of polls that the first driver of an enumeration gets, and the number by which
/// each further driver gets more. A long run drops a driver at every poll. A normal run drops a
/// driver at every second poll, and begins at poll 0 or 1: at a different poll for each `Drop` and
/// each database. So the runs of one database cover every poll, and so do the runs of one `Drop`.
pub(super) fn steps_of_polls(fixture: &StoreFixture, when: Drop) -> (usize, usize) {
    let step = repetitions(2, 1);
    let first = when as usize + usize::from(fixture.is_postgres());
    (first % step, step)
}

async fn polled(driver: impl Future<Output = ()>, when: Drop, left: &mut usize) -> bool {
    let mut driver = pin!(driver);
    poll_fn(|context| {
        if *left == 0 {
            return Poll::Ready(false);
        }
        *left -= 1;
        match driver.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending if *left == 0 && when == Drop::AtOnce => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Drives a new task in a process whose drivers are polled at most `left` times in all. If the task
/// has not ended by then, other processes finish it. Returns the task, and whether the first
/// process finished it.
pub(super) async fn drive_and_drop(
    harness: &EngineHarness,
    when: Drop,
    mut left: usize,
) -> (TaskId, bool) {
    let api = harness.engine(0);
    let task = api.create(&alice(), go(), None).await.unwrap().task_id;
    let crashing = harness.engine(1);
    while harness.status(task).await != TaskStatus::Completed {
        for driver in crashing.claim().await.unwrap() {
            if !polled(driver, when, &mut left).await {
                drop(crashing);
                harness.finish(task).await;
                return (task, false);
            }
        }
        harness.answer_all(&api, task).await;
    }
    (task, true)
}

async fn dropped_everywhere(fixture: StoreFixture, calls: Calls) {
    let harness = EngineHarness::new(fixture, calls).await;
    for when in [Drop::AtOnce, Drop::Woken] {
        let (mut polls, step) = steps_of_polls(&harness.fixture, when);
        let mut whole = 0;
        // The number of polls that a task needs varies, so the rounds go on for some polls after the
        // first task that has ended without another process.
        while whole * step < 3 {
            let (task, by_itself) = drive_and_drop(&harness, when, polls).await;
            polls += step;
            whole += usize::from(by_itself);
            let journal = harness.journal(task).await;
            let said = || format!("dropped {when:?} after {polls} polls: {:#?}", journal.items);
            assert_eq!(journal.row.status, TaskStatus::Completed, "{}", said());
            check_ended(&journal.items);
            let asked = calls.iter().filter(|(name, _)| *name == "refund").count();
            assert!(harness.executions(task, "/refund") <= asked, "{}", said());
            assert!(harness.executions(task, "/lookup") <= 3, "{}", said());
        }
        assert!(polls > 5, "only {polls} await points");
    }
    events_have_no_gaps(&harness.fixture).await;
    inbox_has_the_open_requests(&harness.fixture).await;
}

#[apply(both)]
async fn held_call_runs_at_most_once_wherever_its_driver_is_dropped(fixture: StoreFixture) {
    dropped_everywhere(fixture, &[("refund", r#"{"order":1,"amount":120}"#)]).await;
}

#[apply(both)]
async fn calls_of_every_effect_run_within_their_limit_wherever_the_driver_is_dropped(
    fixture: StoreFixture,
) {
    let calls = &[
        ("refund", r#"{"order":1,"amount":5}"#),
        ("lookup", r#"{"order":1}"#),
        ("tag", r#"{"text":"paid"}"#),
        ("refund", r#"{"order":2,"amount":5}"#),
    ];
    dropped_everywhere(fixture, calls).await;
}
