//! Tests the queue of tasks. If a process has no free slot for a task, the task first waits a short
//! time for a slot of that process and then queues in the database. Tenants take turns, and no new
//! task overtakes a waiting task.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use holdpoint::engine::{Engine, EngineParts};
use holdpoint::people::Caller;
use holdpoint::task::id::TaskId;
use holdpoint::task::status::TaskStatus;
use holdpoint::world::SystemClock;
use macro_rules_attribute::apply;

use super::engine_harness::{EngineHarness, alice, drive, go, person};
use super::worker_steps::{WorkerSteps as _, spawn_worker};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::endless_sleep::{BETWEEN_ROUNDS, EndlessSleep};

/// Claims as many tasks as there are free slots and drives them. Returns the tasks that this round
/// ended, in the order of `tasks`.
async fn round(harness: &EngineHarness, engine: &Arc<Engine>, tasks: &[TaskId]) -> Vec<TaskId> {
    let before = running(harness, tasks).await;
    drive(engine).await;
    let after = running(harness, tasks).await;
    before
        .into_iter()
        .filter(|task| !after.contains(task))
        .collect()
}

async fn running(harness: &EngineHarness, tasks: &[TaskId]) -> Vec<TaskId> {
    let mut found = Vec::new();
    for task in tasks {
        if harness.status(*task).await == TaskStatus::Running {
            found.push(*task);
        }
    }
    found
}

/// Records in a table `was_queued` each task that is queued from now on.
async fn count_queued(harness: &EngineHarness) {
    let sql = if harness.fixture.is_postgres() {
        "create table was_queued (task_id uuid);
         create function count_queued() returns trigger language plpgsql as $$
         begin
            insert into was_queued values (new.task_id);
            return null;
         end $$;
         create trigger count_queued after insert or update on agent_task for each row
            when (new.phase = 'queued') execute function count_queued()"
    } else {
        "create table was_queued (task_id blob);
         create trigger count_queued_new after insert on agent_task when new.phase = 'queued'
         begin insert into was_queued values (new.task_id); end;
         create trigger count_queued after update on agent_task when new.phase = 'queued'
         begin insert into was_queued values (new.task_id); end"
    };
    harness.fixture.database().execute(sql).await;
}

