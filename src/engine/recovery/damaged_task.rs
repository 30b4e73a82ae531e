//! Ends a task by its row alone, because its journal is unreadable or reading the journal kills the
//! process. Invariants: none of the task's calls runs; the task is not claimed again and again; no
//! other task is delayed; a result that the driver had not stored yet is still written.

use crate::engine::Engine;
use crate::engine::session::{ReceivedResult, TaskSession};
use crate::store::{CommitError, DamagedTask, LONE_DRIVE_AFTER, ReadError, TreeSnapshot};
use crate::task::change::{LeaseChange, TaskRow};
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::TaskId;
use crate::task::item::{CloseReason, Fact};

/// The number of takeovers after which a task is ended. Two functions count to this number:
/// - [`is_out_of_takeovers`] counts only takeovers from a lone drive (a drive beside which the
///   process drives no other task) whose lease ran out without a new item.
/// - [`Engine::end_from_row`] counts all takeovers since the last item. It counts only for a task
///   whose journal a newer version of this program may have written.
const MAX_TAKEOVERS: i32 = 5;

/// Ends the tasks that this process has found unreadable since the last call of this function.
pub(in crate::engine) async fn end_damaged_tasks(engine: &Engine) {
    for task in engine.store.take_unreadable() {
        match engine.end_from_row(task, Vec::new()).await {
            Ok(_) => {}
            Err(CommitError::Refused) => {
                tracing::error!(%task, "an unreadable task cannot be ended");
            }
            Err(CommitError::Stale | CommitError::Unavailable | CommitError::Unknown) => {
                engine.store.report_unreadable(task);
            }
        }
    }
}

impl Engine {
    /// Ends a task whose journal cannot be read, and its descendants. Also writes `late` as late
    /// results of the task's calls. Writes only these results in two cases:
    /// - The task has already ended.
    /// - A newer version of this program may have written the journal, and the task has had fewer
    ///   than [`MAX_TAKEOVERS`] takeovers since its last item. A replica of that version may be
    ///   able to drive the task.
    ///
    /// Returns `false`, and writes nothing, if the journal can be read now, or if the task does
    /// not exist.
    ///
    /// # Errors
    /// Fails if a read fails or the commit fails.
    pub(in crate::engine) async fn end_from_row(
        &self,
        task: TaskId,
        late: Vec<ReceivedResult>,
    ) -> Result<bool, CommitError> {
        let Some(damaged) = self.store.damaged_task(task).await? else {
            return Ok(false);
        };
        let may_end = !damaged.newer || damaged.takeovers >= i64::from(MAX_TAKEOVERS);
        if !may_end && late.is_empty() {
            // Returns without a read of the tree, because that read would report the task as
            // unreadable again. The worker would then call this function in each of its rounds.
            return Ok(true);
        }
        let tree = self.store.tree(damaged.root_task_id, 0).await?;
        let mut session = session_from_row(task, &damaged, tree)?;
        let ends = may_end && !session.own.row.status.is_terminal();
        for received in late {
            session.push(Fact::LateResult(received.result));
        }
        if ends {
            let detail = "The stored data of this task cannot be read. Calls that were in flight may have taken effect.";
            fail_from_row(
                &mut session,
                &damaged,
                Failure::new(FailureCode::Integrity, detail),
            );
        }
        if !session.has_pending_facts() {
            return Ok(true);
        }
        let lease = if ends {
            LeaseChange::PARK
        } else {
            LeaseChange::Keep
        };
        self.commit(&mut session, lease).await?;
        tracing::error!(%task, ended = ends, "the stored data of a task cannot be read");
        Ok(true)
    }
}

/// Ends a task without reading any item of its tree, because reading the task kills processes.
pub(in crate::engine) async fn end_unread(engine: &Engine, task: TaskId) {
    while let Err(error) = try_to_end_unread(engine, task).await {
        if error == CommitError::Refused {
            tracing::error!(%task, "a task whose reading kills processes cannot be ended");
            break;
        }
        if engine.back_off().await.is_err() {
            break;
        }
    }
}

async fn try_to_end_unread(engine: &Engine, task: TaskId) -> Result<(), CommitError> {
    let Some(damaged) = engine.store.task_without_journal(task).await? else {
        return Ok(());
    };
    let root = damaged.root_task_id;
    let tree = engine.store.tree_without_items(root).await?;
    let mut session = session_from_row(task, &damaged, tree)?;
    let TaskRow {
        status, fruitless, ..
    } = session.own.row;
    if status.is_terminal() || !reading_kills_processes(fruitless) {
        return Ok(());
    }
    fail_from_row(&mut session, &damaged, no_progress());
    engine.commit(&mut session, LeaseChange::PARK).await?;
    tracing::error!(%task, fruitless, "processes died while they read a task; it was ended without reading it");
    Ok(())
}

/// Whether the task must fail, because the leases of [`MAX_TAKEOVERS`] lone drives of the task ran
/// out without a new item. `fruitless` is the number of all leases of the task that ran out without
/// a new item after work had begun. The first [`LONE_DRIVE_AFTER`] of these leases do not count:
/// their processes also drove other tasks, which may have killed the process. Each later lease
/// belongs to a lone drive.
pub(crate) fn is_out_of_takeovers(fruitless: i32) -> bool {
    fruitless >= LONE_DRIVE_AFTER + MAX_TAKEOVERS
}

/// Whether processes die while they read the task. Once [`is_out_of_takeovers`] is true, the next
/// driver only loads the task and ends it. If the lease of this driver runs out, too, its process
/// must have died while it read the task.
pub(crate) fn reading_kills_processes(fruitless: i32) -> bool {
    fruitless > LONE_DRIVE_AFTER + MAX_TAKEOVERS
}

pub(crate) fn no_progress() -> Failure {
    let detail = "The task was taken over repeatedly without progress.";
    Failure::new(FailureCode::NoProgress, detail)
}

impl From<ReadError> for CommitError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unavailable => Self::Unavailable,
            ReadError::Corrupt(_) => Self::Refused,
        }
    }
}

/// Returns a session with the task's row and its tree, but without a journal.
///
/// # Errors
/// `Refused` if the tree or the row is missing; `Stale` if the row has another version than
/// `damaged`.
fn session_from_row(
    task: TaskId,
    damaged: &DamagedTask,
    tree: Option<TreeSnapshot>,
) -> Result<TaskSession, CommitError> {
    let tree = tree.ok_or(CommitError::Refused)?;
    let row = tree
        .rows
        .iter()
        .find(|row| row.task_id == task)
        .cloned()
        .ok_or(CommitError::Refused)?;
    if row.version != damaged.version {
        return Err(CommitError::Stale);
    }
    let mut session = TaskSession::from_row(row, damaged.open.len(), &tree);
    session.tree.apply(tree);
    Ok(session)
}

fn fail_from_row(session: &mut TaskSession, damaged: &DamagedTask, failure: Failure) {
    for request_id in &damaged.open {
        session.push(Fact::withdrawn(*request_id, CloseReason::Canceled));
    }
    session.fail(failure);
}
