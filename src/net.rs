//! All outbound HTTP: two clients from one builder. Invariant: no request is repeated
//! automatically, no redirect is followed, no proxy is taken from the environment, every body is
//! read up to a bound, and each failure says whether anything can have been sent. A tool call has
//! its own connection: the peer may close a reused connection just as the next request is written,
//! which would leave the outcome of that request unknown; and a pool may hand over a connection
//! long after the permit to send was asked for. Failure texts are fixed words and hold no URL, host
//! or header.

mod reach;

use std::io;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT_ENCODING, CONNECTION, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, ClientBuilder, Request, RequestBuilder, Response, StatusCode};
use tokio::time::Instant;

use crate::task::time::Time;
use reach::{Reach, Watch};

/// The `User-Agent` of every request.
pub const USER_AGENT: &str = concat!("holdpoint/", env!("CARGO_PKG_VERSION"));

/// The timeout for name resolution, TCP and TLS together.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a reusable connection is kept idle.
const IDLE: Duration = Duration::from_secs(30);
/// How long to wait for the trailing bytes of a response whose content is already complete.
const ON_ITS_WAY: Duration = Duration::from_millis(20);

/// The HTTP clients. Cheap to clone; one instance serves the whole process.
#[derive(Clone, Debug)]
pub struct Net {
    kept: Client,
    own: Client,
}

/// A complete response, or as much of it as [`Room`] asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Never 1xx.
    pub status: StatusCode,
    /// The body, cut off at [`Room::most`] bytes.
    pub body: Vec<u8>,
    /// Whether the response had more bytes than `body`, or may have had more because the rest was
    /// lost.
    pub more: bool,
}

/// How much of a body to read.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Once this many bytes are received, the response counts as received, even if the rest is
    /// lost.
    pub enough: usize,
    /// The most bytes that are read.
    pub most: usize,
}

impl Net {
    /// Builds the clients. On a machine without any trusted certificate plain HTTP still works;
    /// HTTPS fails there before anything is sent.
    ///
    /// # Errors
    /// [`NetError`] when TLS cannot be set up at all.
    pub fn new() -> Result<Self, NetError> {
        Ok(Self {
            kept: build(keeping)?,
            own: build(closing)?,
        })
    }

    /// The client for requests that may be repeated, such as model calls. It reuses connections.
    #[must_use]
    pub fn repeatable(&self) -> &Client {
        &self.kept
    }

    /// Sends one request on its own connection and returns the response. `leave` is awaited once
    /// the connection is made, right before the request is written: it returns the time since which
    /// the request may be sent, or `None` if it must not be sent. The deadline is `within` after
    /// the call of this function or after the time that `leave` returns, whichever is later. `room`
    /// decides from the status how much of the body is read.
    ///
    /// # Errors
    /// [`Failure::NotSent`]: no connection was made, or `leave` returned `None`.
    /// [`Failure::Lost`]: a connection was made, but no complete response arrived.
    pub async fn alone(
        &self,
        request: Request,
        within: Duration,
        leave: impl Future<Output = Option<Instant>> + Send + 'static,
        room: impl FnOnce(StatusCode) -> Room + Send,
    ) -> Result<Answer, Failure> {
        let (reach, mut partial) = (Reach::with(leave), None);
        let exchange = reach.watched(exchange(&self.own, request, room, &mut partial));
        let failure = match permitted(&reach, within, exchange).await {
            Some(Ok(())) => None,
            Some(Err(_)) if reach.is_refused() => Some(Failure::NotSent(NO_LEAVE)),
            Some(Err(failure)) => Some(failure),
            None if reach.is_connecting() => Some(Failure::NotSent(NO_CONNECTION_IN_TIME)),
            None => Some(Failure::Lost(NO_ANSWER_IN_TIME)),
        };
        match (partial, failure) {
            (Some((answer, _)), None) => Ok(answer),
            (Some((answer, room)), Some(_)) if answer.body.len() >= room.enough => Ok(Answer {
                more: true,
                ..answer
            }),
            (_, failure) => Err(failure.unwrap_or(Failure::Lost(CUT_OFF))),
        }
    }
}

/// Runs an exchange until `within` is over. The period begins anew when the request may be sent.
async fn permitted<T>(
    reach: &Reach,
    within: Duration,
    exchange: impl Future<Output = T>,
) -> Option<T> {
    let mut exchange = std::pin::pin!(exchange);
    let mut until = Instant::now() + within;
    loop {
        if let Ok(ended) = tokio::time::timeout_at(until, &mut exchange).await {
            return Some(ended);
        }
        until = reach.end_of(within).filter(|end| *end > until)?;
    }
}

/// Sends the request, and stores the response in `partial` as it arrives.
async fn exchange(
    client: &Client,
    request: Request,
    room: impl FnOnce(StatusCode) -> Room,
    partial: &mut Option<(Answer, Room)>,
) -> Result<(), Failure> {
    let mut response = client
        .execute(request)
        .await
        .map_err(|error| Failure::of(&error))?;
    let status = response.status();
    if status.is_informational() {
        return Err(Failure::Lost("what came was no final answer"));
    }
    let room = room(status);
    let (answer, _) = partial.insert((
        Answer {
            status,
            body: Vec::new(),
            more: false,
        },
        room,
    ));
    answer.more = fill(&mut response, &mut answer.body, room.most).await?;
    Ok(())
}

fn build(kind: fn(ClientBuilder) -> ClientBuilder) -> Result<Client, NetError> {
    if let Ok(client) = kind(base()).build() {
        return Ok(client);
    }
    tracing::warn!("no trusted certificates on this machine: https endpoints cannot be reached");
    kind(base())
        .tls_certs_only([])
        .build()
        .map_err(|_| NetError)
}

