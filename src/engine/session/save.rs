//! Commits pending facts. All commits of the engine go through this module. Invariant: a driver
//! calls a model or a tool only after it has committed the facts that the call depends on.

use std::sync::atomic::Ordering;

use super::TaskSession;
use crate::engine::Engine;
use crate::engine::driver::Stop;
use crate::failpoint;
use crate::store::CommitError;
use crate::task::change::{Committed, LeaseChange};
use crate::task::id::ChangeId;

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
    /// `Reloaded` when another commit came first and this driver still holds the task. `Lost` when
    /// this driver no longer holds the task. Also `Lost` when another commit came first and the
    /// command that opened the session (such as a message) is now refused; the reply to the command
    /// has the reason. Pending results of calls survive both: after `Reloaded`, the session still
    /// has them; before it returns `Lost`, this function commits them, unless the process stops.
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
                Err(error) => match session.reply.take() {
                    Some(reply) => {
                        let _ = reply.send(Err(error));
                        return Err(Stop::Lost);
                    }
                    None if error == CommitError::Unavailable => self.back_off().await?,
                    None => return Err(self.resolve_conflict(session, error).await),
                },
            }
        }
    }

    /// Tries one commit. Reaches the commit's failpoints (`TaskSession::failpoints`) right before
    /// and right after it.
    pub(in crate::engine) async fn commit(
        &self,
        session: &mut TaskSession,
        lease: LeaseChange,
    ) -> Result<Committed, CommitError> {
        session.update_statuses(&lease);
        let points = if failpoint::COMPILED {
            session.failpoints(&lease)
        } else {
            Vec::new()
        };
        for point in &points {
            failpoint::reach(&format!("{point}.before"));
        }
        let waited_for = self.store.is_watched(session.own.row.root_task_id);
        let stopped = waited_for.then(|| session.stopped(&lease)).flatten();
        let change = session.change(ChangeId(self.ids.fresh()), &lease);
        let done = self.store.commit_and_publish(change, stopped).await?;
        for point in &points {
            failpoint::reach(&format!("{point}.committed"));
        }
        let queues_relative = session.queues_relative();
        session.mark_committed(done, &lease, |tool| {
            self.catalog.get(tool).is_some() || self.policy.lists_tool(tool)
        });
        if queues_relative {
            // Without this wake-up, the worker would claim the queued task of the tree only at its
            // next poll.
            self.backlog.store(true, Ordering::Relaxed);
            self.wake_worker.notify_one();
        }
        Ok(done)
    }
}
