//! Ends a task. One commit ends the task and its descendants. The commit also queues the parent if
//! the parent is parked, that is, neither leased nor queued, and without a timer.

use super::Stop;
use crate::engine::Engine;
use crate::engine::session::TaskSession;
use crate::task::call_state::CallState;
use crate::task::change::LeaseChange;
use crate::task::decision::Consequence;
use crate::task::failure::Failure;
use crate::task::item::{CloseReason, Fact};
use crate::task::status::TaskStatus;
use crate::task::step::Ending;
use crate::task::transcript::last_result;

/// Ends a task. If a decision demanded `CancelRoot`, also cancels the other tasks of the tree.
pub(super) async fn finish(
    engine: &Engine,
    session: &mut TaskSession,
    ending: Ending,
) -> Result<(), Stop> {
    reopen(engine, session).await?;
    let ends_tree = session.own.progress.ending == Some(Consequence::CancelRoot);
    let complete = |session: &mut TaskSession, text| {
        session.push(Fact::TaskStatus {
            status: TaskStatus::Completed,
            error: None,
            output: Some(text),
        });
    };
    match ending {
        Ending::Completed(text) => complete(session, text),
        Ending::Settled => {
            let text = last_result(&session.own.items).unwrap_or_default();
            complete(session, text);
        }
        Ending::Failed(failure) => session.own.fail(failure, session.now),
        Ending::Canceled => session.own.push_status(TaskStatus::Canceled, session.now),
    }
    if ends_tree {
        let all = session.tree.rows().map(|row| row.task_id).collect();
        session.cancel_tasks(all, CloseReason::Canceled);
    }
    session.propagate_end();
    engine.save(session, LeaseChange::PARK).await
}

/// Ends a task whose agent cannot be loaded. Cancels the task if a decision or an expired
/// request has demanded its end, and fails the task otherwise. If the task has ended already,
/// commits the pending facts, for example a late result.
pub(super) async fn finish_without_agent(
    engine: &Engine,
    session: &mut TaskSession,
    failure: Failure,
) -> Result<(), Stop> {
    if session
        .own
        .progress
        .status
        .is_none_or(TaskStatus::is_terminal)
    {
        return engine.save(session, LeaseChange::Keep).await;
    }
    if session.own.progress.ending.is_some() {
        let rest = session
            .own
            .progress
            .unfinished()
            .map(CallState::canceled_result)
            .collect();
        session.settle_calls(rest);
        return finish(engine, session, Ending::Canceled).await;
    }
    finish(engine, session, Ending::Failed(failure)).await
}

/// Stores that an ended task runs again. If the stored status is terminal, the pending facts set
/// the status to Running, and this function commits them. A single commit cannot change a terminal
/// status to another terminal status, so a reopened task needs this commit before it ends again.
pub(super) async fn reopen(engine: &Engine, session: &mut TaskSession) -> Result<(), Stop> {
    if session.own.row.status.is_terminal() && session.has_pending_facts() {
        engine.save(session, engine.take_lease()).await?;
    }
    Ok(())
}
