//! Tests that a task that kills its process makes no other task fail. Also tests that no task fails
//! if its process dies for another reason.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use holdpoint::engine::{Engine, EngineParts, TaskInput};
use holdpoint::model::{Answer, ModelClient, ModelError, PieceSink, Prompt};
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Part, PartType};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use holdpoint::world::Clock;
use macro_rules_attribute::apply;
use tokio::sync::Semaphore;

use super::engine_harness::{EngineHarness, alice, claimed, go, join, spawn, turn};
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::endless_sleep::BETWEEN_ROUNDS;
use crate::support::{eventually, until};

/// A time longer than a lease. When this time has passed, every lease has run out.
const LEASE: Duration = Duration::from_secs(31);
/// The message of a task that kills its process.
const POISON: &str = "poison";

/// The message of a task that calls a tool.
const LOOK: &str = "look";

fn message(text: &str) -> TaskInput {
    TaskInput {
        items: vec![Part {
            content_type: PartType::Text,
            content: text.to_owned(),
        }],
        ..go()
    }
}

fn prompt_contains(prompt: &Prompt, text: &str) -> bool {
    format!("{:?}", prompt.messages).contains(text)
}

/// A model that counts the prompts that it gets. If a task's message is `POISON`, the model waits
/// for a permit of `gate` before it answers.
struct Gated {
    poisoned_calls: Semaphore,
    gate: Semaphore,
    shown: AtomicUsize,
}

impl Gated {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            poisoned_calls: Semaphore::new(0),
            gate: Semaphore::new(0),
            shown: AtomicUsize::new(0),
        })
    }

    /// Returns the engine of a new process, with this model and with `max_running` slots.
    fn engine(self: &Arc<Self>, harness: &EngineHarness, max_running: usize) -> Arc<Engine> {
        self.engine_of(harness.parts(max_running))
    }

    fn engine_of(self: &Arc<Self>, mut parts: EngineParts) -> Arc<Engine> {
        parts
            .models
            .values_mut()
            .for_each(|model| *model = Arc::<Self>::clone(self));
        Engine::new(parts)
    }

    /// Waits until the model is asked about a task whose message is `POISON`.
    async fn is_asked(&self) {
        self.poisoned_calls.acquire().await.unwrap().forget();
    }
}

