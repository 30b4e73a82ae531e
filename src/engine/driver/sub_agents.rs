//! Sub-agents: a call of one is a task of its own. It starts with the commit that says so, its end is its caller's result,
//! and whoever is stopped stops those below him in the same commit.
//! What must stay true: one start for each call, whatever crashes; a caller that waits is woken by the commit with which
//! the last one it waits for ends.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Engine;
use super::drive::Stop;
use super::tree::TaskTree;
use super::session::TaskSession;
use super::draft::TaskDraft;
use super::moves::unsaved_row;
use crate::agent::{Agent, SubAgent};
use crate::task::change::{Guard, LeaseChange, NewTask, TaskRow};
use crate::task::failure::Failure;
use crate::task::id::{CallId, TaskId};
use crate::task::item::{CloseReason, Fact, Outcome, Part, PartType};
use crate::task::call_state::CallState;
use crate::task::status::TaskStatus;
use crate::task::text::cut;
use crate::task::tool_spec::ToolKind;
use crate::task::turn::Progress;
use crate::task::verdict::{Judgement, Verdict};

/// What a model is told of a call whose task was canceled before it ran.
const NOT_RUN: &str = "The task was canceled; this call was not run.";

/// How much of what a sub-agent says is kept as its caller's result.
const KEPT: usize = 1024 * 1024;

impl Engine {
    /// Starts a task for each of these calls: judged once more, then written down as started with the task itself.
    pub(super) async fn start(&self, session: &mut TaskSession, agent: &Agent, calls: &[CallId]) -> Result<(), Stop> {
        if !self.may_begin(session, agent, calls).await? {
            return Ok(());
        }
        for id in calls {
            let Some(state) = session.own.progress.call(*id).cloned() else { continue };
            let name = &state.call.name;
            // Those before it in the same commit count, too.
            let beyond = self.beyond(session, agent, &state);
            let (Some(sub), Some(known), None) = (agent.sub_agent(name), self.agents.get(name), &beyond) else {
                let reason = beyond.unwrap_or_else(|| format!("the agent {name:?} is gone from the configuration"));
                let (effect, performer, judgement) = (state.effect, state.performer, Judgement::invalid(reason));
                session.push(Fact::Judged { tool_call_id: *id, judgement, effect, performer });
                continue;
            };
            self.begin(session, &state, sub, known);
        }
        Ok(())
    }

    fn begin(&self, session: &mut TaskSession, state: &CallState, sub: &SubAgent, agent: &Agent) {
        let arguments: Value = serde_json::from_str(state.arguments_text()).unwrap_or_default();
        let content = arguments.get("task").and_then(Value::as_str).unwrap_or_default().to_owned();
        let message = Fact::UserMessage {
            items: vec![Part { content_type: PartType::Text, content }],
            user_context: None,
            by: session.own.row.user_id.clone(),
            groups: session.own.progress.groups.clone(),
        };
        let (now, tool_call_id) = (session.now, state.call.tool_call_id);
        let earlier = Self::conversation_with(session, sub);
        let child = earlier.unwrap_or_else(|| TaskId(self.ids.fresh()));
        session.push(Fact::SubAgentStarted { tool_call_id, child_task_id: child, agent: agent.name.clone() });
        if let Some((related, _)) = earlier.and_then(|task| session.relative_mut(task)) {
            (related.begins, related.lease) = (true, LeaseChange::Queue);
            related.draft.pin(&agent.version);
            let failed = related.draft.row.status == TaskStatus::Failed;
            related.draft.status(TaskStatus::Running, now);
            // What a failed one had started is asked about first.
            let text = "The conversation went on; this call was not run.";
            related.draft.close_calls(|call| !failed || call.attempts == 0, Outcome::Withdrawn, text, now);
            related.draft.push(message, now);
            return;
        }
        let own = &session.own.row;
        let new = NewTask {
            tenant: own.tenant.clone(),
            user_id: own.user_id.clone(),
            session_id: own.session_id.clone(),
            agent: agent.name.clone(),
            agent_version: agent.version.clone(),
            parent: Some((own.task_id, tool_call_id)),
            agent_path: own.agent_path.iter().chain([&agent.name]).cloned().collect(),
            metadata: own.metadata.clone(),
        };
        let progress = Progress { of_sub_agent: true, ..Progress::new() };
        let mut draft = TaskDraft::new(unsaved_row(child, own.root_task_id, &new), progress, Vec::new());
        draft.guard = Some(Guard::New(Box::new(new)));
        draft.status(TaskStatus::Running, now);
        draft.push(message, now);
        session.tree.add(draft);
    }

