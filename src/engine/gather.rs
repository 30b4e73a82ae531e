//! Reading a task together with the tree around it. A task that is alone is read once; one that has a parent or has ever
//! started a sub-agent knows what holds for its tree before it judges, asks, starts or asks a model.

use super::Engine;
use super::drive::Stop;
use super::live::Live;
use crate::store::{CommitError, ReadError};
use crate::task::change::Journal;
use crate::task::id::TaskId;
use crate::task::item::Fact;
use crate::task::question::OPEN;
use crate::task::status::TaskStatus;

impl Engine {
    /// A task and its tree; `None` when there is no such task.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or what is stored cannot be understood.
    pub(super) async fn read(&self, task: TaskId) -> Result<Option<Live>, ReadError> {
        let Some(journal) = self.store.journal(task).await? else { return Ok(None) };
        let mut live = Live::read(journal);
        Ok(self.with_tree(&mut live).await?.then_some(live))
    }

    /// Takes in a newer reading of a task in hand, and its tree; what came of calls is carried over in any case.
    ///
    /// # Errors
    /// [`ReadError`]: then it is as it was read, without its tree.
    pub(super) async fn regather(&self, live: &mut Live, journal: Journal) -> Result<(), ReadError> {
        let in_hand = live.results_in_hand();
        live.reread(journal);
        let there = self.with_tree(live).await;
        live.carry(in_hand);
        if there? { Ok(()) } else { Err(ReadError::Unavailable) }
    }

    /// Reads the tree of what was just read, and that again, until both are of one moment. `false` where it is gone.
    async fn with_tree(&self, live: &mut Live) -> Result<bool, ReadError> {
        for _ in 0..super::TRIES {
            if self.gather(live).await? {
                return Ok(true);
            }
            let Some(journal) = self.store.journal(live.task_id()).await? else { return Ok(false) };
            live.reread(journal);
        }
        Err(ReadError::Unavailable)
    }

    /// Brings the tree of a task in hand up to date. `false` where the task itself is not any more as it is in hand.
    async fn gather(&self, live: &mut Live) -> Result<bool, ReadError> {
        if !live.has_family() {
            return Ok(true);
        }
        let tree = self.store.tree(live.own.row.root_task_id, live.family.event()).await?;
        let tree = tree.ok_or_else(|| ReadError::Corrupt("a task without its root".to_owned()))?;
        Ok(live.meet(tree))
    }

    /// Puts what was pushed on the tree as it is now, where another commit changed only what is around the task: its own
    /// answer of a model is not thrown away for that. `false` where it has to be thought over.
    pub(super) async fn rebased(&self, live: &mut Live) -> bool {
        let canceled = live.own.progress.status == Some(TaskStatus::Canceled);
        let was_full = live.own.progress.room() == 0;
        let (noes, suspects) = (live.own.progress.noes.clone(), live.own.progress.suspects.clone());
        if !live.has_family() || canceled || !self.gather(live).await.unwrap_or(false) || !live.family.rebase() {
            return false;
        }
        let asks = live.own.pushed().iter().any(|item| matches!(item.fact, Fact::InterventionRequested(_)));
        let starts = live.own.pushed().iter().any(|item| matches!(item.fact, Fact::SubAgentStarted { .. }));
        let (open, elsewhere) = (live.own.progress.open.len(), live.own.progress.elsewhere);
        if (asks && open + elsewhere > OPEN) || (starts && self.too_many(live)) {
            return false;
        }
        // What a rule has let run since may not run any more.
        let judged = |fact: &Fact| matches!(fact, Fact::Judged { .. } | Fact::ToolStarted { .. });
        let heard = noes != live.own.progress.noes || suspects != live.own.progress.suspects;
        if heard && live.own.pushed().iter().any(|item| judged(&item.fact)) {
            return false;
        }
        // Whoever has made room did not wake who was not asleep yet.
        if was_full && live.own.progress.room() > 0 && live.own.progress.wants_room() && !live.own.is_over() {
            return false;
        }
        if live.own.is_over() {
            Self::ends(live);
        }
        true
    }

    /// The same for a driver, wherever time has passed since it was read.
    ///
    /// # Errors
    /// As [`Engine::save`], when another commit came first.
    pub(super) async fn refresh(&self, live: &mut Live) -> Result<(), Stop> {
        if live.family.fresh || !live.has_family() {
            return Ok(());
        }
        loop {
            let error = match self.gather(live).await {
                Ok(true) => return Ok(()),
                Ok(false) => CommitError::Stale,
                Err(_) => CommitError::Unavailable,
            };
            if let Some(door) = live.door.take() {
                let _ = door.send(Err(error));
                return Err(Stop::Lost);
            }
            if error == CommitError::Stale {
                return Err(self.overtaken(live, error).await);
            }
            self.pause().await?;
        }
    }
}
