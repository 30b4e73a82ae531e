//! Wraps a TCP stream so that a read returns at most one line. The wrapper prevents STARTTLS
//! response injection (RFC 3207, section 6): an attacker adds bytes to the server's answer to
//! STARTTLS, and the client takes these bytes for an answer inside TLS. With the wrapper, the
//! client reads only the line of the answer before TLS begins. The TLS handshake then reads the
//! added bytes, and fails.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use lettre::transport::smtp::client::AsyncTokioStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

const CHUNK: usize = 4096;

/// A TCP stream that is read line by line.
#[derive(Debug)]
pub(super) struct LineStream {
    stream: TcpStream,
    /// The bytes that were read from the stream but not returned yet.
    buffered: BytesMut,
}

impl LineStream {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            buffered: BytesMut::new(),
        }
    }
}

impl AsyncRead for LineStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.buffered.is_empty() {
            let mut chunk = [0; CHUNK];
            let mut read = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
            this.buffered.extend_from_slice(read.filled());
        }
        let end = this.buffered.iter().position(|byte| *byte == b'\n');
        let line = end.map_or(this.buffered.len(), |end| end + 1);
        let line = this.buffered.split_to(line.min(buffer.remaining()));
        buffer.put_slice(&line);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LineStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

impl AsyncTokioStream for LineStream {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }
}
