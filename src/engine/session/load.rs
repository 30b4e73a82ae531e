//! Reading a task together with the tree around it. A task that is alone is read once; one that has a parent or has ever
//! started a sub-agent knows what holds for its tree before it judges, asks, starts or asks a model.

use super::Engine;
use super::drive::Stop;
use super::session::TaskSession;
use crate::store::{CommitError, ReadError};
use crate::task::change::Journal;
use crate::task::id::TaskId;

impl Engine {
    /// A task and its tree; `None` when there is no such task.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or what is stored cannot be understood.
    pub(super) async fn read(&self, task: TaskId) -> Result<Option<TaskSession>, ReadError> {
        let Some(journal) = self.store.journal(task).await? else { return Ok(None) };
        let mut session = TaskSession::read(journal);
        Ok(self.with_tree(&mut session).await?.then_some(session))
    }

    /// Takes in a newer reading of a task in hand, and its tree; what came of calls is carried over in any case.
    ///
    /// # Errors
    /// [`ReadError`]: then it is as it was read, without its tree.
    pub(super) async fn reload(&self, session: &mut TaskSession, journal: Journal) -> Result<(), ReadError> {
        let in_hand = session.results_in_hand();
        session.reread(journal);
        let there = self.with_tree(session).await;
        session.carry(in_hand);
        if there? { Ok(()) } else { Err(ReadError::Unavailable) }
    }

    /// Reads the tree of what was just read, and that again, until both are of one moment. `false` where it is gone.
    async fn with_tree(&self, session: &mut TaskSession) -> Result<bool, ReadError> {
        for _ in 0..super::TRIES {
            if self.read_tree(session).await? {
                return Ok(true);
            }
            let Some(journal) = self.store.journal(session.task_id()).await? else { return Ok(false) };
            session.reread(journal);
        }
        Err(ReadError::Unavailable)
    }

    /// Brings the tree of a task in hand up to date. `false` where the task itself is not any more as it is in hand.
    async fn read_tree(&self, session: &mut TaskSession) -> Result<bool, ReadError> {
        if !session.has_tree() {
            return Ok(true);
        }
        let tree = self.store.tree(session.own.row.root_task_id, session.tree.event()).await?;
        let tree = tree.ok_or_else(|| ReadError::Corrupt("a task without its root".to_owned()))?;
        Ok(session.meet(tree))
    }

    /// Brings the tree of a driver's task up to date, wherever time has passed since it was read.
    ///
    /// # Errors
    /// As [`Engine::save`], when another commit came first.
    pub(super) async fn refresh(&self, session: &mut TaskSession) -> Result<(), Stop> {
        if session.tree.fresh || !session.has_tree() {
            return Ok(());
        }
        loop {
            let error = match self.read_tree(session).await {
                Ok(true) => return Ok(()),
                Ok(false) => CommitError::Stale,
                Err(_) => CommitError::Unavailable,
            };
            if let Some(reply) = session.reply.take() {
                let _ = reply.send(Err(error));
                return Err(Stop::Lost);
            }
            if error == CommitError::Stale {
                return Err(self.resolve_conflict(session, error).await);
            }
            self.pause().await?;
        }
    }
}
