//! The tree around the session's task: the rows and items of all tasks of the tree, as last read,
//! and the drafts of the relatives (the other tasks of the tree) that the next commit changes.
//!
//! Invariants:
//! - A commit that changes the counters of a task also changes the counters of all the task's
//!   ancestors.
//! - If a commit changes `busy` or `open_requests` of an ancestor, it checks the ancestor's
//!   version, and fails as `Stale` if the session has read another version. Without this check, two
//!   tasks that pause at the same time could each count the other as busy.
//! - A commit that starts a task checks the versions of all the task's ancestors in the same way.
//!   Without this check, two tasks that start sub-agents at the same time could together exceed a
//!   limit.

use std::collections::{BTreeMap, BTreeSet};

use super::task_draft::TaskDraft;
use crate::store::TreeSnapshot;
use crate::task::call_state::CallState;
use crate::task::change::{Counters, Guard, LeaseChange, TaskChange, TaskRow};
use crate::task::id::TaskId;
use crate::task::progress::Progress;
use crate::task::time::Time;
use crate::task::tree::TreeProgress;

/// The tasks of a tree. Has no rows as long as the session's task is the only task of its tree.
pub(crate) struct TaskTree {
    pub(super) rows: BTreeMap<TaskId, TaskRow>,
    pub(super) progress: TreeProgress,
    /// The number of the last event that was read; 0 before the first read.
    last_event: i64,
    pub(super) drafts: BTreeMap<TaskId, RelatedDraft>,
    /// The tasks that have an unreadable row or an unreadable item.
    unreadable: BTreeSet<TaskId>,
    /// Whether the last read of the tree still counts as current. Every commit and every model call
    /// sets `fresh` to `false`.
    pub fresh: bool,
}

/// The changes that the next commit makes to a relative (another task of the session's tree).
pub(crate) struct RelatedDraft {
    pub draft: TaskDraft,
    pub lease: LeaseChange,
    /// Whether the next commit creates the task or reopens it.
    pub begins: bool,
}

/// The order of tasks in a commit, and so the order of their events. First come the descendants and
/// the tasks of other branches, then the session's own task, then the tasks that this task starts,
/// and last its ancestors. So a child's end comes before its parent's events, and a child's start
/// comes after its parent's events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ChangeOrder {
    Other,
    Own,
    Started,
    Ancestor,
}

impl TaskTree {
    pub(crate) fn new(root: TaskId) -> Self {
        Self {
            rows: BTreeMap::new(),
            progress: TreeProgress::new(root),
            last_event: 0,
            drafts: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            fresh: false,
        }
    }

    pub(crate) fn last_event(&self) -> i64 {
        self.last_event
    }

    /// Applies a snapshot of the tree. The snapshot must be newer than the last read.
    pub(crate) fn apply(&mut self, tree: TreeSnapshot) {
        let is_uncertain = |at: Time| {
            self.last_event == 0 && tree.history_uncertain_until.is_some_and(|end| at <= end)
        };
        let uncertain_count = tree
            .items
            .iter()
            .rposition(|line| is_uncertain(line.item.at))
            .map_or(0, |last| last + 1);
        for (index, line) in tree.items.iter().enumerate() {
            self.progress
                .apply(line.task_id, &line.item, index < uncertain_count);
        }
        self.last_event = tree.last_event.max(self.last_event);
        self.unreadable.extend(tree.unreadable);
        self.rows = tree
            .rows
            .into_iter()
            .map(|row| (row.task_id, row))
            .collect();
        self.fresh = true;
    }

    pub(crate) fn is_damaged(&self) -> bool {
        !self.unreadable.is_empty()
    }

    /// Whether the row and all items of a task can be read.
    pub(crate) fn is_readable(&self, task: TaskId) -> bool {
        !self.unreadable.contains(&task)
    }

    /// Whether no unfinished call of `parent` waits for its sub-agent `task`. `false` if `parent`
    /// cannot be read.
    pub(crate) fn has_lost_its_call(&self, task: TaskId, parent: TaskId) -> bool {
        let waits = |state: &CallState| state.child() == Some(task);
        self.is_readable(parent)
            && self
                .task(parent)
                .is_some_and(|parent| !parent.unfinished().any(waits))
    }

    pub(crate) fn begins(&self, task: TaskId) -> bool {
        self.drafts.get(&task).is_some_and(|related| related.begins)
    }

