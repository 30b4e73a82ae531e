//! The accept loop. The server limits the number of connections, the size of each request's head,
//! the time in which the head must arrive, and the time between two requests of a connection.
//! HTTP/2 is served only if [`Server::http2`] is set and the connection begins with the preface of
//! HTTP/2. All other connections use hyper's builder for HTTP/1 alone, so that Cargo features of
//! other crates cannot enable HTTP/2 on them.

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
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::connections::{ConnectionPhase, ConnectionSlot, Connections, CountedBody};
use super::http2;
pub(crate) use super::http2::PingTimes;
use super::write_timeout::TimeoutStream;
use crate::world::Clock;

/// The maximum time for the head of a request to arrive. For the first request, the time begins
/// when the connection opens; for a later request, with the first byte of the head.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which a connection stays open after a response if no next request arrives.
pub(crate) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(75);
/// The maximum size of the head of a request, in bytes.
pub(crate) const MAX_HEADER_SIZE: usize = 64 * 1024;
/// The maximum number of bytes that one connection buffers in each direction.
const MAX_BUFFER_BYTES: usize = 2 * MAX_HEADER_SIZE;
/// The pause after `accept` failed, for example because no descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(crate) trait Acceptor: Send {
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

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

#[derive(Clone)]
pub(crate) struct Server {
    /// The current router of the service. Each request uses the router that is current when the
    /// request begins. So a new router also answers requests on connections that are open already.
    pub router: watch::Receiver<Router>,
    pub connections: Connections,
    pub clock: Arc<dyn Clock>,
    /// The times of the pings on connections of HTTP/2 with prior knowledge; `None` if the server
    /// does not serve HTTP/2.
    pub http2: Option<PingTimes>,
}

