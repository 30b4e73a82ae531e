//! A tree of tasks, read item by item in the order of its events: where each task stands, and what all of them have in
//! common. A human's no, a tool in doubt and the user's word hold for the whole tree, whichever task they came from.

use std::collections::BTreeMap;
use std::mem::swap;

use super::id::TaskId;
use super::item::{Fact, Item};
use super::noes::Noes;
use super::suspects::Suspects;
use super::turn::Progress;

/// The tasks of a tree as far as its events were read.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    root: TaskId,
    tasks: BTreeMap<TaskId, Progress>,
    noes: Noes,
    suspects: Suspects,
    message_doubted: bool,
}

impl Tree {
    /// Before its first event.
    #[must_use]
    pub fn new(root: TaskId) -> Self {
        Self {
            root,
            tasks: BTreeMap::new(),
            noes: Noes::default(),
            suspects: Suspects::default(),
            message_doubted: false,
        }
    }

    /// Reads the next event: an item of that task. `doubted`: it belongs to a history whose end was lost.
    pub fn apply(&mut self, task: TaskId, item: &Item, doubted: bool) {
        let is_root = task == self.root;
        let progress = self.tasks.entry(task).or_insert_with(|| Progress { of_sub_agent: !is_root, ..Progress::new() });
        if doubted {
            progress.doubted_seq = item.seq;
        }
        swap(&mut progress.noes, &mut self.noes);
        swap(&mut progress.suspects, &mut self.suspects);
        progress.message_doubted = self.message_doubted;
        progress.apply(item);
        self.message_doubted = progress.message_doubted;
        swap(&mut progress.noes, &mut self.noes);
        swap(&mut progress.suspects, &mut self.suspects);
        if is_root && matches!(item.fact, Fact::UserMessage { .. }) {
            self.tasks.values_mut().for_each(|progress| progress.counts_anew(item.at));
        }
    }

    /// Where one of its tasks stands, knowing what all of them have in common.
    #[must_use]
    pub fn progress(&self, task: TaskId) -> Option<Progress> {
        let own = self.tasks.get(&task)?.clone();
        let (noes, suspects) = (self.noes.clone(), self.suspects.clone());
        Some(Progress { noes, suspects, message_doubted: self.message_doubted, ..own })
    }

    /// The same, for what is its own alone.
    #[must_use]
    pub fn task(&self, task: TaskId) -> Option<&Progress> {
        self.tasks.get(&task)
    }
}
