//! Loads a task together with the tree around it. If a task has never had a relative (another task
//! in its tree), its tree is never read. For any other task, the driver reads the tree again before
//! it judges calls, opens requests, starts calls or calls a model.

use super::TaskSession;
use crate::engine::driver::Stop;
use crate::engine::{Engine, MAX_TRIES};
use crate::store::{CommitError, ReadError};
use crate::task::change::Journal;
use crate::task::id::TaskId;

impl Engine {
    /// Loads a task and its tree. `None` if the task does not exist.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the stored rows cannot be read.
    pub(in crate::engine) async fn load(
        &self,
        task: TaskId,
    ) -> Result<Option<TaskSession>, ReadError> {
        let Some(journal) = self.store.journal(task).await? else {
            return Ok(None);
        };
        self.load_from(journal).await
    }

    /// Like [`Engine::load`], for a journal that was just read.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub(in crate::engine) async fn load_from(
        &self,
        journal: Journal,
    ) -> Result<Option<TaskSession>, ReadError> {
        let mut session = TaskSession::new(journal);
        Ok(self.load_tree(&mut session).await?.then_some(session))
    }

    /// Replaces the session's task by the newer `journal`, and loads the tree. Discards the pending
    /// facts, except results from outside the process that still apply to their calls. The session
    /// keeps these results even if the function returns an error.
    ///
    /// # Errors
    /// [`ReadError`] if the tree cannot be read. The session then has the new journal, but perhaps
    /// not the new tree.
    pub(in crate::engine) async fn reload(
        &self,
        session: &mut TaskSession,
        journal: Journal,
    ) -> Result<(), ReadError> {
        let results = session.pending_results();
        session.replace(journal);
        let task_exists = self.load_tree(session).await;
        session.add_results(results);
        if task_exists? {
            Ok(())
        } else {
            Err(ReadError::Unavailable)
        }
    }

    /// Reads the tree. If the tree contains a newer version of the session's task than the session
    /// has, reads the task and the tree again, at most `MAX_TRIES` times. Returns `false` if the
    /// task is gone.
    async fn load_tree(&self, session: &mut TaskSession) -> Result<bool, ReadError> {
        for _ in 0..MAX_TRIES {
            if self.read_tree(session).await? {
                return Ok(true);
            }
            let Some(journal) = self.store.journal(session.task_id()).await? else {
                return Ok(false);
            };
            session.replace(journal);
        }
        Err(ReadError::Unavailable)
    }

    /// Reads the tree's new events. Returns `false` if the database has a newer version of the
    /// session's task than the session has.
    async fn read_tree(&self, session: &mut TaskSession) -> Result<bool, ReadError> {
        if !session.has_tree() {
            return Ok(true);
        }
        let tree = self
            .store
            .tree(session.own.row.root_task_id, session.tree.last_event())
            .await?;
        let tree = tree.ok_or_else(|| ReadError::Corrupt("a task without its root".to_owned()))?;
        Ok(session.merge_tree(tree))
    }

    /// Reads the tree's new events, if the last read no longer counts as current
    /// (`TaskTree::fresh`).
    ///
    /// # Errors
    /// If a command opened the session, any failure refuses the command: if another commit came
    /// first, or if the database does not answer, sends the reason to the command and returns
    /// `Lost`. Without a command, retries while the database does not answer, and returns `Lost`
    /// once the service goes down. If another commit came first, returns `Reloaded` or `Lost` like
    /// [`Engine::save`].
    pub(in crate::engine) async fn refresh_tree(
        &self,
        session: &mut TaskSession,
    ) -> Result<(), Stop> {
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
            self.back_off().await?;
        }
    }
}
