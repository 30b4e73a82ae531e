//! Closes requests whose deadline has passed. The task of such a request then continues, or is
//! canceled if the request's terms say so (`on_expiry`).

use futures_util::future::join_all;

use super::{MAX_TRIES, Refusal};
use crate::engine::Worker;
use crate::task::id::{RequestId, TaskId};
use crate::task::item::{CloseReason, Fact};
use crate::task::status::RequestStatus;

pub(crate) const MAX_EXPIRED_AT_ONCE: usize = 100;

impl Worker<'_> {
    /// Closes the requests whose deadline has passed by the database's clock. Returns the number of
    /// closed requests, at most `MAX_EXPIRED_AT_ONCE`.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    pub async fn expire(self) -> Result<usize, Refusal> {
        let overdue = self
            .engine
            .store
            .overdue(i64::try_from(MAX_EXPIRED_AT_ONCE).unwrap_or(i64::MAX))
            .await?;
        let closed = join_all(
            overdue
                .iter()
                .map(|(request, task)| self.expire_one(*request, *task)),
        )
        .await;
        let mut closed_count = 0;
        for ((request, _), closed) in overdue.iter().zip(closed) {
            match closed {
                Err(Refusal::Unavailable) => return Err(Refusal::Unavailable),
                // The error is logged and the next request is tried, because a returned error would
                // keep the worker from the next overdue requests.
                Err(error) => tracing::error!(%request, %error, "a request could not be closed"),
                Ok(closed) => closed_count += usize::from(closed),
            }
        }
        Ok(closed_count)
    }

    async fn expire_one(self, request_id: RequestId, task: TaskId) -> Result<bool, Refusal> {
        for _ in 0..MAX_TRIES {
            let Some(mut session) = self.engine.load(task).await? else {
                return Ok(false);
            };
            if session.own.progress.open_request(request_id).is_none() {
                return Ok(false);
            }
            session.push(Fact::RequestClosed {
                request_id,
                status: RequestStatus::Expired,
                reason: CloseReason::Expired,
            });
            if session.own.progress.ending.is_some() {
                session.withdraw_open(CloseReason::Canceled);
            } else {
                session.resume_if_unblocked();
            }
            if self.engine.submit(session).await?.is_some() {
                return Ok(true);
            }
        }
        // Another commit came first at each try. The next call of `expire` closes the request if it
        // is still open.
        Ok(false)
    }
}
