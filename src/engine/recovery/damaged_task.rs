//! A task whose journal cannot be read ends from its row alone. What must stay true: nothing of it runs, nobody takes it
//! over again and again, and it keeps no other task waiting; a result in hand is still written.

use super::Engine;
use super::session::TaskSession;
use crate::store::{CommitError, ReadError};
use crate::task::change::LeaseChange;
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::TaskId;
use crate::task::item::{CloseReason, Fact, ToolResult};
use crate::task::status::RequestStatus;

impl Engine {
    /// Ends what anybody in this process has found to be unreadable since the last time.
    pub(super) async fn end_unreadable(&self) {
        for task in self.store.unreadable() {
            match self.end_from_row(task, Vec::new()).await {
                Ok(_) => {}
                Err(CommitError::Refused) => tracing::error!(%task, "an unreadable task cannot be ended"),
                Err(CommitError::Stale | CommitError::Unavailable | CommitError::Unknown) => {
                    self.store.report_unreadable(task);
                }
            }
        }
    }

    /// Ends one, unless it is over, with whatever is at work below it, and writes what came of its calls. `false` when it
    /// can be read after all: then nothing is written.
    ///
    /// # Errors
    /// [`CommitError`]: what became of it.
    pub(super) async fn end_from_row(&self, task: TaskId, late: Vec<ToolResult>) -> Result<bool, CommitError> {
        let unread = |error| match error {
            ReadError::Unavailable => CommitError::Unavailable,
            ReadError::Corrupt(_) => CommitError::Refused,
        };
        let Some(damaged_task) = self.store.damaged_task(task).await.map_err(unread)? else { return Ok(false) };
        let tree = self.store.tree(damaged_task.root_task_id, 0).await.map_err(unread)?;
        let Some(tree) = tree else { return Err(CommitError::Refused) };
        let Some(row) = tree.rows.iter().find(|row| row.task_id == task).cloned() else {
            return Err(CommitError::Refused);
        };
        if row.version != damaged_task.version {
            return Err(CommitError::Stale);
        }
        let ends = !row.status.is_terminal() && (!damaged_task.newer || row.takeovers >= self.settings.takeovers);
        let mut session = TaskSession::unread(row, damaged_task.open.len(), tree.now);
        session.tree.read(tree);
        for result in late {
            session.push(Fact::LateResult(result));
        }
        if ends {
            for request_id in damaged_task.open {
                let (status, reason) = (RequestStatus::Withdrawn, CloseReason::Canceled);
                session.push(Fact::RequestClosed { request_id, status, reason });
            }
            let detail = "What is stored of this task cannot be read. Calls that were under way may have taken effect.";
            Self::fail(&mut session, Failure::new(FailureCode::Integrity, detail));
        }
        if !session.unsaved() {
            return Ok(true);
        }
        let lease = if ends { LeaseChange::Park { wake_in: None } } else { LeaseChange::Keep };
        self.commit(&mut session, lease).await?;
        tracing::error!(%task, ended = ends, "what is stored of a task cannot be read");
        Ok(true)
    }
}
