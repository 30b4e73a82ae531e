//! Submits the pending facts of a command: commits the facts, answers the command, and continues as
//! the task's driver.

use std::sync::Arc;

use super::{Accepted, CommitPosition, IdempotencyKey, Refusal};
use crate::engine::Engine;
use crate::engine::session::{FirstCommit, TaskSession};
use crate::failpoint;
use crate::people::Caller;
use crate::store::CommitError;
use crate::task::change::Committed;
use crate::task::id::RequestId;

impl Engine {
    /// Commits a command's facts and drives the task in the background. Returns once the first
    /// commit is durable. Returns `None` if another commit came first or the database refused the
    /// change; the command must then load the task again.
    pub(in crate::engine) async fn submit(
        self: &Arc<Self>,
        mut session: TaskSession,
    ) -> Result<Option<Accepted>, Refusal> {
        let (task_id, root) = (session.task_id(), session.own.row.root_task_id);
        let listener = Some(self.store.listen_locally(root));
        let position = Some(CommitPosition::Item(task_id, session.own.row.last_seq + 1));
        let is_gate_call = self.agents.is_gate(session.own.row.root_agent());
        let first_commit = session.expect_commit();
        self.drivers.spawn(Arc::clone(self).drive(session));
        let Some(first_commit) = unless_conflict(wait_for_first_commit(first_commit).await)? else {
            return Ok(None);
        };
        first_commit.ok_or_else(|| Refusal::internal("a driver made no first commit"))?;
        Ok(Some(Accepted {
            task_id,
            root,
            replayed: false,
            is_gate_call,
            listener,
            position,
        }))
    }

    /// Like [`Engine::submit`], but the commit also stores the idempotency key. For a decision,
    /// `request` is the decided request. If nothing was committed because a POST with the same key
    /// came first, returns the result of that POST.
    pub(super) async fn submit_with_key(
        self: &Arc<Self>,
        caller: &Caller,
        mut session: TaskSession,
        key: Option<&IdempotencyKey>,
        request: Option<RequestId>,
    ) -> Result<Option<Accepted>, Refusal> {
        session.idempotency = key.map(|key| key.row(caller, &session, request));
        if let Some(accepted) = self.submit(session).await? {
            return Ok(Some(accepted));
        }
        self.earlier_result(caller, key).await
    }
}

/// Waits for the session's first commit. Returns `None` if there was nothing to commit.
pub(in crate::engine) async fn wait_for_first_commit(
    first_commit: FirstCommit,
) -> Result<Option<Committed>, CommitError> {
    let Ok(committed) = first_commit.await else {
        return Ok(None);
    };
    let committed = committed?;
    failpoint::reach("submit.committed");
    Ok(Some(committed))
}

/// Returns the result of a commit; `None` if another commit came first or the database refused the
/// change.
///
/// # Errors
/// `Unavailable` when the database does not answer, or if it is not known whether the change was
/// written.
pub(in crate::engine) fn unless_conflict<T>(
    committed: Result<T, CommitError>,
) -> Result<Option<T>, Refusal> {
    match committed {
        Ok(committed) => Ok(Some(committed)),
        Err(CommitError::Stale | CommitError::Refused) => Ok(None),
        Err(CommitError::Unavailable | CommitError::Unknown) => Err(Refusal::Unavailable),
    }
}
