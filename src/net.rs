//! Sends all outbound HTTP requests. There are two ways: a client that reuses connections, and
//! single exchanges, which tool calls use. A single exchange waits for a permit to send. The Tokio
//! task that waits for the permit also writes the request, so no other task delays the write.
//!
//! On a reused connection, the peer may close the connection just as the request is written, and
//! then the outcome of the call is unknown. So a call that must not be repeated has its own
//! connection.
//!
//! Invariant: requests are never repeated automatically, redirects are never followed, and the
//! proxy settings of the environment are ignored. Each body is read with a limit of bytes or of
//! time. Each failure says whether anything can have been sent. Failure texts are fixed words
//! without URL, host or header.

mod guarded_connection;
mod kept_connections;
mod open_connection;
mod single_exchange;
pub(crate) mod sse;
mod tls;

use std::error::Error;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use rustls::ClientConfig;
use url::{Host, Url};

use crate::task::time::Time;
use crate::world::complete_within;
use kept_connections::KeptConnections;
pub use single_exchange::{ConnectionUse, NOT_PERMITTED, ResponseSink, SendPermit};
use tls::Tls;

/// The `User-Agent` of every request.
pub const USER_AGENT: &str = concat!("holdpoint/", env!("CARGO_PKG_VERSION"));

/// The maximum time for name resolution, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long [`drain`] waits for the rest of a body, after the last event of the stream has arrived.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(20);

/// The HTTP clients. Clones are cheap and share the reusable connections.
#[derive(Clone, Debug)]
pub struct Net {
    reusable: Client,
    connector: single_exchange::Connector,
    kept: KeptConnections,
}

/// A response with its body, which [`BodyLimits`] may cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferedResponse {
    /// The status of the final response, never 1xx.
    pub status: StatusCode,
    /// The body, cut off at [`BodyLimits::max_bytes`] bytes.
    pub body: Vec<u8>,
    /// Whether `body` may be incomplete: the response had more bytes, or its end was lost.
    pub is_truncated: bool,
}

/// The limits within which a body is read.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// The number of bytes of the body that suffice: a response that breaks off after at least this
    /// many bytes counts as received.
    pub enough_bytes: usize,
    /// The maximum number of bytes that are kept.
    pub max_bytes: usize,
}

impl Net {
    /// Builds the clients. Without trusted certificates on this machine, plain HTTP works, and
    /// HTTPS fails before anything is sent.
    ///
    /// # Errors
    /// Fails if TLS cannot be set up at all.
    pub fn new() -> Result<Self, NetError> {
        let tls = Tls::shared()?;
        if !tls.has_roots {
            tracing::warn!(
                "no trusted certificates on this machine: https endpoints cannot be reached"
            );
        }
        Ok(Self {
            reusable: client(tls.config.clone())?,
            connector: single_exchange::connector(tls.config.clone()),
            kept: KeptConnections::default(),
        })
    }

    /// Returns the client for requests that may be repeated, such as model calls. The client reuses
    /// connections.
    #[must_use]
    pub fn repeatable(&self) -> &Client {
        &self.reusable
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the entry point for outbound HTTP"
)]
fn client(mut tls: ClientConfig) -> Result<Client, NetError> {
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(USER_AGENT)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .no_proxy()
        .referer(false)
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .build()
        .map_err(|_| NetError)
}

/// The error for a machine on which TLS cannot be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the HTTP client could not be built: TLS is not usable on this machine")]
pub struct NetError;

const NO_CONNECTION_IN_TIME: &str = "no connection could be made in time";
const NOT_BUILT: &str = "the request could not be built";
const NOT_RESOLVED: &str = "the host's name could not be resolved";
/// The failure text if the timeout passes before the response is complete.
pub const NO_ANSWER_IN_TIME: &str = "there was no complete answer within the timeout";
const CONNECTION_LOST: &str = "the connection was lost before there was a complete answer";

/// The reason why there is no complete response. The variant says whether anything can have been
/// sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetFailure {
    /// Nothing of the request was sent, for one of these reasons:
    /// - The request could not be built.
    /// - No connection was made, because name resolution, TCP or TLS failed.
    /// - The `SendPermit` refused the request.
    /// - The peer closed the connection before the write began.
    /// - The time ran out before the write began.
    #[error("{0}")]
    NotSent(&'static str),
    /// A part of the request may have been sent, so the outcome of the request is unknown.
    #[error("{0}")]
    Lost(&'static str),
}

impl NetFailure {
    /// Classifies an error of sending a request or of reading its response.
    #[must_use]
    pub fn from_error(error: &reqwest::Error) -> Self {
        if error.is_builder() {
            return Self::NotSent(NOT_BUILT);
        }
        if error.is_connect() {
            return Self::NotSent(reqwest_connect_failure(error));
        }
        if error.is_timeout() {
            // The timeout of the whole request may pass before or after the request is sent, so
            // the client cannot know whether anything was sent.
            return Self::Lost(NO_ANSWER_IN_TIME);
        }
        let unreadable = |kind| {
            matches!(
                kind,
                io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
            )
        };
        if error.is_decode() && io_kind(error).is_some_and(unreadable) {
            return Self::Lost("the answer could not be decoded");
        }
        Self::Lost(CONNECTION_LOST)
    }
}

fn reqwest_connect_failure(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        return NO_CONNECTION_IN_TIME;
    }
    if error.is_dns() {
        return NOT_RESOLVED;
    }
    connect_failure(io_kind(error))
}