#[async_trait]
impl ModelClient for Gated {
    async fn answer(&self, prompt: &Prompt, _: &dyn PieceSink) -> Result<Answer, ModelError> {
        self.shown.fetch_add(1, Ordering::SeqCst);
        if prompt_contains(prompt, POISON) {
            self.poisoned_calls.add_permits(1);
            self.gate.acquire().await.unwrap().forget();
        }
        let looks = prompt_contains(prompt, LOOK) && prompt.turn == 1;
        Ok(turn(if looks {
            &[("lookup", r#"{"order":1}"#)]
        } else {
            &[]
        }))
    }
}

/// A clock whose sleeps of less than two seconds never end. `rests` counts the sleeps that the
/// loops of a worker begin between two rounds (`BETWEEN_ROUNDS`).
struct Resting {
    clock: Arc<dyn Clock>,
    rests: AtomicUsize,
}

#[async_trait]
impl Clock for Resting {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn uptime(&self) -> Duration {
        self.clock.uptime()
    }

    async fn sleep(&self, time: Duration) {
        if time == BETWEEN_ROUNDS {
            self.rests.fetch_add(1, Ordering::SeqCst);
        }
        if time < Duration::from_secs(2) {
            std::future::pending::<()>().await;
        }
        self.clock.sleep(time).await;
    }
}

/// Claims tasks and drives them in parallel, until no task is left to claim. When the model is
/// asked about a task whose message is `POISON`, the process is killed: all its drivers are
/// dropped. Returns whether the process was killed.
async fn is_killed(engine: &Arc<Engine>, model: &Gated) -> bool {
    loop {
        let drivers = engine.claim().await.unwrap();
        if drivers.is_empty() {
            return false;
        }
        tokio::select! {
            biased;
            () = model.is_asked() => return true,
            _ = join_all(drivers) => {}
        }
    }
}

async fn running(harness: &EngineHarness) -> i64 {
    harness
        .fixture
        .number("select count(*) from agent_task where status = 'Running'")
        .await
}

/// Starts a new process for each killed process until every task has ended. Returns the number of
/// killed processes.
async fn outlived(harness: &EngineHarness, model: &Arc<Gated>) -> usize {
    let (mut engine, mut killed) = (model.engine(harness, 64), 0);
    for _ in 0..1000 {
        if running(harness).await == 0 {
            return killed;
        }
        if is_killed(&engine, model).await {
            engine = model.engine(harness, 64);
            killed += 1;
        }
        harness.fixture.forward(LEASE);
    }
    panic!("{} tasks do not end", running(harness).await);
}

async fn queued(harness: &EngineHarness, text: &str) -> TaskId {
    harness
        .engine(0)
        .create(&alice(), message(text), None)
        .await
        .unwrap()
        .task_id
}

/// Claims tasks with each of these engines and drives the claimed tasks in parallel, until every
/// task has ended. Returns the number of completed tasks.
async fn completed_by(harness: &EngineHarness, engines: &[Arc<Engine>]) -> i64 {
    for _ in 0..100 {
        if running(harness).await == 0 {
            break;
        }
        let mut drivers = Vec::new();
        for engine in engines {
            drivers.extend(engine.claim().await.unwrap());
        }
        join_all(drivers).await;
    }
    harness
        .fixture
        .number("select count(*) from agent_task where status = 'Completed'")
        .await
}

#[apply(both)]
async fn task_that_kills_its_process_fails_alone_among_500_others(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[]).await;
    let (model, api) = (Gated::new(), harness.engine(0));
    for _ in 0..10 {
        api.create(&alice(), go(), None).await.unwrap();
    }
    let poison = queued(&harness, POISON).await;
    for _ in 10..500 {
        api.create(&alice(), go(), None).await.unwrap();
    }
    let killed = outlived(&harness, &model).await;
    let completed = harness
        .fixture
        .number("select count(*) from agent_task where status = 'Completed'")
        .await;
    assert_eq!(completed, 500, "each bystander completes");
    let row = harness.journal(poison).await.row;
    assert_eq!(
        (row.status, row.error.map(|error| error.code)),
        (TaskStatus::Failed, Some(FailureCode::NoProgress))
    );
    // The first lost lease does not count, because the service does not store whether work
    // began under a task's first lease. Of the leases that count, the first two belong to
    // processes that also drive other tasks. The next five belong to lone drives.
    assert_eq!(killed, 1 + 2 + 5);
}

#[apply(both)]
async fn replicas_that_die_right_after_twenty_claims_fail_no_task(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[]).await;
    let mut tasks = Vec::new();
    for _ in 0..20 {
        tasks.push(queued(&harness, LOOK).await);
    }
    for _ in 0..20 {
        let drivers = harness.engine(64).claim().await.unwrap();
        assert_eq!(drivers.len(), tasks.len());
        drop(drivers);
        harness.fixture.forward(LEASE);
    }
    assert_eq!(outlived(&harness, &Gated::new()).await, 0);
    for task in tasks {
        assert_eq!(harness.status(task).await, TaskStatus::Completed);
        assert_eq!(harness.executions(task, "/lookup"), 1);
    }
}

#[apply(both)]
async fn task_driven_alone_has_its_process_to_itself_until_it_gets_further(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[]).await;
    let model = Gated::new();
    let poison = queued(&harness, POISON).await;
    for _ in 0..3 {
        let dies = model.engine(&harness, 4);
        tokio::select! {
            () = model.is_asked() => {}
            _ = join_all(dies.claim().await.unwrap()) => panic!("it waits for its model"),
        }
        harness.fixture.forward(LEASE);
    }
    let here = model.engine(&harness, 4);
    assert!(here.claim().await.unwrap().is_empty(), "it sleeps");
    assert_eq!(harness.journal(poison).await.row.fruitless, 2);
    harness.fixture.forward(Duration::from_secs(1));
    let others = [queued(&harness, LOOK).await, queued(&harness, LOOK).await];
    harness.tool.close();
    let mut drivers = claimed(&here).await;
    assert_eq!(drivers.len(), 3);
    harness.tool.reached(2).await;
    assert_eq!(
        model.poisoned_calls.available_permits(),
        0,
        "calls of other tasks are in flight"
    );
    let late = here.create(&alice(), go(), None).await.unwrap().task_id;
    harness.tool.open();
    model.is_asked().await;
    let alone = drivers.pop().unwrap();
    join(drivers).await;
    let shown = model.shown.load(Ordering::SeqCst);
    assert!(here.claim().await.unwrap().is_empty());
    for task in [others[0], others[1], late] {
        let row = harness.journal(task).await.row;
        assert_eq!(
            (row.status, row.lease_owner),
            (TaskStatus::Running, None),
            "it waits in the database"
        );
    }
    assert_eq!(
        model.shown.load(Ordering::SeqCst),
        shown,
        "no other task is driven"
    );
    model.gate.add_permits(1);
    alone.await.unwrap();
    assert_eq!(completed_by(&harness, &[here]).await, 4);
}

