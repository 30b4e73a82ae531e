//! The worker of each replica claims queued tasks and tasks whose lease ran out, renews leases, and
//! closes overdue requests. The worker finds all this work by polling; a notification makes the
//! next poll come earlier.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;

use super::leases::Lease;
use super::lone_drive::LoneDrive;
use crate::engine::commands::expire;
use crate::engine::recovery::damaged_task::reading_kills_processes;
use crate::engine::{Engine, Refusal};
use crate::failpoint;
use crate::store::{ClaimedTask, Drive, ReadError, UpgradeCursor};
use crate::task::id::TaskId;

/// The time between two polls, short enough that the worker notices a passed deadline within a
/// second.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The time between two cleanups. A cleanup removes expired idempotency keys, browser sessions,
/// credentials and standing decisions. It stores the `UserKey` (the form for comparisons) of each
/// new user id, and corrects rows that replicas of an older version do not maintain.
const CLEANUP_INTERVAL: Duration = Duration::from_mins(1);
/// The pause after a lone drive (a drive of one task alone) that could not begin, in durations of a
/// lease. During the pause, this process begins no lone drive.
const POSTPONEMENT_LEASES: u32 = 4;

/// Logs a failure of the worker. A database that does not answer is logged elsewhere.
fn log_failure<T>(result: Result<T, Refusal>) {
    if let Err(error) = result
        && error != Refusal::Unavailable
    {
        tracing::warn!(%error, "a round of the worker failed");
    }
}

impl Engine {
    /// Runs the worker until the service goes down. Claims, closings of overdue requests and
    /// renewals of leases run concurrently: no lease runs out while a closing is slow, and requests
    /// are closed while a claim waits for a slot.
    pub async fn work(self: Arc<Self>) {
        tokio::join!(self.claims(), self.closings(), self.renewals());
    }

    /// Claims queued tasks whenever a task may be queued and a slot is free.
    async fn claims(self: &Arc<Self>) {
        while !self.stop.is_cancelled() {
            if let Some(first) = self.next_slot().await {
                log_failure(self.drive_claimed(first).await);
            }
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.wake_worker.notified() => {}
                () = self.store.wait_for_queued_task() => {}
                () = self.clock.sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Closes overdue requests, and removes rows that are no longer needed.
    async fn closings(self: &Arc<Self>) {
        let mut clean_at = self.clock.uptime();
        let mut cursor = UpgradeCursor::default();
        while !self.stop.is_cancelled() {
            log_failure(self.close_overdue().await);
            if self.clock.uptime() >= clean_at {
                // One pass of the loop cleans up at most one batch of each kind, so that overdue
                // requests do not wait long.
                let store = &self.store;
                let more = store.remove_spent_keys().await.unwrap_or(false)
                    | store.remove_spent_sessions().await.unwrap_or(false)
                    | store.remove_expired_credentials().await.unwrap_or(false)
                    | store.remove_spent_grants().await.unwrap_or(false)
                    | store.fold_spellings().await.unwrap_or(false)
                    | store.upgrade(&mut cursor).await.unwrap_or(false);
                clean_at = self.clock.uptime()
                    + if more {
                        Duration::ZERO
                    } else {
                        CLEANUP_INTERVAL
                    };
            }
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.clock.sleep(POLL_INTERVAL) => {}
            }
        }
    }

    async fn renewals(&self) {
        let every = self.settings.lease / 3;
        let mut renewed = self.clock.uptime();
        while !self.stop.is_cancelled() {
            // The loop sleeps for short times, so that it renews leases soon after a suspended
            // machine continues.
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.clock.sleep(every / 8) => {}
            }
            if self.clock.uptime().saturating_sub(renewed) >= every {
                renewed = self.clock.uptime();
                self.renew().await;
            }
        }
        // During shutdown, a call may last longer than its lease, so the worker renews leases until
        // the last driver ends.
        while !self.shutdown_over.is_cancelled() && !self.drivers.is_empty() {
            self.renew().await;
            tokio::select! {
                () = self.shutdown_over.cancelled() => {}
                () = self.drivers.wait() => {}
                () = self.clock.sleep(every) => {}
            }
        }
    }

