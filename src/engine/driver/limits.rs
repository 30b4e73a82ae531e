//! Limits, as the driver looks at them before a model is asked or a sub-agent is started: a task is held to those of its
//! own agent and of every agent above it, each over what that one's task and the tasks below it have done since the
//! user's last message.

use std::time::Duration;

use super::Engine;
use super::asking::{ModelCallGuard, InFlightModelCall};
use super::drive::Stop;
use super::session::TaskSession;
use crate::agent::Agent;
use crate::task::change::TaskRow;
use crate::task::id::TaskId;
use crate::task::limits::Limits;
use crate::task::turn::Progress;

impl Engine {
    /// The task and those above it, each with the limits that the configuration has for its agent now.
    pub(super) fn levels<'l>(&'l self, session: &'l TaskSession, agent: &Agent) -> Vec<(&'l TaskRow, Limits)> {
        let mut levels = vec![(&session.own.row, agent.limits)];
        for task in session.tree.above(&session.own.row) {
            let Some(row) = session.tree.row(task) else { continue };
            if let Some(agent) = self.agents.get(&row.agent) {
                levels.push((row, agent.limits));
            }
        }
        levels
    }

    /// A sum over a task and all those below it.
    pub(super) fn over_subtree(session: &TaskSession, task: TaskId, of: impl Fn(&Progress) -> u32) -> u32 {
        let own = session.task_id();
        let known = |id: TaskId| if id == own { Some(&session.own.progress) } else { session.tree.task(id) };
        let subtree = [task].into_iter().chain(session.tree.below(task));
        subtree.filter_map(|id| known(id).map(&of)).fold(0, u32::saturating_add)
    }

    /// Marks the task as asking a model from now on. `Err` names the limit that is reached together with what its
    /// relatives are asking already.
    ///
    /// # Errors
    /// As [`Engine::refresh`].
    pub(super) async fn asks_now(
        &self,
        session: &mut TaskSession,
        agent: &Agent,
    ) -> Result<Result<Option<ModelCallGuard>, &'static str>, Stop> {
        if !session.has_tree() {
            return Ok(Ok(None));
        }
        let root = session.own.row.root_task_id;
        let (asked, beside) = self.asking.begins(root, session.task_id(), session.own.progress.turns);
        // Who is not asking any more has stored its answer since the tree was read.
        session.tree.fresh = false;
        self.refresh(session).await?;
        let unanswered = |out: &InFlightModelCall| session.tree.task(out.task).is_none_or(|known| known.turns <= out.turns);
        let unanswered: Vec<_> = beside.into_iter().filter(unanswered).map(|out| out.task).collect();
        Ok(self.spent(session, agent, &unanswered).map_or(Ok(Some(asked)), Err))
    }

    /// The limit that is reached, by name, if one is; `asking` are relatives whose model is being asked.
    pub(super) fn spent(&self, session: &TaskSession, agent: &Agent, asking: &[TaskId]) -> Option<&'static str> {
        self.levels(session, agent).into_iter().find_map(|(row, limits)| {
            let sum = |of: fn(&Progress) -> u32| Self::over_subtree(session, row.task_id, of);
            let below = session.tree.below(row.task_id);
            let asked = asking.iter().filter(|task| **task == row.task_id || below.contains(task)).count();
            let asked = u32::try_from(asked).unwrap_or(u32::MAX);
            if sum(|progress| progress.turns_since_message).saturating_add(asked) >= limits.max_model_calls {
                return Some("max_model_calls");
            }
            if sum(|progress| progress.repeats) > limits.max_rejections {
                return Some("max_rejections");
            }
            let own = row.task_id == session.task_id();
            let progress = if own { Some(&session.own.progress) } else { session.tree.task(row.task_id) };
            let ran = progress.map_or(Duration::ZERO, |progress| {
                progress.ran + progress.running_since.map_or(Duration::ZERO, |since| session.now.since(since))
            });
            (ran >= limits.max_duration).then_some("max_duration")
        })
    }
}
