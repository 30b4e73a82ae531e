//! The stream of a connection, with a write timeout. Without the timeout, a client that stops
//! reading would keep unsent bytes and a Tokio task in memory for ever. [`TimeoutStream`] also
//! reports received bytes and pending writes to the connection's [`ConnectionSlot`]. The crate
//! `tokio-io-timeout` is not used: it would replace only the timer of this module, and it does not
//! measure time by [`Clock`].

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connections::ConnectionSlot;
use super::serve::Timeout;
use crate::world::Clock;

/// The maximum time for which a write may make no progress.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// A stream whose writes fail with `TimedOut` after [`WRITE_TIMEOUT`] without progress. The server
/// then drops the connection.
pub(crate) struct TimeoutStream<I> {
    io: I,
    clock: Arc<dyn Clock>,
    slot: Arc<ConnectionSlot>,
    /// The timer of the pending write; `None` if no write is pending.
    timer: Timeout,
    timed_out: bool,
    /// The bytes that `read_preface` has read from `io` and put back. The stream returns them
    /// before it reads from `io` again.
    unread: BytesMut,
}

impl<I> TimeoutStream<I> {
    pub(super) fn new(io: I, clock: Arc<dyn Clock>, slot: Arc<ConnectionSlot>) -> Self {
        Self {
            io,
            clock,
            slot,
            timer: None,
            timed_out: false,
            unread: BytesMut::new(),
        }
    }

    /// Puts back `bytes`, which the caller has read from the stream. The next reads return them
    /// first.
    pub(super) fn unread(&mut self, bytes: BytesMut) {
        self.unread = bytes;
    }

    /// Applies the timeout to `write`, the result of one attempt to write. A pending attempt starts
    /// the timer, unless the timer runs already. A completed attempt removes the timer. After the
    /// timer has ended, this attempt and all later attempts fail with `TimedOut`.
    fn apply_timeout<T>(
        &mut self,
        write: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        self.slot.set_unwritten(write.is_pending());
        if write.is_ready() && !self.timed_out {
            self.timer = None;
            return write;
        }
        let clock = &self.clock;
        let timer = self.timer.get_or_insert_with(|| {
            let clock = Arc::clone(clock);
            Box::pin(async move { clock.sleep(WRITE_TIMEOUT).await })
        });
        if !self.timed_out && timer.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.timed_out = true;
        tracing::info!("a connection was closed: its client read nothing");
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for TimeoutStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let length = self.unread.len().min(into.remaining());
            into.put_slice(&self.unread.split_to(length));
            if self.unread.is_empty() {
                self.unread = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, into);
        if into.filled().len() > before {
            self.slot.note_received();
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.io).poll_write(context, bytes);
        self.apply_timeout(write, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.io).poll_write_vectored(context, bytes);
        self.apply_timeout(write, context)
    }
}
