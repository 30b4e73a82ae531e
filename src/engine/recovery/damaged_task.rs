//! Ends a task whose journal cannot be read, from its row alone. What must stay true: none of its calls runs, it is not
//! claimed again and again, and it delays no other task; a pending result is still written.

use crate::engine::Engine;
use crate::engine::session::TaskSession;
use crate::store::{CommitError, ReadError};
use crate::task::change::LeaseChange;
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::TaskId;
use crate::task::item::{CloseReason, Fact, ToolResult};
use crate::task::status::RequestStatus;

impl Engine {
    /// Ends the tasks that this process has found to be unreadable since the last call.
    pub(in crate::engine) async fn end_damaged_tasks(&self) {
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

    /// Ends a task that has not ended, with its descendants, and writes late results of its calls. `false` where the
    /// journal can be read after all: then nothing is written.
    ///
    /// # Errors
    /// [`CommitError`] of the commit or of the reads before it.
    pub(in crate::engine) async fn end_from_row(
        &self,
        task: TaskId,
        late: Vec<ToolResult>,
    ) -> Result<bool, CommitError> {
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
        let mut session = TaskSession::from_row(row, damaged_task.open.len(), tree.now);
        session.tree.apply(tree);
        for result in late {
            session.push(Fact::LateResult(result));
        }
        if ends {
            for request_id in damaged_task.open {
                let (status, reason) = (RequestStatus::Withdrawn, CloseReason::Canceled);
                session.push(Fact::RequestClosed { request_id, status, reason });
            }
            let detail = "What is stored of this task cannot be read. Calls that were under way may have taken effect.";
            session.fail(Failure::new(FailureCode::Integrity, detail));
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
