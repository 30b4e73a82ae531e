//! Gives drivers the slots of this process. A driver needs a slot to call a model or a tool. While
//! the process drives a task alone (`LoneDrives`), no other driver gets a slot. While the service
//! stops, no driver begins such a call, even with a slot.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::Driver;
use crate::engine::Engine;

/// The maximum time that a command waits for a slot. After that time, its task is queued. With a
/// longer time, each command would be answered late while slow calls hold all slots.
const SLOT_WAIT: Duration = Duration::from_millis(500);

impl Engine {
    /// Takes a slot; `None` if no slot is free.
    #[must_use]
    pub(in crate::engine) fn free_slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// Waits for a slot. Returns `None` if the service stops.
    ///
    /// The worker waits in the same queue as the commands, and keeps its place until it gets a
    /// slot. If it took only slots that are free at once, waiting commands could take every slot
    /// first, and tasks that other replicas queued would wait for ever.
    pub(in crate::engine) async fn next_slot(&self) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            slot = Arc::clone(&self.slots).acquire_owned() => slot.ok(),
        }
    }
}

impl Driver<'_> {
    /// Takes a slot if this driver has none. Returns whether the driver stops before its next call
    /// of a model or a tool. After `true`, the driver queues its task, and a later driver makes the
    /// call. Returns `true` in three cases:
    /// - The driver got no slot.
    /// - The service stops.
    /// - This process is to drive another task alone (`LoneDrives`), and this driver has stored an
    ///   item of its task.
    pub(super) async fn must_queue_task(&mut self) -> bool {
        if self.session.slot.is_none() {
            self.session.slot = self.slot().await;
        }
        let to_lone = self.session.has_saved_items
            && self.session.lone_drive.is_none()
            && self.engine.lone_drives.excludes_others();
        self.session.slot.is_none() || self.engine.stop.is_cancelled() || to_lone
    }

    /// Takes a slot. Returns `None` in three cases:
    /// - No slot is free.
    /// - Another task is driven alone (`LoneDrives`).
    /// - Tasks are queued in the database. The worker gives the free slots to these tasks, so that
    ///   their tenants take turns.
    ///
    /// If a command waits for this driver's first commit, waits up to [`SLOT_WAIT`] for a slot.
    /// This wait is cheaper than `None`: after `None`, the driver queues its task, and a worker
    /// must claim the task and read its journal again.
    async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        let engine = self.engine;
        let admitted =
            || !engine.backlog.load(Ordering::Relaxed) && !engine.lone_drives.excludes_others();
        if !admitted() {
            return None;
        }
        let free = engine.free_slot();
        if free.is_some() || self.session.reply.is_none() || engine.settings.max_running == 0 {
            return free;
        }
        let slot = tokio::select! {
            biased;
            slot = engine.next_slot() => slot,
            () = engine.clock.sleep(SLOT_WAIT) => None,
        };
        slot.filter(|_| admitted())
    }
}