    /// Runs one round of the worker: closes overdue requests, then claims tasks and drives them.
    /// Returns the number of claimed tasks. [`Engine::work`] does the same in two loops, so that
    /// neither waits for the other.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    pub async fn round(self: &Arc<Self>) -> Result<usize, Refusal> {
        self.close_overdue().await?;
        match self.free_slot() {
            Some(first) => self.drive_claimed(first).await,
            None => Ok(0),
        }
    }

    /// Ends tasks that were found unreadable, and closes overdue requests.
    async fn close_overdue(self: &Arc<Self>) -> Result<(), Refusal> {
        // Shutdown waits for this token, and so for the end of this function.
        let _counted = self.drivers.token();
        if self.stop.is_cancelled() {
            return Ok(());
        }
        self.end_damaged_tasks().await;
        while self.expire().await? == expire::MAX_EXPIRED_AT_ONCE {}
        Ok(())
    }

    async fn drive_claimed(
        self: &Arc<Self>,
        first: OwnedSemaphorePermit,
    ) -> Result<usize, Refusal> {
        // Shutdown waits for this token. Without it, shutdown could end between a claim and the
        // start of the drivers for the claimed tasks.
        let _counted = self.drivers.token();
        if self.stop.is_cancelled() {
            return Ok(0);
        }
        let drivers = self.claim_with(first).await?;
        let count = drivers.len();
        for driver in drivers {
            self.drivers.spawn(driver);
        }
        Ok(count)
    }

    /// Claims at most as many tasks as there are free slots, and none if no slot is free. Each
    /// returned future drives one task until the task waits, ends or belongs to another driver.
    /// Dropping a future abandons the future's task, as a crash would. The last future may drive
    /// its task alone: it first waits until all other drivers of this process have ended or given
    /// way.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    pub async fn claim(self: &Arc<Self>) -> Result<Vec<BoxFuture<'static, ()>>, Refusal> {
        match self.free_slot() {
            Some(first) => self.claim_with(first).await,
            None => Ok(Vec::new()),
        }
    }

    /// Claims tasks for the slot `first` and for every slot that is free.
    async fn claim_with(
        self: &Arc<Self>,
        first: OwnedSemaphorePermit,
    ) -> Result<Vec<BoxFuture<'static, ()>>, Refusal> {
        let free = i64::try_from(1 + self.slots.available_permits()).unwrap_or(i64::MAX);
        // `backlog` is cleared first, because a task queued during the claim sets it again.
        self.backlog.store(false, Ordering::Relaxed);
        let claim = self.leases.next_holder();
        let until = self.clock.uptime() + self.settings.lease;
        let lone = self.lone_drives.reserve();
        let claimed = self
            .store
            .claim(&self.replica, self.settings.lease, free, lone.is_some())
            .await?;
        let count = claimed.len();
        if count > 0 {
            failpoint::reach("claim.committed");
        }
        if i64::try_from(count).unwrap_or(i64::MAX) == free {
            self.backlog.store(true, Ordering::Relaxed);
        } else if lone.is_none() && self.lone_drives.is_free() {
            // The claim took every queued task that can be driven beside others. The worker claims
            // again at once, because a task that is to be driven alone may be queued.
            self.wake_worker.notify_one();
        }
        Ok(self.claimed_drivers(claimed, (claim, until), first, lone))
    }

    /// Returns the drivers of claimed tasks. `claim` is the number of the claim, and its leases
    /// last until the uptime `until`. `first` is the slot of the first driver.
    fn claimed_drivers(
        self: &Arc<Self>,
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
            // If there is no lease, a command has taken the task from the claim and drives it.
            let lease = || self.leases.hold_claimed(task, claim, until);
            // A command may have taken a slot since `free` was counted, so a driver may begin
            // without a slot. If the driver gets no slot before its next call of a model or a tool,
            // the driver queues its task again.
            let mut slot = || first.take().or_else(|| self.free_slot());
            let engine = Arc::clone(self);
            match drive {
                Drive::Asleep => {
                    tracing::warn!(%task, "processes died while they drove a task; it will be driven alone");
                }
                Drive::Fresh => drivers.extend(
                    lease().map(|lease| engine.take_over(task, lease, slot(), None).boxed()),
                ),
                Drive::Takeover => drivers.extend(
                    lease().map(|lease| engine.take_over_again(task, lease, slot(), None).boxed()),
                ),
                Drive::Alone if reading_kills_processes(fruitless) => {
                    drivers.extend(lease().map(|lease| engine.end_unread(task, lease).boxed()));
                }
                Drive::Alone => {
                    let own = lease().zip(lone.take());
                    last = own.map(|(lease, lone)| {
                        engine.take_over_alone(task, lease, lone.activate()).boxed()
                    });
                }
            }
        }
        drivers.extend(last);
        drivers
    }

    pub(in crate::engine) fn free_slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// Waits for a slot. Returns `None` if the service stops.
    ///
    /// The worker waits in the same queue as the commands, and keeps its place until it gets a
    /// slot. If the worker only took slots that are free when it looks, waiting commands could take
    /// every slot first, and tasks that other replicas queued could starve.
    pub(in crate::engine) async fn next_slot(&self) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            slot = Arc::clone(&self.slots).acquire_owned() => slot.ok(),
        }
    }

    /// Drives a task alone: this process drives no other task meanwhile. If other tasks still have
    /// slots after the duration of a lease, postpones the drive. If the drive itself lasts longer
    /// than the duration of a lease, the process drives other tasks beside it.
    async fn take_over_alone(self: Arc<Self>, task: TaskId, lease: Lease, mut lone: LoneDrive) {
        let other_tasks = lone.other_tasks();
        let slot = tokio::select! {
            biased;
            slot = lone.begin(&self.slots, self.settings.max_running) => slot,
            () = self.sleep_leases(1) => return self.postpone_alone(task, lone).await,
        };
        let mut drive =
            std::pin::pin!(Arc::clone(&self).take_over_again(task, lease, slot, Some(lone)));
        tokio::select! {
            biased;
            () = &mut drive => return,
            () = self.sleep_leases(1) => {}
        }
        // The drive has lasted for the duration of a lease. It may last minutes longer, because a
        // call of a model or a tool may be running. So from now on, this process drives other tasks
        // beside it. If this task's lease is lost later, the loss still counts as a takeover
        // without progress, because the store has recorded that work on the task began.
        other_tasks.admit();
        drive.await;
    }

    /// Releases a task that could not be driven alone, because other tasks kept running in this
    /// process. For [`POSTPONEMENT_LEASES`] times the duration of a lease, the process then drives
    /// no task alone.
    async fn postpone_alone(&self, task: TaskId, lone: LoneDrive) {
        lone.other_tasks().admit();
        let _ = self.store.release(&self.replica, &[task]).await;
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.sleep_leases(POSTPONEMENT_LEASES) => {}
        }
    }

    /// Sleeps for `count` times the duration of a lease. The time counts from this call, because
    /// the first poll of the returned future may come late: `select!` polls a driver before the
    /// future, and time may pass in this poll of the driver.
    fn sleep_leases(&self, count: u32) -> impl Future<Output = ()> + Send + '_ {
        let end = self.clock.uptime() + self.settings.lease * count;
        async move {
            while self.clock.uptime() < end {
                self.clock.sleep(self.settings.lease / 8).await;
                tokio::task::yield_now().await;
            }
        }
    }

    /// Drives a task whose previous lease expired. First records in the database that work on the
    /// task begins. With this record, the present lease counts as fruitless if it expires before
    /// the task gets a new item.
    async fn take_over_again(
        self: Arc<Self>,
        task: TaskId,
        lease: Lease,
        slot: Option<OwnedSemaphorePermit>,
        lone: Option<LoneDrive>,
    ) {
        let begun = loop {
            match self.store.set_begun(&self.replica, task, true).await {
                Ok(begun) => break begun,
                Err(error) => {
                    tracing::warn!(%task, %error, "the start of work on a task could not be stored");
                }
            }
            if self.back_off().await.is_err() {
                return;
            }
        };
        failpoint::reach("begin.committed");
        if begun {
            self.take_over(task, lease, slot, lone).await;
        }
    }

    async fn take_over(
        self: Arc<Self>,
        task: TaskId,
        lease: Lease,
        slot: Option<OwnedSemaphorePermit>,
        lone: Option<LoneDrive>,
    ) {
        let read = loop {
            match self.load(task).await {
                Ok(read) => break read,
                // The read is tried again until the database answers. If this function returned
                // instead, the lease would run out, and its loss could count as a takeover without
                // progress.
                Err(ReadError::Unavailable) if self.back_off().await.is_ok() => {}
                Err(error) => {
                    tracing::warn!(%task, %error, "a task that was taken over could not be read");
                    // The failed read must not count as a takeover without progress: it did not
                    // kill this process, and another version of the service may be able to read the
                    // task.
                    let _ = self.store.set_begun(&self.replica, task, false).await;
                    return;
                }
            }
        };
        match read {
            // Only the holder of the lease drives the task: a command of this process, or another
            // replica, may have taken the task before the read.
            Some(mut session)
                if session.own.row.lease_owner.as_ref() == Some(&self.replica)
                    && !lease.is_passed_on() =>
            {
                session.lease = Some(lease);
                session.slot = slot;
                session.lone_drive = lone;
                self.drive(session).await;
            }
            Some(_) => {}
            // The journal of the task is empty, although every task has items.
            None => self.store.report_unreadable(task),
        }
    }

    /// Renews the leases of this process. Drops each lease that this process has lost, so that the
    /// driver of that task sends no further call.
    async fn renew(&self) {
        let held = self.leases.all();
        if held.is_empty() {
            return;
        }
        let until = self.clock.uptime() + self.settings.lease;
        let tasks: Vec<_> = held.iter().map(|(task, _)| *task).collect();
        match self
            .store
            .renew(&self.replica, self.settings.lease, &tasks)
            .await
        {
            Ok(kept) => {
                failpoint::reach("renew.committed");
                self.leases.apply_renewal(&held, &kept, until);
            }
            Err(error) => tracing::debug!(%error, "leases could not be renewed"),
        }
    }
}
