//! `POST /v1/tasks/{id}/cancel`: ends a task and its descendants. Invariant: after a cancel is
//! answered, no replica sends a call of these tasks.

use std::sync::Arc;

use super::{Accepted, ConflictCode, IdempotencyKey, MAX_TRIES, Refusal};
use crate::engine::Engine;
use crate::people::Caller;
use crate::people::authorization::Command;
use crate::store::CommitError;
use crate::task::change::LeaseChange;
use crate::task::id::TaskId;
use crate::task::status::TaskStatus;

impl Engine {
    /// Cancels a task and its descendants. The commit increments the tasks' versions, which fences
    /// off later starts of calls. Then `wait_until_unsendable` waits until no started call can
    /// still be sent.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `KeyReused`; `Conflict` if the task is completed or failed;
    /// `Unavailable` when the database does not answer.
    pub async fn cancel(
        self: &Arc<Self>,
        caller: &Caller,
        task: TaskId,
        key: Option<IdempotencyKey>,
    ) -> Result<Accepted, Refusal> {
        for _ in 0..MAX_TRIES {
            let mut session = self.load_for(caller, task, Command::Cancel).await?;
            let row = &session.own.row;
            let accepted = Accepted::without_events(task, row.root_task_id, false);
            match row.status {
                TaskStatus::Canceled if key.is_none() => {
                    self.wait_until_unsendable(&session, &session.subtree(), session.now)
                        .await;
                    return Ok(accepted);
                }
                TaskStatus::Completed | TaskStatus::Failed => {
                    return Err(Refusal::conflict(row, ConflictCode::TaskFinal));
                }
                TaskStatus::Running | TaskStatus::Paused => {
                    session.cancel();
                }
                // The task is canceled already. The commit stores the idempotency key, so that a
                // repetition of this POST cancels nothing, even after a message has reopened the
                // task.
                TaskStatus::Canceled => {}
            }
            session.idempotency = key.as_ref().map(|key| key.row(caller, &session, None));
            let stopped = session.subtree();
            match self.commit(&mut session, LeaseChange::PARK).await {
                Ok(done) => {
                    self.wait_until_unsendable(&session, &stopped, done.at)
                        .await;
                    return Ok(accepted);
                }
                Err(CommitError::Unavailable) => return Err(Refusal::Unavailable),
                Err(_) => {
                    if let Some(done) = self.earlier_result(caller, key.as_ref()).await? {
                        return Ok(done);
                    }
                }
            }
        }
        Err(Refusal::Unavailable)
    }
}
