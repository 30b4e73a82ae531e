//! Starts sub-agents. The commit that records the start of a sub-agent's call also creates or
//! reopens the sub-agent's task. Invariant: each call starts at most one task, even if the process
//! crashes at any point.

use serde_json::Value;

use super::{Driver, Stop};
use crate::agent::{Agent, SubAgent};
use crate::engine::session::task_draft::TaskDraft;
use crate::engine::session::tree::RelatedDraft;
use crate::task::call_state::CallState;
use crate::task::change::{Guard, LeaseChange, NewTask, TaskRow};
use crate::task::id::{CallId, TaskId};
use crate::task::item::{Fact, Outcome, Part, PartType};
use crate::task::progress::Progress;
use crate::task::status::TaskStatus;
use crate::task::time::Time;
use crate::task::verdict::Judgement;

/// Reopens the ended task of a conversation (`session: true`), and adds the next message.
fn continue_conversation(related: &mut RelatedDraft, agent: &Agent, message: Fact, now: Time) {
    (related.begins, related.lease) = (true, LeaseChange::Queue);
    related.draft.pin(&agent.version);
    let failed = related.draft.row.status == TaskStatus::Failed;
    related.draft.push_status(TaskStatus::Running, now);
    // Closes the open calls of the reopened task, except the started calls of a failed task. For
    // these calls, a reconcile request asks a person about the outcomes.
    let text = "The conversation went on; this call was not run.";
    related.draft.close_calls(
        |call| !failed || call.attempts == 0,
        Outcome::Withdrawn,
        text,
        now,
    );
    related.draft.push(message, now);
}

impl Driver<'_> {
    /// If the calls may still start, gives each of them a sub-agent's task: a new task, or the
    /// reopened task of the conversation that the call continues. A call that exceeds a limit, or
    /// whose agent is gone from the configuration, gets no task and is judged invalid. The function
    /// ends at such a call. The driver then asks `next_step` again, and so journals the call's
    /// result before it starts the remaining calls.
    pub(crate) async fn start_sub_agents(&mut self, calls: &[CallId]) -> Result<(), Stop> {
        self.save_openings().await?;
        if !self.may_start(calls).await? {
            return Ok(());
        }
        for state in self.states_of(calls) {
            let name = &state.call.name;
            // `sub_agent_limit` also counts the sub-agents that this loop has just started.
            let limit = self.sub_agent_limit(&state);
            let (Some(sub), Some(known), None) = (
                self.agent.sub_agent(name),
                self.engine.agents.get(name),
                &limit,
            ) else {
                let reason = limit.unwrap_or_else(|| {
                    format!("the agent {name:?} is gone from the configuration")
                });
                let id = state.call.tool_call_id;
                self.save_openings().await?;
                self.session.push_judgement(id, Judgement::invalid(reason));
                return Ok(());
            };
            self.start_sub_agent(&state, sub, known);
        }
        Ok(())
    }

    fn start_sub_agent(&mut self, state: &CallState, sub: &SubAgent, agent: &Agent) {
        let arguments: Value = serde_json::from_str(state.arguments_text()).unwrap_or_default();
        let content = arguments
            .get("task")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let message = Fact::UserMessage {
            items: vec![Part {
                content_type: PartType::Text,
                content,
            }],
            user_context: None,
            by: self.session.own.row.user_id.clone(),
            groups: self.session.own.progress.groups.clone(),
        };
        let (now, tool_call_id) = (self.session.now, state.call.tool_call_id);
        let earlier = self.conversation_with(sub);
        let child = earlier.unwrap_or_else(|| TaskId(self.engine.ids.fresh()));
        self.session.push(Fact::SubAgentStarted {
            tool_call_id,
            child_task_id: child,
            agent: agent.name.clone(),
        });
        if let Some(related) = earlier.and_then(|task| self.session.tree.relative_mut(task)) {
            continue_conversation(related, agent, message, now);
            return;
        }
        let own = &self.session.own.row;
        let new = NewTask {
            tenant: own.tenant.clone(),
            user_id: own.user_id.clone(),
            session_id: own.session_id.clone(),
            agent: agent.name.clone(),
            agent_version: agent.version.clone(),
            parent: Some((own.task_id, tool_call_id)),
            agent_path: own
                .agent_path
                .iter()
                .chain([&agent.name])
                .cloned()
                .collect(),
            client: own.client.clone(),
        };
        let progress = Progress {
            is_sub_agent: true,
            ..Progress::default()
        };
        let mut draft = TaskDraft::new(
            TaskRow::unsaved(child, own.root_task_id, &new),
            progress,
            Vec::new(),
        );
        draft.guard = Some(Guard::New(Box::new(new)));
        draft.push_status(TaskStatus::Running, now);
        draft.push(message, now);
        self.session.tree.add(draft);
    }

    /// Returns the task that the next call of `sub` continues: the newest ended task that the
    /// driven task has started for this sub-agent. `None` if there is no such task, or if the
    /// sub-agent has no `session: true`.
    fn conversation_with(&self, sub: &SubAgent) -> Option<TaskId> {
        let own = self.session.task_id();
        let is_of_sub_agent = |row: &&TaskRow| {
            row.agent == sub.agent && row.parent.is_some_and(|(parent, _)| parent == own)
        };
        let has_ended =
            |row: &&TaskRow| row.status.is_terminal() && self.session.tree.is_readable(row.task_id);
        let earlier = self
            .session
            .tree
            .rows()
            .filter(is_of_sub_agent)
            .filter(has_ended);
        earlier.map(|row| row.task_id).max().filter(|_| sub.session)
    }
}
