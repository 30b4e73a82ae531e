//! Wraps a connection that carries one request. At the first write, the wrapper asks for the permit
//! to send. Invariant: no byte of the request is written before the permit is given. After the
//! permit, [`SendProgress::has_begun`] returns true.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};

/// A function that returns whether the request may still be sent.
pub(super) type MaySend = Box<dyn Fn() -> bool + Send + Sync>;

/// The progress of one request, shared with the connection that carries it.
#[derive(Clone, Debug, Default)]
pub(super) struct SendProgress(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    begun: AtomicBool,
    refused: AtomicBool,
}

impl SendProgress {
    /// Returns whether the first write was permitted. If so, the peer may have received a part of
    /// the request.
    pub(super) fn has_begun(&self) -> bool {
        self.0.begun.load(Ordering::SeqCst)
    }

    /// Returns whether `may_send` refused the first write. If so, nothing was sent.
    pub(super) fn is_refused(&self) -> bool {
        self.0.refused.load(Ordering::SeqCst)
    }
}

/// A connection that calls `may_send` at its first write. If `may_send` returns false, the first
/// and all later writes fail.
pub(super) struct GuardedConnection<S> {
    connection: S,
    may_send: Option<MaySend>,
    progress: SendProgress,
}

impl<S> GuardedConnection<S> {
    pub(super) fn new(connection: S, may_send: MaySend, progress: SendProgress) -> Self {
        Self {
            connection,
            may_send: Some(may_send),
            progress,
        }
    }

    fn check_permit(&mut self) -> io::Result<()> {
        if let Some(may_send) = self.may_send.take() {
            let flag = if may_send() {
                &self.progress.0.begun
            } else {
                &self.progress.0.refused
            };
            flag.store(true, Ordering::SeqCst);
        }
        if self.progress.has_begun() {
            Ok(())
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
}

impl<S: Read + Unpin> Read for GuardedConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl<S: Write + Unpin> Write for GuardedConnection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_permit()?;
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_permit()?;
        Pin::new(&mut self.connection).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}
