//! A lone drive takes every slot of this process, so that the process drives no other task
//! meanwhile. A task is driven alone after its leases have expired several times without a new
//! item. If the process dies during a lone drive, the task that is driven alone is the cause.
//!
//! Invariant: lone drives and other tasks do not starve each other. After a lone drive, other tasks
//! are claimed first. Each other task stores at least one item before it gives way to a lone drive,
//! that is, before its driver stops and queues it. A lone drive waits at most the duration of a
//! lease for other tasks to give way. A lone drive that has begun excludes other tasks for at most
//! the duration of a lease.

use std::sync::Arc;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::world::Locked;

/// The state of the lone drives of this process. At most one lone drive exists at a time.
#[derive(Debug, Default)]
pub(crate) struct LoneDrives {
    state: Locked<State>,
    /// Wakes the worker when this process may drive other tasks again.
    others_admitted: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The next claim may include a task that is to be driven alone.
    #[default]
    Free,
    /// A lone drive is over. The next claim may not include a task that is to be driven alone.
    OthersNext,
    /// The next claim may not include a task that is to be driven alone, for one of two reasons:
    /// - A claim that may include such a task is in progress.
    /// - The last lone drive continues while the process drives other tasks again.
    Reserved,
    /// A task was claimed for the lone drive. The lone drive waits for all slots, or has them.
    Active,
}

/// The right to drive a task alone; a process has at most one such right. The worker takes the
/// right before a claim that may include a task to be driven alone. Dropping this value ends the
/// lone drive, and frees the slots that the lone drive withholds from other tasks.
#[derive(Debug)]
pub(crate) struct LoneDrive(OtherTasks);

/// A handle by which this process can drive other tasks again before a lone drive is over.
#[derive(Clone, Debug)]
pub(crate) struct OtherTasks {
    lone_drives: Arc<LoneDrives>,
    /// The slots that the lone drive withholds from other tasks.
    slots: Arc<Locked<Option<OwnedSemaphorePermit>>>,
}

impl LoneDrives {
    pub(crate) fn new(others_admitted: Arc<Notify>) -> Self {
        Self {
            state: Locked::default(),
            others_admitted,
        }
    }

    /// Permits the next claim to take a task for a lone drive. Returns `None` while another lone
    /// drive lasts. Also returns `None` for the first claim after the end of a lone drive, so that
    /// other tasks come first.
    pub(crate) fn reserve(self: &Arc<Self>) -> Option<LoneDrive> {
        let mut state = self.state.lock();
        let free = *state == State::Free;
        *state = match *state {
            State::Free => State::Reserved,
            State::OthersNext => State::Free,
            busy @ (State::Reserved | State::Active) => busy,
        };
        free.then(|| {
            LoneDrive(OtherTasks {
                lone_drives: Arc::clone(self),
                slots: Arc::default(),
            })
        })
    }

    /// Whether the next claim may take a task for a lone drive.
    pub(crate) fn is_free(&self) -> bool {
        *self.state.lock() == State::Free
    }

    /// Whether a lone drive excludes other tasks. If so, no other driver of this process gets a
    /// slot. A driver that already has a slot gives way before its next call of a model or a tool,
    /// once it has stored an item of its task.
    pub(crate) fn excludes_others(&self) -> bool {
        *self.state.lock() == State::Active
    }
}

impl LoneDrive {
    /// Records that a task to be driven alone was claimed. From now on, other tasks give way.
    pub(crate) fn activate(self) -> Self {
        *self.0.lone_drives.state.lock() = State::Active;
        self
    }

    /// Waits until no other task is driven. `all` is the number of slots of this process. Returns
    /// the slot of the task that is driven alone; the task keeps this slot after the lone drive.
    /// Returns `None` if the semaphore `slots` is closed.
    pub(crate) async fn begin(
        &mut self,
        slots: &Arc<Semaphore>,
        all: usize,
    ) -> Option<OwnedSemaphorePermit> {
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let mut held = Arc::clone(slots).acquire_many_owned(all).await.ok()?;
        let own = held.split(1);
        *self.0.slots.lock() = Some(held);
        own
    }

    pub(crate) fn other_tasks(&self) -> OtherTasks {
        self.0.clone()
    }
}

impl OtherTasks {
    /// Lets this process drive other tasks again, although the lone drive's task is still driven.
    /// No other lone drive can begin before that drive is over.
    pub(crate) fn admit(&self) {
        *self.slots.lock() = None;
        let mut state = self.lone_drives.state.lock();
        if *state == State::Active {
            *state = State::Reserved;
            self.lone_drives.others_admitted.notify_one();
        }
    }
}

impl Drop for LoneDrive {
    fn drop(&mut self) {
        let Self(OtherTasks { lone_drives, slots }) = self;
        *slots.lock() = None;
        let mut state = lone_drives.state.lock();
        if *state == State::Active {
            *state = State::OthersNext;
            lone_drives.others_admitted.notify_one();
        } else {
            *state = State::Free;
        }
    }
}
