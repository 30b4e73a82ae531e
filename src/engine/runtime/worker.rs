//! The worker of each replica claims queued tasks and tasks whose lease ran out, renews leases, and
//! closes overdue requests. The worker finds all this work by polling; a notification makes the
//! next poll come earlier.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;

use super::claimed_driver::ClaimedDriver;
use super::lone_drive::LoneDrive;
use crate::engine::commands::expire;
use crate::engine::recovery::damaged_task::{end_damaged_tasks, reading_kills_processes};
use crate::engine::{Engine, Refusal};
use crate::failpoint;
use crate::store::{ClaimedTask, Drive, UpgradeCursor};

/// The time between two polls, short enough that the worker notices a passed deadline within a
/// second.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The time between two cleanups. A cleanup removes expired idempotency keys, browser sessions,
/// credentials and standing decisions. It stores the `UserKey` (the form for comparisons) of each
/// new user id, and corrects rows that replicas of an older version do not maintain.
const CLEANUP_INTERVAL: Duration = Duration::from_mins(1);

/// The worker of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Worker<'e> {
    pub(in crate::engine) engine: &'e Arc<Engine>,
}

impl Engine {
    #[must_use]
    pub fn worker(self: &Arc<Self>) -> Worker<'_> {
        Worker { engine: self }
    }
}

/// Logs a failure of the worker, except `Unavailable`: the store logs that the database does not
/// answer.
fn log_failure(result: Result<(), Refusal>) {
    if let Err(error) = result
        && error != Refusal::Unavailable
    {
        tracing::warn!(%error, "a round of the worker failed");
    }
}