    /// The task that keeps the conversation with a sub-agent, where it is kept and there is one that can be read.
    fn conversation_with(session: &TaskSession, sub: &SubAgent) -> Option<TaskId> {
        let own = session.task_id();
        let ours = |row: &&TaskRow| row.agent == sub.agent && row.parent.is_some_and(|(parent, _)| parent == own);
        let over = |row: &&TaskRow| row.status.is_terminal() && session.tree.is_readable(row.task_id);
        let known = session.tree.rows().filter(ours).filter(over);
        known.map(|row| row.task_id).max().filter(|_| sub.session)
    }

    /// Why one more sub-agent may not be started, if it may not: by the limits of the task and of all those above it.
    pub(super) fn beyond(&self, session: &TaskSession, agent: &Agent, state: &CallState) -> Option<String> {
        let name = &state.call.name;
        agent.sub_agent(name)?;
        let earlier =
            session.own.progress.calls.iter().take_while(|call| call.call.tool_call_id != state.call.tool_call_id);
        let starts = |call: &&CallState| {
            let judged = call.judgement.as_ref().map(|judgement| judgement.verdict);
            call.turn == state.turn
                && call.performer == ToolKind::Agent
                && matches!(judged, Some(Verdict::Allow | Verdict::Hold))
        };
        let most = agent.limits.max_children;
        if earlier.filter(starts).count() >= usize::try_from(most).unwrap_or(usize::MAX) {
            return Some(format!("the limit max_children is reached: a turn may start {most} sub-agents"));
        }
        let depth = session.own.row.agent_path.len() + 1;
        for (row, limits) in self.levels(session, agent) {
            let levels = depth.saturating_sub(row.agent_path.len());
            if levels > usize::try_from(limits.max_depth).unwrap_or(usize::MAX) {
                let most = limits.max_depth;
                return Some(format!(
                    "the limit max_depth is reached: {most} levels of sub-agents below {}",
                    row.agent
                ));
            }
            let started = Self::over_subtree(session, row.task_id, |progress| progress.starts_since_message);
            if started >= limits.max_tasks {
                let most = limits.max_tasks;
                return Some(format!(
                    "the limit max_tasks is reached: {most} sub-agents of {} since the user's last message",
                    row.agent
                ));
            }
        }
        None
    }

    /// The results of calls whose sub-agents have ended.
    pub(super) fn take_in(session: &mut TaskSession) {
        if !session.own.is_over() {
            let (now, ended) = (session.now, ended(&session.tree, &session.own.progress));
            session.own.refuse(ended, now);
        }
    }

    /// Stops these tasks, where they are at work: nothing of them starts any more.
    pub(super) fn stop(session: &mut TaskSession, tasks: Vec<TaskId>, reason: CloseReason) {
        let mut stopped: BTreeSet<TaskId> = tasks.into_iter().collect();
        stopped.remove(&session.task_id());
        for task in stopped {
            if !session.tree.is_readable(task) {
                session.tree.unsettle(task);
                continue;
            }
            let results = session.tree.task(task).map(|progress| ended(&session.tree, progress)).unwrap_or_default();
            let Some((related, now)) = session.relative_mut(task) else { continue };
            if related.draft.is_over() {
                continue;
            }
            let draft = &mut related.draft;
            draft.withdraw_open(reason, now);
            draft.refuse(results, now);
            draft.close_calls(|_| true, Outcome::Canceled, NOT_RUN, now);
            draft.status(TaskStatus::Canceled, now);
            related.lease = LeaseChange::Park { wake_in: None };
        }
    }