    pub(crate) fn row(&self, task: TaskId) -> Option<&TaskRow> {
        self.rows.get(&task)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &TaskRow> {
        self.rows.values()
    }

    /// Returns the committed progress of a task, without the state that all tasks of the tree share
    /// (see `task/tree.rs`).
    pub(crate) fn task(&self, task: TaskId) -> Option<&Progress> {
        self.progress.task(task)
    }

    /// Returns the committed progress of a task, including the state that all tasks of the tree
    /// share (see `task/tree.rs`).
    pub(crate) fn progress(&self, task: TaskId) -> Option<Progress> {
        self.progress.progress(task)
    }

    /// Returns the ancestors of a task, the nearest first.
    pub(crate) fn ancestors(&self, row: &TaskRow) -> Vec<TaskId> {
        let mut ancestors = Vec::new();
        let mut next = row.parent.map(|(parent, _)| parent);
        while let Some(task) = next.filter(|task| !ancestors.contains(task)) {
            ancestors.push(task);
            next = self
                .rows
                .get(&task)
                .and_then(|row| row.parent)
                .map(|(parent, _)| parent);
        }
        ancestors
    }

    pub(crate) fn descendants(&self, task: TaskId) -> Vec<TaskId> {
        self.rows
            .values()
            .filter(|row| self.ancestors(row).contains(&task))
            .map(|row| row.task_id)
            .collect()
    }

    /// Returns the draft of a relative (another task of the tree), which the next commit stores.
    /// Creates the draft if there is none yet: from the row alone if the task cannot be read,
    /// because its progress then lacks items. `None` if the tree has no such task.
    pub(crate) fn relative_mut(&mut self, task: TaskId) -> Option<&mut RelatedDraft> {
        if !self.drafts.contains_key(&task) {
            let row = self.rows.get(&task)?.clone();
            let progress = self.progress.progress(task);
            let draft = match progress.filter(|_| self.is_readable(task)) {
                Some(progress) => TaskDraft::new(row, progress, Vec::new()),
                None => TaskDraft::from_row(row, 0),
            };
            self.insert(draft, LeaseChange::Keep, false);
        }
        self.drafts.get_mut(&task)
    }

    /// Makes the next commit queue an unreadable task and increment its version. A driver that
    /// holds the task then reloads the task. Without such a driver, a worker claims the task and
    /// ends it.
    pub(crate) fn requeue_unreadable(&mut self, task: TaskId) {
        let Some(row) = self.rows.get(&task).filter(|row| !row.status.is_terminal()) else {
            return;
        };
        let draft = TaskDraft::from_row(row.clone(), 0);
        self.insert(draft, LeaseChange::Queue, false);
    }

    pub(crate) fn add(&mut self, draft: TaskDraft) {
        self.insert(draft, LeaseChange::Queue, true);
    }

    fn insert(&mut self, draft: TaskDraft, lease: LeaseChange, begins: bool) {
        let task = draft.task_id();
        let related = RelatedDraft {
            draft,
            lease,
            begins,
        };
        self.drafts.insert(task, related);
    }

    pub(crate) fn drafts(&self) -> impl Iterator<Item = &RelatedDraft> {
        self.drafts.values()
    }

    pub(crate) fn clear_drafts(&mut self) {
        self.drafts.clear();
        self.fresh = false;
    }

    /// Returns the increments that the next commit adds to the counters of each task. Leaves out
    /// tasks whose counters stay the same.
    pub(crate) fn counter_changes(
        &self,
        own: &TaskDraft,
        lease: &LeaseChange,
    ) -> BTreeMap<TaskId, Counters> {
        let mut sums: BTreeMap<TaskId, Counters> = BTreeMap::new();
        let others = self
            .drafts
            .values()
            .map(|related| (&related.draft, &related.lease));
        for (draft, lease) in others.chain([(own, lease)]) {
            let change = draft.counter_change(lease);
            for task in self
                .ancestors(&draft.row)
                .into_iter()
                .chain([draft.task_id()])
            {
                *sums.entry(task).or_default() += change;
            }
        }
        sums.retain(|_, sum| *sum != Counters::default());
        sums
    }

    /// Returns the changes that the next commit makes to the session's own task and to other tasks
    /// of the tree, in the order of their events. `change` is the own task's change, without its
    /// counters.
    pub(crate) fn changes(
        &self,
        own: &TaskDraft,
        lease: &LeaseChange,
        change: TaskChange,
    ) -> Vec<TaskChange> {
        let mut sums = self.counter_changes(own, lease);
        let ancestors = self.ancestors(&own.row);
        let mut own_change = change;
        own_change.counters = sums.remove(&own.task_id()).unwrap_or_default();
        // If a child starts, the commit must check the version of each ancestor, because a
        // concurrent commit may have used up a limit of the ancestor. The commit checks the version
        // of an ancestor only if the ancestor has a draft or an entry in `sums`. So each ancestor
        // without an entry gets an entry of zeros.
        let begins = self.drafts.values().any(|related| related.begins);
        if begins {
            for task in &ancestors {
                sums.entry(*task).or_default();
            }
        }
        let mut changes = vec![((ChangeOrder::Own, 0), own_change)];
        for (task, related) in &self.drafts {
            let depth = related.draft.row.agent_path.len();
            let order = match (related.begins, ancestors.contains(task)) {
                (true, _) => ChangeOrder::Started,
                (false, true) => ChangeOrder::Ancestor,
                (false, false) => ChangeOrder::Other,
            };
            let sum = sums.remove(task).unwrap_or_default();
            let deepest_first = usize::MAX - depth;
            changes.push((
                (order, deepest_first),
                related.draft.change(related.lease.clone(), sum),
            ));
        }
        for (task, counters) in sums {
            let Some(row) = self.rows.get(&task) else {
                continue;
            };
            let fenced = begins || counters.busy != 0 || counters.open_requests != 0;
            let guard = if fenced {
                Guard::Version(row.version)
            } else {
                Guard::Any
            };
            let change = TaskChange {
                counters,
                ..TaskChange::empty(task, guard, row.last_seq)
            };
            changes.push(((ChangeOrder::Ancestor, 0), change));
        }
        changes.sort_by_key(|(order, _)| *order);
        changes.into_iter().map(|(_, change)| change).collect()
    }
}
