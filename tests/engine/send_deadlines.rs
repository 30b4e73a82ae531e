//! Tests that a call is not sent if too much time has passed since the commit of its start. If an
//! attempt may still run on another replica, people are asked about the call only after the
//! attempt's timeout and the lease are over.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdpoint::engine::{Engine, EngineParts, Settings};
use holdpoint::task::change::Journal;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Item, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use holdpoint::task::tool_spec::ToolSpec;
use holdpoint::tool::{Invocation, Tool, ToolAnswer};
use holdpoint::world::{Clock, SystemClock};
use macro_rules_attribute::apply;

use super::engine_harness::{EngineHarness, alice, claimed, drive, join, outcomes, turn};
use super::invariants::{check, check_ended};
use super::two_replicas::place;
use crate::store::store_fixture::{StoreFixture, both};

const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];

/// A clock that advances after a given number of readings.
struct StallingClock(AtomicI64, Duration);

#[async_trait::async_trait]
impl Clock for StallingClock {
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

/// Drives a new task in a process that stalls for `pause` after `at` readings of the clock. Returns
/// the task, and whether the driver ended before the stall.
async fn paused(
    harness: &EngineHarness,
    lease: Duration,
    at: i64,
    pause: Duration,
) -> (TaskId, bool) {
    let task = harness.queued().await;
    let clock = Arc::new(StallingClock(AtomicI64::new(at), pause));
    let parts = harness.parts(1);
    let settings = Settings {
        lease,
        ..parts.settings
    };
    let engine = Engine::new(EngineParts {
        settings,
        clock: clock.clone(),
        ..parts
    });
    drive(&engine).await;
    (task, clock.0.load(Ordering::SeqCst) >= 0)
}

/// Drives new tasks, one after another. The process of each task stalls one clock reading later
/// than the process before, until a task ends before the stall. Asserts that no call is sent twice
/// and that every task completes. Asserts also that at least one call was not sent although its
/// start was committed. `known` is the outcome that the journal must have for such a call when the
/// call's driver ends; `None` if the journal must have no outcome yet.
async fn unsent(fixture: StoreFixture, lease: Duration, pause: Duration, known: Option<Outcome>) {
    let harness = EngineHarness::new(fixture, SMALL).await;
    let (mut at, mut unsent) = (0, 0);
    loop {
        let (task, over) = paused(&harness, lease, at, pause).await;
        at += 1;
        let journal = harness.journal(task).await;
        let started = place(&journal, |fact| matches!(fact, Fact::ToolStarted { .. })).is_some();
        if started && harness.executions(task, "/refund") == 0 {
            assert_eq!(
                outcomes(&journal).first().copied(),
                known,
                "{:#?}",
                journal.items
            );
            unsent += 1;
        }
        harness.finish(task).await;
        let journal = harness.journal(task).await;
        check_ended(&journal.items);
        assert_eq!(journal.row.status, TaskStatus::Completed);
        assert!(harness.executions(task, "/refund") <= 1);
        if over {
            break;
        }
    }
    assert!(unsent > 0, "in none of {at} drives");
}

fn starts(journal: &Journal) -> usize {
    let started = |item: &&Item| matches!(item.fact, Fact::ToolStarted { .. });
    journal.items.iter().filter(started).count()
}

/// A clock whose uptime grows by a fixed time with each reading.
struct AdvancingClock(Mutex<Duration>, Duration);

impl AdvancingClock {
    fn advance(&self, time: Duration) -> Duration {
        let mut uptime = self.0.lock().unwrap();
        *uptime += time;
        *uptime
    }
}

#[async_trait::async_trait]
impl Clock for AdvancingClock {
    fn now(&self) -> Time {
        SystemClock.now()
    }

    fn uptime(&self) -> Duration {
        self.advance(self.1)
    }

    async fn sleep(&self, _: Duration) {}
}

/// A tool that needs three seconds to connect. In its first call, the tool connects after the
/// permit is decided. In each later call, it connects before the permit is decided.
struct SlowToConnect(ToolSpec, Arc<AdvancingClock>, AtomicI64);

#[async_trait::async_trait]
impl Tool for SlowToConnect {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn connects_first(&self) -> bool {
        true
    }

