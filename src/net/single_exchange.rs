//! Sends one request after a permit to send, on its own connection or on a kept connection.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::GaiResolver;
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, CONNECTION, HOST, HeaderMap, HeaderValue, USER_AGENT,
};
use reqwest::{Body, Request, StatusCode};
use rustls::ClientConfig;
use tokio::time::{Instant, timeout_at};
use tower::ServiceExt as _;
use tower::util::MapErr;

use super::guarded_connection::MaySend;
use super::kept_connections::KeptKey;
use super::open_connection::{OpenConnection, Received};
use super::{
    BodyLimits, BufferedResponse, CONNECT_TIMEOUT, CONNECTION_LOST, NO_ANSWER_IN_TIME,
    NO_CONNECTION_IN_TIME, NOT_BUILT, NOT_RESOLVED, Net, NetFailure, causes, connect_failure,
    io_kind,
};
use crate::world::complete_by;

pub(super) type Connector =
    HttpsConnector<HttpConnector<MapErr<GaiResolver, fn(io::Error) -> Unresolved>>>;

/// The failure text if the [`SendPermit`] refuses the request.
pub const NOT_PERMITTED: &str =
    "it was no longer permitted, because its start was stored too long ago or it was canceled";

/// The permit to send a request. The exchange first awaits `decision`, and then checks `may_send`
/// right before the first byte.
pub struct SendPermit {
    /// Decides whether the request may be sent. The exchange awaits this future after the
    /// connection is made. The output is the time of the decision, or `None` if the request must
    /// not be sent.
    pub decision: BoxFuture<'static, Option<Instant>>,
    /// Returns whether the request may still be sent. The exchange calls this function at most
    /// once, right before the first byte is written.
    pub may_send: MaySend,
}

/// The connection that a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionUse {
    /// A new connection, which is closed after the response. A request that must not be repeated
    /// needs its own connection, because a peer may close a kept connection just as a request is
    /// written, and then the outcome of the request is unknown.
    Own,
    /// A connection that an earlier request to the same origin has left open, if there is one;
    /// otherwise a new connection. Only a request that may be repeated may use a kept connection.
    /// The value is a digest that must cover the user and the credentials: only requests with the
    /// same digest share a connection.
    Kept([u8; 32]),
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

