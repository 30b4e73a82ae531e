//! Checks limits before a model is called or a sub-agent starts. A task is held to the limits of
//! its own agent and of the agent of every ancestor, each over what that task's subtree has done
//! since the user's last message.

use std::time::Duration;

use super::{Driver, Stop};
use crate::engine::runtime::in_flight_model_calls::{InFlightModelCall, ModelCallGuard};
use crate::task::change::TaskRow;
use crate::task::id::TaskId;
use crate::task::limits::Limits;
use crate::task::turn::Progress;

impl Driver<'_> {
    /// The task and its ancestors, each with the current limits of its agent.
    pub(crate) fn limits_on_path(&self) -> Vec<(&TaskRow, Limits)> {
        let mut levels = vec![(&self.session.own.row, self.agent.limits)];
        for task in self.session.tree.above(&self.session.own.row) {
            let Some(row) = self.session.tree.row(task) else {
                continue;
            };
            if let Some(agent) = self.engine.agents.get(&row.agent) {
                levels.push((row, agent.limits));
            }
        }
        levels
    }

    /// Registers the model call that is about to be made. The inner `Err` names a limit that it
    /// would exceed together with the model calls that its relatives have in flight.
    pub(crate) async fn enter_model_call(
        &mut self,
    ) -> Result<Result<Option<ModelCallGuard>, &'static str>, Stop> {
        if !self.session.has_tree() {
            return Ok(Ok(None));
        }
        let root = self.session.own.row.root_task_id;
        let (guard, beside) = self.engine.in_flight_model_calls.register(
            root,
            self.session.task_id(),
            self.session.own.progress.turns,
        );
        // A model call that ended meanwhile has stored its answer: the tree is read after the
        // registration.
        self.session.tree.fresh = false;
        self.engine.refresh_tree(self.session).await?;
        let unanswered = |out: &InFlightModelCall| {
            self.session
                .tree
                .task(out.task)
                .is_none_or(|known| known.turns <= out.turns)
        };
        let unanswered: Vec<_> = beside
            .into_iter()
            .filter(unanswered)
            .map(|out| out.task)
            .collect();
        Ok(self.spent_limit(&unanswered).map_or(Ok(Some(guard)), Err))
    }

    /// The name of a limit that is reached, counting one model call in flight for each task of
    /// `asking`.
    pub(crate) fn spent_limit(&self, asking: &[TaskId]) -> Option<&'static str> {
        self.limits_on_path().into_iter().find_map(|(row, limits)| {
            let sum = |of: fn(&Progress) -> u32| self.session.sum_over_subtree(row.task_id, of);
            let below = self.session.tree.below(row.task_id);
            let asked = asking
                .iter()
                .filter(|task| **task == row.task_id || below.contains(task))
                .count();
            let asked = u32::try_from(asked).unwrap_or(u32::MAX);
            if sum(|progress| progress.turns_since_message).saturating_add(asked)
                >= limits.max_model_calls
            {
                return Some("max_model_calls");
            }
            if sum(|progress| progress.repeats) > limits.max_rejections {
                return Some("max_rejections");
            }
            let own = row.task_id == self.session.task_id();
            let progress = if own {
                Some(&self.session.own.progress)
            } else {
                self.session.tree.task(row.task_id)
            };
            let ran = progress.map_or(Duration::ZERO, |progress| {
                progress.ran
                    + progress
                        .running_since
                        .map_or(Duration::ZERO, |since| self.session.now.since(since))
            });
            (ran >= limits.max_duration).then_some("max_duration")
        })
    }
}
