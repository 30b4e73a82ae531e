//! Tests a task whose journal is unreadable. The service ends the task as `Failed` with `integrity`
//! and reads only the task's row to do so. No call of the task runs, and no other task is delayed.

use std::time::Duration;

use holdpoint::engine::Refusal;
use holdpoint::model::Answer;
use holdpoint::store::RequestFilter;
use holdpoint::task::decision::Action;
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use macro_rules_attribute::apply;
use serde_json::json;

use super::engine_harness::{EngineHarness, alice, alice_is_refused, turn, whole};
use super::trees::harness::{Shape, one_large};
use super::unread;
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::{StoreFixture, acme_requests, both, fresh};

const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];
const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":500}"#)];

/// Runs an SQL statement on those items of the task that match the condition `which`. `what` is the
/// part of the statement before `where`.
pub async fn damage(fixture: &StoreFixture, task: TaskId, what: &str, which: &str) {
    let id = fixture.literal(task.0);
    fixture
        .execute(&format!("{what} where task_id = {id} and {which}"))
        .await;
}

pub const CUT: &str = "update agent_task_item set body = '{\"type\":\"user_mess'";
const NEWER: &str =
    "update agent_task_item set body = '{\"type\":\"something_of_a_later_version\"}'";
pub const GONE: &str = "delete from agent_task_item";

/// Copies the open request of the task `count` times. The deadline of each copy is a microsecond
/// earlier than the deadline of the request.
async fn copy_request(harness: &EngineHarness, task: TaskId, count: usize) {
    let (request, _) = harness.only_open(task).await;
    let request = harness.fixture.literal(request.0);
    let columns = "task_id, seq, root_task_id, tenant, kind, status, required, created_at";
    let copies = (0..count).map(|_| {
        let copy = harness.fixture.literal(fresh());
        format!(
            "insert into intervention_request (request_id, {columns}, expires_at)
                select {copy}, {columns}, expires_at - 1 from intervention_request where request_id = {request};
             insert into inbox (tenant, kind, name, request_id)
                select tenant, kind, name, {copy} from inbox where request_id = {request};"
        )
    });
    let copies: Vec<String> = copies.collect();
    harness.fixture.database().execute(&copies.concat()).await;
}

/// Like [`unread::ended`], but returns `None` if the task has not failed.
async fn ended(harness: &EngineHarness, task: TaskId) -> Option<FailureCode> {
    let (status, error) = unread::ended(harness, task).await;
    (status == TaskStatus::Failed).then(|| error.unwrap())
}

#[apply(both)]
async fn unreadable_running_task_fails_and_the_others_go_on(fixture: StoreFixture) {
    for (what, which) in [(CUT, "seq = 2"), (GONE, "seq = 2"), (GONE, "seq > 0")] {
        let harness = EngineHarness::new(StoreFixture::like(&fixture).await, SMALL).await;
        let (broken, other) = (harness.queued().await, harness.queued().await);
        damage(&harness.fixture, broken, what, which).await;
        harness.run().await;
        harness.engine(4).round().await.unwrap();
        assert_eq!(
            ended(&harness, broken).await,
            Some(FailureCode::Integrity),
            "{what} {which}"
        );
        assert_eq!(harness.executions(broken, "/refund"), 0);
        assert_eq!(harness.status(other).await, TaskStatus::Completed);
        assert_eq!(harness.executions(other, "/refund"), 1);
        harness.later();
        assert!(
            harness.claims_nothing(4).await,
            "the task is not claimed again"
        );
    }
}

/// The parser of stored items accepts 127 levels. The model's JSON has 127, and its item adds one.
#[apply(both)]
async fn turn_with_deeply_nested_json_leaves_a_readable_journal(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[]).await;
    harness.script(|number| {
        let raw = (0..126).fold(json!({}), |inner, _| json!([inner]));
        Ok(Answer {
            raw,
            ..turn(if number == 1 { SMALL } else { &[] })
        })
    });
    let task = harness.stopped().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn journal_that_lost_the_start_of_a_call_does_not_send_it_again(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, SMALL).await;
    let task = harness.lost_call().await;
    damage(&harness.fixture, task, GONE, "type = 'tool_started'").await;
    harness.later();
    harness.run().await;
    harness.engine(4).round().await.unwrap();
    assert_eq!(ended(&harness, task).await, Some(FailureCode::Integrity));
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn unreadable_request_stops_neither_the_sweep_nor_takeovers(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let (broken, overdue) = (harness.held().await, harness.held().await);
    damage(
        &harness.fixture,
        broken,
        CUT,
        "type = 'intervention_requested'",
    )
    .await;
    harness.fixture.forward(Duration::from_hours(25));
    let waiting = harness.queued().await;
    let engine = harness.engine(4);
    assert_eq!(
        engine.round().await.unwrap(),
        1,
        "the task that waits is claimed"
    );
    engine.round().await.unwrap();
    harness.until_stopped(waiting).await;
    assert_eq!(ended(&harness, broken).await, Some(FailureCode::Integrity));
    assert_ne!(harness.status(overdue).await, TaskStatus::Paused);
    assert_eq!(harness.status(waiting).await, TaskStatus::Paused);
}

#[apply(both)]
async fn requests_of_a_newer_version_do_not_keep_later_ones_from_expiring(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let (broken, overdue) = (harness.held().await, harness.held().await);
    copy_request(&harness, broken, 200).await;
    damage(&harness.fixture, broken, NEWER, "seq = 2").await;
    harness.fixture.forward(Duration::from_hours(25));
    let engine = harness.engine(4);
    // The replica cannot read the task `broken` and its requests, so each of the first two rounds
    // skips a hundred of these requests. The third round closes the request of `overdue`.
    for closed in [0, 0, 1] {
        assert_eq!(engine.worker().expire().await.unwrap(), closed);
    }
    assert_eq!(harness.row(broken).await.status, TaskStatus::Paused);
    assert_ne!(harness.status(overdue).await, TaskStatus::Paused);
}

