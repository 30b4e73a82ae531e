//! Commits the pending facts of a driver, and reads the driver's tree again. Both functions retry
//! while the database does not answer. Invariant: a driver calls a model or a tool only after it
//! has committed the facts that the call depends on.

use std::sync::atomic::Ordering;

use super::TaskSession;
use super::load::read_tree;
use crate::engine::Engine;
use crate::store::{CommitError, ReadError};
use crate::task::change::LeaseChange;

/// The reason why a driver stops early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Another commit changed the task first, or a restore of the database made the task's history
    /// uncertain. The session now has the new journal, and the driver asks `next_step` again.
    Reloaded,
    /// This driver cannot continue the task, and ends. Examples: another driver has the task; the
    /// command that opened the session was refused; the database refused a change; the task cannot
    /// be read; the shutdown's grace period is over.
    Lost,
}

impl Engine {
    pub(in crate::engine) fn take_lease(&self) -> LeaseChange {
        LeaseChange::Take {
            owner: self.replica.clone(),
            time: self.settings.lease,
        }
    }

    /// Commits the pending facts, the new presence of the asker (the client of a gate call), and
    /// the lease change `lease`. If there are no facts and no presence, commits only if `lease`
    /// queues or parks the task.
    ///
    /// # Errors
    /// - `Reloaded` when another commit came first and this driver still holds the task.
    /// - `Lost` when this driver cannot continue the task (see [`Stop::Lost`]). Also when the
    ///   commit fails and a command (such as a message) waits for it; the reply to the command then
    ///   has the reason.
    ///
    /// After a failed commit, the pending results of calls are kept in one of three ways:
    /// - If a command waits for the commit, the command has its own copy of its result.
    /// - With `Reloaded`, the session still has the results that apply to their calls.
    /// - Otherwise, this function stores the results by another commit before it returns `Lost`,
    ///   unless the process stops first.
    pub(in crate::engine) async fn save(
        &self,
        session: &mut TaskSession,
        lease: LeaseChange,
    ) -> Result<(), Stop> {
        let moves = matches!(lease, LeaseChange::Queue | LeaseChange::Park { .. });
        if !session.has_pending_facts() && session.own.asker.is_none() && !moves {
            return Ok(());
        }
        loop {
            session.commit_started_at = self.clock.uptime();
            let until = session.commit_started_at + self.settings.lease;
            match self.commit(session, lease.clone()).await {
                Ok(done) => {
                    session.lease = matches!(lease, LeaseChange::Take { .. })
                        .then(|| self.leases.hold(session.task_id(), until));
                    if lease == LeaseChange::Queue {
                        self.backlog.store(true, Ordering::Relaxed);
                    }
                    if let Some(reply) = session.reply.take() {
                        let _ = reply.send(Ok(done));
                    }
                    return Ok(());
                }
                Err(error) => self.handle_failure(session, error).await?,
            }
        }
    }

    /// Handles a failed commit, or a failed read before a commit. If a command waits for the
    /// commit, gives it the error. Otherwise, if the database does not answer, waits, and then
    /// returns `Ok`: the caller tries again. Otherwise resolves the conflict.
    ///
    /// # Errors
    /// As [`Engine::save`]. Always fails if `error` is not `Unavailable`.
    pub(in crate::engine) async fn handle_failure(
        &self,
        session: &mut TaskSession,
        error: CommitError,
    ) -> Result<(), Stop> {
        if let Some(reply) = session.reply.take() {
            // The command reads the journal again at once.
            if self.is_outdated(session) {
                self.back_off().await?;
            }
            let _ = reply.send(Err(error));
            return Err(Stop::Lost);
        }
        if error == CommitError::Unavailable {
            return self.back_off().await;
        }
        Err(self.resolve_conflict(session, error).await)
    }

    /// Whether the store knows of a restore since the session's journal was read, perhaps from a
    /// former server. Each commit of the session would then be stale.
    pub(in crate::engine) fn is_outdated(&self, session: &TaskSession) -> bool {
        self.store.history_uncertain_until() > session.history_uncertain_until
    }

    /// Waits before a failed read is tried again.
    ///
    /// # Errors
    /// `Lost` once the service has gone down. Also `Lost`, without a wait, if a client waits for
    /// the session's first commit: the client is then refused, because an outage may last long.
    pub(in crate::engine) async fn back_off_after_read(
        &self,
        session: &TaskSession,
    ) -> Result<(), Stop> {
        if session.reply.is_some() || session.own.guard.is_some() {
            return Err(Stop::Lost);
        }
        self.back_off().await
    }

    /// Reads the tree's new events, if the last read no longer counts as current
    /// (`TaskTree::fresh`). If the database does not answer, reads again after a pause.
    ///
    /// # Errors
    /// - `Reloaded` or `Lost`, as from [`Engine::save`], if another commit changed the task first.
    /// - `Lost` if the service goes down before the database answers, or if the tree's rows cannot
    ///   be decoded.
    /// - `Lost` after the first failed read, if a command waits for the session's first commit. The
    ///   reply to the command then has the reason.
    pub(in crate::engine) async fn refresh_tree(
        &self,
        session: &mut TaskSession,
    ) -> Result<(), Stop> {
        if session.has_fresh_tree() {
            return Ok(());
        }
        loop {
            let error = match read_tree(&self.store, session).await {
                Ok(true) => return Ok(()),
                // If the tree cannot be decoded, `resolve_conflict` finds this, too, and stops the
                // driver.
                Ok(false) | Err(ReadError::Corrupt(_)) => CommitError::Stale,
                Err(ReadError::Unavailable) => CommitError::Unavailable,
            };
            self.handle_failure(session, error).await?;
        }
    }
}
