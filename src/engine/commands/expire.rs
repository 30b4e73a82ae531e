//! Closes requests whose deadline has passed. The task of such a request then continues, or is
//! canceled if the request's terms say so (`on_expiry`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;

use super::{MAX_TRIES, Refusal};
use crate::engine::Engine;
use crate::task::id::{RequestId, TaskId};
use crate::task::item::{CloseReason, Fact};
use crate::task::status::RequestStatus;

/// The maximum number of requests that are closed at the same time.
const MAX_EXPIRED_AT_ONCE: usize = 100;

/// The result of an attempt to close an overdue request.
enum Closing {
    /// This replica has closed the request.
    Closed,
    /// The request is no longer open, for example because another replica has closed it.
    NotOpen,
    /// The request is still open.
    LeftOpen,
}

/// Closes the requests whose deadline has passed by the database's clock, in batches. Returns the
/// number of requests that this replica has closed. Stops after the batch with the last overdue
/// request, after a batch of which this replica has closed no request, and when the service shuts
/// down. Later batches and calls skip the requests that this replica could not close
/// (`skipped_overdue`). After a batch with the last overdue request, none is skipped any more.
///
/// # Errors
/// `Unavailable` when the database does not answer.
pub(in crate::engine) async fn expire_overdue(engine: &Arc<Engine>) -> Result<usize, Refusal> {
    let mut closed_count = 0;
    loop {
        let skipped = engine.skipped_overdue.load(Ordering::Relaxed);
        let overdue = engine.store.overdue(skipped, MAX_EXPIRED_AT_ONCE).await?;
        let (closed, left_open) = expire_all(engine, &overdue).await?;
        closed_count += closed;
        // This replica may be unable to close some requests, for example if a newer version of this
        // program wrote items of their tasks. If the next batch did not skip these requests, they
        // could fill every batch, and the replica would never read the later requests. Each failed
        // attempt costs a read of the task, so this call ends after a batch of failures.
        let is_last = overdue.len() < MAX_EXPIRED_AT_ONCE;
        let skipped = match closed {
            _ if is_last => 0,
            // The batch may be full of requests that are open only by their rows, so all of it is
            // skipped.
            0 => skipped + overdue.len(),
            // The next batch does not have the requests that another replica has closed.
            _ => skipped + left_open,
        };
        engine.skipped_overdue.store(skipped, Ordering::Relaxed);
        if is_last || closed == 0 || engine.stop.is_cancelled() {
            return Ok(closed_count);
        }
    }
}

/// Closes the requests in `overdue`, which pairs each request with its task. Returns the number of
/// requests that this replica has closed, and the number of those that are still open.
async fn expire_all(
    engine: &Arc<Engine>,
    overdue: &[(RequestId, TaskId)],
) -> Result<(usize, usize), Refusal> {
    let closings = overdue.iter().copied();
    let closings = closings.map(|(request, task)| expire(engine, request, task));
    let (mut closed, mut left_open) = (0, 0);
    for ((request, _), closing) in overdue.iter().zip(join_all(closings).await) {
        match closing {
            Err(Refusal::Unavailable) => return Err(Refusal::Unavailable),
            // The error is logged and not returned, because other requests may have been closed.
            Err(error) => {
                tracing::error!(%request, %error, "a request could not be closed");
                left_open += 1;
            }
            Ok(Closing::Closed) => closed += 1,
            Ok(Closing::NotOpen) => {}
            Ok(Closing::LeftOpen) => left_open += 1,
        }
    }
    Ok((closed, left_open))
}

async fn expire(
    engine: &Arc<Engine>,
    request: RequestId,
    task: TaskId,
) -> Result<Closing, Refusal> {
    for _ in 0..MAX_TRIES {
        let Some(mut session) = engine.load(task).await? else {
            return Ok(Closing::LeftOpen);
        };
        if session.own.progress.open_request(request).is_none() {
            return Ok(Closing::NotOpen);
        }
        session.push(Fact::RequestClosed {
            request_id: request,
            status: RequestStatus::Expired,
            reason: CloseReason::Expired,
        });
        if session.own.progress.ending.is_some() {
            session.withdraw_open(CloseReason::Canceled);
        } else {
            session.resume_if_unblocked();
        }
        if engine.submit(session).await?.is_some() {
            return Ok(Closing::Closed);
        }
    }
    // At each try, another commit came first or the database refused the change. The next call of
    // `expire_overdue` closes the request if it is still open.
    Ok(Closing::LeftOpen)
}
