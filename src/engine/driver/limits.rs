//! Checks limits before a model is called or a sub-agent starts. A task must stay within the limits
//! of its own agent and of its ancestors' agents. The limits of a task's agent apply to the task's
//! whole subtree:
//! - `max_model_calls`, `max_tasks` and `max_rejections` bound sums over the subtree since the
//!   user's last message.
//! - `max_duration` bounds the time since that message in which at least one task of the subtree
//!   runs.
//! - `max_calls` and `max_children` bound each turn in the subtree.
//! - `max_depth` bounds the levels of the subtree.

use std::time::Duration;

use super::{Driver, Stop};
use crate::engine::runtime::in_flight_model_calls::{InFlightModelCall, ModelCallGuard};
use crate::task::call_state::CallState;
use crate::task::change::TaskRow;
use crate::task::id::TaskId;
use crate::task::limits::Limits;
use crate::task::progress::Progress;
use crate::task::verdict::Verdict;

impl Driver<'_> {
    /// Returns the task and its ancestors, each with the current limits of its agent. Leaves out
    /// ancestors whose agent the configuration no longer has.
    pub(crate) fn limits_on_path(&self) -> Vec<(&TaskRow, Limits)> {
        let mut levels = vec![(&self.session.own.row, self.agent.limits)];
        for task in self.session.tree.ancestors(&self.session.own.row) {
            let Some(row) = self.session.tree.row(task) else {
                continue;
            };
            if let Some(agent) = self.engine.agents.get(&row.agent) {
                levels.push((row, agent.limits));
            }
        }
        levels
    }

    /// Returns the smallest value that the agents of the task and of its ancestors set for a limit
    /// on one turn.
    pub(crate) fn turn_limit(&self, limit: fn(&Limits) -> u32) -> u32 {
        let levels = self.limits_on_path();
        let values = levels.iter().map(|(_, limits)| limit(limits));
        values.fold(u32::MAX, u32::min)
    }

    /// Returns the limit that keeps this call from starting its sub-agent, in words for the model.
    /// The limit may be of this task or of an ancestor. Returns `None` if no limit is reached, or
    /// if the call starts no sub-agent.
    pub(crate) fn sub_agent_limit(&self, state: &CallState) -> Option<String> {
        let name = &state.call.name;
        self.agent.sub_agent(name)?;
        let earlier = self
            .session
            .own
            .progress
            .calls
            .iter()
            .take_while(|call| call.call.tool_call_id != state.call.tool_call_id);
        let starts = |call: &&CallState| {
            let judged = call.judgement.as_ref().map(|judgement| judgement.verdict);
            call.turn == state.turn
                && call.performer.properties().starts_sub_agent
                && matches!(judged, Some(Verdict::Allow | Verdict::Hold))
        };
        let max_children = self.turn_limit(|limits| limits.max_children);
        if earlier.filter(starts).count() >= usize::try_from(max_children).unwrap_or(usize::MAX) {
            return Some(format!(
                "the limit max_children is reached: a turn may start {max_children} sub-agents"
            ));
        }
        let depth = self.session.own.row.agent_path.len() + 1;
        for (row, limits) in self.limits_on_path() {
            let levels = depth.saturating_sub(row.agent_path.len());
            if levels > usize::try_from(limits.max_depth).unwrap_or(usize::MAX) {
                let max_depth = limits.max_depth;
                return Some(format!(
                    "the limit max_depth is reached: {max_depth} levels of sub-agents below {}",
                    row.agent
                ));
            }
            let started = self.session.sum_since_message(row.task_id, |progress| {
                progress.sub_agent_starts_since_message
            });
            if started >= limits.max_tasks {
                let max_tasks = limits.max_tasks;
                return Some(format!(
                    "the limit max_tasks is reached: {max_tasks} sub-agents of {} since the user's last message",
                    row.agent
                ));
            }
        }
        None
    }

    /// Registers a model call that is about to be made, and checks the limits again. This check
    /// also counts the model calls that other tasks of the tree have in flight. If the new call
    /// would exceed a limit, the inner `Err` names the limit. If the tree has no other task,
    /// registers nothing and returns `None`, because the check by `step_context` is then complete.
    pub(crate) async fn register_model_call(
        &mut self,
    ) -> Result<Result<Option<ModelCallGuard>, &'static str>, Stop> {
        if !self.session.has_tree() {
            return Ok(Ok(None));
        }
        let root = self.session.own.row.root_task_id;
        let (guard, others) = self.engine.in_flight_model_calls.register(
            root,
            self.session.task_id(),
            self.session.own.progress.turns,
        );
        // `others` has the model calls that were in flight at the registration. The tree is read
        // after the registration, so it has the answer of each model call that ended earlier. The
        // answer of a call in `others` may also be in the tree by now. `is_unanswered` excludes
        // such a call from `others`, so that it is counted only once. `may_be_stored` excludes the
        // call of a task that has ended, for example by a cancel: the call goes on, but its answer
        // is discarded.
        self.session.tree.fresh = false;
        self.engine.refresh_tree(self.session).await?;
        let tree = &self.session.tree;
        let is_unanswered = |call: &InFlightModelCall| {
            tree.task(call.task)
                .is_none_or(|known| known.turns <= call.turns)
        };
        let may_be_stored = |call: &InFlightModelCall| {
            tree.row(call.task)
                .is_none_or(|row| !row.status.is_terminal())
        };
        let unanswered_tasks: Vec<_> = others
            .into_iter()
            .filter(|call| is_unanswered(call) && may_be_stored(call))
            .map(|call| call.task)
            .collect();
        Ok(self
            .spent_limit(&unanswered_tasks)
            .map_or(Ok(Some(guard)), Err))
    }

    /// Returns the name of a reached limit; `None` if no limit is reached. `calling` has the task
    /// of each model call in flight. Such a call counts like a finished call.
    pub(crate) fn spent_limit(&self, calling: &[TaskId]) -> Option<&'static str> {
        self.limits_on_path().into_iter().find_map(|(row, limits)| {
            let sum =
                |count: fn(&Progress) -> u32| self.session.sum_since_message(row.task_id, count);
            let descendants = self.session.tree.descendants(row.task_id);
            let in_flight = calling
                .iter()
                .filter(|task| **task == row.task_id || descendants.contains(task))
                .count();
            let in_flight = u32::try_from(in_flight).unwrap_or(u32::MAX);
            if sum(|progress| progress.turns_since_message).saturating_add(in_flight)
                >= limits.max_model_calls
            {
                return Some("max_model_calls");
            }
            if sum(|progress| progress.refused_repeats) > limits.max_rejections {
                return Some("max_rejections");
            }
            let progress = self.session.progress_of(row.task_id);
            let running_time = progress.map_or(Duration::ZERO, |progress| {
                progress.running_time
                    + progress
                        .running_since
                        .map_or(Duration::ZERO, |since| self.session.now.since(since))
            });
            (running_time >= limits.max_duration).then_some("max_duration")
        })
    }
}
