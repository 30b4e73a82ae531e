//! `POST /v1/tasks`: creates a task and begins to drive it.

use std::sync::Arc;

use super::{Accepted, IdempotencyKey, Refusal, TaskInput};
use crate::agent::Agent;
use crate::engine::Engine;
use crate::engine::session::TaskSession;
use crate::people::Caller;
use crate::task::change::{ClientColumns, Guard, Journal, NewTask, TaskRow};
use crate::task::id::TaskId;
use crate::task::item::Fact;
use crate::task::status::TaskStatus;

impl Engine {
    /// Creates a task and begins to drive it; returns once the task is stored.
    ///
    /// # Errors
    /// `Invalid` if no agent of this name is open to the caller; `KeyReused` if a POST with the
    /// same key and a different body came first; `Unavailable` when the database does not answer.
    pub async fn create(
        self: &Arc<Self>,
        caller: &Caller,
        task: TaskInput,
        key: Option<IdempotencyKey>,
    ) -> Result<Accepted, Refusal> {
        let name = task.agent.as_deref();
        let agent = self
            .agents
            .find(name, &caller.tenant, &caller.user_id, &caller.groups)
            .ok_or_else(|| {
                Refusal::invalid("/agent", "the name of an agent that is open to you")
            })?;
        let session_id = task.session_id;
        let session_id = session_id.unwrap_or_else(|| self.ids.fresh().to_string());
        let mut session = unsaved_root(self, caller, agent, session_id, task.client);
        session.push(Fact::UserMessage {
            items: task.items,
            user_context: task.user_context,
            by: caller.user_id.to_string(),
            groups: caller.groups.clone(),
        });
        let key = key.as_ref();
        let accepted = self.submit_with_key(caller, session, key, None).await?;
        // The database refused the insert, and the look-up found no POST with the same key. If
        // the client sent a key, the insert may have met the row of an earlier POST with this key,
        // and the row expired before the look-up. The client can then repeat the POST.
        accepted.ok_or_else(|| match key {
            Some(_) => Refusal::Unavailable,
            None => Refusal::internal("the database refused a new task"),
        })
    }
}

/// Returns a new task of the caller that is not stored yet, with its status as the only item.
pub(in crate::engine) fn unsaved_root(
    engine: &Engine,
    caller: &Caller,
    agent: &Agent,
    session_id: String,
    client: ClientColumns,
) -> TaskSession {
    let task_id = TaskId(engine.ids.fresh());
    let new = NewTask {
        tenant: caller.tenant.clone(),
        user_id: caller.user_id.to_string(),
        session_id,
        agent: agent.name.clone(),
        agent_version: agent.version.clone(),
        parent: None,
        agent_path: vec![agent.name.clone()],
        client,
    };
    let mut session = TaskSession::new(Journal {
        row: TaskRow::unsaved(task_id, task_id, &new),
        items: Vec::new(),
        now: engine.clock.now(),
        history_uncertain_until: engine.store.history_uncertain_until(),
    });
    session.own.guard = Some(Guard::New(Box::new(new)));
    session.own.push_status(TaskStatus::Running, session.now);
    session
}
