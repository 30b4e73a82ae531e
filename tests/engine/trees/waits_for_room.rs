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

/// Creates a tree with as many open requests as its limit allows. Returns the harness, the root,
/// and a leaf that waits to open its only request.
async fn waiting(fixture: StoreFixture) -> (EngineHarness, TaskId, TaskId) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(3), twenty_one).await;
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

#[apply(both)]
async fn sub_agent_that_waits_for_room_while_its_root_is_paused_spends_no_max_duration(
    fixture: StoreFixture,
) {
    let (harness, root, leaf) = Box::pin(waiting(fixture)).await;
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
    let (harness, root, leaf) = Box::pin(waiting(fixture)).await;
    let unread = harness.asked_by_tree(root).await[0].task_id;
    died(&harness, unread, DEATHS).await;
    let parts = harness.parts(0);
    let engine = EngineHarness::like(&parts, 4);
    let mut drivers = engine.claim().await.unwrap();
    assert_eq!(drivers.len(), 1);
    drivers.pop().unwrap().await;
    assert_eq!(ended(&harness, unread).await, UNREAD);
    harness.drive_tree(&parts, root).await;
    let asked = harness.asked_by_tree(root).await;
    assert!(
        asked.iter().any(|request| request.task_id == leaf),
        "{}",
        harness.description(root).await
    );
    harness.finish_tree(&parts, root, People::Guide).await;
    let ends = [
        harness.row(root).await.status,
        harness.row(leaf).await.status,
    ];
    assert_eq!(ends, [TaskStatus::Completed; 2]);
}