    /// Whether it was left behind by somebody above it who has ended: whoever ended that one could not read it.
    pub(super) fn left_behind(session: &TaskSession) -> bool {
        let above = session.tree.above(&session.own.row);
        let mut above = above.into_iter().filter_map(|task| session.tree.row(task));
        !session.own.is_over() && above.any(|row| row.status.is_terminal())
    }

    /// Stops what is at work below a task that ends, and wakes whoever waits for that end.
    pub(super) fn ends(session: &mut TaskSession) {
        let below = session.tree.below(session.task_id());
        Self::stop(session, below, CloseReason::Canceled);
        let parent = session.own.row.parent.map(|(parent, _)| parent);
        if let Some((related, _)) = parent.and_then(|parent| session.relative_mut(parent))
            && !related.draft.is_over()
            && related.draft.row.parked
        {
            related.lease = LeaseChange::Queue;
        }
    }

    /// A human ends the task, and what is below it.
    pub(super) fn canceled(session: &mut TaskSession) {
        session.withdraw_open(CloseReason::Canceled);
        Self::take_in(session);
        let now = session.now;
        session.own.close_calls(|_| true, Outcome::Canceled, NOT_RUN, now);
        session.own.status(TaskStatus::Canceled, now);
        Self::ends(session);
    }

    /// The task could not go on.
    pub(super) fn fail(session: &mut TaskSession, failure: Failure) {
        session.own.fail(failure, session.now);
        Self::ends(session);
    }
}

/// What became of those calls of a task that sub-agents were at, where they have ended.
pub(super) fn ended(tree: &TaskTree, progress: &Progress) -> Vec<(CallId, Outcome, String)> {
    let delegated = progress.unfinished().filter_map(|state| Some((state, state.child()?)));
    let ended = delegated.filter_map(|(state, child)| {
        let id = state.call.tool_call_id;
        if tree.begins(child) {
            return None;
        }
        let Some(row) = tree.row(child) else {
            let text = "Nothing is known of the sub-agent's task any more.".to_owned();
            return Some((id, Outcome::Failed, text));
        };
        if row.status.is_terminal() && !tree.is_readable(child) {
            let text = "What is stored of the sub-agent's task cannot be read.".to_owned();
            return Some((id, Outcome::Failed, text));
        }
        let canceled_for = tree.task(child).and_then(|progress| progress.canceled_for.as_deref());
        said_at_the_end(row, canceled_for).map(|(outcome, text)| (id, outcome, text))
    });
    ended.collect()
}

/// What the caller's model is told of a sub-agent's end.
fn said_at_the_end(row: &TaskRow, canceled_for: Option<&str>) -> Option<(Outcome, String)> {
    let agent = &row.agent;
    match row.status {
        TaskStatus::Running | TaskStatus::Paused => None,
        TaskStatus::Completed => {
            let text = row.output.clone().unwrap_or_default();
            let kept = cut(&text, KEPT);
            let rest = if kept.len() < text.len() { "\n[cut here: it was longer]" } else { "" };
            Some((Outcome::Succeeded, format!("{kept}{rest}")))
        }
        TaskStatus::Failed => {
            let why = row.error.as_ref().map(|error| match &error.limit {
                Some(limit) => format!("{}: {limit}", error.code.as_str()),
                None => format!("{}: {}", error.code.as_str(), error.detail),
            });
            let why = why.unwrap_or_else(|| "no reason is known".to_owned());
            let text = format!(
                "The sub-agent {agent} failed before it was done ({why}). What it had done before is not undone."
            );
            Some((Outcome::Failed, text))
        }
        TaskStatus::Canceled => {
            let why = canceled_for.map_or(String::new(), |why| format!(": {why}"));
            let text = format!("The sub-agent {agent} was canceled{why}. What it had done before is not undone.");
            Some((Outcome::Canceled, text))
        }
    }
}