impl Worker<'_> {
    /// Runs the worker until the service goes down. Claims, closings of overdue requests and
    /// renewals of leases run concurrently: no lease runs out while a closing is slow, and requests
    /// are closed while a claim waits for a slot.
    pub async fn run(self) {
        tokio::join!(self.claims(), self.closings(), self.renewals());
    }

    /// Claims tasks as soon as a slot is free: at each poll, and whenever a task may have been
    /// queued.
    async fn claims(self) {
        let engine = self.engine;
        while !engine.stop.is_cancelled() {
            if let Some(first) = engine.next_slot().await {
                log_failure(self.drive_claimed(first).await);
            }
            tokio::select! {
                () = engine.stop.cancelled() => {}
                () = engine.wake_worker.notified() => {}
                () = engine.store.wait_for_queued_task() => {}
                () = engine.clock.sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Closes overdue requests, and removes rows that are no longer needed.
    async fn closings(self) {
        let (stop, clock, store) = (&self.engine.stop, &self.engine.clock, &self.engine.store);
        let mut clean_at = clock.uptime();
        let mut cursor = UpgradeCursor::default();
        while !stop.is_cancelled() {
            log_failure(self.close_overdue().await);
            if clock.uptime() >= clean_at {
                // One pass of the loop cleans up at most one batch of each kind, so that overdue
                // requests do not wait long.
                let more = store.remove_spent_keys().await.unwrap_or(false)
                    | store.remove_spent_sessions().await.unwrap_or(false)
                    | store.remove_expired_credentials().await.unwrap_or(false)
                    | store.remove_spent_grants().await.unwrap_or(false)
                    | store.fold_spellings().await.unwrap_or(false)
                    | store.upgrade(&mut cursor).await.unwrap_or(false);
                let pause = if more {
                    Duration::ZERO
                } else {
                    CLEANUP_INTERVAL
                };
                clean_at = clock.uptime() + pause;
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = clock.sleep(POLL_INTERVAL) => {}
            }
        }
    }

    async fn renewals(self) {
        let engine = self.engine;
        let every = engine.settings.lease / 3;
        let mut renewed = engine.clock.uptime();
        while !engine.stop.is_cancelled() {
            // Leases run out even while the machine is suspended, but a sleep may not count this
            // time. So each sleep is short, and the loop renews leases soon after a suspension.
            tokio::select! {
                () = engine.stop.cancelled() => {}
                () = engine.clock.sleep(every / 8) => {}
            }
            if engine.clock.uptime().saturating_sub(renewed) >= every {
                renewed = engine.clock.uptime();
                self.renew().await;
            }
        }
        // During shutdown, a call may last longer than its lease, so the worker renews leases until
        // the last driver ends.
        while !engine.shutdown_over.is_cancelled() && !engine.drivers.is_empty() {
            self.renew().await;
            tokio::select! {
                () = engine.shutdown_over.cancelled() => {}
                () = engine.drivers.wait() => {}
                () = engine.clock.sleep(every) => {}
            }
        }
    }

    /// Ends tasks that were found unreadable, and closes overdue requests.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    pub async fn close_overdue(self) -> Result<(), Refusal> {
        // Shutdown waits for this token, and so for the end of this function.
        let _counted = self.engine.drivers.token();
        if self.engine.stop.is_cancelled() {
            return Ok(());
        }
        end_damaged_tasks(self.engine).await;
        self.expire().await?;
        Ok(())
    }

    /// Closes the requests whose deadline has passed by the database's clock. Returns the number of
    /// closed requests.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    pub async fn expire(self) -> Result<usize, Refusal> {
        expire::expire_overdue(self.engine).await
    }

    async fn drive_claimed(self, first: OwnedSemaphorePermit) -> Result<(), Refusal> {
        // Shutdown waits for this token. Without it, shutdown could end between a claim and the
        // start of the drivers for the claimed tasks.
        let _counted = self.engine.drivers.token();
        if self.engine.stop.is_cancelled() {
            return Ok(());
        }
        for driver in self.claim(first).await? {
            self.engine.drivers.spawn(driver);
        }
        Ok(())
    }

    /// Claims tasks for the slot `first` and for every slot that is free. Each returned future
    /// drives one task until the task waits, ends, is queued again, or belongs to another driver.
    /// Dropping a future abandons the future's task, as a crash would. The last future may drive
    /// its task alone: it first waits until all other drivers of this process have ended or given
    /// way.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    pub async fn claim(
        self,
        first: OwnedSemaphorePermit,
    ) -> Result<Vec<BoxFuture<'static, ()>>, Refusal> {
        let engine = self.engine;
        let free = i64::try_from(1 + engine.slots.available_permits()).unwrap_or(i64::MAX);
        // Clears `backlog` before the claim. A task that is queued during the claim sets it again.
        engine.backlog.store(false, Ordering::Relaxed);
        let claim = engine.leases.next_holder();
        let until = engine.clock.uptime() + engine.settings.lease;
        let lone = engine.lone_drives.reserve();
        let claimed = engine
            .store
            .claim(&engine.replica, engine.settings.lease, free, lone.is_some())
            .await?;
        let count = claimed.len();
        if count > 0 {
            failpoint::reach("claim.committed");
        }
        if i64::try_from(count).unwrap_or(i64::MAX) == free {
            engine.backlog.store(true, Ordering::Relaxed);
        } else if lone.is_none() && engine.lone_drives.is_free() {
            // This claim was not allowed to take tasks that are to be driven alone, and took every
            // other queued task. The next claim may take a task of the first kind, so the worker
            // claims again at once.
            engine.wake_worker.notify_one();
        }
        Ok(self.claimed_drivers(claimed, (claim, until), first, lone))
    }

    /// Returns the drivers of claimed tasks. `claim` is the number of the claim, and its leases
    /// last until the uptime `until`. `first` is the slot of the first driver.
    fn claimed_drivers(
        self,
        claimed: Vec<ClaimedTask>,
        (claim, until): (u64, Duration),
        first: OwnedSemaphorePermit,
        mut lone: Option<LoneDrive>,
    ) -> Vec<BoxFuture<'static, ()>> {
        let (mut drivers, mut last) = (Vec::with_capacity(claimed.len()), None);
        let mut first = Some(first);
        for ClaimedTask {
            task,
            drive,
            fruitless,
        } in claimed
        {
            // The driver of the task; `None` if `hold_claimed` gives no lease, because a command
            // has taken the task after the claim and drives it now.
            let driver = || {
                let lease = self.engine.leases.hold_claimed(task, claim, until)?;
                Some(ClaimedDriver {
                    engine: Arc::clone(self.engine),
                    task,
                    lease,
                    slot: None,
                    lone: None,
                })
            };
            // A command may have taken a slot since `free` was counted, so a driver may begin
            // without a slot. If the driver gets no slot before its next call of a model or a tool,
            // the driver queues its task again.
            let mut with_slot = |driver: ClaimedDriver| ClaimedDriver {
                slot: first.take().or_else(|| self.engine.free_slot()),
                ..driver
            };
            match drive {
                Drive::Asleep => {
                    tracing::warn!(%task, "processes died while they drove a task; it will be driven alone");
                }
                Drive::Fresh => {
                    drivers.extend(driver().map(|driver| with_slot(driver).drive().boxed()));
                }
                Drive::Takeover => {
                    drivers.extend(
                        driver().map(|driver| with_slot(driver).drive_after_takeover().boxed()),
                    );
                }
                Drive::Alone if reading_kills_processes(fruitless) => {
                    drivers.extend(driver().map(|driver| driver.end_unread().boxed()));
                }
                Drive::Alone => {
                    let own = driver().zip(lone.take());
                    last = own.map(|(driver, lone)| driver.drive_alone(lone.activate()).boxed());
                }
            }
        }
        drivers.extend(last);
        drivers
    }

    /// Renews the leases of this process. Drops each lease that this process has lost, so that the
    /// driver of that task sends no further call.
    async fn renew(self) {
        let engine = self.engine;
        let held = engine.leases.all();
        if held.is_empty() {
            return;
        }
        let until = engine.clock.uptime() + engine.settings.lease;
        let tasks: Vec<_> = held.iter().map(|(task, _)| *task).collect();
        match engine
            .store
            .renew(&engine.replica, engine.settings.lease, &tasks)
            .await
        {
            Ok(kept) => {
                failpoint::reach("renew.committed");
                engine.leases.apply_renewal(&held, &kept, until);
            }
            Err(error) => tracing::debug!(%error, "leases could not be renewed"),
        }
    }
}
