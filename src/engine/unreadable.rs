//! A task whose journal cannot be read, or whose reading ends its process, ends from its row alone. What must stay true:
//! nothing of it runs, nobody takes it over again and again, and it keeps no other task waiting; a result in hand is
//! still written.

use std::sync::Arc;

use super::Engine;
use super::lease::Lease;
use super::live::Live;
use crate::store::{BESIDE, CommitError, ReadError, Remains, Tree};
use crate::task::change::{LeaseChange, TaskRow};
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
        let Some(remains) = self.store.remains(task).await.map_err(|error| unread(&error))? else { return Ok(false) };
        let tree = self.store.tree(remains.root_task_id, 0).await.map_err(|error| unread(&error))?;
        let mut live = live_from_row(task, &remains, tree)?;
        let row = &live.own.row;
        let ends = !row.status.is_terminal() && (!remains.newer || row.takeovers >= self.settings.takeovers);
        for result in late {
            live.push(Fact::LateResult(result));
        }
        if ends {
            let detail = "What is stored of this task cannot be read. Calls that were under way may have taken effect.";
            fail_from_row(&mut live, &remains, Failure::new(FailureCode::Integrity, detail));
        }
        if !live.unsaved() {
            return Ok(true);
        }
        let lease = if ends { LeaseChange::Park { wake_in: None } } else { LeaseChange::Keep };
        self.commit(&mut live, lease).await?;
        tracing::error!(%task, ended = ends, "what is stored of a task cannot be read");
        Ok(true)
    }

    /// Whether as many processes as may be have died of a task, or with it, that they drove alone.
    pub(super) fn is_in_vain(&self, fruitless: i32) -> bool {
        fruitless >= BESIDE + self.settings.takeovers
    }

    /// Whether one more process has died, which had only to read the task and to end it.
    pub(super) fn dies_of_reading(&self, fruitless: i32) -> bool {
        fruitless > BESIDE + self.settings.takeovers
    }

    /// Ends a task of whose reading processes die. No item of its tree is read.
    pub(super) async fn end_unread(self: Arc<Self>, task: TaskId, lease: Lease) {
        while let Err(error) = self.try_to_end_unread(task).await {
            if error == CommitError::Refused {
                tracing::error!(%task, "a task of whose reading processes die cannot be ended");
                break;
            }
            if self.pause().await.is_err() {
                break;
            }
        }
        drop(lease);
    }

    async fn try_to_end_unread(&self, task: TaskId) -> Result<(), CommitError> {
        let Some(remains) = self.store.unread(task).await.map_err(|error| unread(&error))? else { return Ok(()) };
        let tree = self.store.unread_tree(remains.root_task_id).await.map_err(|error| unread(&error))?;
        let mut live = live_from_row(task, &remains, tree)?;
        let TaskRow { status, fruitless, .. } = live.own.row;
        if status.is_terminal() || !self.dies_of_reading(fruitless) {
            return Ok(());
        }
        fail_from_row(&mut live, &remains, no_progress());
        self.commit(&mut live, LeaseChange::Park { wake_in: None }).await?;
        tracing::error!(%task, fruitless, "processes died while they read a task; it has ended unread");
        Ok(())
    }
}

/// The task was driven in vain.
pub(super) fn no_progress() -> Failure {
    let detail = "The task was taken over again and again without getting any further.";
    Failure::new(FailureCode::NoProgress, detail)
}

fn unread(error: &ReadError) -> CommitError {
    match error {
        ReadError::Unavailable => CommitError::Unavailable,
        ReadError::Corrupt(_) => CommitError::Refused,
    }
}

/// The task as its row has it, in its tree.
fn live_from_row(task: TaskId, remains: &Remains, tree: Option<Tree>) -> Result<Live, CommitError> {
    let tree = tree.ok_or(CommitError::Refused)?;
    let row = tree.rows.iter().find(|row| row.task_id == task).cloned().ok_or(CommitError::Refused)?;
    if row.version != remains.version {
        return Err(CommitError::Stale);
    }
    let mut live = Live::unread(row, remains.open.len(), tree.now);
    live.family.read(tree);
    Ok(live)
}

/// The task could not go on: what it asks is closed, and whatever is below it is stopped.
fn fail_from_row(live: &mut Live, remains: &Remains, failure: Failure) {
    for request_id in &remains.open {
        let (request_id, status, reason) = (*request_id, RequestStatus::Withdrawn, CloseReason::Canceled);
        live.push(Fact::RequestClosed { request_id, status, reason });
    }
    Engine::fail(live, failure);
}
