//! Finds responses over HTTP/2 of which the client takes nothing. For each response and for the
//! whole connection, the client sets a window: the number of bytes that the server may send. While
//! a window is 0, no write is pending, so the timeout of `write_timeout.rs` does not end the
//! connection. [`WatchedBody`] records when hyper takes a frame of a response. hyper asks for the
//! next frame only once the window lets the first byte of the taken frame through.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::write_timeout::WRITE_TIMEOUT;
use crate::world::{Clock, Locked};

/// The maximum size of the data in a frame that [`WatchedBody`] returns, in bytes. hyper drops a
/// body once the window lets the first byte of its last frame through, so this number limits the
/// memory of a response that is not watched any more. The number is also the usual maximum of a
/// frame in HTTP/2.
const MAX_FRAME_BYTES: usize = 16 * 1024;

/// The frames that hyper holds until the client takes them, for one connection.
pub(super) struct HeldFrames {
    clock: Arc<dyn Clock>,
    table: Locked<Table>,
    /// Notified when a request begins.
    begun: Notify,
}

#[derive(Default)]
struct Table {
    last_key: u64,
    /// For each response, until hyper drops its body: the frame that hyper may hold.
    responses: BTreeMap<u64, Option<HeldFrame>>,
    /// The uptime at which hyper last dropped a body.
    last_drop: Option<Duration>,
}

struct HeldFrame {
    /// The uptime at which hyper took the frame.
    taken_at: Duration,
    /// The token that stops the Tokio task of the request.
    stop: CancellationToken,
}

impl HeldFrames {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            table: Locked::default(),
            begun: Notify::new(),
        }
    }

    /// Waits until a request begins.
    pub(super) async fn wait_for_request(&self) {
        self.begun.notified().await;
    }

    /// Returns the tokens of the requests for which hyper has held a frame of the response for
    /// [`WRITE_TIMEOUT`]. The flag is true if there is such a request and the connection has no
    /// other response. After hyper drops a body, its response counts as another response for
    /// [`WRITE_TIMEOUT`], because the rest of the last frame may still wait for the window.
    pub(super) fn timed_out(&self) -> (Vec<CancellationToken>, bool) {
        let now = self.clock.uptime();
        let table = self.table.lock();
        let held = table.responses.values().flatten();
        let timed_out = held.filter(|held| now.saturating_sub(held.taken_at) >= WRITE_TIMEOUT);
        let tokens: Vec<_> = timed_out.map(|held| held.stop.clone()).collect();
        let last_drop = table.last_drop;
        let has_dropped = last_drop.is_some_and(|at| now.saturating_sub(at) < WRITE_TIMEOUT);
        let are_all = tokens.len() == table.responses.len() && !has_dropped;
        let is_deaf = !tokens.is_empty() && are_all;
        (tokens, is_deaf)
    }

    pub(super) fn watch_response(self: &Arc<Self>) -> WatchedResponse {
        let mut table = self.table.lock();
        table.last_key += 1;
        let key = table.last_key;
        table.responses.insert(key, None);
        drop(table);
        self.begun.notify_one();
        WatchedResponse {
            held: Arc::clone(self),
            key,
        }
    }
}

/// A response, from the arrival of its request until hyper drops its body.
pub(super) struct WatchedResponse {
    held: Arc<HeldFrames>,
    /// The key of this response in [`HeldFrames`].
    key: u64,
}

impl WatchedResponse {
    /// Records that hyper takes a frame of the response now.
    fn begin_frame(&self, stop: &CancellationToken) {
        let frame = HeldFrame {
            taken_at: self.held.clock.uptime(),
            stop: stop.clone(),
        };
        let mut table = self.held.table.lock();
        table.responses.insert(self.key, Some(frame));
    }

    /// Records that hyper holds no frame of the response.
    fn end_frame(&self) {
        self.held.table.lock().responses.insert(self.key, None);
    }
}

impl Drop for WatchedResponse {
    fn drop(&mut self) {
        let now = self.held.clock.uptime();
        let mut table = self.held.table.lock();
        table.responses.remove(&self.key);
        table.last_drop = Some(now);
    }
}

/// The body of a response over HTTP/2.
pub(super) struct WatchedBody<B> {
    body: B,
    /// The rest of a frame of `body` that is larger than [`MAX_FRAME_BYTES`].
    rest: Bytes,
    response: WatchedResponse,
    /// The token that stops the Tokio task of the request.
    stop: CancellationToken,
}

impl<B> WatchedBody<B> {
    pub(super) fn new(body: B, response: WatchedResponse, stop: CancellationToken) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            response,
            stop,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for WatchedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.rest.is_empty() {
            let frame = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Pending => {
                    self.response.end_frame();
                    return Poll::Pending;
                }
                ended @ Poll::Ready(None | Some(Err(_))) => return ended,
            };
            self.response.begin_frame(&self.stop);
            match frame.into_data() {
                Ok(data) if data.len() > MAX_FRAME_BYTES => self.rest = data,
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        } else {
            self.response.begin_frame(&self.stop);
        }
        let length = self.rest.len().min(MAX_FRAME_BYTES);
        // The part is copied. A part that shared the memory of `rest` would keep all of it until
        // the client takes the part.
        let part = Bytes::copy_from_slice(&self.rest.split_to(length));
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut total = SizeHint::new();
        total.set_lower(hint.lower().saturating_add(rest));
        if let Some(upper) = hint.upper() {
            total.set_upper(upper.saturating_add(rest));
        }
        total
    }
}
