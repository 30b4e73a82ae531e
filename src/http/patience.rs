//! A connection that ends when its client does not read: bytes that nobody takes would stay in memory, with whatever writes
//! them, for as long as the client likes. It also tells its place what moves.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connections::Place;
use crate::world::Clock;

/// How long a client may take nothing of an answer.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A connection: a write that makes no progress for too long is an error, and the server lets go of the connection.
pub struct Line<I> {
    io: I,
    clock: Arc<dyn Clock>,
    place: Arc<Place>,
    /// Since a write is waiting: the end of patience.
    stuck: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// There is none left.
    over: bool,
}

impl<I: fmt::Debug> fmt::Debug for Line<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Line").field(&self.io).finish()
    }
}

impl<I> Line<I> {
    /// The connection of this place, by this clock.
    pub fn new(io: I, clock: Arc<dyn Clock>, place: Arc<Place>) -> Self {
        Self { io, clock, place, stuck: None, over: false }
    }

    /// A write that went so far.
    fn went<T>(&mut self, write: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.place.unwritten(write.is_pending());
        if write.is_ready() && !self.over {
            self.stuck = None;
            return write;
        }
        let clock = &self.clock;
        let stuck = self.stuck.get_or_insert_with(|| {
            let clock = Arc::clone(clock);
            Box::pin(async move { clock.sleep(PATIENCE).await })
        });
        if !self.over && stuck.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.over = true;
        tracing::info!("a connection was closed whose client took nothing of what was written to him");
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Line<I> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, into);
        if into.filled().len() > before {
            self.place.heard();
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Line<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.io).poll_write(context, bytes);
        self.went(write, context)
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
        self.went(write, context)
    }
}
