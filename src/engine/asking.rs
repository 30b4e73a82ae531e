//! Questions to models that are out, so that those of one tree that ask at once keep its limit together: what a relative is
//! asking now counts before its answer is stored.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Held;
use crate::task::id::TaskId;

/// In the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Asking {
    out: Held<BTreeMap<u64, Out>>,
    began: AtomicU64,
}

/// One question: whose, in which tree, and how many answers the task had then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Out {
    root: TaskId,
    pub task: TaskId,
    pub turns: u32,
}

/// One that is out, until its answer is stored or thrown away.
#[derive(Debug)]
pub(super) struct Asked {
    number: u64,
    asking: Arc<Asking>,
}

impl Asking {
    /// A task is about to ask: those of its tree that began before it.
    pub(super) fn begins(self: &Arc<Self>, root: TaskId, task: TaskId, turns: u32) -> (Asked, Vec<Out>) {
        let mut out = self.out.lock();
        let number = self.began.fetch_add(1, Ordering::Relaxed);
        let before = out.values().filter(|known| known.root == root && known.task != task).copied().collect();
        out.insert(number, Out { root, task, turns });
        (Asked { number, asking: Arc::clone(self) }, before)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.asking.out.lock().remove(&self.number);
    }
}
