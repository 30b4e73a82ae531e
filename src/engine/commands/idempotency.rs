//! Idempotency: a POST with the key of an earlier POST returns the result of the earlier POST, and
//! changes nothing.

use super::{Accepted, CommitPosition, Refusal};
use crate::engine::Engine;
use crate::engine::session::TaskSession;
use crate::people::Caller;
use crate::people::authorization::{Command, may_decide};
use crate::secret::seal::DigestedBody;
use crate::store::Store;
use crate::task::change::{IdempotencyRow, TaskRow};
use crate::task::id::RequestId;
use crate::task::status::TaskStatus;

/// The idempotency key of a POST, with the path and the body of that POST.
#[derive(Clone, Debug)]
pub struct IdempotencyKey {
    /// Method and path, e.g. `POST /v1/tasks`; `/v1/gate/calls` for a proposal at a gate.
    pub path: String,
    /// The value of the `Idempotency-Key` header, verbatim.
    pub key: String,
    /// The body. Its digest is stored, and compared when the key is used again.
    pub body: DigestedBody,
}

impl IdempotencyKey {
    /// Returns the row to store in the same commit as the command's effect. For a decision,
    /// `request_id` is the decided request.
    pub(in crate::engine) fn row(
        &self,
        caller: &Caller,
        session: &TaskSession,
        request_id: Option<RequestId>,
    ) -> IdempotencyRow {
        IdempotencyRow {
            tenant: caller.tenant.clone(),
            user_id: caller.user_id.to_string(),
            person: caller.user_id.folded(),
            path: self.path.clone(),
            key: self.key.clone(),
            body_digest: self.body.digest().to_owned(),
            task_id: session.task_id(),
            request_id,
        }
    }

    /// Returns the row of an earlier POST with this key; `None` if no earlier POST had this key.
    ///
    /// # Errors
    /// `KeyReused` if the earlier body differs; `Unavailable` when the database does not answer.
    pub(in crate::engine) async fn stored_row(
        &self,
        store: &Store,
        caller: &Caller,
    ) -> Result<Option<IdempotencyRow>, Refusal> {
        let found = store.idempotency(&caller.tenant, &caller.user_id, &self.path, &self.key);
        match found.await? {
            Some(row) if !self.body.matches_digest(&row.body_digest) => Err(Refusal::KeyReused),
            found => Ok(found),
        }
    }
}

impl Engine {
    /// Returns the result of an earlier POST with the same key; `None` if there is no key, or if no
    /// earlier POST had this key. The HTTP handlers call `earlier_result` before they check the
    /// rest of a POST. They call it once more after a refusal, because another POST with the same
    /// key may have committed meanwhile.
    ///
    /// # Errors
    /// `KeyReused` if the earlier body differs; `Forbidden` if the caller has since lost the right
    /// to this command; `NotFound` if the task is gone; `Unavailable` when the database does not
    /// answer.
    pub async fn earlier_result(
        &self,
        caller: &Caller,
        key: Option<&IdempotencyKey>,
    ) -> Result<Option<Accepted>, Refusal> {
        let Some(key) = key else { return Ok(None) };
        let Some(row) = key.stored_row(&self.store, caller).await? else {
            return Ok(None);
        };
        let task = self
            .store
            .task(row.task_id)
            .await?
            .ok_or(Refusal::NotFound)?;
        if !is_still_allowed(self, caller, &task, &row).await? {
            return Err(Refusal::Forbidden(
                "You no longer have the right to do this.".into(),
            ));
        }
        if task.status == TaskStatus::Canceled
            && let Some(session) = self.load(task.task_id).await?
        {
            // The earlier POST may be a cancel that still waits for its answer. The answer to a
            // cancel promises that no replica can still send a call of the canceled tasks. So this
            // POST also waits until no replica can send one.
            self.wait_until_unsendable(&session, &session.subtree(), session.now)
                .await;
        }
        let root = task.root_task_id;
        let task_id = if row.request_id.is_some() {
            root
        } else {
            task.task_id
        };
        let position = Some(CommitPosition::Key(Box::new(row)));
        Ok(Some(Accepted {
            is_gate_call: self.agents.is_gate(task.root_agent()),
            position,
            ..Accepted::without_events(task_id, root, true)
        }))
    }
}

async fn is_still_allowed(
    engine: &Engine,
    caller: &Caller,
    task: &TaskRow,
    key: &IdempotencyRow,
) -> Result<bool, Refusal> {
    let Some(request) = key.request_id else {
        let command = match key.path.rsplit('/').next() {
            Some("cancel") => Command::Cancel,
            Some("retry") => Command::Retry,
            // The earlier POST sent a message or created the task. Both need the same right.
            Some(_) | None => Command::Message,
        };
        return Ok(engine.may_command(caller, command, task).is_ok());
    };
    let Some(row) = engine.store.request(request).await? else {
        return Ok(false);
    };
    let approvers = &row.spec.terms.approvers;
    Ok(may_decide(caller, &row.tenant, &row.owner, approvers).is_some())
}
