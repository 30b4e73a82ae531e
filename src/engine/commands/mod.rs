//! What a user asks of a task: create, message, cancel, retry. Each appends facts in one commit; the loop does the rest.

use std::sync::Arc;

use super::children::ended;
use super::session::TaskSession;
use super::{Accepted, ConflictCode, Engine, FieldError, Key, NewMessage, NewTask, Refusal, Written};
use crate::people::Caller;
use crate::people::may::{Command, may_decide, may_command};
use crate::task::change::{Guard, IdempotencyRow, Journal, LeaseChange, TaskRow};
use crate::task::id::TaskId;
use crate::task::item::{CloseReason, Fact, Outcome, Usage};
use crate::task::call_state::{CallState, WITHDRAWN};
use crate::task::status::TaskStatus;
use crate::task::time::Time;

impl Engine {
    /// Creates a task and begins to drive it; returns once it is stored.
    ///
    /// # Errors
    /// `Invalid` for an agent that is unknown to this caller; `Unavailable` when the database does not answer.
    pub async fn create(
        self: &Arc<Self>,
        caller: &Caller,
        task: NewTask,
        key: Option<Key>,
    ) -> Result<Accepted, Refusal> {
        let name = task.agent.as_deref();
        let agent = self.agents.find(name, &caller.tenant, &caller.user_id, &caller.groups).ok_or_else(|| {
            Refusal::Invalid(vec![FieldError {
                pointer: "/agent".to_owned(),
                detail: "the name of an agent that is open to you".to_owned(),
            }])
        })?;
        let task_id = TaskId(self.ids.fresh());
        let new = crate::task::change::NewTask {
            tenant: caller.tenant.clone(),
            user_id: caller.user_id.to_string(),
            session_id: task.session_id.unwrap_or_else(|| self.ids.fresh().to_string()),
            agent: agent.name.clone(),
            agent_version: agent.version.clone(),
            parent: None,
            agent_path: vec![agent.name.clone()],
            metadata: task.metadata,
        };
        let (now, history_uncertain_until) = (self.clock.now(), self.store.history_uncertain_until());
        let mut session = TaskSession::read(Journal { row: unsaved_row(task_id, task_id, &new), items: Vec::new(), now, history_uncertain_until });
        session.own.guard = Some(Guard::New(Box::new(new)));
        session.own.status(TaskStatus::Running, session.now);
        session.push(Fact::UserMessage {
            items: task.items,
            user_context: task.user_context,
            by: caller.user_id.to_string(),
            groups: caller.groups.clone(),
        });
        session.idempotency = key.as_ref().map(|key| key.row(caller, &session, None));
        if let Some(accepted) = self.submit(session).await? {
            return Ok(accepted);
        }
        // Its row could not be inserted: somebody was there before with the same key.
        match &key {
            Some(key) => self.replay(caller, key).await?.ok_or(Refusal::Unavailable),
            None => Err(Refusal::Internal),
        }
    }

    /// Appends the user's next message.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `NotARoot`; `Conflict` while it runs, or is paused and `supersede` is not said.
    pub async fn message(
        self: &Arc<Self>,
        caller: &Caller,
        task: TaskId,
        message: NewMessage,
        key: Option<Key>,
    ) -> Result<Accepted, Refusal> {
        let said = self.message_once(caller, task, message, key.as_ref()).await;
        self.unless_replayed(caller, key.as_ref(), said).await
    }

    async fn message_once(
        self: &Arc<Self>,
        caller: &Caller,
        task: TaskId,
        message: NewMessage,
        key: Option<&Key>,
    ) -> Result<Accepted, Refusal> {
        for _ in 0..super::TRIES {
            let mut session = self.load_for(caller, task, Command::Message).await?;
            let conflict = |code| Refusal::Conflict { code, task_id: task, status: session.own.row.status };
            match session.own.row.status {
                TaskStatus::Running => return Err(conflict(ConflictCode::TaskRunning)),
                TaskStatus::Paused if !message.supersede => return Err(conflict(ConflictCode::TaskPaused)),
                TaskStatus::Paused | TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Canceled => {}
            }
            // One that is gone is reported by the loop.
            if let Some(agent) = self.agents.get(&session.own.row.agent) {
                session.own.pin(&agent.version);
            }
            let failed = session.own.row.status == TaskStatus::Failed;
            session.withdraw_open(CloseReason::Superseded);
            let now = session.now;
            session.own.status(TaskStatus::Running, now);
            session.own.refuse(ended(&session.tree, &session.own.progress), now);
            // What a failed task had started is asked about first.
            let passed_over = |state: &CallState| !failed || state.attempts == 0;
            session.own.close_calls(passed_over, Outcome::Withdrawn, WITHDRAWN, now);
            session.push(Fact::UserMessage {
                items: message.items.clone(),
                user_context: message.user_context.clone(),
                by: caller.user_id.to_string(),
                groups: caller.groups.clone(),
            });
            let below = session.tree.below(task);
            Self::stop(&mut session, below, CloseReason::Superseded);
            if let Some(accepted) = self.submit_with_key(caller, session, key).await? {
                return Ok(accepted);
            }
        }
        Err(Refusal::Unavailable)
    }

