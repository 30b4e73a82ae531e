//! A task whose loading kills its process fails (`no_progress`) from its row alone, after one more
//! death than a task that can be read. The tests damage the journal: had it been read, the task
//! would have failed with `integrity`.

use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Outcome;
use holdpoint::task::status::TaskStatus;

use super::stage::{Stage, alice, go, outcomes};
use super::tree::{People, Play, Shape, one_large};
use crate::store::house::{House, both};

const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];
const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":500}"#)];
/// Lost leases: two beside others, five alone, and one more.
const DEATHS: i32 = 8;

fn quoted(house: &House, task: TaskId) -> String {
    let id = task.to_string();
    if house.is_postgres() {
        format!("'{id}'")
    } else {
        format!("x'{}'", id.replace('-', ""))
    }
}

/// Makes the task's journal unreadable.
async fn damage(stage: &Stage, task: TaskId) {
    let id = quoted(&stage.house, task);
    let cut = "update agent_task_item set body = '{\"type\":\"user_mess'";
    stage
        .house
        .numbers(&format!("{cut} where task_id = {id} and seq = 2"))
        .await
        .unwrap();
}

/// Sets the row as if this many processes had died of the task, and queues it.
async fn died(stage: &Stage, task: TaskId, deaths: i32) {
    let id = quoted(&stage.house, task);
    let sql = format!(
        "update agent_task set fruitless = {deaths}, phase = 'queued' where task_id = {id}"
    );
    stage.house.numbers(&sql).await.unwrap();
}

/// The status and failure, from the row.
async fn ended(stage: &Stage, task: TaskId) -> (TaskStatus, Option<FailureCode>) {
    let row = stage.house.store.task(task).await.unwrap().unwrap();
    assert_eq!(
        (row.busy, row.open_requests, row.lease_owner),
        (0, 0, None),
        "{:?}",
        row.agent_path
    );
    assert!(
        stage
            .house
            .store
            .pending(task, task)
            .await
            .unwrap()
            .is_empty()
    );
    (row.status, row.error.map(|error| error.code))
}

const UNREAD: (TaskStatus, Option<FailureCode>) =
    (TaskStatus::Failed, Some(FailureCode::NoProgress));

both! {
    async fn task_of_whose_reading_processes_die_fails_and_the_others_go_on(house) {
        let stage = Stage::set(house, SMALL).await;
        let task = stage.engine(0).create(&alice(), go(), None).await.unwrap().task_id;
        for fruitless in 0..=DEATHS {
            let engine = stage.engine(1);
            let mut drivers = engine.claim().await.unwrap();
            if drivers.is_empty() {
                // A lone drive sleeps first.
                stage.later();
                drivers = engine.claim().await.unwrap();
            }
            let row = stage.house.store.task(task).await.unwrap().unwrap();
            assert_eq!((drivers.len(), row.fruitless, row.status), (1, fruitless, TaskStatus::Running));
            if fruitless == DEATHS {
                damage(&stage, task).await;
                let other = stage.engine(0).create(&alice(), go(), None).await.unwrap().task_id;
                drivers.pop().unwrap().await;
                assert_eq!(ended(&stage, task).await, UNREAD);
                stage.run().await;
                assert_eq!((stage.status(other).await, stage.executions(other, "/refund")), (TaskStatus::Completed, 1));
            } else {
                assert!(stage.house.store.begin(row.lease_owner.as_ref().unwrap(), task, true).await.unwrap());
            }
            stage.later();
        }
        stage.engine(4).round().await.unwrap();
        assert!(stage.engine(4).claim().await.unwrap().is_empty(), "the task is not claimed again");
        assert_eq!((ended(&stage, task).await, stage.executions(task, "/refund")), (UNREAD, 0));
    }

    async fn open_request_of_a_task_that_ends_unread_is_withdrawn(house) {
        let stage = Stage::set(house, LARGE).await;
        let task = stage.held().await;
        damage(&stage, task).await;
        died(&stage, task, DEATHS).await;
        stage.run().await;
        assert_eq!(ended(&stage, task).await, UNREAD);
        assert!(stage.tool.ledger().is_empty());
    }

    async fn sub_agent_that_ends_unread_has_failed_and_its_caller_goes_on(house) {
        let stage = Stage::of_trees(house, Shape { depth: 2, children: 2, wide: 0 }, one_large).await;
        let parts = stage.parts(0);
        let root = stage.grown(&parts).await;
        let [first, second] = &stage.asked_by_tree(root).await[..] else { panic!("two are open") };
        let mid = stage.row(first.task_id).await.parent.unwrap().0;
        died(&stage, first.task_id, DEATHS).await;
        let engine = Stage::like(&parts, 4);
        let mut drivers = engine.claim().await.unwrap();
        assert_eq!(drivers.len(), 1);
        drivers.pop().unwrap().await;
        assert_eq!(ended(&stage, first.task_id).await, UNREAD);
        let (above, top) = (stage.row(mid).await, stage.row(root).await);
        assert_eq!((above.status, above.busy, top.status, top.busy), (TaskStatus::Running, 1, TaskStatus::Running, 1));
        Play::of(&stage, &parts, root).goes_on(usize::MAX).await;
        assert_eq!(stage.row(mid).await.status, TaskStatus::Completed);
        stage.answer_one(&Stage::like(&parts, 0), second, People::Approve).await;
        stage.finish_tree(&parts, root, People::Approve).await;
        assert_eq!(outcomes(&stage.journal(mid).await), [Outcome::Failed]);
        assert_eq!(ended(&stage, root).await, (TaskStatus::Completed, None), "{}", stage.told(root).await);
    }

    async fn sub_agents_of_a_task_that_ends_unread_are_canceled(house) {
        let stage = Stage::of_trees(house, Shape { depth: 2, children: 2, wide: 0 }, one_large).await;
        let parts = stage.parts(0);
        let root = stage.grown(&parts).await;
        died(&stage, root, DEATHS).await;
        damage(&stage, root).await;
        let engine = Stage::like(&parts, 4);
        let mut drivers = engine.claim().await.unwrap();
        drivers.pop().unwrap().await;
        let row = stage.row(root).await;
        assert_eq!((row.status, row.error.map(|error| error.code)), UNREAD);
        Play::of(&stage, &parts, root).goes_on(usize::MAX).await;
        for row in stage.tree(root).await.into_iter().filter(|row| row.task_id != root) {
            assert_eq!(ended(&stage, row.task_id).await.0, TaskStatus::Canceled, "{:?}", row.agent_path);
        }
        assert_eq!(ended(&stage, root).await, UNREAD);
        assert!(stage.tool.ledger().is_empty());
    }
}
