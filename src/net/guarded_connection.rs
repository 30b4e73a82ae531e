//! Wraps a connection that carries one request at a time. [`SendGate::arm`] prepares the gate of
//! the connection for the next request. At the first write of the request, the gate asks for the
//! permit to send. Invariant: no byte of the request is written before the permit is given. Once
//! the permit is given, [`SendGate::has_begun`] returns true.
//!
//! After the exchange's deadline, the gate refuses every write, but reading stays possible. So if
//! the process is suspended over the deadline, it can still read a response that has arrived, but
//! it does not write the rest of the request.
//!
//! On a reused connection, the wrapper first checks that the socket is silent. If the peer has
//! closed the connection, or has sent bytes that belong to no request, the first write fails, and
//! the gate does not ask for the permit. The wrapper asks the socket itself, because Tokio may not
//! have seen such bytes yet.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::world::Locked;

pub(super) type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// A function that returns whether the request may still be sent.
pub(super) type MaySend = Arc<dyn Fn() -> bool + Send + Sync>;

/// The permit and the progress of the present request, shared with the connection that carries it.
#[derive(Clone, Default)]
pub(super) struct SendGate(Arc<Locked<State>>);

#[derive(Default)]
struct State {
    /// Whether an earlier request has used the connection.
    is_reused: bool,
    begun: bool,
    refused: bool,
    /// The function that permits or refuses the request. The first write of the request takes the
    /// function out, so the function is called at most once.
    may_send: Option<MaySend>,
    /// The time after which no byte is written; `None` before the first request.
    deadline: Option<Instant>,
}

impl SendGate {
    /// Prepares the gate for the next request.
    pub(super) fn arm(&self, may_send: MaySend, deadline: Instant) {
        let mut state = self.0.lock();
        *state = State {
            is_reused: state.begun,
            may_send: Some(may_send),
            deadline: Some(deadline),
            ..State::default()
        };
    }

    /// Returns whether the first write was permitted. If so, the peer may have received a part of
    /// the request.
    pub(super) fn has_begun(&self) -> bool {
        self.0.lock().begun
    }

    /// Returns whether `may_send` refused the first write. If so, nothing was sent.
    pub(super) fn is_refused(&self) -> bool {
        self.0.lock().refused
    }

    fn check(&self, stream: &Stream) -> io::Result<()> {
        let mut state = self.0.lock();
        if !state.begun
            && let Some(may_send) = state.may_send.take()
        {
            if state.is_reused && !is_silent(stream) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            state.begun = may_send();
            state.refused = !state.begun;
        }
        if !state.begun {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let deadline = state.deadline;
        if deadline.is_some_and(|deadline| deadline < Instant::now()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

/// Whether the socket has no unread bytes, and the peer has not closed the connection.
fn is_silent(stream: &Stream) -> bool {
    let tcp = match stream {
        MaybeHttpsStream::Http(tcp) => tcp,
        MaybeHttpsStream::Https(tls) => tls.inner().get_ref().0.inner(),
    };
    let mut sockets = [PollFd::new(tcp.inner(), PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut sockets, Some(&now)) == Ok(0)
}

/// A connection that asks its gate before each write. If the gate refuses the first write of a
/// request, the gate also refuses all later writes until the next call of [`SendGate::arm`].
pub(super) struct GuardedConnection {
    stream: Stream,
    gate: SendGate,
}

impl GuardedConnection {
    pub(super) fn new(stream: Stream, gate: SendGate) -> Self {
        Self { stream, gate }
    }
}

impl Read for GuardedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for GuardedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.gate.check(&self.stream)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.gate.check(&self.stream)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
