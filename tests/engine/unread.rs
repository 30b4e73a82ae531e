//! Tests a task that kills every process that loads it. After the eighth lost lease, the service
//! fails such a task with `no_progress`, without loading it. A task that can be loaded but makes no
//! progress fails earlier: the service loads and fails it after the seventh lost lease. The tests
//! damage the journal to show that the service does not load the task: a load would fail the task
//! with `integrity`.

use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Outcome;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::damaged_journals::{CUT, damage};
use super::engine_harness::{EngineHarness, outcomes};
use super::trees::harness::{People, Shape, one_large};
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::{StoreFixture, both};

const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];
const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":500}"#)];
/// The number of lost leases after which the service fails a task without reading it:
/// - two leases of processes that also drive other tasks,
/// - five leases of processes that drive this task alone,
/// - the lease of a process that only loads the task to fail it.
pub const DEATHS: i32 = 8;

/// Changes the row as if `deaths` processes had died while they loaded the task, and queues the
/// task.
pub async fn died(harness: &EngineHarness, task: TaskId, deaths: i32) {
    let id = harness.fixture.literal(task.0);
    let listed = if harness.fixture.is_postgres() {
        format!(
            "with listed as (insert into claimable_task select task_id, tenant, user_id, 0, false
                from agent_task where task_id = {id} on conflict (task_id) do update set due_at = 0) "
        )
    } else {
        String::new()
    };
    let sql = format!(
        "{listed}update agent_task set fruitless = {deaths}, phase = 'queued' where task_id = {id}"
    );
    harness.fixture.execute(&sql).await;
}

/// Returns the task's status and its failure code from its row. Asserts that the task counts as
/// idle, has no open request and is not leased.
pub async fn ended(harness: &EngineHarness, task: TaskId) -> (TaskStatus, Option<FailureCode>) {
    let row = harness.row(task).await;
    assert_eq!(
        (row.busy, row.open_requests, row.lease_owner),
        (0, 0, None),
        "{:?}",
        row.agent_path
    );
    assert!(
        harness
            .fixture
            .store
            .pending(task, task)
            .await
            .unwrap()
            .is_empty()
    );
    (row.status, row.error.map(|error| error.code))
}

pub const UNREAD: (TaskStatus, Option<FailureCode>) =
    (TaskStatus::Failed, Some(FailureCode::NoProgress));

#[apply(both)]
async fn task_of_whose_reading_processes_die_fails_and_the_others_go_on(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, SMALL).await;
    let task = harness.queued().await;
    for fruitless in 0..=DEATHS {
        let engine = harness.engine(1);
        let mut drivers = engine.claim().await.unwrap();
        if drivers.is_empty() {
            // After two or more lost leases, a claim first parks the task for a time. The next
            // claim after this time returns the driver, and the process drives no other task.
            harness.later();
            drivers = engine.claim().await.unwrap();
        }
        let row = harness.row(task).await;
        assert_eq!(
            (drivers.len(), row.fruitless, row.status),
            (1, fruitless, TaskStatus::Running)
        );
        if fruitless == DEATHS {
            damage(&harness.fixture, task, CUT, "seq = 2").await;
            let other = harness.queued().await;
            drivers.pop().unwrap().await;
            assert_eq!(ended(&harness, task).await, UNREAD);
            harness.run().await;
            assert_eq!(harness.status(other).await, TaskStatus::Completed);
            assert_eq!(harness.executions(other, "/refund"), 1);
        } else {
            assert!(
                harness
                    .fixture
                    .store
                    .set_begun(row.lease_owner.as_ref().unwrap(), task, true)
                    .await
                    .unwrap()
            );
        }
        harness.later();
    }
    harness.engine(4).round().await.unwrap();
    assert!(
        harness.claims_nothing(4).await,
        "the task is not claimed again"
    );
    assert_eq!(ended(&harness, task).await, UNREAD);
    assert_eq!(harness.executions(task, "/refund"), 0);
}

#[apply(both)]
async fn open_request_of_a_task_that_ends_unread_is_withdrawn(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let task = harness.held().await;
    damage(&harness.fixture, task, CUT, "seq = 2").await;
    died(&harness, task, DEATHS).await;
    harness.run().await;
    assert_eq!(ended(&harness, task).await, UNREAD);
    assert!(harness.tool.ledger().is_empty());
}

#[apply(both)]
async fn sub_agent_that_ends_unread_has_failed_and_its_caller_goes_on(fixture: StoreFixture) {
    let harness = EngineHarness::of_trees(fixture, Shape::branched(2, 2), one_large).await;
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    let [first, second] = &harness.asked_exactly(root).await;
    let mid = harness.row(first.task_id).await.parent.unwrap().0;
    died(&harness, first.task_id, DEATHS).await;
    let engine = EngineHarness::like(&parts, 4);
    let mut drivers = engine.claim().await.unwrap();
    assert_eq!(drivers.len(), 1);
    drivers.pop().unwrap().await;
    assert_eq!(ended(&harness, first.task_id).await, UNREAD);
    let (above, top) = (harness.row(mid).await, harness.row(root).await);
    assert_eq!(
        (above.status, above.busy, top.status, top.busy),
        (TaskStatus::Running, 1, TaskStatus::Running, 1)
    );
    harness.drive_tree(&parts, root).await;
    assert_eq!(harness.row(mid).await.status, TaskStatus::Completed);
    harness
        .answer_one(&EngineHarness::like(&parts, 0), second, People::Approve)
        .await;
    harness.finish_tree(&parts, root, People::Approve).await;
    assert_eq!(outcomes(&harness.journal(mid).await), [Outcome::Failed]);
    assert_eq!(
        ended(&harness, root).await,
        (TaskStatus::Completed, None),
        "{}",
        harness.description(root).await
    );
}

#[apply(both)]
async fn sub_agents_of_a_task_that_ends_unread_are_canceled(fixture: StoreFixture) {
    let harness = EngineHarness::of_trees(fixture, Shape::branched(2, 2), one_large).await;
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    died(&harness, root, DEATHS).await;
    damage(&harness.fixture, root, CUT, "seq = 2").await;
    let engine = EngineHarness::like(&parts, 4);
    let mut drivers = engine.claim().await.unwrap();
    drivers.pop().unwrap().await;
    let row = harness.row(root).await;
    assert_eq!((row.status, row.error.map(|error| error.code)), UNREAD);
    harness.drive_tree(&parts, root).await;
    for row in harness
        .tree(root)
        .await
        .into_iter()
        .filter(|row| row.task_id != root)
    {
        assert_eq!(
            ended(&harness, row.task_id).await.0,
            TaskStatus::Canceled,
            "{:?}",
            row.agent_path
        );
    }
    assert_eq!(ended(&harness, root).await, UNREAD);
    assert!(harness.tool.ledger().is_empty());
}
