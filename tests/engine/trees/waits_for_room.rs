//! Tests sub-agents that wait, without a request of their own, until their full tree may open
//! another request.

use holdpoint::task::id::TaskId;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::super::engine_harness::EngineHarness;
use super::super::unread::{DEATHS, UNREAD, died, ended};
use super::super::worker_steps::WorkerSteps as _;
use super::harness::{DAYS, LEAF, People, Shape};
use super::stale_state::{balanced, twenty_are_open, twenty_one};
use crate::store::store_fixture::{StoreFixture, both};

/// Creates a tree of three branches with as many open requests as its limit allows. Returns the
/// harness, the root, and a leaf that waits to open its only request.
async fn waiting(fixture: StoreFixture, depth: usize) -> (EngineHarness, TaskId, TaskId) {
    let shape = Shape::branched(depth, 3);
    let harness = EngineHarness::of_trees(fixture, shape, twenty_one).await;
    let (root, last) = twenty_are_open(&harness, &harness.parts(0)).await;
    last.await;
    let asked = harness.asked_exactly::<20>(root).await;
    let leaves = harness.of_agent(root, LEAF).await.into_iter();
    let waiting: Vec<_> = leaves
        .filter(|leaf| asked.iter().all(|request| request.task_id != *leaf))
        .collect();
    let [leaf] = waiting[..] else {
        panic!("one leaf waits: {}", harness.description(root).await)
    };
    let statuses = [
        harness.row(root).await.status,
        harness.row(leaf).await.status,
    ];
    assert_eq!(statuses, [TaskStatus::Paused, TaskStatus::Running]);
    balanced(&harness, root).await;
    (harness, root, leaf)
}

async fn assert_asks(harness: &EngineHarness, root: TaskId, task: TaskId) {
    let asked = harness.asked_by_tree(root).await;
    assert!(
        asked.iter().any(|request| request.task_id == task),
        "{}",
        harness.description(root).await
    );
}

#[apply(both)]
async fn sub_agent_that_waits_for_room_while_its_root_is_paused_spends_no_max_duration(
    fixture: StoreFixture,
) {
    let (harness, root, leaf) = Box::pin(waiting(fixture, 1)).await;
    // People answer after more than the `max_duration` of all agents, which is an hour.
    harness.fixture.forward(DAYS);
    let parts = harness.parts(0);
    harness.finish_tree(&parts, root, People::Guide).await;
    harness.completed_journals(root).await;
    let row = harness.row(leaf).await;
    assert_eq!((row.status, row.error), (TaskStatus::Completed, None));
}

#[apply(both)]
async fn sub_agent_that_waits_for_room_is_woken_when_a_task_of_its_tree_ends_unread(
    fixture: StoreFixture,
) {
    let (harness, root, leaf) = Box::pin(waiting(fixture, 1)).await;
    let unread = harness.asked_by_tree(root).await[0].task_id;
    died(&harness, unread, DEATHS).await;
    let parts = harness.parts(0);
    let engine = EngineHarness::like(&parts, 4);
    let mut drivers = engine.claim().await.unwrap();
    assert_eq!(drivers.len(), 1);
    drivers.pop().unwrap().await;
    assert_eq!(ended(&harness, unread).await, UNREAD);
    harness.drive_tree(&parts, root).await;
    assert_asks(&harness, root, leaf).await;
    harness.finish_tree(&parts, root, People::Guide).await;
    let ends = [
        harness.row(root).await.status,
        harness.row(leaf).await.status,
    ];
    assert_eq!(ends, [TaskStatus::Completed; 2]);
}

/// A replica of an older version takes an answer. It cannot read the call of the sub-agent that
/// waits.
#[apply(both)]
async fn sub_agent_that_waits_for_room_is_woken_by_a_replica_that_cannot_read_it(
    fixture: StoreFixture,
) {
    let (harness, root, leaf) = Box::pin(waiting(fixture, 1)).await;
    let parts = harness.parts(0);
    let [turn, newer] = ["assistant_message", "newer_message"];
    harness.rename_type(leaf, turn, newer).await;
    let asked = harness.asked_by_tree(root).await;
    let old = EngineHarness::like(&parts, 0);
    harness.answer_one(&old, &asked[0], People::Guide).await;
    harness.rename_type(leaf, newer, turn).await;
    harness.drive_tree(&parts, root).await;
    assert_asks(&harness, root, leaf).await;
    balanced(&harness, root).await;
}

/// The replica of an older version can read the sub-agent that waits, but not its parent.
#[apply(both)]
async fn parent_of_a_sub_agent_that_waits_for_room_is_not_queued_because_it_cannot_be_read(
    fixture: StoreFixture,
) {
    let (harness, root, leaf) = Box::pin(waiting(fixture, 2)).await;
    let parent = harness.row(leaf).await.parent.unwrap().0;
    let [message, newer] = ["user_message", "newer_message"];
    harness.rename_type(parent, message, newer).await;
    let asked = harness.asked_by_tree(root).await;
    let old = EngineHarness::like(&harness.parts(0), 0);
    harness.answer_one(&old, &asked[0], People::Guide).await;
    let parked = [
        harness.row(parent).await.parked,
        harness.row(leaf).await.parked,
    ];
    assert_eq!(parked, [true, false], "{}", harness.description(root).await);
}