impl Server {
    /// Serves until `closed` is cancelled, and returns once the requests in flight are answered.
    pub(crate) async fn serve(self, mut acceptor: impl Acceptor, closed: CancellationToken) {
        let tasks = TaskTracker::new();
        // When the future of `serve` is dropped, the Tokio tasks of its connections stop.
        let stop = CancellationToken::new();
        let _guard = stop.clone().drop_guard();
        let mut accept_failed = false;
        loop {
            let accepted = tokio::select! {
                biased;
                () = closed.cancelled() => break,
                accepted = acceptor.accept() => accepted,
            };
            match accepted {
                Ok((io, peer)) => {
                    accept_failed = false;
                    let slot = tokio::select! {
                        biased;
                        () = closed.cancelled() => break,
                        slot = self.connections.wait_for_slot() => slot,
                    };
                    let connection = self.clone().connection(io, peer, slot, closed.clone());
                    // Boxed, because three other futures contain this future, and each would
                    // otherwise reserve memory for it.
                    let connection = Box::pin(connection);
                    let stop = stop.clone();
                    tasks.spawn(async move { stop.run_until_cancelled(connection).await });
                }
                Err(error) if is_client_fault(&error) => {}
                Err(error) => {
                    if !accept_failed {
                        tracing::warn!(%error, "no connection can be accepted; idle ones are closed");
                    }
                    accept_failed = true;
                    self.connections.close_longest_idle();
                    self.clock.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(acceptor);
        tasks.close();
        tasks.wait().await;
    }

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
        let service = service_fn(move |request| {
            let router = router.borrow().clone();
            respond(router, &serving, peer, request)
        });
        let mut stream = TimeoutStream::new(io, Arc::clone(&self.clock), Arc::clone(&slot));
        let mut timer = PhaseTimer::new(&slot, self.clock);
        if let Some(pings) = self.http2 {
            let read = http2::read_preface(&mut stream, &mut timer.end);
            let is_http2 = tokio::select! {
                biased;
                () = closed.cancelled() => None,
                () = slot.close_token().cancelled() => None,
                is_http2 = read => is_http2,
            };
            match is_http2 {
                None => return,
                Some(true) => {
                    let serving = http2::serve(stream, service, slot, timer, closed, pings);
                    return Box::pin(serving).await;
                }
                Some(false) => {}
            }
        }
        let mut builder = http1::Builder::new();
        // hyper's own timeout for the head is off, because `PhaseTimer` measures the timeout by the
        // service's clock.
        builder
            .header_read_timeout(None)
            .max_header_size(MAX_HEADER_SIZE)
            .max_buf_size(MAX_BUFFER_BYTES);
        let connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        run_connection(connection, &slot, timer, &closed).await;
    }
}

/// Polls a connection until it ends, until its phase times out, or until `slot` tells it to close.
/// Once `closed` is cancelled, the connection ends after its requests in flight.
pub(super) async fn run_connection(
    mut connection: Pin<&mut impl GracefulConnection>,
    slot: &ConnectionSlot,
    mut timer: PhaseTimer,
    closed: &CancellationToken,
) {
    let mut shutdown_requested = std::pin::pin!(closed.cancelled());
    let mut close = std::pin::pin!(slot.close_token().cancelled());
    let mut is_shutting_down = false;
    poll_fn(|context| {
        slot.register_waker(context);
        loop {
            if connection.as_mut().poll(context).is_ready()
                || close.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(());
            }
            let (serves, timed_out) = timer.poll_phase(context);
            if timed_out {
                return Poll::Ready(());
            }
            if is_shutting_down || shutdown_requested.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            if !serves {
                return Poll::Ready(());
            }
            is_shutting_down = true;
            connection.as_mut().graceful_shutdown();
        }
    })
    .await;
}

fn respond(
    router: Router,
    slot: &Arc<ConnectionSlot>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> impl Future<Output = io::Result<http::Response<CountedBody<Body>>>> + use<> {
    let serving = slot.begin_request();
    let slot = Arc::downgrade(slot);
    async move {
        // `begin_request` returns `None` if the server chose this connection to make room for
        // another client before the request began. The request then fails before it reaches the
        // router.
        let serving = serving.ok_or(io::ErrorKind::ConnectionAborted)?;
        let mut request = request.map(|body| Body::new(CountedBody::new(body, serving.clone())));
        request.extensions_mut().insert(ConnectInfo(peer));
        request.extensions_mut().insert(slot);
        let Ok(response): Result<Response, std::convert::Infallible> =
            router.oneshot(request).await;
        Ok(response.map(|body| CountedBody::new(body, serving)))
    }
}

/// Returns whether a client caused the failure of `accept`. If so, the accept loop calls `accept`
/// again without a pause.
fn is_client_fault(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

pub(super) struct PhaseTimer {
    slot: Arc<ConnectionSlot>,
    pub(super) clock: Arc<dyn Clock>,
    last: Option<(ConnectionPhase, u64)>,
    end: Timeout,
}

/// A future that completes when a timeout expires. `None` if there is no timeout.
pub(super) type Timeout = Option<Pin<Box<dyn Future<Output = ()> + Send>>>;

pub(super) fn phase_timeout(phase: ConnectionPhase) -> Option<Duration> {
    match phase {
        ConnectionPhase::Serving => None,
        ConnectionPhase::Head => Some(HEADER_TIMEOUT),
        ConnectionPhase::KeepAlive => Some(KEEP_ALIVE_TIMEOUT),
    }
}

impl PhaseTimer {
    fn new(slot: &Arc<ConnectionSlot>, clock: Arc<dyn Clock>) -> Self {
        let mut timer = Self {
            slot: Arc::clone(slot),
            clock,
            last: None,
            end: None,
        };
        timer.begin(slot.phase());
        timer
    }

    fn begin(&mut self, now: (ConnectionPhase, u64)) {
        self.last = Some(now);
        self.end = phase_timeout(now.0).map(|time| -> Pin<Box<dyn Future<Output = ()> + Send>> {
            let clock = Arc::clone(&self.clock);
            Box::pin(async move { clock.sleep(time).await })
        });
    }

    /// Returns whether the connection serves a request, and whether its phase has timed out.
    fn poll_phase(&mut self, context: &mut Context<'_>) -> (bool, bool) {
        let now = self.slot.phase();
        if self.last != Some(now) {
            self.begin(now);
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
