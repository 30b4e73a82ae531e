//! Submits a change: commits it, answers the command, and continues as a driver.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Accepted, Key, Refusal, Written};
use crate::engine::Engine;
use crate::engine::session::TaskSession;
use crate::failpoint;
use crate::people::Caller;
use crate::store::CommitError;

impl Engine {
    /// Commits a command's facts and continues as a driver. Returns once that first commit is
    /// durable. `None` when another commit came first: the command then loads the task again.
    pub(in crate::engine) async fn submit(
        self: &Arc<Self>,
        mut session: TaskSession,
    ) -> Result<Option<Accepted>, Refusal> {
        let (task_id, root) = (session.task_id(), session.own.row.root_task_id);
        let news = Some(self.store.attend(root));
        let written_from = Some(Written::Item(task_id, session.own.row.last_seq + 1));
        let (reply, written) = oneshot::channel();
        session.reply = Some(reply);
        self.drivers.spawn(Arc::clone(self).drive(session));
        match written.await {
            Ok(Ok(_)) => {
                failpoint::reach("submit.committed");
                Ok(Some(Accepted {
                    task_id,
                    root,
                    replayed: false,
                    news,
                    written: written_from,
                }))
            }
            Ok(Err(CommitError::Stale | CommitError::Refused)) => Ok(None),
            Ok(Err(CommitError::Unavailable | CommitError::Unknown)) => Err(Refusal::Unavailable),
            Err(_) => Err(Refusal::Internal),
        }
    }

    /// Like [`Engine::submit`]; the commit also stores the idempotency key. When another commit
    /// came first, returns the result of an earlier POST with the same key, if any.
    pub(super) async fn submit_with_key(
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