#[apply(both)]
async fn task_driven_alone_lets_the_others_in_after_one_lease(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[]).await;
    let model = Gated::new();
    let suspect = queued(&harness, POISON).await;
    harness.fixture.suspect("true").await;
    let here = model.engine(&harness, 4);
    let mut drivers = here.claim().await.unwrap();
    let alone = spawn(drivers.pop().unwrap());
    model.is_asked().await;
    let other = here.create(&alice(), go(), None).await.unwrap().task_id;
    for _ in 0..2 {
        assert!(
            here.claim().await.unwrap().is_empty(),
            "the suspect has the process to itself"
        );
    }
    harness.fixture.forward(LEASE);
    let claimed = async || Some(here.claim().await.unwrap()).filter(|drivers| !drivers.is_empty());
    let drivers = eventually("the other task is claimed", claimed).await;
    join_all(drivers).await;
    assert_eq!(harness.status(other).await, TaskStatus::Completed);
    assert_eq!(harness.status(suspect).await, TaskStatus::Running);
    model.gate.add_permits(1);
    alone.await.unwrap();
    assert_eq!(harness.status(suspect).await, TaskStatus::Completed);
}

#[apply(both)]
async fn worker_rests_between_its_claims_while_a_lone_drive_outlasts_a_lease(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::new(fixture, &[]).await;
    let model = Gated::new();
    let clock = Arc::new(Resting {
        clock: harness.fixture.clock.clone(),
        rests: AtomicUsize::new(0),
    });
    let suspect = queued(&harness, POISON).await;
    harness.fixture.suspect("true").await;
    let here = model.engine_of(EngineParts {
        clock: clock.clone(),
        ..harness.parts(4)
    });
    let alone = spawn(here.claim().await.unwrap().pop().unwrap());
    model.is_asked().await;
    harness.fixture.forward(LEASE);
    let rests = || clock.rests.load(Ordering::SeqCst);
    let reads = async {
        // Each sleep belongs to one of two loops of the worker. The loop that closes overdue
        // requests sleeps once. The loop that claims tasks gets a slot as soon as the lone
        // drive admits other tasks, and sleeps after its claim. So two sleeps imply a claim.
        until("the worker has claimed", async || rests() >= 2).await;
        for _ in 0..300 {
            assert_eq!(harness.status(suspect).await, TaskStatus::Running);
        }
    };
    tokio::select! {
        () = here.worker().run() => panic!("the service does not stop"),
        () = reads => {}
    }
    // The sleeps never end, so only a notification makes the worker claim and sleep again. A
    // worker that keeps notifying itself would sleep far more often.
    assert!(rests() <= 5, "{}", rests());
    model.gate.add_permits(1);
    alone.await.unwrap();
    assert_eq!(harness.status(suspect).await, TaskStatus::Completed);
}

#[apply(both)]
async fn task_driven_alone_lets_the_others_in_with_its_first_new_item(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[]).await;
    let model = Gated::new();
    let suspect = queued(&harness, LOOK).await;
    harness.fixture.suspect("true").await;
    harness.tool.close();
    let here = model.engine(&harness, 4);
    let alone = spawn(here.claim().await.unwrap().pop().unwrap());
    // The tool has received the call, so `tool_started` is committed. After this commit, the
    // process may drive other tasks at the same time.
    harness.tool.reached(1).await;
    let other = here.create(&alice(), go(), None).await.unwrap().task_id;
    let row = harness.journal(other).await.row;
    assert!(
        row.lease_owner.is_some() || row.status == TaskStatus::Completed,
        "it has a slot at once"
    );
    harness.until_stopped(other).await;
    assert_eq!(harness.status(other).await, TaskStatus::Completed);
    assert_eq!(harness.status(suspect).await, TaskStatus::Running);
    harness.tool.open();
    alone.await.unwrap();
    assert_eq!(harness.status(suspect).await, TaskStatus::Completed);
}

