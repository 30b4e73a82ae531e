//! On every replica: takes over what nobody drives, renews leases, closes what is overdue. Polling is the truth;
//! notifications only shorten the wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::{Engine, Refusal};
use crate::engine::live::Live;
use crate::task::id::TaskId;

/// How often the database is asked for work.
const POLL: Duration = Duration::from_secs(1);

impl Engine {
    /// Works until the service goes down.
    pub async fn work(self: Arc<Self>) {
        let renewals = self.settings.lease / 3;
        let mut renewed = self.clock.uptime();
        while !self.stop.is_cancelled() {
            if let Err(error) = self.round().await {
                tracing::warn!(%error, "a round of the worker failed");
            }
            if self.clock.uptime().saturating_sub(renewed) >= renewals {
                renewed = self.clock.uptime();
                self.renew().await;
            }
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.room.notified() => {}
                () = self.clock.sleep(POLL) => {}
            }
        }
        // Drivers may need longer than a lease to end what they do.
        while !self.killed.is_cancelled() && !self.drivers.is_empty() {
            self.renew().await;
            tokio::select! {
                () = self.killed.cancelled() => {}
                () = self.drivers.wait() => {}
                () = self.clock.sleep(renewals) => {}
            }
        }
    }

    /// One round: closes what is overdue, and drives what can be claimed. Returns how many tasks were claimed.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    pub async fn round(self: &Arc<Self>) -> Result<usize, Refusal> {
        self.expire().await?;
        let free = i64::try_from(self.slots.available_permits()).unwrap_or(i64::MAX);
        if free == 0 {
            return Ok(0);
        }
        let until = self.clock.uptime() + self.settings.lease;
        let claimed = self.store.claim(&self.replica, self.settings.lease, free).await?;
        let count = claimed.len();
        if i64::try_from(count).unwrap_or(i64::MAX) == free {
            self.backlog.store(true, Ordering::Relaxed);
        }
        for task in claimed {
            self.leases.lock().insert(task, until);
            // Without a slot (a door took it meanwhile) the driver queues the task again at its next effect.
            let slot = Arc::clone(&self.slots).try_acquire_owned().ok();
            let engine = Arc::clone(self);
            self.drivers.spawn(async move { engine.take_over(task, slot).await });
        }
        Ok(count)
    }

    async fn take_over(self: Arc<Self>, task: TaskId, slot: Option<OwnedSemaphorePermit>) {
        match self.store.journal(task).await {
            Ok(Some(journal)) => {
                let mut live = Live::read(journal);
                live.slot = slot;
                self.drive(live).await;
            }
            Ok(None) => {}
            Err(error) => {
                self.leases.lock().remove(&task);
                tracing::warn!(%task, %error, "a task that was taken over could not be read");
            }
        }
    }

    /// Renews the leases of this process. One that is not its own any more is forgotten, so that its driver sends
    /// nothing more.
    async fn renew(&self) {
        let held: Vec<_> = self.leases.lock().keys().copied().collect();
        if held.is_empty() {
            return;
        }
        let until = self.clock.uptime() + self.settings.lease;
        match self.store.renew(&self.replica, self.settings.lease, &held).await {
            Ok(kept) => {
                let mut leases = self.leases.lock();
                for task in held {
                    if kept.contains(&task) {
                        if let Some(known) = leases.get_mut(&task) {
                            *known = until.max(*known);
                        }
                    } else {
                        leases.remove(&task);
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "leases could not be renewed"),
        }
    }
}
