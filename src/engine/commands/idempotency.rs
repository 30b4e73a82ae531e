//! Idempotency: a POST that repeats an earlier POST with the same key gets the earlier answer and
//! changes nothing.

use super::{Accepted, Refusal, Written};
use crate::engine::Engine;
use crate::engine::session::TaskSession;
use crate::people::Caller;
use crate::people::may::{Command, may_decide};
use crate::secret::seal::Body;
use crate::task::change::{IdempotencyRow, TaskRow};
use crate::task::id::RequestId;
use crate::task::status::TaskStatus;

/// The idempotency key of a POST, with the path and the body that the key stands for.
#[derive(Clone, Debug)]
pub struct Key {
    /// Method and path, e.g. `POST /v1/tasks`.
    pub path: String,
    /// The value of the `Idempotency-Key` header, verbatim.
    pub key: String,
    /// The body. Its digest is stored, and compared when the key is used again.
    pub body: Body,
}

impl Key {
    /// The row to store in the same commit as the command's effect. `request_id` is the decided
    /// request if the command is a decision.
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
            body_digest: self.body.kept().to_owned(),
            task_id: session.task_id(),
            request_id,
        }
    }
}

impl Engine {
    /// Returns the result of an earlier POST with the same key; `None` if there is none. A command
    /// calls this before its other checks.
    ///
    /// # Errors
    /// `KeyReused` when the earlier body differs; `Forbidden` when the caller has since lost the
    /// right to this command.
    pub async fn replay(&self, caller: &Caller, key: &Key) -> Result<Option<Accepted>, Refusal> {
        let found = self
            .store
            .idempotency(&caller.tenant, &caller.user_id, &key.path, &key.key)
            .await?;
        let Some(row) = found else { return Ok(None) };
        if !key.body.is_kept_as(&row.body_digest) {
            return Err(Refusal::KeyReused);
        }
        let task = self
            .store
            .task(row.task_id)
            .await?
            .ok_or(Refusal::NotFound)?;
        if !self.still_may(caller, &task, &row).await? {
            return Err(Refusal::Forbidden(
                "You no longer have the right to do this.".to_owned(),
            ));
        }
        if task.status == TaskStatus::Canceled
            && let Some(session) = self.load(task.task_id).await?
        {
            // The earlier POST may be a cancel that still waits. This POST waits as well, because a
            // cancel is answered only once no call can be sent.
            self.wait_until_unsendable(&session.subtree(), session.now)
                .await;
        }
        let root = task.root_task_id;
        let task_id = if row.request_id.is_some() {
            root
        } else {
            task.task_id
        };
        let written = Some(Written::Key(Box::new(row)));
        Ok(Some(Accepted {
            written,
            ..Accepted::state(task_id, root, true)
        }))
    }

    async fn still_may(
        &self,
        caller: &Caller,
        task: &TaskRow,
        key: &IdempotencyRow,
    ) -> Result<bool, Refusal> {
        let Some(request) = key.request_id else {
            let how = match key.path.rsplit('/').next() {
                Some("cancel") => Command::Cancel,
                Some("retry") => Command::Retry,
                // Creating a task needs the same right as sending a message to it.
                Some(_) | None => Command::Message,
            };
            return Ok(self.may_command(caller, how, task).is_ok());
        };
        let Some(row) = self.store.request(request).await? else {
            return Ok(false);
        };
        Ok(may_decide(
            caller,
            &row.tenant,
            &row.owner,
            &row.asked.terms.approvers,
        ))
    }

    /// If the command was refused (`said`), looks the key up again and replays the earlier POST: it
    /// may have been stored since the first look-up. Leaves `Unavailable` as it is.
    pub(in crate::engine) async fn unless_replayed(
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

    /// [`Engine::replay`] if there is a key, else `None`.
    pub(in crate::engine) async fn replay_of(
        &self,
        caller: &Caller,
        key: Option<&Key>,
    ) -> Result<Option<Accepted>, Refusal> {
        match key {
            Some(key) => self.replay(caller, key).await,
            None => Ok(None),
        }
    }
}