    /// Goes on with a failed task.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `NotARoot`; `Conflict` when it is not failed.
    pub async fn retry(self: &Arc<Self>, caller: &Caller, task: TaskId, key: Option<Key>) -> Result<Accepted, Refusal> {
        let said = self.retry_once(caller, task, key.as_ref()).await;
        self.unless_replayed(caller, key.as_ref(), said).await
    }

    async fn retry_once(
        self: &Arc<Self>,
        caller: &Caller,
        task: TaskId,
        key: Option<&Key>,
    ) -> Result<Accepted, Refusal> {
        for _ in 0..super::TRIES {
            let mut session = self.load_for(caller, task, Command::Retry).await?;
            if session.own.row.status != TaskStatus::Failed {
                let code = ConflictCode::TaskNotFailed;
                return Err(Refusal::Conflict { code, task_id: task, status: session.own.row.status });
            }
            session.own.status(TaskStatus::Running, session.now);
            if let Some(accepted) = self.submit_with_key(caller, session, key).await? {
                return Ok(accepted);
            }
        }
        Err(Refusal::Unavailable)
    }

    /// Cancels a task. Once this has returned, none of its calls starts: a start that was not committed before is
    /// fenced off by the version.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`; `Conflict` when it is completed or failed.
    pub async fn cancel(
        self: &Arc<Self>,
        caller: &Caller,
        task: TaskId,
        key: Option<Key>,
    ) -> Result<Accepted, Refusal> {
        for _ in 0..super::TRIES {
            let mut session = self.load_for(caller, task, Command::Cancel).await?;
            let accepted = Accepted::state(task, session.own.row.root_task_id, false);
            match session.own.row.status {
                TaskStatus::Canceled if key.is_none() => {
                    self.settle_cancellation(&session.subtree(), session.now).await;
                    return Ok(accepted);
                }
                TaskStatus::Completed | TaskStatus::Failed => {
                    let code = ConflictCode::TaskFinal;
                    return Err(Refusal::Conflict { code, task_id: task, status: session.own.row.status });
                }
                TaskStatus::Running | TaskStatus::Paused => {
                    Self::canceled(&mut session);
                }
                // Only the key is kept: repeated after the task was reopened, this cancel does nothing more.
                TaskStatus::Canceled => {}
            }
            session.idempotency = key.as_ref().map(|key| key.row(caller, &session, None));
            let stopped = session.subtree();
            match self.commit(&mut session, LeaseChange::Park { wake_in: None }).await {
                Ok(done) => {
                    self.settle_cancellation(&stopped, done.at).await;
                    return Ok(accepted);
                }
                Err(crate::store::CommitError::Unavailable) => return Err(Refusal::Unavailable),
                Err(_) => {
                    if let Some(done) = self.replay_of(caller, key.as_ref()).await? {
                        return Ok(done);
                    }
                }
            }
        }
        Err(Refusal::Unavailable)
    }

    /// What an earlier POST with the same key did: checked before anything else of the operation.
    ///
    /// # Errors
    /// `KeyReused` when its body was another; `Forbidden` when the caller has lost his right since.
    pub async fn replay(&self, caller: &Caller, key: &Key) -> Result<Option<Accepted>, Refusal> {
        let found = self.store.idempotency(&caller.tenant, &caller.user_id, &key.path, &key.key).await?;
        let Some(row) = found else { return Ok(None) };
        if !key.body.is_kept_as(&row.body_digest) {
            return Err(Refusal::KeyReused);
        }
        let task = self.store.task(row.task_id).await?.ok_or(Refusal::NotFound)?;
        if !self.still_may(caller, &task, &row).await? {
            return Err(Refusal::Forbidden("You may not do this any more.".to_owned()));
        }
        if task.status == TaskStatus::Canceled
            && let Some(session) = self.read(task.task_id).await?
        {
            // It may repeat a cancel that has not answered yet.
            self.settle_cancellation(&session.subtree(), session.now).await;
        }
        let root = task.root_task_id;
        let task_id = if row.request_id.is_some() { root } else { task.task_id };
        let written = Some(Written::Key(Box::new(row)));
        Ok(Some(Accepted { written, ..Accepted::state(task_id, root, true) }))
    }

