//! When a commit did not succeed: read again, keep what cannot be made again, and find out whether the task is still ours.

use std::time::Duration;

use super::Engine;
use super::drive::Stop;
use super::live::Live;
use crate::store::CommitError;
use crate::task::change::{Journal, LeaseChange};
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::TaskId;
use crate::task::item::{CloseReason, Fact, Outcome};
use crate::task::status::TaskStatus;

impl Engine {
    /// Carries a driver over to the journal as it is now.
    pub(super) async fn overtaken(&self, live: &mut Live, error: CommitError) -> Stop {
        if error == CommitError::Refused {
            tracing::error!(task = %live.task_id(), "a change was refused by the database");
            return self.replace(live).await;
        }
        loop {
            let Some(journal) = self.read_again(live.task_id()).await else { return Stop::Lost };
            live.reread(journal);
            if live.row.lease_owner.as_deref() == Some(self.replica.as_str()) {
                return Stop::Again;
            }
            if !live.unsaved() {
                return Stop::Lost;
            }
            // Not ours any more, but a result is in hand. If nobody drives the task (it may be parked until this very
            // attempt is over, or paused for the question about it), any worker may go on with it now.
            let idle = live.row.lease_owner.is_none() && live.progress.status == Some(TaskStatus::Running);
            let lease = if idle { LeaseChange::Queue } else { LeaseChange::Keep };
            match self.commit(live, lease).await {
                Ok(done) => {
                    live.saved(done);
                    self.room.notify_one();
                    return Stop::Lost;
                }
                Err(CommitError::Unavailable) => {
                    if self.pause().await.is_err() {
                        return Stop::Lost;
                    }
                }
                Err(CommitError::Refused) => return self.replace(live).await,
                Err(CommitError::Stale | CommitError::Unknown) => {}
            }
        }
    }

    /// A change that cannot be stored is replaced by one that can, never retried as it was: the task fails, and each
    /// result in hand says that it could not be kept.
    async fn replace(&self, live: &mut Live) -> Stop {
        for item in live.items.iter_mut().skip(live.committed) {
            if let Fact::ToolResult(result) | Fact::LateResult(result) = &mut item.fact
                && matches!(result.outcome, Outcome::Succeeded | Outcome::Failed)
            {
                "The call ended, but its result could not be stored.".clone_into(&mut result.content);
            }
        }
        let Some(journal) = self.read_again(live.task_id()).await else { return Stop::Lost };
        live.reread(journal);
        let ours = live.row.lease_owner.as_deref() == Some(self.replica.as_str());
        if ours && live.progress.status == Some(TaskStatus::Running) {
            live.withdraw_open(CloseReason::Canceled);
            let failure = Failure::new(FailureCode::Integrity, "What came next could not be stored.");
            live.push(Fact::TaskStatus { status: TaskStatus::Failed, error: Some(failure), output: None });
        }
        let lease = if ours { LeaseChange::Park { wake_in: None } } else { LeaseChange::Keep };
        if let Err(error) = self.commit(live, lease).await {
            tracing::error!(task = %live.task_id(), %error, "nor could its replacement be stored");
        }
        Stop::Lost
    }

    /// Goes on from the journal as it is now that its history is in doubt. (Another process may have gone on with the
    /// task in what was lost: the version alone does not tell.)
    ///
    /// # Errors
    /// `Again` always, or `Lost` when the service goes down first.
    pub(super) async fn under_doubt(&self, live: &mut Live) -> Result<(), Stop> {
        let journal = self.read_again(live.task_id()).await.ok_or(Stop::Lost)?;
        live.reread(journal);
        Err(Stop::Again)
    }

    /// The journal, however long the database takes to answer; `None` when the service goes down first.
    async fn read_again(&self, task: TaskId) -> Option<Journal> {
        loop {
            match self.store.journal(task).await {
                Ok(found) => return found,
                Err(error) => tracing::warn!(%task, %error, "reading again failed"),
            }
            self.pause().await.ok()?;
        }
    }

    /// A breath before the database is asked again.
    ///
    /// # Errors
    /// `Lost` when the service has gone down meanwhile.
    pub(super) async fn pause(&self) -> Result<(), Stop> {
        if self.killed.is_cancelled() {
            return Err(Stop::Lost);
        }
        self.clock.sleep(Duration::from_millis(200)).await;
        Ok(())
    }
}