#[apply(both)]
async fn command_waits_for_a_slot_of_its_process_before_its_task_is_queued(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[("lookup", r#"{"order":1}"#)]).await;
    // No sleep of this clock ends, so no wait for a slot times out.
    let engine = Engine::new(EngineParts {
        clock: EndlessSleep::new(|_| true),
        ..harness.parts(1)
    });
    harness.tool.close();
    let (alice, wait) = (alice(), Duration::from_millis(50));
    engine.create(&alice, go(), None).await.unwrap();
    harness.tool.reached(1).await;
    let mut second = Box::pin(engine.create(&alice, go(), None));
    assert!(
        tokio::time::timeout(wait, &mut second).await.is_err(),
        "there is no slot"
    );
    harness.tool.open();
    let task = second.await.unwrap().task_id;
    // No worker runs in this test, so a queued task would never run.
    let ended = tokio::time::timeout(Duration::from_secs(20), harness.until_stopped(task));
    ended.await.expect("it is not queued");
}

#[apply(both)]
async fn command_without_a_slot_queues_its_task_after_a_while(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[("lookup", r#"{"order":1}"#)]).await;
    let engine = Engine::new(EngineParts {
        clock: Arc::new(SystemClock),
        ..harness.parts(1)
    });
    harness.tool.close();
    engine.create(&alice(), go(), None).await.unwrap();
    harness.tool.reached(1).await;
    let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
    let elsewhere = harness.engine(1);
    let claimed = elsewhere.claim().await.unwrap();
    assert_eq!(claimed.len(), 1, "another replica may take it");
    harness.tool.open();
    for driver in claimed {
        driver.await;
    }
    assert_ne!(harness.status(task).await, TaskStatus::Running);
}

#[apply(both)]
async fn waiting_commands_are_not_queued_because_the_worker_waits_longer_than_they_do(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::new(fixture, &[("lookup", r#"{"order":1}"#)]).await;
    count_queued(&harness).await;
    // The timeout of a wait for a slot equals `BETWEEN_ROUNDS`, so no such wait times out here.
    let clock = EndlessSleep::new(|time| time == BETWEEN_ROUNDS);
    let engine = Engine::new(EngineParts {
        clock,
        ..harness.parts(1)
    });
    harness.tool.close();
    engine.create(&alice(), go(), None).await.unwrap();
    harness.tool.reached(1).await;
    let worker = spawn_worker(&engine);
    let caller = alice();
    let commands = (0..4).map(|_| engine.create(&caller, go(), None));
    let mut commands = Box::pin(join_all(commands));
    let wait = Duration::from_millis(300);
    assert!(
        tokio::time::timeout(wait, &mut commands).await.is_err(),
        "there is no slot"
    );
    harness.tool.open();
    for created in commands.await {
        harness.until_stopped(created.unwrap().task_id).await;
    }
    assert_eq!(
        harness
            .fixture
            .number("select count(*) from was_queued")
            .await,
        0
    );
    worker.abort();
}

#[apply(both)]
async fn queued_task_gets_a_slot_although_commands_wait_for_every_slot(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[("lookup", r#"{"order":1}"#)]).await;
    // The pause between two claims never ends, so the worker claims only at its start and when
    // it is woken.
    let clock = EndlessSleep::new(|time| time == BETWEEN_ROUNDS);
    let engine = Engine::new(EngineParts {
        clock,
        ..harness.parts(1)
    });
    harness.tool.close();
    engine.create(&alice(), go(), None).await.unwrap();
    harness.tool.reached(1).await;
    let queued = harness.queued().await;
    let worker = spawn_worker(&engine);
    harness.tool.open();
    let one_by_one = async || {
        for _ in 0..3 {
            let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
            harness.until_stopped(task).await;
        }
    };
    join_all((0..4).map(|_| one_by_one())).await;
    assert_ne!(
        harness.status(queued).await,
        TaskStatus::Running,
        "it had its turn"
    );
    worker.abort();
}

#[apply(both)]
async fn queued_tasks_are_claimed_tenant_by_tenant_before_new_ones(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[("lookup", r#"{"order":1}"#)]).await;
    let engine = harness.engine(1);
    harness.tool.close();
    let create = async |caller: &Caller| engine.create(caller, go(), None).await.unwrap().task_id;
    let mallory = Caller {
        tenant: "other".to_owned(),
        ..alice()
    };
    let first = create(&alice()).await;
    harness.tool.reached(1).await;
    let waiting = [
        create(&alice()).await,
        create(&alice()).await,
        create(&mallory).await,
    ];
    assert_eq!(engine.claim().await.unwrap().len(), 0, "there is no room");
    harness.tool.open();
    harness.until_stopped(first).await;
    let late = create(&alice()).await;
    let [one, two, other] = waiting;
    let all = [one, two, other, late];
    let mut order = Vec::new();
    // The driver of the first task may keep its slot for a moment after the task has ended, so
    // the first rounds may claim nothing.
    let are_claimed = async || {
        order.extend(round(&harness, &engine, &all).await);
        order.len() >= all.len()
    };
    crate::support::until("every task is claimed", are_claimed).await;
    assert_eq!(order, [one, other, two, late]);
    // With an empty queue, a new task runs at once.
    let next = create(&alice()).await;
    assert_eq!(round(&harness, &engine, &all).await, []);
    harness.until_stopped(next).await;
}

#[apply(both)]
async fn tasks_of_one_user_wait_their_turn_among_the_users_of_the_tenant(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[]).await;
    let api = harness.engine(0);
    let create = async |tenant: &str, user: &str| {
        let caller = Caller {
            tenant: tenant.to_owned(),
            ..person(user)
        };
        api.create(&caller, go(), None).await.unwrap().task_id
    };
    let alice = [
        create("acme", "alice").await,
        create("acme", "alice").await,
        create("acme", "alice").await,
    ];
    let bob = [create("acme", "bob").await, create("acme", "bob").await];
    let carol = [create("acme", "carol").await];
    let other = [
        create("other", "mallory").await,
        create("other", "mallory").await,
        create("other", "mallory").await,
    ];
    let all = [&alice[..], &bob, &carol, &other].concat();
    let engine = harness.engine(1);
    let mut order = Vec::new();
    for _ in &all {
        order.extend(round(&harness, &engine, &all).await);
    }
    // Tenants take turns, and so do the users of each tenant.
    let expected = [
        alice[0], other[0], bob[0], other[1], carol[0], other[2], alice[1], bob[1], alice[2],
    ];
    assert_eq!(order, expected);
}