    async fn call(&self, call: &Invocation) -> ToolAnswer {
        if self.2.fetch_add(1, Ordering::SeqCst) == 0 {
            call.permit.decided().await;
        }
        self.1.advance(Duration::from_secs(3));
        call.permit.decided().await;
        if call.permit.holds() {
            ToolAnswer::Succeeded {
                content: "paid".to_owned(),
                http_status: None,
            }
        } else {
            ToolAnswer::NotSent {
                content: "not sent".to_owned(),
            }
        }
    }
}

#[apply(both)]
async fn call_that_is_late_after_the_commit_of_its_start_is_failed_and_not_sent(
    fixture: StoreFixture,
) {
    unsent(
        fixture,
        Duration::from_secs(30),
        Duration::from_secs(3),
        Some(Outcome::Failed),
    )
    .await;
}

#[apply(both)]
async fn repeatable_call_that_is_late_after_the_commit_of_its_start_is_started_again_and_sent_once(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::new(fixture, &[("tag", r#"{"text":"a"}"#)]).await;
    let (mut at, mut started_twice) = (0, 0);
    loop {
        let (task, over) = paused(
            &harness,
            Duration::from_secs(30),
            at,
            Duration::from_secs(3),
        )
        .await;
        at += 1;
        harness.finish(task).await;
        let journal = harness.journal(task).await;
        check(&journal.items);
        assert_eq!(
            (harness.executions(task, "/tag"), outcomes(&journal)),
            (1, vec![Outcome::Succeeded]),
            "{:#?}",
            journal.items
        );
        started_twice += usize::from(starts(&journal) == 2);
        if over {
            break;
        }
    }
    assert!(started_twice > 0, "in none of {at} drives");
}

#[apply(both)]
async fn repeatable_call_that_is_late_three_times_is_failed_and_not_sent(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[("tag", r#"{"text":"a"}"#)]).await;
    let clock = Arc::new(AdvancingClock(Mutex::default(), Duration::from_secs(3)));
    let parts = harness.parts(4);
    let settings = Settings {
        lease: Duration::from_hours(1),
        ..parts.settings
    };
    let engine = Engine::new(EngineParts {
        settings,
        clock,
        ..parts
    });
    let task = harness.queued().await;
    drive(&engine).await;
    let journal = harness.journal(task).await;
    assert_eq!(
        (harness.executions(task, "/tag"), starts(&journal)),
        (0, 3),
        "{:#?}",
        journal.items
    );
    assert_eq!(outcomes(&journal), [Outcome::Failed]);
}

#[apply(both)]
async fn tool_whose_connection_came_too_late_connects_before_its_next_start_is_committed(
    fixture: StoreFixture,
) {
    let mut harness = EngineHarness::new(fixture, SMALL).await;
    harness.script(|number| Ok(turn(if number <= 2 { SMALL } else { &[] })));
    let clock = Arc::new(AdvancingClock(Mutex::default(), Duration::ZERO));
    let shared = Arc::clone(&clock);
    harness.refund = Some(Arc::new(move |spec| {
        Arc::new(SlowToConnect(
            spec.clone(),
            Arc::clone(&shared),
            AtomicI64::new(0),
        ))
    }));
    let engine = Engine::new(EngineParts {
        clock,
        ..harness.parts(4)
    });
    let task = harness.queued().await;
    drive(&engine).await;
    let journal = harness.journal(task).await;
    assert_eq!(
        outcomes(&journal),
        [Outcome::Failed, Outcome::Succeeded],
        "{:#?}",
        journal.items
    );
}

#[apply(both)]
async fn call_whose_lease_ran_out_before_it_was_sent_is_not_sent(fixture: StoreFixture) {
    unsent(
        fixture,
        Duration::from_secs(1),
        Duration::from_secs(1),
        None,
    )
    .await;
}

#[apply(both)]
async fn call_in_flight_is_never_asked_about_by_its_own_process(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, SMALL).await;
    harness.replace("timeout: 5s", "timeout: 60s");
    harness.tool.close();
    let task = harness.queued().await;
    let engine = harness.engine(2);
    let slow = claimed(&engine).await;
    harness.tool.reached(1).await;
    harness.later();
    drive(&engine).await;
    assert_eq!(harness.status(task).await, TaskStatus::Running);
    assert_eq!(harness.open(task).await.len(), 0);
    harness.tool.open();
    join(slow).await;
    harness.finish(task).await;
    assert_eq!(harness.executions(task, "/refund"), 1);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
}

/// A replica takes the task over while the call's timeout or the other replica's lease still lasts.
/// This replica asks people once the timeout and the lease are over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_in_flight_on_another_replica_is_not_asked_about_before_its_time_is_over() {
    let mut harness = EngineHarness::new(StoreFixture::postgres().await, SMALL).await;
    harness.replace("timeout: 5s", "timeout: 60s");
    let (task, slow) = harness.in_flight().await;
    harness.fixture.forward(Duration::from_secs(31));
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Running);
    assert_eq!(harness.open(task).await.len(), 0);
    harness.fixture.forward(Duration::from_mins(1));
    harness.run().await;
    harness.only_request(task, RequestKind::Reconcile).await;
    harness.tool.open();
    join(slow).await;
    assert_eq!(harness.executions(task, "/refund"), 1);
}

/// A clock whose sleeps end at once. The clock adds up the requested sleeps.
#[derive(Default)]
pub struct Remembering(pub Mutex<Duration>);

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
    let harness = EngineHarness::new(StoreFixture::postgres().await, SMALL).await;
    let (task, slow) = harness.in_flight().await;
    let clock = Arc::new(Remembering::default());
    let other = Engine::new(EngineParts {
        clock: clock.clone(),
        ..harness.parts(1)
    });
    other.cancel(&alice(), task, None).await.unwrap();
    let journal = harness.journal(task).await;
    let started = place(&journal, |fact| matches!(fact, Fact::ToolStarted { .. })).unwrap();
    let waited = journal.now.since(journal.items[started].at) + *clock.0.lock().unwrap();
    assert!(
        waited >= Duration::from_secs(2),
        "it answered {waited:?} after the start"
    );
    harness.tool.open();
    join(slow).await;
}
