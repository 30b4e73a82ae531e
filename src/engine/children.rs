//! Sub-agents: a call of one is a task of its own. It starts with the commit that says so, its end is its caller's result,
//! and whoever is stopped stops those below him in the same commit.
//! What must stay true: one start for each call, whatever crashes; a caller that waits is woken by the commit with which
//! the last one it waits for ends.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Engine;
use super::drive::Stop;
use super::family::Family;
use super::live::Live;
use super::member::Member;
use super::moves::unborn;
use crate::agent::{Agent, SubAgent};
use crate::task::change::{Guard, LeaseChange, NewTask, TaskRow};
use crate::task::failure::Failure;
use crate::task::id::{CallId, TaskId};
use crate::task::item::{CloseReason, Fact, Outcome, Part, PartType};
use crate::task::standing::Standing;
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
    pub(super) async fn start(&self, live: &mut Live, agent: &Agent, calls: &[CallId]) -> Result<(), Stop> {
        if !self.may_begin(live, agent, calls).await? {
            return Ok(());
        }
        for id in calls {
            let Some(standing) = live.own.progress.call(*id).cloned() else { continue };
            let name = &standing.call.name;
            // Those before it in the same commit count, too.
            let beyond = self.beyond(live, agent, &standing);
            let (Some(sub), Some(known), None) = (agent.sub_agent(name), self.agents.get(name), &beyond) else {
                let reason = beyond.unwrap_or_else(|| format!("the agent {name:?} is gone from the configuration"));
                let (effect, performer, judgement) = (standing.effect, standing.performer, Judgement::invalid(reason));
                live.push(Fact::Judged { tool_call_id: *id, judgement, effect, performer });
                continue;
            };
            self.begin(live, &standing, sub, known);
        }
        Ok(())
    }

    fn begin(&self, live: &mut Live, standing: &Standing, sub: &SubAgent, agent: &Agent) {
        let arguments: Value = serde_json::from_str(standing.arguments_text()).unwrap_or_default();
        let content = arguments.get("task").and_then(Value::as_str).unwrap_or_default().to_owned();
        let message = Fact::UserMessage {
            items: vec![Part { content_type: PartType::Text, content }],
            user_context: None,
            by: live.own.row.user_id.clone(),
            groups: live.own.progress.groups.clone(),
        };
        let (now, tool_call_id) = (live.now, standing.call.tool_call_id);
        let earlier = Self::conversation_with(live, sub);
        let child = earlier.unwrap_or_else(|| TaskId(self.ids.fresh()));
        live.push(Fact::SubAgentStarted { tool_call_id, child_task_id: child, agent: agent.name.clone() });
        if let Some((touched, _)) = earlier.and_then(|task| live.touch(task)) {
            (touched.begins, touched.lease) = (true, LeaseChange::Queue);
            touched.member.pin(&agent.version);
            let failed = touched.member.row.status == TaskStatus::Failed;
            touched.member.status(TaskStatus::Running, now);
            // What a failed one had started is asked about first.
            let text = "The conversation went on; this call was not run.";
            touched.member.close_calls(|call| !failed || call.attempts == 0, Outcome::Withdrawn, text, now);
            touched.member.push(message, now);
            return;
        }
        let own = &live.own.row;
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
        let mut member = Member::new(unborn(child, own.root_task_id, &new), progress, Vec::new());
        member.guard = Some(Guard::New(Box::new(new)));
        member.status(TaskStatus::Running, now);
        member.push(message, now);
        live.family.add(member);
    }

    /// The task that keeps the conversation with a sub-agent, where it is kept and there is one that can be read.
    fn conversation_with(live: &Live, sub: &SubAgent) -> Option<TaskId> {
        let own = live.task_id();
        let ours = |row: &&TaskRow| row.agent == sub.agent && row.parent.is_some_and(|(parent, _)| parent == own);
        let over = |row: &&TaskRow| row.status.is_terminal() && live.family.is_readable(row.task_id);
        let known = live.family.rows().filter(ours).filter(over);
        known.map(|row| row.task_id).max().filter(|_| sub.session)
    }

    /// Why one more sub-agent may not be started, if it may not: by the limits of the task and of all those above it.
    pub(super) fn beyond(&self, live: &Live, agent: &Agent, standing: &Standing) -> Option<String> {
        let name = &standing.call.name;
        agent.sub_agent(name)?;
        let earlier =
            live.own.progress.calls.iter().take_while(|call| call.call.tool_call_id != standing.call.tool_call_id);
        let starts = |call: &&Standing| {
            let judged = call.judgement.as_ref().map(|judgement| judgement.verdict);
            call.turn == standing.turn
                && call.performer == ToolKind::Agent
                && matches!(judged, Some(Verdict::Allow | Verdict::Hold))
        };
        let most = agent.limits.max_children;
        if earlier.filter(starts).count() >= usize::try_from(most).unwrap_or(usize::MAX) {
            return Some(format!("the limit max_children is reached: a turn may start {most} sub-agents"));
        }
        let depth = live.own.row.agent_path.len() + 1;
        for (row, limits) in self.levels(live, agent) {
            let levels = depth.saturating_sub(row.agent_path.len());
            if levels > usize::try_from(limits.max_depth).unwrap_or(usize::MAX) {
                let most = limits.max_depth;
                return Some(format!(
                    "the limit max_depth is reached: {most} levels of sub-agents below {}",
                    row.agent
                ));
            }
            let started = Self::over_subtree(live, row.task_id, |progress| progress.starts_since_message);
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
    pub(super) fn take_in(live: &mut Live) {
        if !live.own.is_over() {
            let (now, ended) = (live.now, ended(&live.family, &live.own.progress));
            live.own.refuse(ended, now);
        }
    }

    /// Stops these tasks, where they are at work: nothing of them starts any more.
    pub(super) fn stop(live: &mut Live, tasks: Vec<TaskId>, reason: CloseReason) {
        let mut stopped: BTreeSet<TaskId> = tasks.into_iter().collect();
        stopped.remove(&live.task_id());
        for task in stopped {
            if !live.family.is_readable(task) {
                live.family.unsettle(task);
                continue;
            }
            let results = live.family.task(task).map(|progress| ended(&live.family, progress)).unwrap_or_default();
            let Some((touched, now)) = live.touch(task) else { continue };
            if touched.member.is_over() {
                continue;
            }
            let member = &mut touched.member;
            member.withdraw_open(reason, now);
            member.refuse(results, now);
            member.close_calls(|_| true, Outcome::Canceled, NOT_RUN, now);
            member.status(TaskStatus::Canceled, now);
            touched.lease = LeaseChange::Park { wake_in: None };
        }
    }

    /// Whether it was left behind by somebody above it who has ended: whoever ended that one could not read it.
    pub(super) fn left_behind(live: &Live) -> bool {
        let above = live.family.above(&live.own.row);
        let mut above = above.into_iter().filter_map(|task| live.family.row(task));
        !live.own.is_over() && above.any(|row| row.status.is_terminal())
    }

    /// Stops what is at work below a task that ends, and wakes whoever waits for that end.
    pub(super) fn ends(live: &mut Live) {
        let below = live.family.below(live.task_id());
        Self::stop(live, below, CloseReason::Canceled);
        let parent = live.own.row.parent.map(|(parent, _)| parent);
        if let Some((touched, _)) = parent.and_then(|parent| live.touch(parent))
            && !touched.member.is_over()
            && touched.member.row.parked
        {
            touched.lease = LeaseChange::Queue;
        }
    }

    /// A human ends the task, and what is below it.
    pub(super) fn canceled(live: &mut Live) {
        live.withdraw_open(CloseReason::Canceled);
        Self::take_in(live);
        let now = live.now;
        live.own.close_calls(|_| true, Outcome::Canceled, NOT_RUN, now);
        live.own.status(TaskStatus::Canceled, now);
        Self::ends(live);
    }

    /// The task could not go on.
    pub(super) fn fail(live: &mut Live, failure: Failure) {
        live.own.fail(failure, live.now);
        Self::ends(live);
    }
}

/// What became of those calls of a task that sub-agents were at, where they have ended.
pub(super) fn ended(family: &Family, progress: &Progress) -> Vec<(CallId, Outcome, String)> {
    let delegated = progress.unfinished().filter_map(|standing| Some((standing, standing.child()?)));
    let ended = delegated.filter_map(|(standing, child)| {
        let id = standing.call.tool_call_id;
        if family.begins(child) {
            return None;
        }
        let Some(row) = family.row(child) else {
            let text = "Nothing is known of the sub-agent's task any more.".to_owned();
            return Some((id, Outcome::Failed, text));
        };
        if row.status.is_terminal() && !family.is_readable(child) {
            let text = "What is stored of the sub-agent's task cannot be read.".to_owned();
            return Some((id, Outcome::Failed, text));
        }
        let canceled_for = family.task(child).and_then(|progress| progress.canceled_for.as_deref());
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
