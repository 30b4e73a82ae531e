//! On every replica: takes over what nobody drives, renews leases, closes what is overdue. Polling is the truth;
//! notifications only shorten the wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;

use super::alone::LoneDrive;
use super::expire;
use super::lease::Lease;
use super::{Engine, Refusal};
use crate::failpoint;
use crate::store::{Claimed, Drive, ReadError};
use crate::task::id::TaskId;

/// How often the database is asked for work: a deadline that passes is seen within a second.
const POLL: Duration = Duration::from_millis(500);
/// How often keys, sessions and credentials that are over are looked for.
const CLEAN: Duration = Duration::from_mins(1);
/// For how many leases no task is driven alone after the others here were too busy for it.
const POSTPONED: u32 = 4;

impl Engine {
    /// Works until the service goes down. A round that the database keeps waiting costs no lease.
    pub async fn work(self: Arc<Self>) {
        tokio::join!(self.rounds(), self.renewals());
    }

    async fn rounds(self: &Arc<Self>) {
        let mut clean_at = self.clock.uptime();
        while !self.stop.is_cancelled() {
            if let Err(error) = self.round().await
                && error != Refusal::Unavailable
            {
                tracing::warn!(%error, "a round of the worker failed");
            }
            if self.clock.uptime() >= clean_at {
                // One batch a round: whoever waits for the worker does not wait for the broom.
                let more = self.store.remove_spent_keys().await.is_ok_and(|more| more)
                    | self.store.remove_spent_sessions().await.is_ok_and(|more| more)
                    | self.store.remove_expired_credentials().await.is_ok_and(|more| more)
                    | self.store.fold_spellings().await.is_ok_and(|more| more);
                clean_at = self.clock.uptime() + if more { Duration::ZERO } else { CLEAN };
            }
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.room.notified() => {}
                () = self.store.work() => {}
                () = self.clock.sleep(POLL) => {}
            }
        }
    }

    async fn renewals(&self) {
        let every = self.settings.lease / 3;
        let mut renewed = self.clock.uptime();
        while !self.stop.is_cancelled() {
            // Short sleeps: a machine that was suspended renews soon after it wakes.
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.clock.sleep(every / 8) => {}
            }
            if self.clock.uptime().saturating_sub(renewed) >= every {
                renewed = self.clock.uptime();
                self.renew().await;
            }
        }
        // Drivers may need longer than a lease to end what they do.
        while !self.killed.is_cancelled() && !self.drivers.is_empty() {
            self.renew().await;
            tokio::select! {
                () = self.killed.cancelled() => {}
                () = self.drivers.wait() => {}
                () = self.clock.sleep(every) => {}
            }
        }
    }

    /// One round: closes what is overdue, and drives what can be claimed. Returns how many tasks were claimed.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    pub async fn round(self: &Arc<Self>) -> Result<usize, Refusal> {
        // Who goes down waits for what this round still claims.
        let _counted = self.drivers.token();
        if self.stop.is_cancelled() {
            return Ok(0);
        }
        self.end_unreadable().await;
        while self.expire().await? == expire::AT_ONCE {}
        let drivers = self.claim().await?;
        let count = drivers.len();
        for driver in drivers {
            self.drivers.spawn(driver);
        }
        Ok(count)
    }

    /// Claims what nobody drives, as much as there is room for. Each future drives one task until it waits, is over or
    /// is not ours any more; one that is dropped lets go of its task, as a crash would. The last one may be of a task
    /// that is driven alone: it waits until all others here have come to an end or given way.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    pub async fn claim(self: &Arc<Self>) -> Result<Vec<BoxFuture<'static, ()>>, Refusal> {
        let free = i64::try_from(self.slots.available_permits()).unwrap_or(i64::MAX);
        if free == 0 {
            self.backlog.store(true, Ordering::Relaxed);
            return Ok(Vec::new());
        }
        // Before the question: what is queued meanwhile says so itself.
        self.backlog.store(false, Ordering::Relaxed);
        let until = self.clock.uptime() + self.settings.lease;
        let mut lone = self.alone.ask();
        let claimed = self.store.claim(&self.replica, self.settings.lease, free, lone.is_some()).await?;
        let count = claimed.len();
        if count > 0 {
            failpoint::reach("claim.committed");
        }
        if i64::try_from(count).unwrap_or(i64::MAX) == free {
            self.backlog.store(true, Ordering::Relaxed);
        } else if lone.is_none() && !self.alone.is_taken() {
            // Nothing else waits: a task that is to be driven alone may be claimed again.
            self.room.notify_one();
        }
        let (mut drivers, mut last) = (Vec::with_capacity(count), None);
        for Claimed { task, drive, fruitless } in claimed {
            let lease = || self.leases.hold(task, until);
            // Without a slot (a door took it meanwhile) the driver queues the task again at its next effect.
            let slot = || Arc::clone(&self.slots).try_acquire_owned().ok();
            let engine = Arc::clone(self);
            match drive {
                Drive::Later => {
                    tracing::warn!(%task, "processes died with a task in hand; it will be driven alone");
                }
                Drive::Fresh => drivers.push(engine.take_over(task, lease(), slot(), None).boxed()),
                Drive::Again => drivers.push(engine.take_over_again(task, lease(), slot(), None).boxed()),
                Drive::Alone if self.dies_of_reading(fruitless) => {
                    drivers.push(engine.end_unread(task, lease()).boxed());
                }
                Drive::Alone => {
                    last = lone.take().map(|lone| engine.take_over_alone(task, lease(), lone.taken()).boxed());
                }
            }
        }
        drivers.extend(last);
        Ok(drivers)
    }

    /// Drives a task beside which this process drives nothing else.
    async fn take_over_alone(self: Arc<Self>, task: TaskId, lease: Lease, mut lone: LoneDrive) {
        let others = lone.others();
        let slot = tokio::select! {
            biased;
            slot = lone.begin(&self.slots, self.settings.max_running) => slot,
            () = self.leases_pass(1) => return self.postpone_alone(task, lone).await,
        };
        let mut drive = std::pin::pin!(Arc::clone(&self).take_over_again(task, lease, slot, Some(lone)));
        tokio::select! {
            biased;
            () = &mut drive => return,
            () = self.leases_pass(1) => {}
        }
        // A model or a tool may take minutes: the others go on beside it. The work had begun, which the store knows.
        others.admit();
        drive.await;
    }

    /// Gives a task back that was to be driven alone, as others here are busy for too long, and asks for none for a while.
    async fn postpone_alone(&self, task: TaskId, lone: LoneDrive) {
        lone.others().admit();
        let _ = self.store.release(&self.replica, &[task]).await;
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.leases_pass(POSTPONED) => {}
        }
    }

    /// Returns when the clock has gone on by the time of so many leases.
    async fn leases_pass(&self, count: u32) {
        let end = self.clock.uptime() + self.settings.lease * count;
        while self.clock.uptime() < end {
            self.clock.sleep(self.settings.lease / 8).await;
            tokio::task::yield_now().await;
        }
    }

    /// Drives a task whose lease was lost before. If this one is lost, too, the store knows that work had begun.
    async fn take_over_again(
        self: Arc<Self>,
        task: TaskId,
        lease: Lease,
        slot: Option<OwnedSemaphorePermit>,
        lone: Option<LoneDrive>,
    ) {
        let begun = loop {
            match self.store.begin(&self.replica, task, true).await {
                Ok(begun) => break begun,
                Err(error) => tracing::warn!(%task, %error, "the beginning of work on a task could not be noted"),
            }
            if self.pause().await.is_err() {
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
            match self.read(task).await {
                Ok(read) => break read,
                // It waits for the database, as whoever drives it would: letting go would count as no progress.
                Err(ReadError::Unavailable) if self.pause().await.is_ok() => {}
                Err(error) => {
                    tracing::warn!(%task, %error, "a task that was taken over could not be read");
                    // Another version may read it; this process has not died of it.
                    let _ = self.store.begin(&self.replica, task, false).await;
                    return;
                }
            }
        };
        match read {
            // Somebody's answer may have taken it since.
            Some(mut live) if live.own.row.lease_owner.as_ref() == Some(&self.replica) && !lease.is_passed_on() => {
                live.lease = Some(lease);
                live.slot = slot;
                live.lone = lone;
                self.drive(live).await;
            }
            Some(_) => {}
            // It has lost every item.
            None => self.store.report_unreadable(task),
        }
    }

    /// Renews the leases of this process. One that is not its own any more is forgotten, so that its driver sends
    /// nothing more.
    async fn renew(&self) {
        let held = self.leases.all();
        if held.is_empty() {
            return;
        }
        let until = self.clock.uptime() + self.settings.lease;
        let tasks: Vec<_> = held.iter().map(|(task, _)| *task).collect();
        match self.store.renew(&self.replica, self.settings.lease, &tasks).await {
            Ok(kept) => {
                failpoint::reach("renew.committed");
                self.leases.renewed(&held, &kept, until);
            }
            Err(error) => tracing::debug!(%error, "leases could not be renewed"),
        }
    }
}
