//! Questions to models that are out, so that those of one tree that ask at once keep its limit together: what a relative is
//! asking now counts before its answer is stored.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Locked;
use crate::task::id::TaskId;

/// In the order in which they began.
#[derive(Debug, Default)]
pub(super) struct InFlightModelCalls {
    out: Locked<BTreeMap<u64, InFlightModelCall>>,
    began: AtomicU64,
}

/// One question: whose, in which tree, and how many answers the task had then.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlightModelCall {
    root: TaskId,
    pub task: TaskId,
    pub turns: u32,
}

/// One that is out, until its answer is stored or thrown away.
#[derive(Debug)]
pub(super) struct ModelCallGuard {
    number: u64,
    asking: Arc<InFlightModelCalls>,
}

impl InFlightModelCalls {
    /// A task is about to ask: those of its tree that began before it.
    pub(super) fn begins(self: &Arc<Self>, root: TaskId, task: TaskId, turns: u32) -> (ModelCallGuard, Vec<InFlightModelCall>) {
        let mut out = self.out.lock();
        let number = self.began.fetch_add(1, Ordering::Relaxed);
        let before = out.values().filter(|known| known.root == root && known.task != task).copied().collect();
        out.insert(number, InFlightModelCall { root, task, turns });
        (ModelCallGuard { number, asking: Arc::clone(self) }, before)
    }
}

impl Drop for ModelCallGuard {
    fn drop(&mut self) {
        self.asking.out.lock().remove(&self.number);
    }
}
