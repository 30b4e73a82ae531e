//! When a commit did not succeed: read again, keep what cannot be made again, and find out whether the task is still ours.

use std::time::Duration;

use super::Engine;
use super::drive::Stop;
use super::lease::Lease;
use super::live::Live;
use crate::store::{CommitError, ReadError};
use crate::task::change::LeaseChange;
use crate::task::failure::{Failure, FailureCode};
use crate::task::item::{Fact, Outcome};
use crate::task::status::TaskStatus;

impl Engine {
    /// Carries a driver over to the journal as it is now.
    pub(super) async fn overtaken(&self, live: &mut Live, error: CommitError) -> Stop {
        if error == CommitError::Refused {
            tracing::error!(task = %live.task_id(), "a change was refused by the database");
            return self.replace(live).await;
        }
        let answered = live.answer_in_hand();
        loop {
            if !self.read_again(live).await {
                return Stop::Lost;
            }
            if self.still_drives(live) {
                live.answer_again(answered);
                if live.own.is_over() {
                    Self::ends(live);
                }
                return Stop::Again;
            }
            if !live.unsaved() {
                return Stop::Lost;
            }
            // Not ours any more, but a result is in hand. If nobody drives the task (it may be parked until this very
            // attempt is over, or paused for the question about it), any worker may go on with it now.
            let idle = live.own.row.lease_owner.is_none() && live.own.progress.status == Some(TaskStatus::Running);
            let lease = if idle { LeaseChange::Queue } else { LeaseChange::Keep };
            match self.commit(live, lease).await {
                Ok(_) => {
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

    /// Whether a task as it was just read is still this driver's. Another driver of this process may have it by now.
    fn still_drives(&self, live: &Live) -> bool {
        let passed_on = live.lease.as_ref().is_some_and(Lease::is_passed_on);
        live.own.row.lease_owner.as_deref() == Some(self.replica.as_str()) && !passed_on
    }

    /// A change that cannot be stored is replaced by one that can, never retried as it was: the task fails, and each
    /// result in hand says that it could not be kept.
    async fn replace(&self, live: &mut Live) -> Stop {
        for item in live.own.items.iter_mut().skip(live.own.committed) {
            if let Fact::ToolResult(result) | Fact::LateResult(result) = &mut item.fact
                && matches!(result.outcome, Outcome::Succeeded | Outcome::Failed)
            {
                "The call ended, but its result could not be stored.".clone_into(&mut result.content);
            }
        }
        loop {
            if !self.read_again(live).await {
                return Stop::Lost;
            }
            match self.replacement(live).await {
                // What is in hand is not thrown away because the database does not answer right now.
                Err(CommitError::Unavailable) if self.pause().await.is_ok() => {}
                Err(CommitError::Stale | CommitError::Unknown) => {}
                Err(error) => {
                    tracing::error!(task = %live.task_id(), %error, "nor could its replacement be stored");
                    return Stop::Lost;
                }
                Ok(()) => return Stop::Lost,
            }
        }
    }

    async fn replacement(&self, live: &mut Live) -> Result<(), CommitError> {
        let ours = live.own.row.lease_owner.as_deref() == Some(self.replica.as_str());
        if ours && live.own.progress.status == Some(TaskStatus::Running) {
            Self::fail(live, Failure::new(FailureCode::Integrity, "What came next could not be stored."));
        }
        let lease = if ours { LeaseChange::Park { wake_in: None } } else { LeaseChange::Keep };
        if !live.unsaved() && lease == LeaseChange::Keep {
            return Ok(());
        }
        self.commit(live, lease).await.map(|_| ())
    }

    /// Goes on from the journal as it is now that its history is in doubt. (Another process may have gone on with the
    /// task in what was lost: the version alone does not tell.)
    ///
    /// # Errors
    /// `Again` always, or `Lost` when the service goes down first.
    pub(super) async fn under_doubt(&self, live: &mut Live) -> Result<(), Stop> {
        if !self.read_again(live).await {
            return Err(Stop::Lost);
        }
        if self.store.doubted_at() > live.doubted_at {
            // The journal still comes from the server that was left behind.
            self.pause().await?;
        }
        Err(Stop::Again)
    }

    /// Reads the task in hand again, however long the database takes to answer. `false` when the service goes down first,
    /// or nobody can read it: then the results in hand are written down beside it.
    async fn read_again(&self, live: &mut Live) -> bool {
        let task = live.task_id();
        loop {
            match self.store.journal(task).await {
                Ok(None) => return false,
                Ok(Some(journal)) => match self.regather(live, journal).await {
                    Ok(()) => return true,
                    Err(error) => tracing::debug!(%task, %error, "reading its tree again failed"),
                },
                Err(ReadError::Unavailable) => tracing::debug!(%task, "reading again failed"),
                Err(ReadError::Corrupt(_)) => match self.end_from_row(task, live.results_in_hand()).await {
                    Ok(true) | Err(CommitError::Refused) => return false,
                    Ok(false) | Err(CommitError::Stale | CommitError::Unavailable | CommitError::Unknown) => {}
                },
            }
            if self.pause().await.is_err() {
                return false;
            }
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
