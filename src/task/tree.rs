//! The state of a tree of tasks, built from the items of all tasks in the order of the tree's
//! events. The tree's state consists of the progress of each task and of a state that all tasks
//! share: rejections, quarantines, standing decisions for the tree, and whether the user's last
//! message is uncertain. An item of any task may change the shared state.

use std::collections::BTreeMap;
use std::mem::swap;

use super::id::{GrantId, TaskId};
use super::item::{Fact, Item};
use super::progress::Progress;
use super::quarantine::Quarantine;
use super::rejections::RejectedCalls;

/// The state that all tasks of a tree share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedProgress {
    /// The tools whose calls need a person's decision, whatever the rules say (see
    /// `quarantine.rs`).
    pub quarantine: Quarantine,
    /// Calls rejected since the last user message.
    pub rejections: RejectedCalls,
    /// Standing decisions that people gave for this tree since the last user message. A standing
    /// decision from the uncertain history (see [`Progress::uncertain_seq`]) is not among them.
    pub grants: Vec<GrantId>,
    /// Whether the last user message belongs to the uncertain history.
    pub message_uncertain: bool,
}

/// State of a tree after the events read so far.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TreeProgress {
    root: TaskId,
    tasks: BTreeMap<TaskId, Progress>,
    shared: SharedProgress,
}

impl TreeProgress {
    #[must_use]
    pub(crate) fn new(root: TaskId) -> Self {
        Self {
            root,
            tasks: BTreeMap::new(),
            shared: SharedProgress::default(),
        }
    }

    /// Applies the tree's next event, which is `item` of the task `task`. `uncertain` says whether
    /// the item belongs to the uncertain history (see `restore.rs`).
    pub(crate) fn apply(&mut self, task: TaskId, item: &Item, uncertain: bool) {
        let is_root = task == self.root;
        let progress = self.tasks.entry(task).or_insert_with(|| Progress {
            is_sub_agent: !is_root,
            ..Progress::default()
        });
        if uncertain {
            progress.uncertain_seq = item.seq;
        }
        swap(&mut progress.shared, &mut self.shared);
        progress.apply(item);
        swap(&mut progress.shared, &mut self.shared);
        if is_root && matches!(item.fact, Fact::UserMessage { .. }) {
            self.tasks
                .values_mut()
                .for_each(|progress| progress.reset_limit_counts(item.at));
        }
    }

    /// Returns the progress of one task, with the state that all tasks of the tree share. Returns
    /// `None` if no event of the task was read.
    #[must_use]
    pub(crate) fn progress(&self, task: TaskId) -> Option<Progress> {
        let own = self.tasks.get(&task)?.clone();
        Some(Progress {
            shared: self.shared.clone(),
            ..own
        })
    }

    /// Returns the progress of one task, without the state that all tasks of the tree share.
    /// Returns `None` if no event of the task was read.
    #[must_use]
    pub(crate) fn task(&self, task: TaskId) -> Option<&Progress> {
        self.tasks.get(&task)
    }
}
