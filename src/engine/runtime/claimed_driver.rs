//! Drives a task that the worker has claimed. A task whose leases have expired several times
//! without a new item is driven alone.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::leases::Lease;
use super::lone_drive::LoneDrive;
use crate::engine::Engine;
use crate::engine::recovery::damaged_task::end_unread;
use crate::failpoint;
use crate::store::ReadError;
use crate::task::id::TaskId;

/// The number of lease durations for which this process begins no lone drive (a drive of one task
/// alone), after a lone drive could not begin.
const POSTPONEMENT_LEASES: u32 = 4;

/// The driver of a claimed task. It has not read the task yet.
pub(super) struct ClaimedDriver {
    pub engine: Arc<Engine>,
    pub task: TaskId,
    pub lease: Lease,
    /// The driver's slot; `None` if no slot was free.
    pub slot: Option<OwnedSemaphorePermit>,
    pub lone: Option<LoneDrive>,
}

impl ClaimedDriver {
    /// Drives a task alone: this process drives no other task meanwhile. If other tasks still have
    /// slots after the duration of a lease, postpones the drive. If the drive itself lasts longer
    /// than the duration of a lease, the process drives other tasks beside it.
    pub(super) async fn drive_alone(self, mut lone: LoneDrive) {
        let engine = Arc::clone(&self.engine);
        let other_tasks = lone.other_tasks();
        let slot = tokio::select! {
            biased;
            slot = lone.begin(&engine.slots, engine.settings.max_running) => slot,
            () = sleep_leases(&engine, 1) => return self.postpone(lone).await,
        };
        let driver = Self {
            slot,
            lone: Some(lone),
            ..self
        };
        let mut drive = std::pin::pin!(driver.drive_after_takeover());
        tokio::select! {
            biased;
            () = &mut drive => return,
            () = sleep_leases(&engine, 1) => {}
        }
        // The drive has lasted for the duration of a lease. It may last minutes longer, because a
        // call of a model or a tool may be running. So from now on, this process drives other tasks
        // beside it. If the task's lease then expires before the task gets a new item, the lease
        // still counts as fruitless, because `drive_after_takeover` has recorded that work has
        // begun.
        other_tasks.admit();
        drive.await;
    }

    /// Releases a task that could not be driven alone, because other tasks kept running in this
    /// process. For [`POSTPONEMENT_LEASES`] times the duration of a lease, the process then drives
    /// no task alone.
    async fn postpone(self, lone: LoneDrive) {
        let engine = &self.engine;
        lone.other_tasks().admit();
        let _ = engine.store.release(&engine.replica, &[self.task]).await;
        tokio::select! {
            () = engine.stop.cancelled() => {}
            () = sleep_leases(engine, POSTPONEMENT_LEASES) => {}
        }
    }

    /// Drives a task whose previous lease expired. First records in the database that work on the
    /// task begins. With this record, the present lease counts as fruitless if it expires before
    /// the task gets a new item.
    pub(super) async fn drive_after_takeover(self) {
        let (engine, task) = (&self.engine, self.task);
        let begun = loop {
            match engine.store.set_begun(&engine.replica, task, true).await {
                Ok(begun) => break begun,
                Err(error) => {
                    tracing::warn!(%task, %error, "the start of work on a task could not be stored");
                }
            }
            if engine.back_off().await.is_err() {
                return;
            }
        };
        failpoint::reach("begin.committed");
        if begun {
            self.drive().await;
        }
    }

    pub(super) async fn drive(self) {
        let Self {
            engine,
            task,
            lease,
            slot,
            lone,
        } = self;
        let read = loop {
            match engine.load(task).await {
                Ok(read) => break read,
                // The read is tried again until the database answers. If this function returned
                // instead, the lease would run out, and its loss could count as a takeover without
                // progress.
                Err(ReadError::Unavailable) if engine.back_off().await.is_ok() => {}
                Err(error) => {
                    tracing::warn!(%task, %error, "a task that was taken over could not be read");
                    // The failed read must not count as a takeover without progress: it did not
                    // kill this process, and another version of the service may be able to read the
                    // task.
                    let _ = engine.store.set_begun(&engine.replica, task, false).await;
                    return;
                }
            }
        };
        match read {
            // Only the holder of the lease drives the task: a command of this process, or another
            // replica, may have taken the task before the read.
            Some(mut session)
                if session.own.row.lease_owner.as_ref() == Some(&engine.replica)
                    && !lease.is_passed_on() =>
            {
                session.lease = Some(lease);
                session.slot = slot;
                session.lone_drive = lone;
                engine.drive(session).await;
            }
            Some(_) => {}
            // The journal of the task is empty, although every task has items.
            None => engine.store.report_unreadable(task),
        }
    }

    /// Ends a task that kills the processes that read it. Holds the lease meanwhile.
    pub(super) async fn end_unread(self) {
        end_unread(&self.engine, self.task).await;
    }
}

/// Sleeps for `count` times the duration of a lease, counted from this call and not from the first
/// poll of the returned future. The first poll may come late: `select!` first polls the driver, and
/// that poll may take time.
fn sleep_leases(engine: &Engine, count: u32) -> impl Future<Output = ()> + Send {
    let end = engine.clock.uptime() + engine.settings.lease * count;
    async move {
        while engine.clock.uptime() < end {
            engine.clock.sleep(engine.settings.lease / 8).await;
            tokio::task::yield_now().await;
        }
    }
}
