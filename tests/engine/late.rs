//! Calls that could not be sent in time after the commit of their start are never sent later;
//! attempts that may still run on another replica are not asked about before their time is over.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdpoint::engine::{Engine, Parts, Settings};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use holdpoint::world::{Clock, SystemClock};

use super::laws::{check, every_call_has_one_result};
use super::pair::place;
use super::stage::{Stage, alice, go, outcomes};
use crate::store::house::{House, both};

const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];

#[expect(
    clippy::disallowed_methods,
    reason = "a driver of a process that ends with the test"
)]
fn spawn(driver: impl Future<Output = ()> + Send + 'static) -> tokio::task::JoinHandle<()> {
    tokio::spawn(driver)
}

/// A clock that leaps ahead after a given number of readings.
struct Leaping(AtomicI64, Duration);

#[async_trait::async_trait]
impl Clock for Leaping {
    fn now(&self) -> Time {
        SystemClock.now()
    }

    fn uptime(&self) -> Duration {
        if self.0.fetch_sub(1, Ordering::SeqCst) > 0 {
            Duration::ZERO
        } else {
            self.1
        }
    }

    async fn sleep(&self, _: Duration) {}
}

/// A task whose process stalls for `pause` after `at` readings of the clock. Returns whether it had
/// ended before.
async fn paused(stage: &Stage, lease: Duration, at: i64, pause: Duration) -> (TaskId, bool) {
    let task = stage
        .engine(0)
        .create(&alice(), go(), None)
        .await
        .unwrap()
        .task_id;
    let clock = Arc::new(Leaping(AtomicI64::new(at), pause));
    let parts = stage.parts(1);
    let settings = Settings {
        lease,
        ..parts.settings
    };
    let engine = Engine::new(Parts {
        settings,
        clock: clock.clone(),
        ..parts
    });
    for driver in engine.claim().await.unwrap() {
        driver.await;
    }
    (task, clock.0.load(Ordering::SeqCst) >= 0)
}

/// At whatever reading the process stalls: some start is committed and never sent, none is sent
/// late, and every task completes.
async fn unsent(house: House, lease: Duration, pause: Duration, known: Option<Outcome>) {
    let stage = Stage::set(house, SMALL).await;
    let (mut at, mut unsent) = (0, 0);
    loop {
        let (task, over) = paused(&stage, lease, at, pause).await;
        at += 1;
        let journal = stage.journal(task).await;
        let started = place(&journal, |fact| matches!(fact, Fact::ToolStarted { .. })).is_some();
        if started && stage.executions(task, "/refund") == 0 {
            assert_eq!(
                outcomes(&journal).first().copied(),
                known,
                "{:#?}",
                journal.items
            );
            unsent += 1;
        }
        stage.finish(task).await;
        let journal = stage.journal(task).await;
        check(&journal.items);
        every_call_has_one_result(&journal.items);
        assert_eq!(journal.row.status, TaskStatus::Completed);
        assert!(stage.executions(task, "/refund") <= 1);
        if over {
            break;
        }
    }
    assert!(unsent > 0, "in none of {at} lives");
}

both! {
    async fn call_that_is_late_after_the_commit_of_its_start_is_failed_and_not_sent(house) {
        unsent(house, Duration::from_secs(30), Duration::from_secs(3), Some(Outcome::Failed)).await;
    }

    async fn call_whose_lease_ran_out_before_it_was_sent_is_not_sent(house) {
        unsent(house, Duration::from_secs(1), Duration::from_secs(1), None).await;
    }

    async fn call_in_flight_is_never_asked_about_by_its_own_process(house) {
        let mut stage = Stage::set(house, SMALL).await;
        stage.configure(|yaml| yaml.replace("timeout: 5s", "timeout: 60s"));
        stage.tool.close();
        let task = stage.engine(0).create(&alice(), go(), None).await.unwrap().task_id;
        let engine = stage.engine(2);
        let slow: Vec<_> = engine.claim().await.unwrap().into_iter().map(spawn).collect();
        stage.tool.reached(1).await;
        stage.later();
        for driver in engine.claim().await.unwrap() {
            driver.await;
        }
        assert_eq!((stage.status(task).await, stage.open(task).await.len()), (TaskStatus::Running, 0));
        stage.tool.open();
        for driver in slow {
            driver.await.unwrap();
        }
        stage.finish(task).await;
        assert_eq!((stage.executions(task, "/refund"), outcomes(&stage.journal(task).await)), (1, vec![Outcome::Succeeded]));
    }
}

/// The timeout and the lease must both be over: a replica that takes the task over earlier waits,
/// and asks afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_in_flight_on_another_replica_is_not_asked_about_before_its_time_is_over() {
    let mut stage = Stage::set(House::postgres().await, SMALL).await;
    stage.configure(|yaml| yaml.replace("timeout: 5s", "timeout: 60s"));
    stage.tool.close();
    let task = stage
        .engine(0)
        .create(&alice(), go(), None)
        .await
        .unwrap()
        .task_id;
    let slow: Vec<_> = stage
        .engine(1)
        .claim()
        .await
        .unwrap()
        .into_iter()
        .map(spawn)
        .collect();
    stage.tool.reached(1).await;
    stage.house.forward(Duration::from_secs(31));
    stage.run().await;
    assert_eq!(
        (stage.status(task).await, stage.open(task).await.len()),
        (TaskStatus::Running, 0)
    );
    stage.house.forward(Duration::from_mins(1));
    stage.run().await;
    let [(_, RequestKind::Reconcile)] = stage.open(task).await[..] else {
        panic!("it is asked about")
    };
    stage.tool.open();
    for driver in slow {
        driver.await.unwrap();
    }
    assert_eq!(stage.executions(task, "/refund"), 1);
}

/// A clock that does not wait, and sums up the requested sleeps.
#[derive(Default)]
struct Remembering(Mutex<Duration>);

#[async_trait::async_trait]
impl Clock for Remembering {
    fn now(&self) -> Time {
        SystemClock.now()
    }

    fn uptime(&self) -> Duration {
        SystemClock.uptime()
    }

    async fn sleep(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

/// The canceling replica cannot know whether the other replica has sent the call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_waits_until_a_start_on_another_replica_is_too_old_to_be_sent() {
    let stage = Stage::set(House::postgres().await, SMALL).await;
    stage.tool.close();
    let task = stage
        .engine(0)
        .create(&alice(), go(), None)
        .await
        .unwrap()
        .task_id;
    let slow: Vec<_> = stage
        .engine(1)
        .claim()
        .await
        .unwrap()
        .into_iter()
        .map(spawn)
        .collect();
    stage.tool.reached(1).await;
    let clock = Arc::new(Remembering::default());
    let other = Engine::new(Parts {
        clock: clock.clone(),
        ..stage.parts(1)
    });
    other.cancel(&alice(), task, None).await.unwrap();
    let journal = stage.journal(task).await;
    let started = place(&journal, |fact| matches!(fact, Fact::ToolStarted { .. })).unwrap();
    let waited = journal.now.since(journal.items[started].at) + *clock.0.lock().unwrap();
    assert!(
        waited >= Duration::from_secs(2),
        "it answered {waited:?} after the start"
    );
    stage.tool.open();
    for driver in slow {
        driver.await.unwrap();
    }
}
