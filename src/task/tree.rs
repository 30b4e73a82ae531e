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
use super::status::TaskStatus;
use super::time::Time;

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
        if is_root && let Fact::TaskStatus { status, .. } = &item.fact {
            self.set_clocks(*status, item.at);
        }
    }

    /// Stops the clocks of all tasks when the root pauses, and starts those of the running tasks
    /// when the root runs again. While the root is paused, the tree waits for people: no task is
    /// busy. A task that is `Running` then waits until the tree may open another request, and this
    /// wait must not count against `max_duration`.
    fn set_clocks(&mut self, root_status: TaskStatus, at: Time) {
        for progress in self.tasks.values_mut() {
            match root_status {
                TaskStatus::Paused => progress.stop_clock(at),
                TaskStatus::Running if progress.status == Some(TaskStatus::Running) => {
                    progress.running_since = progress.running_since.or(Some(at));
                }
                TaskStatus::Running
                | TaskStatus::Completed
                | TaskStatus::Failed
                | TaskStatus::Canceled => {}
            }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;

    const SECOND: i64 = 1_000_000;

    #[test]
    fn clocks_of_running_sub_agents_stand_still_while_the_root_is_paused() {
        let [root, waiting, asking] = [1, 2, 3].map(|id| TaskId(Uuid::from_u128(id)));
        let mut tree = TreeProgress::new(root);
        let apply = |tree: &mut TreeProgress, task, status, second: i64| {
            let fact = Fact::TaskStatus {
                status,
                error: None,
                output: None,
            };
            let (seq, at) = (second + 1, Time(second * SECOND));
            tree.apply(task, &Item { seq, at, fact }, false);
        };
        let clock = |tree: &TreeProgress, task| {
            let progress = tree.task(task).unwrap();
            (progress.running_time, progress.running_since)
        };
        let after = |seconds: u64, since: Option<i64>| {
            let since = since.map(|second| Time(second * SECOND));
            (Duration::from_secs(seconds), since)
        };
        apply(&mut tree, root, TaskStatus::Running, 0);
        apply(&mut tree, waiting, TaskStatus::Running, 1);
        apply(&mut tree, asking, TaskStatus::Running, 2);
        apply(&mut tree, asking, TaskStatus::Paused, 5);
        assert_eq!(clock(&tree, waiting), after(0, Some(1)), "the root runs");
        apply(&mut tree, root, TaskStatus::Paused, 5);
        let stopped = [root, waiting, asking].map(|task| clock(&tree, task));
        assert_eq!(stopped, [after(5, None), after(4, None), after(3, None)]);
        apply(&mut tree, root, TaskStatus::Running, 100);
        let expected = [after(5, Some(100)), after(4, Some(100)), after(3, None)];
        assert_eq!(
            [root, waiting, asking].map(|task| clock(&tree, task)),
            expected,
            "the task that is still paused does not run"
        );
        apply(&mut tree, root, TaskStatus::Failed, 110);
        apply(&mut tree, root, TaskStatus::Running, 120);
        assert_eq!(clock(&tree, waiting), after(4, Some(100)), "it ran on");
    }
}
