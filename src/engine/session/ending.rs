//! Ends tasks. The commit that ends a task also closes the task's requests, cancels its
//! descendants, and queues its parent if the parent is parked. A cancel also closes the task's
//! calls.

use std::collections::BTreeSet;

use super::TaskSession;
use super::tree::TaskTree;
use crate::task::call_state::CANCELED_TEXT;
use crate::task::change::{LeaseChange, TaskRow};
use crate::task::failure::Failure;
use crate::task::id::{CallId, TaskId};
use crate::task::item::{CloseReason, Outcome};
use crate::task::progress::Progress;
use crate::task::status::TaskStatus;
use crate::task::text::cut;

/// The maximum size of a sub-agent's output, in bytes. A longer output is cut before it becomes the
/// result of the call that started the sub-agent.
const MAX_RESULT_BYTES: usize = 1024 * 1024;

impl TaskSession {
    /// Pushes the results of this task's calls whose sub-agents have ended.
    pub(crate) fn record_sub_agent_results(&mut self) {
        if !self.own.has_ended() {
            let (now, ended) = (self.now, sub_agent_results(&self.tree, &self.own.progress));
            self.own.settle_calls(ended, now);
        }
    }

    /// Cancels the tasks in `tasks` that have not ended, so that no further call of these tasks
    /// starts. Does not cancel the session's own task. If this driver cannot read a task, it queues
    /// the task instead, so that the worker that claims the task ends it.
    pub(crate) fn cancel_tasks(&mut self, tasks: Vec<TaskId>, reason: CloseReason) {
        let mut stopped: BTreeSet<TaskId> = tasks.into_iter().collect();
        stopped.remove(&self.task_id());
        let now = self.now;
        for task in stopped {
            if !self.tree.is_readable(task) {
                self.tree.requeue_unreadable(task);
                continue;
            }
            let results = self
                .tree
                .task(task)
                .map(|progress| sub_agent_results(&self.tree, progress))
                .unwrap_or_default();
            let Some(related) = self.tree.relative_mut(task) else {
                continue;
            };
            if related.draft.has_ended() {
                continue;
            }
            let draft = &mut related.draft;
            draft.withdraw_open(reason, now);
            draft.settle_calls(results, now);
            draft.close_calls(|_| true, Outcome::Canceled, CANCELED_TEXT, now);
            draft.push_status(TaskStatus::Canceled, now);
            related.lease = LeaseChange::PARK;
        }
    }

    /// Whether this task has not ended although nothing waits for its result: an ancestor has
    /// ended, or the task or an ancestor has lost the call that waited for it. This state arises if
    /// a driver or a message that had to cancel this task could not read it, and queued it instead.
    pub(crate) fn is_abandoned(&self) -> bool {
        let (tree, path) = (&self.tree, self.path());
        let has_ended = |task: &TaskId| tree.row(*task).is_some_and(|row| row.status.is_terminal());
        let is_cut_off = |pair: &[TaskId]| match pair {
            [task, parent] => has_ended(parent) || tree.has_lost_its_call(*task, *parent),
            _ => false,
        };
        !self.own.has_ended() && path.windows(2).any(is_cut_off)
    }

    /// Applies the end of this task to its tree: cancels the descendants, and queues the parent if
    /// the parent is parked.
    pub(crate) fn propagate_end(&mut self) {
        let descendants = self.tree.descendants(self.task_id());
        self.cancel_tasks(descendants, CloseReason::Canceled);
        let parent = self.own.row.parent.map(|(parent, _)| parent);
        if let Some(related) = parent.and_then(|parent| self.tree.relative_mut(parent))
            && !related.draft.has_ended()
            && related.draft.row.parked
        {
            related.lease = LeaseChange::Queue;
        }
    }

    pub(crate) fn cancel(&mut self) {
        self.withdraw_open(CloseReason::Canceled);
        self.record_sub_agent_results();
        let now = self.now;
        self.own
            .close_calls(|_| true, Outcome::Canceled, CANCELED_TEXT, now);
        self.own.push_status(TaskStatus::Canceled, now);
        self.propagate_end();
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.own.fail(failure, self.now);
        self.propagate_end();
    }
}

/// Returns the results of a task's calls whose sub-agents have ended. `progress` is the state of
/// that task.
pub(crate) fn sub_agent_results(
    tree: &TaskTree,
    progress: &Progress,
) -> Vec<(CallId, Outcome, String)> {
    let delegated = progress
        .unfinished()
        .filter_map(|state| Some((state, state.child()?)));
    let ended = delegated.filter_map(|(state, child)| {
        let id = state.call.tool_call_id;
        if tree.begins(child) {
            return None;
        }
        let Some(row) = tree.row(child) else {
            let text = "The sub-agent's task no longer exists.".to_owned();
            return Some((id, Outcome::Failed, text));
        };
        if row.status.is_terminal() && !tree.is_readable(child) {
            let text = "The stored data of the sub-agent's task cannot be read.".to_owned();
            return Some((id, Outcome::Failed, text));
        }
        let cancel_reason = tree
            .task(child)
            .and_then(|progress| progress.cancel_reason.as_deref());
        result_of_end(row, cancel_reason).map(|(outcome, text)| (id, outcome, text))
    });
    ended.collect()
}

/// Returns the result of a call that started a sub-agent; `None` until the sub-agent's task has
/// ended. `row` is the row of the sub-agent's task. `cancel_reason` is the reason, if known, why a
/// decision or a deadline canceled the sub-agent's task.
fn result_of_end(row: &TaskRow, cancel_reason: Option<&str>) -> Option<(Outcome, String)> {
    let agent = &row.agent;
    match row.status {
        TaskStatus::Running | TaskStatus::Paused => None,
        TaskStatus::Completed => {
            let text = row.output.clone().unwrap_or_default();
            let kept = cut(&text, MAX_RESULT_BYTES);
            let rest = if kept.len() < text.len() {
                "\n[cut here: it was longer]"
            } else {
                ""
            };
            Some((Outcome::Succeeded, format!("{kept}{rest}")))
        }
        TaskStatus::Failed => {
            let why = row.error.as_ref().map(|error| match &error.limit {
                Some(limit) => format!("{}: {limit}", error.code.as_str()),
                None => format!("{}: {}", error.code.as_str(), error.detail),
            });
            let why = why.unwrap_or_else(|| "no reason is known".to_owned());
            let text = format!(
                "The sub-agent {agent} failed before it was done ({why}). Its earlier work is not undone."
            );
            Some((Outcome::Failed, text))
        }
        TaskStatus::Canceled => {
            let why = cancel_reason.map_or(String::new(), |why| format!(": {why}"));
            let text =
                format!("The sub-agent {agent} was canceled{why}. Its earlier work is not undone.");
            Some((Outcome::Canceled, text))
        }
    }
}
