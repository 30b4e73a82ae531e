//! Loads a task together with the tree around it. If a task has never had a relative (another task
//! in its tree), its tree is never read. For any other task, the driver reads the tree again before
//! it judges calls, opens requests, starts calls or calls a model.

use super::TaskSession;
use crate::engine::{Engine, MAX_TRIES};
use crate::store::{ReadError, Store};
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
        Ok(load_tree(&self.store, &mut session)
            .await?
            .then_some(session))
    }
}

/// Replaces the session's task by the newer `journal`, and loads the tree. Discards the pending
/// facts, except results from outside the process that still apply to their calls. The session
/// keeps these results even if the function returns an error.
///
/// # Errors
/// [`ReadError`] if the tree cannot be read. The session then has the new journal, but perhaps
/// not the new tree.
pub(super) async fn reload(
    store: &Store,
    session: &mut TaskSession,
    journal: Journal,
) -> Result<(), ReadError> {
    let results = session.pending_results();
    session.replace(journal);
    let task_exists = load_tree(store, session).await;
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
async fn load_tree(store: &Store, session: &mut TaskSession) -> Result<bool, ReadError> {
    for _ in 0..MAX_TRIES {
        if read_tree(store, session).await? {
            return Ok(true);
        }
        let Some(journal) = store.journal(session.task_id()).await? else {
            return Ok(false);
        };
        session.replace(journal);
    }
    Err(ReadError::Unavailable)
}

/// Reads the tree's new events. Returns `false` if the database has a newer version of the
/// session's task than the session has.
pub(super) async fn read_tree(store: &Store, session: &mut TaskSession) -> Result<bool, ReadError> {
    if !session.has_tree() {
        return Ok(true);
    }
    let tree = store
        .tree(session.own.row.root_task_id, session.tree.last_event())
        .await?;
    let tree = tree.ok_or_else(|| ReadError::Corrupt("a task without its root".to_owned()))?;
    Ok(session.merge_tree(tree))
}
