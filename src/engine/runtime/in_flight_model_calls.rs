//! The model calls that this process has in flight. A model call counts against the limits of the
//! task tree even before its answer is stored. Otherwise tasks of one tree that call models at the
//! same time could together exceed a limit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::task::id::TaskId;
use crate::world::Locked;

#[derive(Debug, Default)]
pub(crate) struct InFlightModelCalls {
    calls: Locked<BTreeMap<u64, InFlightModelCall>>,
    next: AtomicU64,
}

/// A model call in flight. `turns` is the number of model answers that the task had when the call
/// was registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightModelCall {
    root: TaskId,
    pub task: TaskId,
    pub turns: u32,
}

/// A guard that makes a model call count against the limits. The driver drops the guard when the
/// answer is stored or discarded.
#[derive(Debug)]
pub(crate) struct ModelCallGuard {
    number: u64,
    calls: Arc<InFlightModelCalls>,
}

impl InFlightModelCalls {
    /// Registers a model call until the returned guard is dropped. Also returns the model calls
    /// that other tasks of the tree `root` have in flight.
    pub(crate) fn register(
        self: &Arc<Self>,
        root: TaskId,
        task: TaskId,
        turns: u32,
    ) -> (ModelCallGuard, Vec<InFlightModelCall>) {
        let mut calls = self.calls.lock();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let before = calls
            .values()
            .filter(|known| known.root == root && known.task != task)
            .copied()
            .collect();
        calls.insert(number, InFlightModelCall { root, task, turns });
        (
            ModelCallGuard {
                number,
                calls: Arc::clone(self),
            },
            before,
        )
    }
}

impl Drop for ModelCallGuard {
    fn drop(&mut self) {
        self.calls.calls.lock().remove(&self.number);
    }
}
