//! A lone drive takes every slot of this process, so that this process drives no other task.
//! Invariant: after a lone drive, other tasks are claimed first, and each other task stores an item
//! before it gives way to a lone drive. So neither starves the other. A lone drive waits for other
//! tasks at most as long as a lease lasts; once it has begun, it keeps other tasks out at most as
//! long as a lease lasts.

use std::sync::Arc;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::Locked;

/// The state of lone drives in this process.
#[derive(Debug, Default)]
pub(crate) struct Alone {
    state: Locked<State>,
    /// Tells the worker that other tasks are admitted again.
    over: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The next claim may take a task that is to be driven alone.
    #[default]
    Free,
    /// A lone drive is over: the next claim takes other tasks.
    Rests,
    /// No task may be claimed for a lone drive: such a claim is under way, or a lone drive has
    /// lasted too long to keep other tasks out.
    Asked,
    /// A claimed task waits for every slot, or has every slot.
    Taken,
}

/// The right to the only lone drive of this process. It exists before the claim that may find a
/// task for the lone drive. Dropping it frees the slots, and ends the lone drive if there was such
/// a task.
#[derive(Debug)]
pub(crate) struct LoneDrive {
    alone: Arc<Alone>,
    slots: Slots,
}

/// The slots that a lone drive withholds from other tasks.
type Slots = Arc<Locked<Option<OwnedSemaphorePermit>>>;

/// Admits other tasks while a lone drive goes on.
#[derive(Debug)]
pub(crate) struct Others {
    alone: Arc<Alone>,
    slots: Slots,
}

impl Alone {
    pub(crate) fn new(over: Arc<Notify>) -> Self {
        Self {
            state: Locked::default(),
            over,
        }
    }

    /// Permits the next claim to take a task for a lone drive. `None` while another lone drive
    /// lasts, and for the first claim after it.
    pub(crate) fn ask(self: &Arc<Self>) -> Option<LoneDrive> {
        let mut state = self.state.lock();
        let free = *state == State::Free;
        *state = match *state {
            State::Free => State::Asked,
            State::Rests => State::Free,
            busy @ (State::Asked | State::Taken) => busy,
        };
        free.then(|| LoneDrive {
            alone: Arc::clone(self),
            slots: Slots::default(),
        })
    }

    /// Whether other tasks have to give way.
    pub(crate) fn is_taken(&self) -> bool {
        *self.state.lock() == State::Taken
    }
}

impl LoneDrive {
    /// Marks a task as claimed for the lone drive: other tasks give way from now on.
    pub(crate) fn taken(self) -> Self {
        *self.alone.state.lock() = State::Taken;
        self
    }

    /// Waits until no other task is driven; `all` is the number of slots. Returns the slot of the
    /// task itself; the task keeps this slot after the lone drive.
    pub(crate) async fn begin(
        &mut self,
        slots: &Arc<Semaphore>,
        all: usize,
    ) -> Option<OwnedSemaphorePermit> {
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let mut held = Arc::clone(slots).acquire_many_owned(all).await.ok()?;
        let own = held.split(1);
        *self.slots.lock() = Some(held);
        own
    }

    /// The handle that admits other tasks before the lone drive is over.
    pub(crate) fn others(&self) -> Others {
        Others {
            alone: Arc::clone(&self.alone),
            slots: Arc::clone(&self.slots),
        }
    }
}

impl Others {
    /// Admits other tasks again. No second lone drive begins until this one is over.
    pub(crate) fn admit(&self) {
        *self.slots.lock() = None;
        let mut state = self.alone.state.lock();
        if *state == State::Taken {
            *state = State::Asked;
            self.alone.over.notify_one();
        }
    }
}

impl Drop for LoneDrive {
    fn drop(&mut self) {
        *self.slots.lock() = None;
        let mut state = self.alone.state.lock();
        if *state == State::Taken {
            *state = State::Rests;
            self.alone.over.notify_one();
        } else {
            *state = State::Free;
        }
    }
}
