//! Takes single steps of an engine's worker. No worker runs in most tests of the engine.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use holdpoint::engine::{Engine, Refusal};
use tokio::task::JoinHandle;

use super::engine_harness::spawn;

#[async_trait]
pub trait WorkerSteps {
    /// Claims at most as many tasks as there are free slots, and none if no slot is free. Each
    /// returned future drives one task. Dropping a future abandons its task, as a crash would.
    async fn claim(&self) -> Result<Vec<BoxFuture<'static, ()>>, Refusal>;

    /// Closes overdue requests, then claims tasks and drives them in the background. Returns the
    /// number of claimed tasks.
    async fn round(&self) -> Result<usize, Refusal>;
}

#[async_trait]
impl WorkerSteps for Arc<Engine> {
    async fn claim(&self) -> Result<Vec<BoxFuture<'static, ()>>, Refusal> {
        match self.worker().free_slot() {
            Some(first) => self.worker().claim(first).await,
            None => Ok(Vec::new()),
        }
    }

    async fn round(&self) -> Result<usize, Refusal> {
        self.worker().close_overdue().await?;
        let drivers = self.claim().await?;
        let count = drivers.len();
        for driver in drivers {
            spawn(driver);
        }
        Ok(count)
    }
}

/// Runs the engine's worker in the background.
pub fn spawn_worker(engine: &Arc<Engine>) -> JoinHandle<()> {
    let engine = Arc::clone(engine);
    spawn(async move { engine.worker().run().await })
}
