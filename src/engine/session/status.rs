//! Sets tasks to Paused or Running. A task is busy if a driver holds the task, if the task is
//! queued, or if a timer will wake it. Invariant: a task is Paused when no task of its subtree is
//! busy and a request of its subtree is open. A task is Running when a task of its subtree is busy.

use super::TaskSession;
use super::task_draft::TaskDraft;
use super::tree::TaskTree;
use crate::task::change::{Counters, LeaseChange, TaskRow};
use crate::task::planned_request::MAX_OPEN_REQUESTS;
use crate::task::progress::Progress;
use crate::task::status::TaskStatus;
use crate::task::time::Time;

impl TaskSession {
    /// Sets a paused task to Running if the task can continue now: no request blocks its turn, and
    /// the task has work that waits neither for a request nor for a sub-agent.
    pub(crate) fn resume_if_unblocked(&mut self) {
        if self.own.progress.status == Some(TaskStatus::Paused) && self.own.progress.has_work() {
            self.own.push_status(TaskStatus::Running, self.now);
        }
    }
}

impl TaskTree {
    /// Adds a Paused or Running item to the commit for each task whose status must follow its new
    /// counters (see `status_after`). If the tree has `MAX_OPEN_REQUESTS` open requests and the
    /// commit closes one of them, also queues the tasks that may wait for that
    /// (`may_wait_for_room`). A second call before the commit changes nothing.
    pub(super) fn update_statuses(&mut self, own: &mut TaskDraft, lease: &LeaseChange, now: Time) {
        let mut sums = self.counter_changes(own, lease);
        let root = own.row.root_task_id;
        let full = self.rows.get(&root).is_some_and(|row| {
            usize::try_from(row.open_requests).unwrap_or(0) >= MAX_OPEN_REQUESTS
        });
        if full && sums.get(&root).is_some_and(|sum| sum.open_requests < 0) {
            let rows = self.rows.values();
            let waiting = rows.filter(|row| self.may_wait_for_room(row));
            let waiting: Vec<_> = waiting.map(|row| row.task_id).collect();
            for task in waiting.into_iter().filter(|task| *task != own.task_id()) {
                if let Some(related) = self
                    .relative_mut(task)
                    .filter(|related| !related.draft.has_ended())
                {
                    related.lease = LeaseChange::Queue;
                }
            }
            sums = self.counter_changes(own, lease);
        }
        emit_status(own, sums.remove(&own.task_id()).unwrap_or_default(), now);
        for (task, related) in &mut self.drafts {
            emit_status(
                &mut related.draft,
                sums.remove(task).unwrap_or_default(),
                now,
            );
        }
        // `sums` now has only tasks without a draft. If the status of such a task changes, the task
        // gets a draft for its status item.
        for (task, sum) in sums {
            let changes_status = |row: &TaskRow| {
                status_after(
                    row.status,
                    row.busy + sum.busy,
                    row.open_requests + sum.open_requests,
                )
                .is_some()
            };
            if self.rows.get(&task).is_some_and(changes_status)
                && let Some(related) = self.relative_mut(task)
            {
                emit_status(&mut related.draft, sum, now);
            }
        }
    }

    /// Whether a parked task may open a request once the full tree has room. A task whose items
    /// were not read (see `end_unread`) counts as such a task, because no later commit would wake
    /// it. So does an idle task that cannot be read. It is not idle if its subtree is busy or has
    /// an open request, or if it has a live sub-agent, whose end will wake it.
    fn may_wait_for_room(&self, row: &TaskRow) -> bool {
        let is_live_child = |child: &TaskRow| {
            let parent = child.parent.map(|(parent, _)| parent);
            parent == Some(row.task_id) && !child.status.is_terminal()
        };
        let has_live_child = || self.rows.values().any(is_live_child);
        let is_idle = || row.busy == 0 && row.open_requests == 0 && !has_live_child();
        let progress = self.progress.task(row.task_id);
        row.parked
            && !row.status.is_terminal()
            && (progress.is_none_or(Progress::may_open_request)
                || !self.is_readable(row.task_id) && is_idle())
    }
}

fn status_after(status: TaskStatus, busy: i32, open: i32) -> Option<TaskStatus> {
    match status {
        TaskStatus::Running if busy <= 0 && open > 0 => Some(TaskStatus::Paused),
        TaskStatus::Paused if busy > 0 => Some(TaskStatus::Running),
        TaskStatus::Running
        | TaskStatus::Paused
        | TaskStatus::Completed
        | TaskStatus::Failed
        | TaskStatus::Canceled => None,
    }
}

fn emit_status(draft: &mut TaskDraft, change: Counters, now: Time) {
    let status = draft.progress.status.unwrap_or(draft.row.status);
    let (busy, open) = (
        draft.row.busy + change.busy,
        draft.row.open_requests + change.open_requests,
    );
    if let Some(status) = status_after(status, busy, open) {
        draft.push_status(status, now);
    }
}
