//! Handles a failed commit: loads the task again, keeps pending facts that cannot be computed
//! again, and finds out whether this driver still holds the task.

use super::load::reload;
use super::{Stop, TaskSession};
use crate::engine::Engine;
use crate::engine::runtime::leases::Lease;
use crate::store::{CommitError, ReadError};
use crate::task::change::LeaseChange;
use crate::task::failure::{Failure, FailureCode};
use crate::task::item::Fact;
use crate::task::status::TaskStatus;

impl Engine {
    /// Loads the current journal into a session after a failed commit. Returns `Reloaded` if this
    /// driver still holds the task, otherwise `Lost`. If the database refused the change, always
    /// returns `Lost`, and fails the task if this replica has the task's lease.
    ///
    /// `Stale` may also mean that the database was restored or promoted. The load is then needed
    /// even if the task's version is unchanged, because the lost commits may have had the versions
    /// that the task has reached again.
    pub(in crate::engine) async fn resolve_conflict(
        &self,
        session: &mut TaskSession,
        error: CommitError,
    ) -> Stop {
        if error == CommitError::Refused {
            tracing::error!(task = %session.task_id(), "a change was refused by the database");
            return commit_failure(self, session).await;
        }
        let answer = session.pending_answer();
        loop {
            if !reload_task(self, session).await {
                return Stop::Lost;
            }
            // If another process recorded the restore, only new connections show it to the store.
            self.store
                .learn_uncertain_until(session.history_uncertain_until);
            // Without a pause, the next commit would be stale at once.
            if self.is_outdated(session) && self.back_off().await.is_err() {
                return Stop::Lost;
            }
            if still_drives(self, session) {
                session.restore_answer(answer);
                if session.own.has_ended() {
                    session.propagate_end();
                }
                return Stop::Reloaded;
            }
            if !session.has_pending_facts() {
                return Stop::Lost;
            }
            // This driver has lost the task, but still has a pending result to store. If no driver
            // has the task, and the task can run once it has this result, the commit also queues
            // the task, so that a worker claims it.
            let idle = session.own.row.lease_owner.is_none()
                && session.own.progress.status == Some(TaskStatus::Running);
            let lease = if idle {
                LeaseChange::Queue
            } else {
                LeaseChange::Keep
            };
            match self.commit(session, lease).await {
                Ok(_) => {
                    self.wake_worker.notify_one();
                    return Stop::Lost;
                }
                Err(CommitError::Unavailable) => {
                    if self.back_off().await.is_err() {
                        return Stop::Lost;
                    }
                }
                Err(CommitError::Refused) => return commit_failure(self, session).await,
                Err(CommitError::Stale | CommitError::Unknown) => {}
            }
        }
    }
}

/// Whether the session still holds the task: the row that was just read names this replica as
/// the owner of the lease, and no other driver of this process has taken the task.
fn still_drives(engine: &Engine, session: &TaskSession) -> bool {
    let passed_on = session.lease.as_ref().is_some_and(Lease::is_passed_on);
    session.own.row.lease_owner.as_deref() == Some(engine.replica.as_str()) && !passed_on
}

/// Commits a replacement for a change that the database refused, because the database would refuse
/// the same change again. The replacement keeps each pending result that came from outside the
/// process. In such a result, a note that the result could not be stored takes the place of the
/// text. Fails the task if this replica still has the task's lease.
async fn commit_failure(engine: &Engine, session: &mut TaskSession) -> Stop {
    for item in session.own.items.iter_mut().skip(session.own.committed) {
        if let Fact::ToolResult(result) | Fact::LateResult(result) = &mut item.fact
            && session.received_results.contains_key(&item.seq)
        {
            "The call ended, but its result could not be stored.".clone_into(&mut result.content);
        }
    }
    loop {
        if !reload_task(engine, session).await {
            return Stop::Lost;
        }
        match try_commit_failure(engine, session).await {
            // Tries again until the database answers, so that no pending result is lost.
            Err(CommitError::Unavailable) if engine.back_off().await.is_ok() => {}
            Err(CommitError::Stale | CommitError::Unknown) => {}
            Err(error) => {
                tracing::error!(task = %session.task_id(), %error, "the replacement of a change could not be stored either");
                return Stop::Lost;
            }
            Ok(()) => return Stop::Lost,
        }
    }
}

async fn try_commit_failure(engine: &Engine, session: &mut TaskSession) -> Result<(), CommitError> {
    let ours = session.own.row.lease_owner.as_deref() == Some(engine.replica.as_str());
    if ours && session.own.progress.status == Some(TaskStatus::Running) {
        session.fail(Failure::new(
            FailureCode::Integrity,
            "The next step could not be stored.",
        ));
    }
    let lease = if ours {
        LeaseChange::PARK
    } else {
        LeaseChange::Keep
    };
    if !session.has_pending_facts() && lease == LeaseChange::Keep {
        return Ok(());
    }
    engine.commit(session, lease).await.map(|_| ())
}

/// Stores the pending results of a task whose tree cannot be decoded. The driver then stops. If the
/// commit of a result would need the tree, `reload` has made the result a late result. As after a
/// claim, the failed read does not count as a takeover without progress. The replica that claims
/// the task next reads the tree again.
async fn leave_damaged_tree(engine: &Engine, session: &mut TaskSession) -> Result<(), CommitError> {
    if session.has_pending_facts() {
        engine.commit(session, LeaseChange::Keep).await?;
    }
    let task = session.task_id();
    tracing::warn!(%task, "the tree of a task could not be read; its driver stopped");
    let _ = engine.store.set_begun(&engine.replica, task, false).await;
    Ok(())
}

/// Loads the task again, and retries as long as the database does not answer. Returns `false` if
/// the task is gone, if the service goes down first, or if the journal or the tree cannot be
/// decoded. If the journal cannot be decoded, first calls `end_from_row`, which ends the task and
/// writes the session's pending results as late results. If the tree cannot be decoded, first calls
/// `leave_damaged_tree`.
async fn reload_task(engine: &Engine, session: &mut TaskSession) -> bool {
    let task = session.task_id();
    loop {
        match engine.store.journal(task).await {
            Ok(None) => return false,
            Ok(Some(journal)) => match reload(&engine.store, session, journal).await {
                Ok(()) => return true,
                Err(ReadError::Corrupt(_)) => match leave_damaged_tree(engine, session).await {
                    Ok(()) | Err(CommitError::Refused) => return false,
                    Err(CommitError::Stale | CommitError::Unavailable | CommitError::Unknown) => {}
                },
                Err(error @ ReadError::Unavailable) => {
                    tracing::debug!(%task, %error, "reading its tree again failed");
                }
            },
            Err(ReadError::Unavailable) => tracing::debug!(%task, "reading again failed"),
            Err(ReadError::Corrupt(_)) => {
                match engine.end_from_row(task, session.pending_results()).await {
                    Ok(true) | Err(CommitError::Refused) => return false,
                    Ok(false)
                    | Err(CommitError::Stale | CommitError::Unavailable | CommitError::Unknown) => {
                    }
                }
            }
        }
        if engine.back_off().await.is_err() {
            return false;
        }
    }
}
