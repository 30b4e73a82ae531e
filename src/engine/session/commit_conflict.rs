//! When a commit did not succeed: read again, keep what cannot be made again, and find out whether the task is still ours.

use std::time::Duration;

use super::Engine;
use super::drive::Stop;
use super::lease::Lease;
use super::session::TaskSession;
use crate::store::{CommitError, ReadError};
use crate::task::change::LeaseChange;
use crate::task::failure::{Failure, FailureCode};
use crate::task::item::{Fact, Outcome};
use crate::task::status::TaskStatus;

impl Engine {
    /// Carries a driver over to the journal as it is now.
    pub(super) async fn resolve_conflict(&self, session: &mut TaskSession, error: CommitError) -> Stop {
        if error == CommitError::Refused {
            tracing::error!(task = %session.task_id(), "a change was refused by the database");
            return self.replace(session).await;
        }
        let answered = session.answer_in_hand();
        loop {
            if !self.reload_task(session).await {
                return Stop::Lost;
            }
            if self.still_drives(session) {
                session.answer_again(answered);
                if session.own.is_over() {
                    Self::ends(session);
                }
                return Stop::Again;
            }
            if !session.unsaved() {
                return Stop::Lost;
            }
            // Not ours any more, but a result is in hand. If nobody drives the task (it may be parked until this very
            // attempt is over, or paused for the question about it), any worker may go on with it now.
            let idle = session.own.row.lease_owner.is_none() && session.own.progress.status == Some(TaskStatus::Running);
            let lease = if idle { LeaseChange::Queue } else { LeaseChange::Keep };
            match self.commit(session, lease).await {
                Ok(_) => {
                    self.room.notify_one();
                    return Stop::Lost;
                }
                Err(CommitError::Unavailable) => {
                    if self.pause().await.is_err() {
                        return Stop::Lost;
                    }
                }
                Err(CommitError::Refused) => return self.replace(session).await,
                Err(CommitError::Stale | CommitError::Unknown) => {}
            }
        }
    }

    /// Whether a task as it was just read is still this driver's. Another driver of this process may have it by now.
    fn still_drives(&self, session: &TaskSession) -> bool {
        let passed_on = session.lease.as_ref().is_some_and(Lease::is_passed_on);
        session.own.row.lease_owner.as_deref() == Some(self.replica.as_str()) && !passed_on
    }

    /// A change that cannot be stored is replaced by one that can, never retried as it was: the task fails, and each
    /// result in hand says that it could not be kept.
    async fn replace(&self, session: &mut TaskSession) -> Stop {
        for item in session.own.items.iter_mut().skip(session.own.committed) {
            if let Fact::ToolResult(result) | Fact::LateResult(result) = &mut item.fact
                && matches!(result.outcome, Outcome::Succeeded | Outcome::Failed)
            {
                "The call ended, but its result could not be stored.".clone_into(&mut result.content);
            }
        }
        loop {
            if !self.reload_task(session).await {
                return Stop::Lost;
            }
            match self.replacement(session).await {
                // What is in hand is not thrown away because the database does not answer right now.
                Err(CommitError::Unavailable) if self.pause().await.is_ok() => {}
                Err(CommitError::Stale | CommitError::Unknown) => {}
                Err(error) => {
                    tracing::error!(task = %session.task_id(), %error, "nor could its replacement be stored");
                    return Stop::Lost;
                }
                Ok(()) => return Stop::Lost,
            }
        }
    }

    async fn replacement(&self, session: &mut TaskSession) -> Result<(), CommitError> {
        let ours = session.own.row.lease_owner.as_deref() == Some(self.replica.as_str());
        if ours && session.own.progress.status == Some(TaskStatus::Running) {
            Self::fail(session, Failure::new(FailureCode::Integrity, "What came next could not be stored."));
        }
        let lease = if ours { LeaseChange::Park { wake_in: None } } else { LeaseChange::Keep };
        if !session.unsaved() && lease == LeaseChange::Keep {
            return Ok(());
        }
        self.commit(session, lease).await.map(|_| ())
    }

    /// Goes on from the journal as it is now that its history is in doubt. (Another process may have gone on with the
    /// task in what was lost: the version alone does not tell.)
    ///
    /// # Errors
    /// `Again` always, or `Lost` when the service goes down first.
    pub(super) async fn under_doubt(&self, session: &mut TaskSession) -> Result<(), Stop> {
        if !self.reload_task(session).await {
            return Err(Stop::Lost);
        }
        if self.store.history_uncertain_until() > session.history_uncertain_until {
            // The journal still comes from the server that was left behind.
            self.pause().await?;
        }
        Err(Stop::Again)
    }

    /// Reads the task in hand again, however long the database takes to answer. `false` when the service goes down first,
    /// or nobody can read it: then the results in hand are written down beside it.
    async fn reload_task(&self, session: &mut TaskSession) -> bool {
        let task = session.task_id();
        loop {
            match self.store.journal(task).await {
                Ok(None) => return false,
                Ok(Some(journal)) => match self.reload(session, journal).await {
                    Ok(()) => return true,
                    Err(error) => tracing::debug!(%task, %error, "reading its tree again failed"),
                },
                Err(ReadError::Unavailable) => tracing::debug!(%task, "reading again failed"),
                Err(ReadError::Corrupt(_)) => match self.end_from_row(task, session.results_in_hand()).await {
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