#[apply(both)]
async fn requests_that_are_open_only_by_their_rows_do_not_keep_later_ones_from_expiring(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let (copied, overdue) = (harness.held().await, harness.held().await);
    // The journal of the task `copied` does not have the copies of its request, so no replica can
    // close them.
    copy_request(&harness, copied, 200).await;
    harness.fixture.forward(Duration::from_hours(25));
    let engine = harness.engine(4);
    for closed in [0, 0, 2] {
        assert_eq!(engine.worker().expire().await.unwrap(), closed);
    }
    assert_ne!(harness.status(copied).await, TaskStatus::Paused);
    assert_ne!(harness.status(overdue).await, TaskStatus::Paused);
}

#[apply(both)]
async fn unreadable_request_found_by_an_inbox_is_removed_in_the_next_round(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let (broken, _) = (harness.held().await, harness.held().await);
    damage(
        &harness.fixture,
        broken,
        CUT,
        "type = 'intervention_requested'",
    )
    .await;
    let statuses = vec![RequestStatus::Pending];
    let all = RequestFilter {
        statuses,
        ..acme_requests(9)
    };
    assert_eq!(
        harness.fixture.store.requests(&all).await.unwrap().len(),
        1,
        "the other one"
    );
    harness.engine(4).round().await.unwrap();
    assert_eq!(harness.fixture.store.requests(&all).await.unwrap().len(), 1);
    assert_eq!(ended(&harness, broken).await, Some(FailureCode::Integrity));
}

#[apply(both)]
async fn unreadable_task_found_by_a_decision_fails_and_runs_nothing(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let task = harness.held().await;
    let (request, _) = harness.only_open(task).await;
    damage(&harness.fixture, task, CUT, "type = 'judged'").await;
    let engine = harness.engine(4);
    let answered = alice_is_refused(&engine, request, whole(Action::Approve, None)).await;
    assert!(matches!(answered, Refusal::Internal(_)), "{answered:?}");
    engine.round().await.unwrap();
    assert_eq!(ended(&harness, task).await, Some(FailureCode::Integrity));
    let answered = alice_is_refused(&engine, request, whole(Action::Approve, None)).await;
    assert_eq!(answered, Refusal::Withdrawn(request));
    assert_eq!(harness.tool.ledger().len(), 0);
}

#[apply(both)]
async fn result_in_hand_is_written_beside_an_unreadable_journal(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, SMALL).await;
    let task = harness.queued().await;
    harness.tool.close();
    let engine = harness.engine(4);
    let driver = engine.claim().await.unwrap().pop().unwrap();
    #[expect(
        clippy::disallowed_methods,
        reason = "the driver goes on while the test damages its task"
    )]
    let driver = tokio::spawn(driver);
    harness.tool.reached(1).await;
    damage(&harness.fixture, task, CUT, "seq = 2").await;
    let id = harness.fixture.literal(task.0);
    let sql = format!("update agent_task set version = version + 1 where task_id = {id}");
    harness.fixture.execute(&sql).await;
    harness.tool.open();
    driver.await.unwrap();
    let late = format!(
        "select count(*) from agent_task_item where type = 'late_result' and task_id = {id}"
    );
    assert_eq!(harness.fixture.number(&late).await, 1);
    assert_eq!(ended(&harness, task).await, Some(FailureCode::Integrity));
}

#[apply(both)]
async fn item_of_a_newer_version_is_left_to_newer_replicas_for_five_takeovers(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::new(fixture, SMALL).await;
    let task = harness.queued().await;
    damage(&harness.fixture, task, NEWER, "seq = 2").await;
    let takeovers = format!(
        "select takeovers from agent_task where task_id = {}",
        harness.fixture.literal(task.0)
    );
    for taken in 0..5 {
        harness.run().await;
        harness.engine(0).round().await.unwrap();
        let row = harness.row(task).await;
        assert_eq!(row.status, TaskStatus::Running);
        assert_eq!(harness.fixture.number(&takeovers).await, taken);
        harness.later();
    }
    harness.run().await;
    harness.engine(0).round().await.unwrap();
    assert_eq!(ended(&harness, task).await, Some(FailureCode::Integrity));
}

#[apply(both)]
async fn paused_task_of_a_newer_version_is_read_in_one_round_only(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let task = harness.held().await;
    damage(&harness.fixture, task, NEWER, "seq = 2").await;
    let store = &harness.fixture.store;
    store.report_unreadable(task);
    harness.engine(0).round().await.unwrap();
    assert!(
        store.take_unreadable().is_empty(),
        "the next round does not read it again"
    );
    assert_eq!(
        store.task(task).await.unwrap().unwrap().status,
        TaskStatus::Paused
    );
}

/// The items that remain of the parent's journal end before the pause.
#[apply(both)]
async fn parent_without_the_item_of_its_pause_runs_again_when_its_sub_agent_is_canceled(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(1), one_large).await;
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    let [asked] = harness.asked_exactly(root).await;
    let pause = "type = 'task_status' and seq > 1";
    damage(&harness.fixture, root, GONE, pause).await;
    let api = EngineHarness::like(&parts, 0);
    api.cancel(&alice(), asked.task_id, None).await.unwrap();
    let row = harness.row(root).await;
    assert_eq!((row.status, row.busy), (TaskStatus::Running, 1));
}
