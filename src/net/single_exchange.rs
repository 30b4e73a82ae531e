//! Sends one request on its own connection, after a permit to send.

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use http::Uri;
use hyper::client::conn::http1;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::GaiResolver;
use hyper_util::rt::TokioIo;
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, CONNECTION, HOST, HeaderMap, HeaderValue, USER_AGENT,
};
use reqwest::{Body, Request, Response, StatusCode};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tower::ServiceExt as _;
use tower::util::MapErr;

use super::guarded_connection::{GuardedConnection, MaySend, SendProgress};
use super::{
    BodyLimits, BufferedResponse, CONNECT_TIMEOUT, CONNECTION_LOST, Failure, NO_ANSWER_IN_TIME,
    NO_CONNECTION_IN_TIME, NOT_BUILT, NOT_RESOLVED, Net, causes, connect_failure, io_kind,
    lost_failure,
};

pub(super) type Connector =
    HttpsConnector<HttpConnector<MapErr<GaiResolver, fn(io::Error) -> Unresolved>>>;
type Connection = MaybeHttpsStream<TokioIo<TcpStream>>;

/// The failure text if the [`SendPermit`] refuses the request.
pub const NOT_PERMITTED: &str = "it must not be sent any more";

/// The permit to send a request.
pub struct SendPermit {
    /// Decides whether the request may be sent. The exchange awaits this future after the
    /// connection is made. The output is the time of the decision, or `None` if the request must
    /// not be sent.
    pub decision: BoxFuture<'static, Option<Instant>>,
    /// Returns whether the request may still be sent. The exchange calls this function once, right
    /// before the first byte is written.
    pub may_send: MaySend,
}

#[derive(Debug)]
pub(super) struct Unresolved(io::Error);

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NOT_RESOLVED)
    }
}

impl Error for Unresolved {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

/// Returns a connector with the TLS settings `tls`, which must have no ALPN protocols.
pub(super) fn connector(tls: ClientConfig) -> Connector {
    let mut tcp = HttpConnector::new_with_resolver(MapErr::new(
        GaiResolver::new(),
        Unresolved as fn(io::Error) -> Unresolved,
    ));
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
    builder.https_or_http().enable_http1().wrap_connector(tcp)
}

/// A receiver of one response, part by part.
pub trait ResponseSink: Send {
    /// Called once, when the response begins. `status` is never 1xx.
    fn begin(&mut self, status: StatusCode, headers: &HeaderMap);

    /// Called with the next bytes of the body. Returns whether further bytes are needed.
    fn take(&mut self, bytes: &[u8]) -> bool;
}

struct BodyCollector<F> {
    /// Returns the limits of the body for a status. `None` once the response has begun.
    limits: Option<F>,
    answer: Option<(BufferedResponse, BodyLimits)>,
}

impl<F: FnOnce(StatusCode) -> BodyLimits + Send> ResponseSink for BodyCollector<F> {
    fn begin(&mut self, status: StatusCode, _headers: &HeaderMap) {
        let answer = BufferedResponse {
            status,
            body: Vec::new(),
            is_truncated: false,
        };
        self.answer = self.limits.take().map(|limits| (answer, limits(status)));
    }

    fn take(&mut self, bytes: &[u8]) -> bool {
        let Some((answer, limits)) = &mut self.answer else {
            return false;
        };
        let space_left = limits.max_bytes.saturating_sub(answer.body.len());
        answer.is_truncated = bytes.len() > space_left;
        let kept = bytes.get(..space_left).unwrap_or(bytes);
        answer.body.extend_from_slice(kept);
        !answer.is_truncated
    }
}

impl Net {
    /// Sends one request on its own connection, and returns the response. `within` counts from the
    /// call of this function or from the decision of the permit, whichever is later. `limits`
    /// returns the limits of the body for the response's status.
    ///
    /// # Errors
    /// Fails like [`Net::send_single_into`], with one exception: a response that is lost after
    /// [`BodyLimits::enough_bytes`] bytes is not an error.
    pub async fn send_single(
        &self,
        request: Request,
        within: Duration,
        permit: SendPermit,
        limits: impl FnOnce(StatusCode) -> BodyLimits + Send,
    ) -> Result<BufferedResponse, Failure> {
        let mut collector = BodyCollector {
            limits: Some(limits),
            answer: None,
        };
        let received = self
            .send_single_into(request, within, permit, &mut collector)
            .await;
        match (collector.answer, received) {
            (Some((answer, _)), Ok(())) => Ok(answer),
            (Some((answer, limits)), Err(_)) if answer.body.len() >= limits.enough_bytes => {
                Ok(BufferedResponse {
                    is_truncated: true,
                    ..answer
                })
            }
            (_, received) => Err(received.err().unwrap_or(Failure::Lost(CONNECTION_LOST))),
        }
    }

