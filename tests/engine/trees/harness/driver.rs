//! Drives a whole tree of tasks. The drivers are polled only when the test says so, and the test
//! can drop them at any moment.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::BoxFuture;
use holdpoint::engine::{Engine, EngineParts, Refusal};
use holdpoint::store::News;
use holdpoint::task::id::TaskId;
use tokio::sync::watch;

use super::super::super::engine_harness::{EngineHarness, alice, go};
use super::super::super::worker_steps::WorkerSteps as _;
use super::ROOM;

pub struct TreeDriver<'s> {
    pub harness: &'s EngineHarness,
    pub engine: Arc<Engine>,
    pub root: TaskId,
    pub news: watch::Receiver<News>,
    pub drivers: Vec<BoxFuture<'static, ()>>,
    /// The number of calls that the harness's tool had executed when this value was created.
    pub before: usize,
    pub polls: usize,
}

impl<'s> TreeDriver<'s> {
    /// Creates a tree whose root waits for its first driver.
    pub async fn start(harness: &'s EngineHarness, parts: &EngineParts) -> Self {
        let before = harness.tool.count();
        let accepted = EngineHarness::like(parts, 0)
            .create(&alice(), go(), None)
            .await
            .unwrap();
        let mut driver = Self::of(harness, parts, accepted.task_id);
        driver.news = accepted.listener.unwrap().news();
        driver.before = before;
        driver
    }

    /// Begins to drive an existing tree, in its current state.
    pub fn of(harness: &'s EngineHarness, parts: &EngineParts, root: TaskId) -> Self {
        let engine = EngineHarness::like(parts, ROOM);
        let before = harness.tool.count();
        Self {
            harness,
            engine,
            root,
            news: harness.fixture.store.watch(root),
            drivers: Vec::new(),
            before,
            polls: 0,
        }
    }

    /// Returns the number of the tree's commits and of the tool's executions so far, added up. A
    /// test can drop the drivers at any such number, as if the process died at this moment.
    pub fn moment(&self) -> usize {
        self.commits() + self.harness.tool.count() - self.before
    }

    pub fn is_idle(&self) -> bool {
        self.drivers.is_empty()
    }

    pub fn commits(&self) -> usize {
        usize::try_from(self.news.borrow().commits).unwrap()
    }

    /// Drives the tree until nothing can be driven, and then returns `true`. Returns `false` as
    /// soon as [`Self::moment`] has reached `until`.
    pub async fn drive(&mut self, until: usize) -> bool {
        self.drive_while(|driver| driver.moment() < until).await
    }

    /// Drives the tree until nothing can be driven, and then returns `true`. Checks the condition
    /// `so` before every poll and returns `false` if it does not hold.
    pub async fn drive_while(&mut self, so: impl Fn(&Self) -> bool) -> bool {
        loop {
            if !so(self) {
                return false;
            }
            // A suspended driver may hold the database's only writer. Then `claim` fails with
            // `Unavailable`, and this round only polls the drivers.
            match self.engine.claim().await {
                Ok(claimed) => {
                    self.drivers.extend(claimed);
                    if self.drivers.is_empty() {
                        return true;
                    }
                }
                Err(Refusal::Unavailable) if self.drivers.is_empty() => continue,
                Err(Refusal::Unavailable) => {}
                Err(error) => panic!("{error}"),
            }
            let mut place = 0;
            poll_fn(|context| {
                while place < self.drivers.len() {
                    if !so(self) {
                        return Poll::Ready(());
                    }
                    self.polls += 1;
                    match self.drivers[place].as_mut().poll(context) {
                        Poll::Ready(()) => {
                            drop(self.drivers.remove(place));
                            // The driver that ended may have queued another task. So the
                            // outer loop claims tasks before the next poll.
                            return Poll::Ready(());
                        }
                        Poll::Pending => place += 1,
                    }
                }
                place = 0;
                Poll::Pending
            })
            .await;
        }
    }
}
