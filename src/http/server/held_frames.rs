//! Finds responses over HTTP/2 of which the client takes nothing. For each response and for the
//! whole connection, the client sets a window: the number of bytes that the server may send. While
//! a window is 0, no write is pending, so the timeout of `write_timeout.rs` does not end the
//! connection. [`WatchedBody`] records when hyper takes a frame of a response. hyper asks for the
//! next frame only once the window lets the first byte of this frame through.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

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
}

#[derive(Default)]
struct Table {
    last_key: u64,
    /// For each response of which hyper may hold a frame: the uptime at which hyper took the frame.
    taken_at: BTreeMap<u64, Duration>,
}

impl HeldFrames {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            table: Locked::default(),
        }
    }

    /// Whether hyper has held a frame for [`WRITE_TIMEOUT`].
    pub(super) fn has_timed_out(&self) -> bool {
        let now = self.clock.uptime();
        let table = self.table.lock();
        let mut held_for = table.taken_at.values().map(|at| now.saturating_sub(*at));
        held_for.any(|time| time >= WRITE_TIMEOUT)
    }

    fn new_key(&self) -> u64 {
        let mut table = self.table.lock();
        table.last_key += 1;
        table.last_key
    }

    fn begin(&self, key: u64) {
        let now = self.clock.uptime();
        self.table.lock().taken_at.insert(key, now);
    }

    fn end(&self, key: u64) {
        self.table.lock().taken_at.remove(&key);
    }
}

/// The body of a response over HTTP/2.
pub(super) struct WatchedBody<B> {
    body: B,
    /// The rest of a frame of `body` that is larger than [`MAX_FRAME_BYTES`].
    rest: Bytes,
    held: Arc<HeldFrames>,
    /// The key of this body in [`HeldFrames`].
    key: u64,
}

impl<B> WatchedBody<B> {
    pub(super) fn new(body: B, held: Arc<HeldFrames>) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            key: held.new_key(),
            held,
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
                    self.held.end(self.key);
                    return Poll::Pending;
                }
                ended @ Poll::Ready(None | Some(Err(_))) => return ended,
            };
            self.held.begin(self.key);
            match frame.into_data() {
                Ok(data) if data.len() > MAX_FRAME_BYTES => self.rest = data,
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        } else {
            self.held.begin(self.key);
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

impl<B> Drop for WatchedBody<B> {
    fn drop(&mut self) {
        self.held.end(self.key);
    }
}