    async fn still_may(&self, caller: &Caller, task: &TaskRow, key: &IdempotencyRow) -> Result<bool, Refusal> {
        let Some(request) = key.request_id else {
            let how = match key.path.rsplit('/').next() {
                Some("cancel") => Command::Cancel,
                Some("retry") => Command::Retry,
                // A new task is its first message.
                Some(_) | None => Command::Message,
            };
            return Ok(self.may_command(caller, how, task).is_ok());
        };
        let Some(row) = self.store.request(request).await? else { return Ok(false) };
        Ok(may_decide(caller, &row.tenant, &row.owner, &row.asked.terms.approvers))
    }

    /// What refused an operation may be itself: the same POST, stored since its key was looked for.
    pub(super) async fn unless_replayed(
        &self,
        caller: &Caller,
        key: Option<&Key>,
        said: Result<Accepted, Refusal>,
    ) -> Result<Accepted, Refusal> {
        match said {
            Err(refusal) if key.is_some() && refusal != Refusal::Unavailable => {
                self.replay_of(caller, key).await?.ok_or(refusal)
            }
            Ok(_) | Err(_) => said,
        }
    }

    /// [`Engine::replay`] where there is a key.
    pub(super) async fn replay_of(&self, caller: &Caller, key: Option<&Key>) -> Result<Option<Accepted>, Refusal> {
        match key {
            Some(key) => self.replay(caller, key).await,
            None => Ok(None),
        }
    }

    /// Whether `caller` moves a task so. Whom its agent is open to is asked of today's configuration; an agent that is not
    /// there any more is open to no caller.
    ///
    /// # Errors
    /// Why not, in words for the caller.
    pub fn may_command(&self, caller: &Caller, how: Command, task: &TaskRow) -> Result<(), &'static str> {
        let root = task.agent_path.first().and_then(|agent| self.agents.get(agent));
        let open = root.is_some_and(|agent| agent.is_open_to(&caller.tenant, &caller.user_id, &caller.groups));
        may_command(caller, how, &task.tenant, &task.user_id, open)
    }

    /// The task, if this caller may move it so.
    async fn load_for(&self, caller: &Caller, task: TaskId, how: Command) -> Result<TaskSession, Refusal> {
        let session = self.read(task).await?.ok_or(Refusal::NotFound)?;
        let row = &session.own.row;
        if row.tenant != caller.tenant {
            return Err(Refusal::NotFound);
        }
        self.may_command(caller, how, row).map_err(|why| Refusal::Forbidden(why.to_owned()))?;
        if row.parent.is_some() && how != Command::Cancel {
            return Err(Refusal::NotARoot { root: row.root_task_id, status: row.status });
        }
        Ok(session)
    }

    /// Enters with what was pushed; `None` when another commit came first.
    async fn submit_with_key(
        self: &Arc<Self>,
        caller: &Caller,
        mut session: TaskSession,
        key: Option<&Key>,
    ) -> Result<Option<Accepted>, Refusal> {
        session.idempotency = key.map(|key| key.row(caller, &session, None));
        if let Some(accepted) = self.submit(session).await? {
            return Ok(Some(accepted));
        }
        self.replay_of(caller, key).await
    }
}

/// The row of a task that is not stored yet.
pub(super) fn unsaved_row(task_id: TaskId, root_task_id: TaskId, new: &crate::task::change::NewTask) -> TaskRow {
    TaskRow {
        task_id,
        root_task_id,
        parent: new.parent,
        tenant: new.tenant.clone(),
        user_id: new.user_id.clone(),
        session_id: new.session_id.clone(),
        agent: new.agent.clone(),
        agent_version: new.agent_version.clone(),
        agent_path: new.agent_path.clone(),
        status: TaskStatus::Running,
        version: 0,
        last_seq: 0,
        metadata: new.metadata.clone(),
        busy: 0,
        open_requests: 0,
        usage: Usage::default(),
        model_calls: 0,
        output: None,
        error: None,
        lease_owner: None,
        lease_until: None,
        parked: false,
        takeovers: 0,
        fruitless: 0,
        next_event: 0,
        created_at: Time::default(),
        updated_at: Time::default(),
    }
}