/// Returns a connector with the TLS settings `tls`. The settings must have no ALPN protocols:
/// `HttpsConnectorBuilder` sets the ALPN protocols itself, and panics if `tls` already has some.
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
    /// The function that returns the limits of the body for a status. The function is called when
    /// the response begins; afterwards this field is `None`.
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
    /// Sends one request, and returns the response. `within` counts from the call of this function
    /// or from the decision of the permit, whichever is later. `limits` returns the limits of the
    /// body for the response's status.
    ///
    /// # Errors
    /// Fails like [`Net::send_single_into`], with two differences:
    /// - If the connection is lost or the time runs out after [`BodyLimits::enough_bytes`] bytes of
    ///   the body, the function does not fail, but returns the bytes so far.
    /// - On a reused connection, the function fails with [`NetFailure::Lost`] if the response has
    ///   the status 421, or if the response has a status of `STRAY_STATUSES` and announces that the
    ///   peer closes the connection. Such a response may not answer this request.
    pub async fn send_single(
        &self,
        request: Request,
        within: Duration,
        permit: SendPermit,
        connection: ConnectionUse,
        limits: impl FnOnce(StatusCode) -> BodyLimits + Send,
    ) -> Result<BufferedResponse, NetFailure> {
        let mut collector = BodyCollector {
            limits: Some(limits),
            answer: None,
        };
        let received = self
            .send(request, within, permit, connection, &mut collector)
            .await;
        match (collector.answer, received) {
            (Some((answer, _)), Ok(())) => Ok(answer),
            (Some((answer, limits)), Err(failure))
                if failure != NetFailure::Lost(STRAY_ANSWER)
                    && answer.body.len() >= limits.enough_bytes =>
            {
                Ok(BufferedResponse {
                    is_truncated: true,
                    ..answer
                })
            }
            (_, received) => Err(received.err().unwrap_or(NetFailure::Lost(CONNECTION_LOST))),
        }
    }

    /// Sends one request on its own connection like [`Net::send_single`], and passes the response
    /// to `sink` while it arrives. Returns `Ok` early if `sink` needs no further bytes.
    ///
    /// # Errors
    /// Fails with:
    /// - [`NetFailure::NotSent`] if no part of the request was written. The variant lists the
    ///   reasons.
    /// - [`NetFailure::Lost`] if a part of the request was or may have been written, but no
    ///   complete response arrived.
    pub async fn send_single_into(
        &self,
        request: Request,
        within: Duration,
        permit: SendPermit,
        sink: &mut impl ResponseSink,
    ) -> Result<(), NetFailure> {
        self.send(request, within, permit, ConnectionUse::Own, sink)
            .await
    }

    async fn send(
        &self,
        request: Request,
        within: Duration,
        permit: SendPermit,
        connection: ConnectionUse,
        sink: &mut impl ResponseSink,
    ) -> Result<(), NetFailure> {
        let deadline = Instant::now() + within;
        let key = self.kept_key(&request, connection);
        let kept = key.as_ref().and_then(|key| self.kept.take(key));
        let mut is_reused = kept.is_some();
        // If the peer closes the kept connection before the write, this copy of the request is sent
        // on a new connection.
        let mut copy = kept.as_ref().and_then(|_| request.try_clone());
        let (uri, mut request) =
            prepare_request(request, key.is_some()).ok_or(NetFailure::NotSent(NOT_BUILT))?;
        let (mut connection, usable_until) = match kept {
            Some((connection, until)) => (connection, Some(until)),
            None => (self.open(uri.clone(), deadline).await?, None),
        };
        let decided_at = permit
            .decision
            .await
            .ok_or(NetFailure::NotSent(NOT_PERMITTED))?;
        let deadline = deadline.max(decided_at + within);
        if usable_until.is_some_and(|until| until <= Instant::now()) {
            connection = self.open(uri.clone(), deadline).await?;
            is_reused = false;
        }
        loop {
            let may_send = Arc::clone(&permit.may_send);
            let exchange = connection.exchange(request, may_send, deadline, sink);
            let failure = match complete_by(deadline, exchange).await {
                Some(Ok(received)) => return self.received(key, connection, received, is_reused),
                _ if connection.gate().is_refused() => NetFailure::NotSent(NOT_PERMITTED),
                _ if !connection.gate().has_begun() => NetFailure::NotSent(CLOSED_BEFORE_WRITE),
                Some(Err(failure)) if Instant::now() < deadline => failure,
                Some(Err(_)) | None => NetFailure::Lost(NO_ANSWER_IN_TIME),
            };
            let key = key.as_ref().filter(|_| std::mem::take(&mut is_reused));
            let (Some(key), false) = (key, failure == NetFailure::NotSent(NOT_PERMITTED)) else {
                return Err(failure);
            };
            self.kept.avoid(key.clone());
            let prepared = copy.take().and_then(|copy| prepare_request(copy, true));
            let (NetFailure::NotSent(_), Some((_, copy))) = (failure, prepared) else {
                return Err(failure);
            };
            connection = self.open(uri.clone(), deadline).await?;
            request = copy;
        }
    }

    /// Returns the key under which the request's connection may be kept. Returns `None` if the
    /// connection must be closed after the response, for one of these reasons:
    /// - `connection` is [`ConnectionUse::Own`].
    /// - The request's body is a stream, or is longer than [`MAX_KEPT_BODY_BYTES`].
    /// - The key is avoided (see `KeptConnections::avoid`).
    fn kept_key(&self, request: &Request, connection: ConnectionUse) -> Option<KeptKey> {
        let ConnectionUse::Kept(digest) = connection else {
            return None;
        };
        let body = request.body().map_or(Some(&[][..]), Body::as_bytes)?;
        let key = KeptKey::new(request.url(), digest);
        let may_keep = body.len() <= MAX_KEPT_BODY_BYTES && !self.kept.is_avoided(&key);
        may_keep.then_some(key)
    }

    /// Keeps the connection for a later request, if `key` is given and the response is complete.
    /// On a reused connection, fails if the response may belong to no request:
    /// - The response has the status 421, which refuses the connection rather than the request.
    /// - The response has a status of `STRAY_STATUSES`, and announces that the peer closes the
    ///   connection.
    ///
    /// Any other error status is the answer to the request, even if the peer closes the connection.
    fn received(
        &self,
        key: Option<KeptKey>,
        connection: OpenConnection,
        received: Received,
        is_reused: bool,
    ) -> Result<(), NetFailure> {
        let Some(key) = key else {
            return Ok(());
        };
        let status = received.status;
        let is_stray = status == StatusCode::MISDIRECTED_REQUEST
            || (received.announces_close && STRAY_STATUSES.contains(&status.as_u16()));
        if is_reused && is_stray {
            self.kept.avoid(key);
            return Err(NetFailure::Lost(STRAY_ANSWER));
        }
        if received.is_complete {
            self.kept.keep(key, connection);
        }
        Ok(())
    }

    async fn open(&self, uri: Uri, deadline: Instant) -> Result<OpenConnection, NetFailure> {
        let deadline = deadline.min(Instant::now() + CONNECT_TIMEOUT);
        match timeout_at(deadline, self.connector.clone().oneshot(uri)).await {
            Ok(Ok(stream)) => OpenConnection::new(stream).await,
            Ok(Err(error)) => Err(NetFailure::NotSent(connector_failure(error.as_ref()))),
            Err(_) => Err(NetFailure::NotSent(NO_CONNECTION_IN_TIME)),
        }
    }
}

