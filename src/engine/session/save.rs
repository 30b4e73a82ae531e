//! Making durable what was pushed: the one place from which the engine commits. Nothing leaves the process before it.

use std::sync::atomic::Ordering;

use super::Engine;
use super::drive::Stop;
use super::session::TaskSession;
use crate::failpoint;
use crate::store::CommitError;
use crate::task::change::{Committed, LeaseChange};
use crate::task::id::ChangeId;

impl Engine {
    /// Makes what was pushed durable.
    ///
    /// # Errors
    /// `Again` when another commit came first and the task is still ours; `Lost` when it is not, or when the operation
    /// at the door was refused (it is told why). A result in hand is written in either case.
    pub(super) async fn save(&self, session: &mut TaskSession, lease: LeaseChange) -> Result<(), Stop> {
        if !session.unsaved() && !matches!(lease, LeaseChange::Queue | LeaseChange::Park { .. }) {
            return Ok(());
        }
        loop {
            session.saved_since = self.clock.uptime();
            let until = session.saved_since + self.settings.lease;
            match self.commit(session, lease.clone()).await {
                Ok(done) => {
                    session.lease =
                        matches!(lease, LeaseChange::Take { .. }).then(|| self.leases.hold(session.task_id(), until));
                    if lease == LeaseChange::Queue {
                        self.backlog.store(true, Ordering::Relaxed);
                    }
                    if let Some(reply) = session.reply.take() {
                        let _ = reply.send(Ok(done));
                    }
                    return Ok(());
                }
                Err(error) => match session.reply.take() {
                    Some(reply) => {
                        let _ = reply.send(Err(error));
                        return Err(Stop::Lost);
                    }
                    None if error == CommitError::Unavailable => self.pause().await?,
                    None => return Err(self.resolve_conflict(session, error).await),
                },
            }
        }
    }

    /// One commit of what was pushed. Every fact in it, and the lease, is a point where a test may end the process.
    pub(super) async fn commit(&self, session: &mut TaskSession, lease: LeaseChange) -> Result<Committed, CommitError> {
        session.balance(&lease);
        let points = session.points(&lease);
        for point in &points {
            failpoint::reach(&format!("{point}.before"));
        }
        let done = self.store.commit(session.change(ChangeId(self.ids.fresh()), &lease)).await?;
        for point in &points {
            failpoint::reach(&format!("{point}.committed"));
        }
        let queues = session.queues();
        session.saved(done, &lease);
        if queues {
            // Nobody waits for a poll: a worker of this process looks at once, where it has room.
            self.backlog.store(true, Ordering::Relaxed);
            self.room.notify_one();
        }
        Ok(done)
    }
}