fn keeping(builder: ClientBuilder) -> ClientBuilder {
    builder.pool_idle_timeout(IDLE)
}

/// Uses no connection twice. The `Connection: close` header makes the peer close first, which frees
/// our ports at once. Without compression, HTTP alone defines where a body ends.
fn closing(builder: ClientBuilder) -> ClientBuilder {
    let headers = HeaderMap::from_iter([
        (CONNECTION, HeaderValue::from_static("close")),
        (ACCEPT_ENCODING, HeaderValue::from_static("identity")),
    ]);
    builder
        .pool_max_idle_per_host(0)
        .default_headers(headers)
        .gzip(false)
        .connector_layer(Watch)
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the door for outbound HTTP"
)]
fn base() -> ClientBuilder {
    Client::builder()
        .user_agent(USER_AGENT)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .no_proxy()
        .referer(false)
        .tcp_nodelay(true)
        .connect_timeout(CONNECT)
}

/// TLS could not be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the HTTP client could not be built: TLS is not usable on this machine")]
pub struct NetError;

/// The failure text when the sender withdrew its permit before the request was written.
pub const NO_LEAVE: &str = "it must not be sent any more";
const NO_CONNECTION_IN_TIME: &str = "no connection could be made in time";
/// The failure text when the timeout ended before the response was complete.
pub const NO_ANSWER_IN_TIME: &str = "there was no complete answer within the timeout";
const CUT_OFF: &str = "the connection was lost before there was a complete answer";

/// Why there is no complete response; the variant says whether anything can have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Certainly nothing of the request was sent: it could not be built, no connection was made
    /// (name resolution, TCP or TLS failed), or its permit was withdrawn.
    #[error("{0}")]
    NotSent(&'static str),
    /// The request was or may have been sent: its outcome is unknown.
    #[error("{0}")]
    Lost(&'static str),
}

impl Failure {
    /// Classifies an error that occurred while a request was sent or its body was read.
    #[must_use]
    pub fn of(error: &reqwest::Error) -> Self {
        if error.is_builder() {
            return Self::NotSent("the request could not be built");
        }
        if error.is_connect() {
            return Self::NotSent(connecting(error));
        }
        if error.is_timeout() {
            // A timeout of the whole request may fire while connecting, too. `Net::alone` has a
            // timeout of its own, and knows whether a connection was made.
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
        Self::Lost(CUT_OFF)
    }
}

fn connecting(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        return NO_CONNECTION_IN_TIME;
    }
    if error.is_dns() {
        return "the host's name could not be resolved";
    }
    unreached(io_kind(error))
}

/// Why no connection could be made, in fixed words.
pub(crate) fn unreached(kind: Option<io::ErrorKind>) -> &'static str {
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

/// The kind of the innermost I/O error.
pub(crate) fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    let (mut source, mut kind) = (error.source(), None);
    while let Some(cause) = source {
        kind = cause
            .downcast_ref::<io::Error>()
            .map(io::Error::kind)
            .or(kind);
        source = cause.source();
    }
    kind
}

/// Sends a request and waits until its response begins, at most `within`.
///
/// # Errors
/// Any [`Failure`]. If `within` ends while connecting, the failure is `Lost` although nothing was
/// sent: code that may repeat the request does not need the difference.
pub async fn begun(request: RequestBuilder, within: Duration) -> Result<Response, Failure> {
    match tokio::time::timeout(within, request.send()).await {
        Ok(sent) => sent.map_err(|error| Failure::of(&error)),
        Err(_) => Err(Failure::Lost(NO_ANSWER_IN_TIME)),
    }
}

/// The wait from `now` that an answer asks for in `Retry-After` (seconds, or a date), at most `most`.
pub fn asked_for(headers: &HeaderMap, now: Time, most: Duration) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if let Ok(seconds) = text.parse::<f64>() {
        Duration::try_from_secs_f64(seconds).ok()?
    } else {
        let until = jiff::fmt::rfc2822::DateTimeParser::new()
            .parse_timestamp(text)
            .ok()?;
        Time(until.as_microsecond()).since(now)
    };
    Some(wait.min(most))
}

/// The next bytes of a body, waiting at most `within`; `None` when the body is complete.
///
/// # Errors
/// [`Failure::Lost`]: the body ended early, or the time ran out.
pub async fn next_bytes(
    response: &mut Response,
    within: Duration,
) -> Result<Option<Bytes>, Failure> {
    match tokio::time::timeout(within, response.chunk()).await {
        Ok(read) => read.map_err(|error| lost(&error)),
        Err(_) => Err(Failure::Lost(NO_ANSWER_IN_TIME)),
    }
}

/// Reads the end of a body after its relevant part, so that the connection can be reused. Waits
/// only briefly, for bytes already sent.
pub async fn read_off(mut response: Response) {
    let rest = async { while let Ok(Some(_)) = response.chunk().await {} };
    let _ = tokio::time::timeout(ON_ITS_WAY, rest).await;
}

/// Appends to `bytes` until the body ends or `limit` is reached; returns whether there was more.
async fn fill(response: &mut Response, bytes: &mut Vec<u8>, limit: usize) -> Result<bool, Failure> {
    while let Some(chunk) = response.chunk().await.map_err(|error| lost(&error))? {
        let room = limit.saturating_sub(bytes.len());
        if chunk.len() > room {
            bytes.extend_from_slice(chunk.get(..room).unwrap_or_default());
            return Ok(true);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(false)
}

/// Classifies an error after the response began: the request was sent, so it is always
/// [`Failure::Lost`].
fn lost(error: &reqwest::Error) -> Failure {
    match Failure::of(error) {
        Failure::NotSent(why) | Failure::Lost(why) => Failure::Lost(why),
    }
}

#[cfg(test)]
mod tests;
