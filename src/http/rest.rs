//! The rest of a body that nobody wanted. Who refuses a POST lets go of its body unread; a connection that is closed on a
//! client who is still sending is reset, and he never reads why he was refused. So what is left comes back here and is
//! read to its end, within bounds, while the answer goes out.

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

/// How much is read for nothing: more than the largest body an operation takes.
const MOST: usize = 32 * 1024 * 1024;
/// How long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the rest of a body comes back, if there is any.
#[derive(Debug)]
pub struct Rest(Option<oneshot::Receiver<BodyDataStream>>);

/// Lends a request's body to whoever answers it. A client who waits for a `100 Continue` has sent nothing yet: what he
/// is not asked for he keeps.
pub fn lend(request: &mut Request) -> Rest {
    if request.body().is_end_stream() || request.headers().contains_key(EXPECT) {
        return Rest(None);
    }
    let (back, rest) = oneshot::channel();
    let body = std::mem::take(request.body_mut()).into_data_stream();
    *request.body_mut() = Body::from_stream(Lent { body: Some(body), back: Some(back) });
    Rest(Some(rest))
}

impl Rest {
    /// What was left unread when the answer was there.
    #[must_use]
    pub fn unread(self) -> Option<BodyDataStream> {
        self.0?.try_recv().ok()
    }
}

/// Reads to the end, for nothing.
pub async fn drain(mut body: BodyDataStream) {
    let mut left = MOST;
    let all = async {
        while let Some(Ok(piece)) = body.next().await {
            left = left.saturating_sub(piece.len());
            if left == 0 {
                return;
            }
        }
    };
    let _ = timeout(PATIENCE, all).await;
}

/// A body that goes back when it is let go of before its end.
struct Lent {
    body: Option<BodyDataStream>,
    back: Option<oneshot::Sender<BodyDataStream>>,
}

impl Stream for Lent {
    type Item = Result<Bytes, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(body) = self.body.as_mut() else { return Poll::Ready(None) };
        let next = ready!(body.poll_next_unpin(context));
        if !matches!(next, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(next)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(body), Some(back)) = (self.body.take(), self.back.take()) {
            let _ = back.send(body);
        }
    }
}
