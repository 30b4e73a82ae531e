//! A task whose journal cannot be read ends from its row alone. What must stay true: nothing of it runs, nobody takes it
//! over again and again, and it keeps no other task waiting; a result in hand is still written.

use super::Engine;
use crate::store::{CommitError, ReadError, Remains};
use crate::task::change::{Change, Counters, Guard, LeaseChange, TaskChange};
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::{ChangeId, TaskId};
use crate::task::item::{CloseReason, Fact, ToolResult};
use crate::task::status::{RequestStatus, TaskStatus};

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

    /// Ends one, unless it is over, and writes what came of its calls. `false` when it can be read after all: then nothing
    /// is written.
    ///
    /// # Errors
    /// [`CommitError`]: what became of it.
    pub(super) async fn end_from_row(&self, task: TaskId, late: Vec<ToolResult>) -> Result<bool, CommitError> {
        let row = match self.store.remains(task).await {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(false),
            Err(ReadError::Unavailable) => return Err(CommitError::Unavailable),
            Err(ReadError::Corrupt(_)) => return Err(CommitError::Refused),
        };
        let ends = !row.status.is_terminal() && (!row.newer || row.takeovers >= self.settings.takeovers);
        let mut facts: Vec<_> = late.into_iter().map(Fact::LateResult).collect();
        if ends {
            facts.extend(ending(&row));
        }
        if facts.is_empty() {
            return Ok(true);
        }
        let counters = if ends {
            Counters { busy: -row.busy, open_requests: -row.open_requests, ..Counters::default() }
        } else {
            Counters::default()
        };
        let lease = if ends { LeaseChange::Park { wake_in: None } } else { LeaseChange::Keep };
        let change = TaskChange {
            task_id: task,
            guard: Guard::Version(row.version),
            facts,
            last_seq: row.last_seq,
            agent_version: None,
            counters,
            lease,
            credentials: Vec::new(),
        };
        let id = ChangeId(self.ids.fresh());
        let change = Change { id, root: row.root_task_id, tasks: vec![change], resumed: Vec::new(), idempotency: None };
        self.store.commit(change).await?;
        tracing::error!(%task, ended = ends, "what is stored of a task cannot be read");
        Ok(true)
    }
}

fn ending(row: &Remains) -> impl Iterator<Item = Fact> + use<'_> {
    let closed = row.open.iter().map(|request_id| Fact::RequestClosed {
        request_id: *request_id,
        status: RequestStatus::Withdrawn,
        reason: CloseReason::Canceled,
    });
    let detail = "What is stored of this task cannot be read. Calls that were under way may have taken effect.";
    let error = Some(Failure::new(FailureCode::Integrity, detail));
    closed.chain([Fact::TaskStatus { status: TaskStatus::Failed, error, output: None }])
}
