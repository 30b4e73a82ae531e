//! Accepts connections and serves HTTP/1.1 on them: the head of a request has its time and its size, a kept connection has
//! its time, and there are only so many connections. Serving HTTP/1 by itself also keeps HTTP/2 out, whatever features
//! other crates switch on.

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

use super::connections::{CallState, Connections, Place, Served};
use super::patience::Line;
use crate::world::Clock;

/// How long the head of a request may take, from the connection's opening or from its first byte.
pub const HEAD: Duration = Duration::from_secs(10);
/// How long a connection is kept without a request.
pub const KEPT: Duration = Duration::from_secs(75);
/// How large the head of a request may be.
pub const HEAD_SIZE: usize = 64 * 1024;
/// The bytes that one connection may buffer in each direction.
const BUFFER: usize = 2 * HEAD_SIZE;
/// How long no connection is accepted after the system had none to give.
const REST: Duration = Duration::from_millis(100);

/// Where connections come from.
pub trait Source: Send {
    /// One of them.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next one.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Io, SocketAddr)>> + Send;
}

impl Source for TcpListener {
    type Io = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = Self::accept(self).await?;
        let _ = stream.set_nodelay(true);
        Ok((stream, peer))
    }
}

/// Serves the connections of a listener.
#[derive(Clone)]
pub struct Server {
    /// Answers.
    pub router: Router,
    /// How many there may be.
    pub connections: Connections,
    /// Times them.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("connections", &self.connections).finish_non_exhaustive()
    }
}

impl Server {
    /// Serves until `closed`; returns when the requests under way are answered.
    pub async fn serve(self, mut source: impl Source, closed: CancellationToken) {
        let tasks = TaskTracker::new();
        // Ends the tasks, too, where this future is dropped first.
        let over = CancellationToken::new();
        let _guard = over.clone().drop_guard();
        let mut exhausted = false;
        loop {
            let accepted = tokio::select! {
                biased;
                () = closed.cancelled() => break,
                accepted = source.accept() => accepted,
            };
            match accepted {
                Ok((io, peer)) => {
                    exhausted = false;
                    let place = tokio::select! {
                        biased;
                        () = closed.cancelled() => break,
                        place = self.connections.place() => place,
                    };
                    let connection = self.clone().connection(io, peer, place, closed.clone());
                    let over = over.clone();
                    tasks.spawn(async move { over.run_until_cancelled(connection).await });
                }
                Err(error) if is_of_the_client(&error) => {}
                Err(error) => {
                    if !exhausted {
                        tracing::warn!(error = %error.kind(), "no connection can be accepted; idle ones are closed");
                    }
                    exhausted = true;
                    self.connections.close_longest();
                    self.clock.sleep(REST).await;
                }
            }
        }
        drop(source);
        tasks.close();
        tasks.wait().await;
    }

    /// One connection, from its opening to its end.
    async fn connection<I>(self, io: I, peer: SocketAddr, place: Arc<Place>, closed: CancellationToken)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (router, serving) = (self.router, Arc::clone(&place));
        let service = service_fn(move |request: Request<Incoming>| {
            let (router, place) = (router.clone(), Arc::downgrade(&serving));
            let serving = serving.begin();
            async move {
                // The connection was told to close first: the request was not looked at.
                let serving = serving.ok_or(io::ErrorKind::ConnectionAborted)?;
                let mut request = request.map(|body| Body::new(Served::new(body, serving.clone())));
                request.extensions_mut().insert(ConnectInfo(peer));
                request.extensions_mut().insert(place);
                let Ok(response): Result<Response, std::convert::Infallible> = router.oneshot(request).await;
                Ok::<_, io::Error>(response.map(|body| Served::new(body, serving)))
            }
        });
        let line = Line::new(io, Arc::clone(&self.clock), Arc::clone(&place));
        let mut builder = http1::Builder::new();
        // The times are kept below, by the one clock there is.
        builder.header_read_timeout(None).max_header_size(HEAD_SIZE).max_buf_size(BUFFER);
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(line), service));
        let mut told = std::pin::pin!(closed.cancelled());
        let mut close = std::pin::pin!(place.close().cancelled());
        let mut stands = Stands { place: Arc::clone(&place), clock: self.clock, last: None, end: None };
        let mut going_down = false;
        poll_fn(|context| {
            place.wake_by(context);
            loop {
                if connection.as_mut().poll(context).is_ready() || close.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                let (serves, late) = stands.look(context);
                if late {
                    return Poll::Ready(());
                }
                if going_down || told.as_mut().poll(context).is_pending() {
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

/// Failed because of its client: the next one is accepted at once.
fn is_of_the_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

/// How long a connection may stand as it does.
struct Stands {
    place: Arc<Place>,
    clock: Arc<dyn Clock>,
    last: Option<(CallState, u64)>,
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Stands {
    /// Whether it serves a request, and whether its time is over.
    fn look(&mut self, context: &mut Context<'_>) -> (bool, bool) {
        let now = self.place.settle();
        if self.last != Some(now) {
            self.last = Some(now);
            let time = match now.0 {
                CallState::Serving => None,
                CallState::Head => Some(HEAD),
                CallState::Kept => Some(KEPT),
            };
            self.end = time.map(|time| -> Pin<Box<dyn Future<Output = ()> + Send>> {
                let clock = Arc::clone(&self.clock);
                Box::pin(async move { clock.sleep(time).await })
            });
        }
        let late = self.end.as_mut().is_some_and(|end| end.as_mut().poll(context).is_ready());
        (now.0 == CallState::Serving, late)
    }
}

#[cfg(test)]
mod tests;
