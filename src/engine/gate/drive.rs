//! Drives gate calls in the background. The driver's first commit also stores a new call.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::Gates;
use crate::engine::commands::submit::wait_for_first_commit;
use crate::engine::session::TaskSession;
use crate::store::{CommitError, CommitListener};
use crate::task::change::Committed;

/// A driver that works on a gate call in the background, and whose first commit is durable.
pub(super) struct GateDrive {
    pub first_commit: Committed,
    /// A listener for the commits of this process, from the driver's first commit on.
    pub listener: CommitListener,
    /// Returns the session when the driver has ended. `None` if the driver lost the task or has
    /// left facts unstored, because its session may then differ from the journal.
    pub end: JoinHandle<Option<TaskSession>>,
}

impl Gates<'_> {
    /// Drives a gate call in the background. Returns as soon as the first commit is durable.
    /// Returns `None` if there was nothing to commit.
    ///
    /// # Errors
    /// The error of the first commit.
    pub(super) async fn drive_in_background(
        self,
        mut session: TaskSession,
    ) -> Result<Option<GateDrive>, CommitError> {
        let root = session.own.row.root_task_id;
        let listener = self.engine.store.listen_to_local_commits(root);
        let first_commit = session.expect_commit();
        let end = self
            .engine
            .drivers
            .spawn(Arc::clone(self.engine).drive(session));
        let first_commit = wait_for_first_commit(first_commit).await?;
        Ok(first_commit.map(|first_commit| GateDrive {
            first_commit,
            listener,
            end,
        }))
    }
}
