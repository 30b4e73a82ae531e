//! Tests that a root is paused when its children pause simultaneously.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdpoint::engine::EngineParts;
use holdpoint::store::Store;
use holdpoint::task::status::TaskStatus;

use super::super::harness::{LEAF, People, Shape, TreeDriver, one_large};
use crate::engine::engine_harness::EngineHarness;
use crate::engine::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::StoreFixture;
use crate::support::repetitions;

/// A rendezvous of two threads. The first thread waits at most 200 ms for the second. A thread that
/// arrives later does not wait.
#[derive(Default)]
struct Rendezvous(Mutex<usize>, Condvar);

impl Rendezvous {
    fn arrive(&self) {
        let mut here = self.0.lock().unwrap();
        *here += 1;
        self.1.notify_all();
        drop(
            self.1
                .wait_timeout_while(here, Duration::from_millis(200), |here| *here < 2)
                .unwrap(),
        );
    }

    fn is_over(&self) {
        *self.0.lock().unwrap() = 0;
    }
}

/// Polls each driver on its own thread.
fn at_once(drivers: Vec<BoxFuture<'static, ()>>) {
    let here = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| {
        std::thread::scope(|threads| {
            for driver in drivers {
                threads.spawn(|| here.block_on(driver));
            }
        });
    });
}

async fn paused_in_the_same_instant(fixture: StoreFixture, times: usize) {
    let shape = Shape::flat(2);
    let harness = EngineHarness::of_trees(fixture, shape, one_large).await;
    let rendezvous = Arc::new(Rendezvous::default());
    let place = Arc::clone(&rendezvous);
    harness.script_by_name(move |name, prompt| {
        if name == LEAF {
            place.arrive();
        }
        Ok(shape.answer(one_large, name, prompt))
    });
    let here = harness.parts(0);
    let there = if harness.fixture.is_postgres() {
        let other = Store::open(&harness.fixture.settings, harness.fixture.clock.clone())
            .await
            .unwrap();
        EngineParts {
            store: other,
            ..here.clone()
        }
    } else {
        here.clone()
    };
    for time in 0..times {
        rendezvous.is_over();
        let mut driver = TreeDriver::start(&harness, &here).await;
        let (root, began) = (driver.root, harness.prompt_count());
        assert!(
            !driver
                .drive_while(|_| harness.prompt_count() == began)
                .await
        );
        // The root's model has answered. The root now starts its children and waits without a
        // driver.
        assert!(!driver.drive_while(|driver| !driver.is_idle()).await);
        let (one, other) = (
            EngineHarness::like(&here, 1),
            EngineHarness::like(&there, 1),
        );
        let mut drivers =
            [one.claim().await.unwrap(), other.claim().await.unwrap()].concat_drivers();
        assert_eq!(
            drivers.len(),
            2,
            "each takes one: {}",
            harness.description(root).await
        );
        while !drivers.is_empty() {
            at_once(drivers);
            drivers = [one.claim().await.unwrap(), other.claim().await.unwrap()].concat_drivers();
        }
        let row = harness.row(root).await;
        let stands = (row.status, row.busy, row.open_requests);
        assert_eq!(
            stands,
            (TaskStatus::Paused, 0, 2),
            "{time}: {}",
            harness.description(root).await
        );
        let asked = harness.asked_by_tree(root).await;
        assert_eq!(asked.len(), 2);
        assert!(
            asked[0].task_id != asked[1].task_id
                && asked
                    .iter()
                    .all(|request| request.agent_path == ["boss", LEAF])
        );
        if time % 50 == 0 {
            harness
                .answer_tree(&EngineHarness::like(&here, 0), root, People::Approve)
                .await;
            harness.finish_tree(&here, root, People::Approve).await;
            assert_eq!(
                harness.checked_journals(root).await[&root].row.status,
                TaskStatus::Completed
            );
        }
    }
}

trait Drivers {
    fn concat_drivers(self) -> Vec<BoxFuture<'static, ()>>;
}

impl Drivers for [Vec<BoxFuture<'static, ()>>; 2] {
    fn concat_drivers(self) -> Vec<BoxFuture<'static, ()>> {
        self.into_iter().flatten().collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_is_paused_when_two_children_pause_simultaneously() {
    paused_in_the_same_instant(StoreFixture::sqlite().await, repetitions(50, 1000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_is_paused_when_two_children_pause_simultaneously_on_two_replicas() {
    paused_in_the_same_instant(StoreFixture::postgres().await, repetitions(40, 200)).await;
}