    /// Sends one request like [`Net::send_single`], and passes the response to `sink` while it
    /// arrives. Ends early if `sink` needs no further bytes.
    ///
    /// # Errors
    /// Fails with:
    /// - [`Failure::NotSent`] if the request could not be built, no connection was made, the permit
    ///   refused the request, or the peer closed the connection before the write.
    /// - [`Failure::Lost`] if the request was or may have been written, but no complete response
    ///   arrived.
    pub async fn send_single_into(
        &self,
        request: Request,
        within: Duration,
        permit: SendPermit,
        sink: &mut impl ResponseSink,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + within;
        let request = prepare_request(request).ok_or(Failure::NotSent(NOT_BUILT))?;
        let (uri, request) = request;
        let connection = self.connect(uri, deadline).await?;
        let decided_at = permit
            .decision
            .await
            .ok_or(Failure::NotSent(NOT_PERMITTED))?;
        let progress = SendProgress::default();
        let guarded = GuardedConnection::new(connection, permit.may_send, progress.clone());
        let exchange = exchange(guarded, request, sink);
        match timeout_at(deadline.max(decided_at + within), exchange).await {
            Ok(Ok(())) => Ok(()),
            _ if progress.is_refused() => Err(Failure::NotSent(NOT_PERMITTED)),
            _ if !progress.has_begun() => Err(Failure::NotSent(CLOSED_BEFORE_WRITE)),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::Lost(NO_ANSWER_IN_TIME)),
        }
    }

    async fn connect(&self, uri: Uri, deadline: Instant) -> Result<Connection, Failure> {
        let deadline = deadline.min(Instant::now() + CONNECT_TIMEOUT);
        match timeout_at(deadline, self.connector.clone().oneshot(uri)).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(Failure::NotSent(connector_failure(error.as_ref()))),
            Err(_) => Err(Failure::NotSent(NO_CONNECTION_IN_TIME)),
        }
    }
}

const CLOSED_BEFORE_WRITE: &str = "the connection was closed before the request was written";

fn connector_failure(error: &(dyn Error + 'static)) -> &'static str {
    if causes(error).any(<dyn Error>::is::<Unresolved>) {
        return NOT_RESOLVED;
    }
    connect_failure(io_kind(error))
}

/// Returns the address to connect to, and the request to write, whose URI has only the path and the
/// query. Returns `None` if the request is malformed.
fn prepare_request(request: Request) -> Option<(Uri, http::Request<Body>)> {
    let mut request = http::Request::<Body>::try_from(request).ok()?;
    let path = Uri::from(request.uri().path_and_query()?.clone());
    let uri = std::mem::replace(request.uri_mut(), path);
    let host = uri.authority()?.as_str().rsplit('@').next()?;
    // Without compression, HTTP alone defines where a body ends. With `Connection: close`, the peer
    // closes the connection first, so that the local port is free at once.
    for (name, value) in [
        (HOST, host),
        (USER_AGENT, super::USER_AGENT),
        (ACCEPT, "*/*"),
        (ACCEPT_ENCODING, "identity"),
        (CONNECTION, "close"),
    ] {
        let value = HeaderValue::from_str(value).ok()?;
        request.headers_mut().entry(name).or_insert(value);
    }
    Some((uri, request))
}

async fn exchange(
    connection: GuardedConnection<Connection>,
    request: http::Request<Body>,
    sink: &mut impl ResponseSink,
) -> Result<(), Failure> {
    let handshake = http1::handshake(connection).await;
    let (mut sender, connection) = handshake.map_err(|_| Failure::Lost(CONNECTION_LOST))?;
    let answered = async {
        let sent = sender.send_request(request).await;
        let response = sent.map_err(|_| Failure::Lost(CONNECTION_LOST))?;
        read(response.map(Body::wrap).into(), sink).await
    };
    // One Tokio task drives the connection and waits for the answer, so no other task delays the
    // write after the permit.
    match select(pin!(answered), pin!(connection)).await {
        Either::Left((read, _)) => read,
        Either::Right((_, answered)) => answered.await,
    }
}

async fn read(mut response: Response, sink: &mut impl ResponseSink) -> Result<(), Failure> {
    let status = response.status();
    if status.is_informational() {
        return Err(Failure::Lost("the answer was not a final answer"));
    }
    sink.begin(status, response.headers());
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|error| lost_failure(&error))?
    {
        if !sink.take(&chunk) {
            break;
        }
    }
    Ok(())
}
