//! `POST /v1/tasks/{id}/messages`: appends the user's next message.

use std::sync::Arc;

use super::{Accepted, ConflictCode, IdempotencyKey, MAX_TRIES, MessageInput, Refusal};
use crate::engine::Engine;
use crate::engine::session::ending::sub_agent_results;
use crate::people::Caller;
use crate::people::authorization::Command;
use crate::task::call_state::{CallState, WITHDRAWN_TEXT};
use crate::task::id::TaskId;
use crate::task::item::{CloseReason, Fact, Outcome};
use crate::task::status::TaskStatus;

impl Engine {
    /// Appends the user's next message and drives the task. Withdraws open requests and cancels
    /// descendants that have not ended.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `NotARoot`, `KeyReused`; `Unavailable` when the database does not
    /// answer. `Conflict` if the task is running or is a gate call. Also `Conflict` if the task is
    /// paused and `supersede` is not set.
    pub async fn message(
        self: &Arc<Self>,
        caller: &Caller,
        task: TaskId,
        message: MessageInput,
        key: Option<IdempotencyKey>,
    ) -> Result<Accepted, Refusal> {
        for _ in 0..MAX_TRIES {
            let mut session = self.load_for(caller, task, Command::Message).await?;
            let row = &session.own.row;
            match row.status {
                TaskStatus::Running => {
                    return Err(Refusal::conflict(row, ConflictCode::TaskRunning));
                }
                TaskStatus::Paused if !message.supersede => {
                    return Err(Refusal::conflict(row, ConflictCode::TaskPaused));
                }
                TaskStatus::Paused
                | TaskStatus::Completed
                | TaskStatus::Failed
                | TaskStatus::Canceled => {}
            }
            // If the configuration no longer has the agent, or if its name is now that of a gate,
            // the task keeps its agent version, and the driver fails the task.
            let named = self.agents.get(&session.own.row.agent);
            if let Some(agent) = named.filter(|agent| agent.gate.is_none()) {
                session.own.pin(&agent.version);
            }
            let failed = session.own.row.status == TaskStatus::Failed;
            session.withdraw_open(CloseReason::Superseded);
            let now = session.now;
            session.own.push_status(TaskStatus::Running, now);
            session
                .own
                .settle_calls(sub_agent_results(&session.tree, &session.own.progress), now);
            // In a failed task, only the calls that were never started are withdrawn: a person
            // must still be asked about the outcomes of the started calls.
            let is_withdrawn = |state: &CallState| !failed || state.attempts == 0;
            session
                .own
                .close_calls(is_withdrawn, Outcome::Withdrawn, WITHDRAWN_TEXT, now);
            session.push(Fact::UserMessage {
                items: message.items.clone(),
                user_context: message.user_context.clone(),
                by: caller.user_id.to_string(),
                groups: caller.groups.clone(),
            });
            let descendants = session.tree.descendants(task);
            session.cancel_tasks(descendants, CloseReason::Superseded);
            let stored = self.submit_with_key(caller, session, key.as_ref(), None);
            if let Some(accepted) = stored.await? {
                return Ok(accepted);
            }
        }
        Err(Refusal::Unavailable)
    }
}
