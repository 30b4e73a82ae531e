//! Driving one task alone in this process: it takes every slot, so nothing else is driven meanwhile. What must stay true:
//! after a lone drive other tasks are claimed first, and each task that is driven stores one item before it gives way, so
//! a row of lone drives starves neither side.

use std::sync::Arc;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::Held;

/// Whether this process drives a task alone, or is about to.
#[derive(Debug, Default)]
pub(super) struct Alone {
    state: Held<State>,
    /// Tells the worker that a lone drive is over.
    over: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The next claim may take a task that is to be driven alone.
    #[default]
    Free,
    /// A lone drive is over: the next claim takes other tasks.
    Rests,
    /// A claim that may take such a task is under way.
    Asked,
    /// Such a task waits for every slot, or has them.
    Taken,
}

/// A lone drive, from the claim that asks for a task until it is dropped.
#[derive(Debug)]
pub(super) struct LoneDrive {
    alone: Arc<Alone>,
    slots: Option<OwnedSemaphorePermit>,
}

impl Alone {
    pub(super) fn new(over: Arc<Notify>) -> Self {
        Self { state: Held::default(), over }
    }

    /// The lone drive that the next claim may begin. `None` while another one lasts, and once after it.
    pub(super) fn ask(self: &Arc<Self>) -> Option<LoneDrive> {
        let mut state = self.state.lock();
        let free = *state == State::Free;
        *state = match *state {
            State::Free => State::Asked,
            State::Rests => State::Free,
            busy @ (State::Asked | State::Taken) => busy,
        };
        free.then(|| LoneDrive { alone: Arc::clone(self), slots: None })
    }

    /// Whether other tasks have to give way.
    pub(super) fn is_taken(&self) -> bool {
        *self.state.lock() == State::Taken
    }
}

impl LoneDrive {
    /// A task was claimed for it: other tasks give way from now on.
    pub(super) fn taken(self) -> Self {
        *self.alone.state.lock() = State::Taken;
        self
    }

    /// Waits until nothing else is driven. Returns the slot of the task itself, which it keeps afterwards.
    pub(super) async fn begin(&mut self, slots: &Arc<Semaphore>, all: usize) -> Option<OwnedSemaphorePermit> {
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let mut held = Arc::clone(slots).acquire_many_owned(all).await.ok()?;
        let own = held.split(1);
        self.slots = Some(held);
        own
    }
}

impl Drop for LoneDrive {
    fn drop(&mut self) {
        self.slots = None;
        let mut state = self.alone.state.lock();
        if *state == State::Taken {
            *state = State::Rests;
            self.alone.over.notify_one();
        } else {
            *state = State::Free;
        }
    }
}
