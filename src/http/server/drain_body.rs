//! Drains request bodies that an operation left unread. If the service closed the connection while
//! the client was still sending a body, the connection would be reset and the client would lose the
//! response. So the service reads the rest of the body, within limits, while it sends the response.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Error;
use axum::body::{Body, BodyDataStream, HttpBody as _};
use axum::extract::Request;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::header::EXPECT;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The maximum number of drained bytes. It exceeds the largest body that an operation accepts.
const MAX_DRAINED_BYTES: usize = 32 * 1024 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Receives the unread part of a body when the operation drops the body.
#[derive(Debug)]
pub(crate) struct UnreadBody(Option<oneshot::Receiver<BodyDataStream>>);

/// Wraps the body of `request` so that [`UnreadBody::take`] can return its unread part. Does not
/// wrap an empty body, or the body of a request with the header `Expect`. A client that sends
/// `Expect: 100-continue` sends the body only when the operation begins to read it, so a body that
/// the operation leaves unread needs no draining.
pub(crate) fn track(request: &mut Request) -> UnreadBody {
    if request.body().is_end_stream() || request.headers().contains_key(EXPECT) {
        return UnreadBody(None);
    }
    let (return_unread, unread) = oneshot::channel();
    let body = std::mem::take(request.body_mut()).into_data_stream();
    *request.body_mut() = Body::from_stream(TrackedBody(Some((body, return_unread))));
    UnreadBody(Some(unread))
}

impl UnreadBody {
    /// Returns the unread part of the body. `None` if there is nothing to drain, or if the
    /// operation still holds the body.
    #[must_use]
    pub(crate) fn take(self) -> Option<BodyDataStream> {
        self.0?.try_recv().ok()
    }
}

/// Reads a body and discards the bytes. Stops at the end of the body, after `MAX_DRAINED_BYTES`
/// bytes, or after `DRAIN_TIMEOUT`.
pub(crate) async fn drain(mut body: BodyDataStream) {
    let mut remaining = MAX_DRAINED_BYTES;
    let all = async {
        while let Some(Ok(chunk)) = body.next().await {
            remaining = remaining.saturating_sub(chunk.len());
            if remaining == 0 {
                return;
            }
        }
    };
    let _ = timeout(DRAIN_TIMEOUT, all).await;
}

/// A request body, until its end. If the operation drops the body before, the body sends its unread
/// part to the [`UnreadBody`].
struct TrackedBody(Option<(BodyDataStream, oneshot::Sender<BodyDataStream>)>);

impl Stream for TrackedBody {
    type Item = Result<Bytes, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some((body, _)) = self.0.as_mut() else {
            return Poll::Ready(None);
        };
        let next = ready!(body.poll_next_unpin(context));
        if !matches!(next, Some(Ok(_))) {
            self.0 = None;
        }
        Poll::Ready(next)
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        if let Some((body, return_unread)) = self.0.take() {
            let _ = return_unread.send(body);
        }
    }
}