#[apply(both)]
async fn task_to_be_driven_alone_is_given_back_where_calls_outlast_a_lease(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[]).await;
    let model = Gated::new();
    let suspect = queued(&harness, POISON).await;
    harness.fixture.suspect("true").await;
    let long = queued(&harness, LOOK).await;
    harness.tool.close();
    let here = model.engine(&harness, 4);
    let mut drivers = here.claim().await.unwrap();
    assert_eq!(drivers.len(), 2);
    // The lone driver measures its wait from its first poll, so the test polls the driver
    // before it advances the clock.
    let waits = poll_fn(|context| Poll::Ready(drivers[1].as_mut().poll(context).is_pending()));
    assert!(waits.await, "the other task has the process");
    let drivers: Vec<_> = drivers.into_iter().map(spawn).collect();
    harness.tool.reached(1).await;
    harness.fixture.forward(LEASE);
    let is_given_back = async || harness.journal(suspect).await.row.lease_owner.is_none();
    until("the suspect is given back", is_given_back).await;
    assert_eq!(model.poisoned_calls.available_permits(), 0);
    assert_eq!(harness.journal(suspect).await.row.fruitless, 2);
    // The process has released `suspect`, because `long` kept its slot. For four times the
    // duration of a lease, the process begins no lone drive, so a new task gets a slot.
    let new = here.create(&alice(), go(), None).await.unwrap().task_id;
    harness.until_stopped(new).await;
    assert_eq!(harness.status(new).await, TaskStatus::Completed);
    harness.tool.open();
    harness.until_stopped(long).await;
    harness.fixture.forward(LEASE * 5);
    join(drivers).await;
    model.gate.add_permits(1);
    assert_eq!(completed_by(&harness, &[here]).await, 3);
}

#[apply(both)]
async fn tasks_driven_alone_take_turns_with_the_others_on_every_replica(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[("lookup", r#"{"order":1}"#)]).await;
    let mut tasks = Vec::new();
    for _ in 0..6 {
        tasks.push(queued(&harness, "go").await);
    }
    let suspects = "task_id in
            (select task_id from agent_task order by task_id limit 3)";
    assert_eq!(harness.fixture.suspect(suspects).await, 3);
    let engine = harness.engine(1);
    for place in 0..6 {
        let drivers = engine.claim().await.unwrap();
        let mut leased = Vec::new();
        for (number, task) in tasks.iter().enumerate() {
            leased.extend(harness.journal(*task).await.row.lease_owner.map(|_| number));
        }
        assert_eq!((drivers.len(), leased.len()), (1, 1));
        assert_eq!(leased[0] < 3, place % 2 == 0, "they take turns");
        join_all(drivers).await;
    }
    for _ in 0..6 {
        queued(&harness, "go").await;
    }
    let suspects = "status = 'Running' and task_id in
            (select task_id from agent_task where status = 'Running' order by task_id limit 3)";
    assert_eq!(harness.fixture.suspect(suspects).await, 3);
    assert_eq!(
        completed_by(&harness, &[harness.engine(2), harness.engine(2)]).await,
        12
    );
}

#[apply(both)]
async fn task_claimed_beside_a_lone_drive_makes_progress_before_it_gives_way(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::new(fixture, &[("lookup", r#"{"order":1}"#)]).await;
    let (suspect, other) = (queued(&harness, "go").await, queued(&harness, "go").await);
    let first = "task_id in
            (select task_id from agent_task order by task_id limit 1)";
    assert_eq!(harness.fixture.suspect(first).await, 1);
    let before = harness.journal(other).await.row.last_seq;
    let drivers = harness.engine(2).claim().await.unwrap();
    assert_eq!(drivers.len(), 2);
    join_all(drivers).await;
    assert!(harness.journal(other).await.row.last_seq > before);
    assert_eq!(harness.status(suspect).await, TaskStatus::Completed);
}
