//! `POST /v1/tasks/{id}/retry`: continues a failed task.

use std::sync::Arc;

use super::{Accepted, ConflictCode, IdempotencyKey, MAX_TRIES, Refusal};
use crate::engine::Engine;
use crate::people::Caller;
use crate::people::authorization::Command;
use crate::task::id::TaskId;
use crate::task::status::TaskStatus;

impl Engine {
    /// Continues a failed task.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `NotARoot`, `KeyReused`; `Conflict` if the task has not failed or
    /// is a gate call; `Unavailable` when the database does not answer.
    pub async fn retry(
        self: &Arc<Self>,
        caller: &Caller,
        task: TaskId,
        key: Option<IdempotencyKey>,
    ) -> Result<Accepted, Refusal> {
        for _ in 0..MAX_TRIES {
            let mut session = self.load_for(caller, task, Command::Retry).await?;
            let row = &session.own.row;
            if row.status != TaskStatus::Failed {
                return Err(Refusal::conflict(row, ConflictCode::TaskNotFailed));
            }
            session.own.push_status(TaskStatus::Running, session.now);
            let stored = self.submit_with_key(caller, session, key.as_ref(), None);
            if let Some(accepted) = stored.await? {
                return Ok(accepted);
            }
        }
        Err(Refusal::Unavailable)
    }
}