/// The maximum length in bytes of a request's body. After a request with a longer body, the
/// connection is not kept: a peer may respond before it has read the whole body, and the rest of
/// the body in the connection's buffers would delay the next request.
const MAX_KEPT_BODY_BYTES: usize = 16 * 1024;

/// The statuses of responses that may belong to no request. A peer may send 408 when it closes an
/// idle connection, even while the next request is on its way. A peer sends the other statuses when
/// it cannot read the received bytes as a request: for example, because the bytes are the rest of
/// an earlier request's body.
const STRAY_STATUSES: [u16; 5] = [400, 408, 431, 501, 505];

const STRAY_ANSWER: &str = "an error on a used connection may belong to no request";
const CLOSED_BEFORE_WRITE: &str = "the connection was closed before the request was written";

fn connector_failure(error: &(dyn Error + 'static)) -> &'static str {
    if causes(error).any(<dyn Error>::is::<Unresolved>) {
        return NOT_RESOLVED;
    }
    connect_failure(io_kind(error))
}

/// Returns the URI to connect to, and the request to write. The URI of the request to write has
/// only the path and the query. Returns `None` if the request is malformed.
fn prepare_request(request: Request, may_keep: bool) -> Option<(Uri, http::Request<Body>)> {
    let mut request = http::Request::<Body>::try_from(request).ok()?;
    let path = Uri::from(request.uri().path_and_query()?.clone());
    let uri = std::mem::replace(request.uri_mut(), path);
    let host = uri.authority()?.as_str().rsplit('@').next()?;
    // `identity` asks for a body without compression, because the service does not decompress
    // bodies. `Connection: close` asks the peer to close the connection first. Then the state
    // TIME_WAIT occupies a port of the peer, and no port of this machine.
    let mut defaults = vec![
        (HOST, host),
        (USER_AGENT, super::USER_AGENT),
        (ACCEPT, "*/*"),
        (ACCEPT_ENCODING, "identity"),
    ];
    if !may_keep {
        defaults.push((CONNECTION, "close"));
    }
    for (name, value) in defaults {
        let value = HeaderValue::from_str(value).ok()?;
        request.headers_mut().entry(name).or_insert(value);
    }
    Some((uri, request))
}
