//! The accept loop: serves HTTP/1.1 with a timeout and a size limit for the head of a request, a
//! keep-alive timeout, and a limit of connections. Serving HTTP/1 explicitly keeps HTTP/2 out,
//! whatever features other crates enable.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::connections::{ConnectionPhase, ConnectionSlot, Connections, CountedBody};
use super::write_timeout::TimeoutStream;
use crate::world::Clock;

/// The longest time for the head of a request to arrive. The time begins when the connection opens;
/// for later requests of a connection, it begins with the first byte of the head.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection stays open after a response while the client sends no next request.
pub(crate) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(75);
/// The largest head of a request, in bytes.
pub(crate) const MAX_HEADER_SIZE: usize = 64 * 1024;
/// The bytes that one connection may buffer in each direction.
const BUFFER: usize = 2 * MAX_HEADER_SIZE;
/// The pause after `accept` failed, for example for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A source of connections.
pub(crate) trait Acceptor: Send {
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for the next connection.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Io, SocketAddr)>> + Send;
}

impl Acceptor for TcpListener {
    type Io = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = Self::accept(self).await?;
        let _ = stream.set_nodelay(true);
        Ok((stream, peer))
    }
}

/// The server of one listener.
#[derive(Clone)]
pub(crate) struct Server {
    pub router: Router,
    pub connections: Connections,
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Serves until `closed` is cancelled, and returns once the requests in flight are answered.
    pub(crate) async fn serve(self, mut acceptor: impl Acceptor, closed: CancellationToken) {
        let tasks = TaskTracker::new();
        // When the future of `serve` is dropped, the Tokio tasks of its connections stop.
        let stop = CancellationToken::new();
        let _guard = stop.clone().drop_guard();
        let mut exhausted = false;
        loop {
            let accepted = tokio::select! {
                biased;
                () = closed.cancelled() => break,
                accepted = acceptor.accept() => accepted,
            };
            match accepted {
                Ok((io, peer)) => {
                    exhausted = false;
                    let slot = tokio::select! {
                        biased;
                        () = closed.cancelled() => break,
                        slot = self.connections.slot() => slot,
                    };
                    let connection = self.clone().connection(io, peer, slot, closed.clone());
                    let stop = stop.clone();
                    tasks.spawn(async move { stop.run_until_cancelled(connection).await });
                }
                Err(error) if is_client_fault(&error) => {}
                Err(error) => {
                    if !exhausted {
                        tracing::warn!(error = %error.kind(), "no connection can be accepted; idle ones are closed");
                    }
                    exhausted = true;
                    self.connections.close_longest();
                    self.clock.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(acceptor);
        tasks.close();
        tasks.wait().await;
    }

    /// Serves one connection from its opening to its end.
    async fn connection<I>(
        self,
        io: I,
        peer: SocketAddr,
        slot: Arc<ConnectionSlot>,
        closed: CancellationToken,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (router, serving) = (self.router, Arc::clone(&slot));
        let service = service_fn(move |request| respond(router.clone(), &serving, peer, request));
        let stream = TimeoutStream::new(io, Arc::clone(&self.clock), Arc::clone(&slot));
        let mut builder = http1::Builder::new();
        // `PhaseTimer` applies the timeouts, by our own clock.
        builder
            .header_read_timeout(None)
            .max_header_size(MAX_HEADER_SIZE)
            .max_buf_size(BUFFER);
        let mut connection =
            std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        let mut closing = std::pin::pin!(closed.cancelled());
        let mut close = std::pin::pin!(slot.close().cancelled());
        let mut phase_timer = PhaseTimer {
            slot: Arc::clone(&slot),
            clock: self.clock,
            last: None,
            end: None,
        };
        let mut going_down = false;
        poll_fn(|context| {
            slot.register_waker(context);
            loop {
                if connection.as_mut().poll(context).is_ready()
                    || close.as_mut().poll(context).is_ready()
                {
                    return Poll::Ready(());
                }
                let (serves, timed_out) = phase_timer.poll_phase(context);
                if timed_out {
                    return Poll::Ready(());
                }
                if going_down || closing.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                if !serves {
                    return Poll::Ready(());
                }
                going_down = true;
                connection.as_mut().graceful_shutdown();
            }
        })
        .await;
    }
}

/// Answers one request of a connection.
fn respond(
    router: Router,
    slot: &Arc<ConnectionSlot>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> impl Future<Output = io::Result<http::Response<CountedBody<Body>>>> + use<> {
    let serving = slot.begin();
    let slot = Arc::downgrade(slot);
    async move {
        // The connection was told to close before this request began, so the request has no effect.
        let serving = serving.ok_or(io::ErrorKind::ConnectionAborted)?;
        let mut request = request.map(|body| Body::new(CountedBody::new(body, serving.clone())));
        request.extensions_mut().insert(ConnectInfo(peer));
        request.extensions_mut().insert(slot);
        let Ok(response): Result<Response, std::convert::Infallible> =
            router.oneshot(request).await;
        Ok(response.map(|body| CountedBody::new(body, serving)))
    }
}

/// Whether the client caused the failure, so that the next `accept` needs no pause.
fn is_client_fault(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

/// The timeout of a connection's current phase.
struct PhaseTimer {
    slot: Arc<ConnectionSlot>,
    clock: Arc<dyn Clock>,
    last: Option<(ConnectionPhase, u64)>,
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl PhaseTimer {
    /// Whether the connection serves a request, and whether its phase has timed out.
    fn poll_phase(&mut self, context: &mut Context<'_>) -> (bool, bool) {
        let now = self.slot.phase();
        if self.last != Some(now) {
            self.last = Some(now);
            let time = match now.0 {
                ConnectionPhase::Serving => None,
                ConnectionPhase::Head => Some(HEADER_TIMEOUT),
                ConnectionPhase::KeepAlive => Some(KEEP_ALIVE_TIMEOUT),
            };
            self.end = time.map(|time| -> Pin<Box<dyn Future<Output = ()> + Send>> {
                let clock = Arc::clone(&self.clock);
                Box::pin(async move { clock.sleep(time).await })
            });
        }
        let timed_out = self
            .end
            .as_mut()
            .is_some_and(|end| end.as_mut().poll(context).is_ready());
        (now.0 == ConnectionPhase::Serving, timed_out)
    }
}

#[cfg(test)]
mod tests;