pub(crate) fn connect_failure(kind: Option<io::ErrorKind>) -> &'static str {
    match kind {
        Some(io::ErrorKind::ConnectionRefused) => "the connection was refused",
        Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => {
            "the host cannot be reached"
        }
        Some(io::ErrorKind::InvalidData) => "no secure connection could be made (TLS)",
        Some(io::ErrorKind::TimedOut) => NO_CONNECTION_IN_TIME,
        _ => "no connection could be made",
    }
}

/// Returns an error and its chain of causes, outermost first. If an `io::Error` wraps an error, the
/// wrapped error (`io::Error::get_ref`) follows in the chain. `io::Error::source` would skip the
/// wrapped error, and return the cause of the wrapped error.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        let inner = error.downcast_ref().and_then(io::Error::get_ref);
        inner
            .map(|inner| inner as &(dyn Error + 'static))
            .or_else(|| error.source())
    })
}

/// Returns the kind of the innermost I/O error among an error and its causes.
pub(crate) fn io_kind(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let kinds = causes(error).filter_map(|cause| cause.downcast_ref().map(io::Error::kind));
    kinds.last()
}

/// Sends a request and waits until the response begins, at most `within`.
///
/// # Errors
/// Fails with any [`NetFailure`]. If `within` ends while the client still connects, the failure is
/// `Lost`, although nothing was sent. The callers need no finer distinction, because they send only
/// requests that may be repeated.
pub async fn send_request(
    request: RequestBuilder,
    within: Duration,
) -> Result<Response, NetFailure> {
    match complete_within(within, request.send()).await {
        Some(sent) => sent.map_err(|error| NetFailure::from_error(&error)),
        None => Err(NetFailure::Lost(NO_ANSWER_IN_TIME)),
    }
}

/// Parses an `http` or `https` URL. Returns `None` if the URL is invalid, or has a user, a password
/// or a fragment.
pub(crate) fn plain_http_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let is_plain =
        url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
    (matches!(url.scheme(), "http" | "https") && url.has_host() && is_plain).then_some(url)
}

/// Whether the host of a URL is `localhost` or a loopback address.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Returns whether a status is a redirect. 304 (Not Modified) does not count, because it names no
/// other address.
pub fn is_redirect(status: u16) -> bool {
    (300..400).contains(&status) && status != 304
}

/// Returns the wait that the header `Retry-After` (RFC 9110, section 10.2.3: seconds, or a date)
/// asks for, counted from `now` and at most `max_wait`. Returns `None` if the header is missing or
/// malformed.
pub fn retry_after(headers: &HeaderMap, now: Time, max_wait: Duration) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if let Ok(seconds) = text.parse::<f64>() {
        // A `Duration` cannot hold every `f64`, so the number is first limited to `max_wait`.
        Duration::try_from_secs_f64(seconds.clamp(f64::MIN, max_wait.as_secs_f64())).ok()?
    } else {
        let until = jiff::fmt::rfc2822::DateTimeParser::new()
            .parse_timestamp(text)
            .ok()?;
        Time(until.as_microsecond()).since(now)
    };
    Some(wait.min(max_wait))
}

/// Waits at most `within` for the next bytes of a body, and returns them. Returns `None` if the
/// body is complete.
///
/// # Errors
/// Fails with [`NetFailure::Lost`] if the body ends early or the time runs out.
pub async fn next_bytes(
    response: &mut Response,
    within: Duration,
) -> Result<Option<Bytes>, NetFailure> {
    match complete_within(within, response.chunk()).await {
        Some(read) => read.map_err(|error| lost_failure(&error)),
        None => Err(NetFailure::Lost(NO_ANSWER_IN_TIME)),
    }
}

/// Reads the rest of a body after the last event of its stream, so that the connection can be
/// reused. Waits at most `DRAIN_TIMEOUT`, which suffices for bytes that the peer has already sent.
pub async fn drain(mut response: Response) {
    let rest = async { while let Ok(Some(_)) = response.chunk().await {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
}

/// Classifies an error after the response began. The result is always [`NetFailure::Lost`], because
/// the request was sent.
fn lost_failure(error: &reqwest::Error) -> NetFailure {
    match NetFailure::from_error(error) {
        NetFailure::NotSent(why) | NetFailure::Lost(why) => NetFailure::Lost(why),
    }
}

#[cfg(test)]
pub(crate) mod tests;
