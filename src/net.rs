//! All outbound HTTP: two clients from one builder. What must stay true: nothing is repeated by itself, no redirect is
//! followed, no proxy is taken from the environment, bodies are read up to a bound, and what failed is told apart by
//! whether anything can have been sent. A tool's call has a connection of its own: one that was used before may be closed
//! by its peer just when the next request is written, and nobody could say what became of that one. The texts of failures
//! are fixed words: no URL, no host, no header can be in one.

mod reach;

use std::error::Error as _;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT_ENCODING, CONNECTION, HeaderMap, HeaderValue};
use reqwest::{Client, ClientBuilder, Request, RequestBuilder, Response, StatusCode};

use reach::{Reach, Watch};

/// How every request of ours calls itself.
pub const USER_AGENT: &str = concat!("holdpoint/", env!("CARGO_PKG_VERSION"));

/// How long name resolution, TCP and TLS may take together.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection that may be used again is kept.
const IDLE: Duration = Duration::from_secs(30);
/// How long the last bytes of an answer are waited for that is whole without them.
const ON_ITS_WAY: Duration = Duration::from_millis(20);

/// The clients. Cheap to clone; one for the whole process.
#[derive(Clone, Debug)]
pub struct Net {
    kept: Client,
    own: Client,
}

/// A complete answer, or as much of one as was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status; never 1xx.
    pub status: StatusCode,
    /// The beginning of its body.
    pub body: Vec<u8>,
    /// Whether the body goes on, or may.
    pub more: bool,
}

/// How much of a body is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// With so many bytes in hand the answer counts, whatever becomes of the rest.
    pub enough: usize,
    /// Not more than this is read.
    pub most: usize,
}

impl Net {
    /// Builds them. A machine without any trusted certificate still reaches plain HTTP; HTTPS fails there before
    /// anything is sent.
    ///
    /// # Errors
    /// [`NetError`] when TLS cannot be set up at all.
    pub fn new() -> Result<Self, NetError> {
        Ok(Self { kept: build(keeping)?, own: build(closing)? })
    }

    /// For what may be repeated as often as needed: models. Its connections are kept.
    #[must_use]
    pub fn repeatable(&self) -> &Client {
        &self.kept
    }

    /// One request on a connection of its own, and its answer, all within this time. Once the connection is made, and
    /// right before the request is written to it, `leave` says whether it still may be. `room` says how much of the body
    /// is wanted.
    ///
    /// # Errors
    /// [`Failure::NotSent`]: no connection was made, or there was no leave. [`Failure::Lost`]: one was, and there is no complete answer.
    pub async fn alone(
        &self,
        request: Request,
        within: Duration,
        leave: impl Fn() -> bool + Send + Sync + 'static,
        room: impl FnOnce(StatusCode) -> Room + Send,
    ) -> Result<Answer, Failure> {
        let (reach, mut partial) = (Reach::with(leave), None);
        let exchange = reach.watched(exchange(&self.own, request, room, &mut partial));
        let ended = tokio::time::timeout(within, exchange).await;
        let failure = match ended {
            Ok(Ok(())) => None,
            Ok(Err(_)) if reach.is_refused() => Some(Failure::NotSent(NO_LEAVE)),
            Ok(Err(failure)) => Some(failure),
            Err(_) if reach.is_connecting() => Some(Failure::NotSent(NO_CONNECTION_IN_TIME)),
            Err(_) => Some(Failure::Lost(NO_ANSWER_IN_TIME)),
        };
        match (partial, failure) {
            (Some((answer, _)), None) => Ok(answer),
            (Some((answer, room)), Some(_)) if answer.body.len() >= room.enough => Ok(Answer { more: true, ..answer }),
            (_, failure) => Err(failure.unwrap_or(Failure::Lost(CUT_OFF))),
        }
    }
}

/// Fills `partial` as the answer arrives.
async fn exchange(
    client: &Client,
    request: Request,
    room: impl FnOnce(StatusCode) -> Room,
    partial: &mut Option<(Answer, Room)>,
) -> Result<(), Failure> {
    let mut response = client.execute(request).await.map_err(|error| Failure::of(&error))?;
    let status = response.status();
    if status.is_informational() {
        return Err(Failure::Lost("what came was no final answer"));
    }
    let room = room(status);
    let (answer, _) = partial.insert((Answer { status, body: Vec::new(), more: false }, room));
    answer.more = fill(&mut response, &mut answer.body, room.most).await?;
    Ok(())
}

fn build(kind: fn(ClientBuilder) -> ClientBuilder) -> Result<Client, NetError> {
    if let Ok(client) = kind(base()).build() {
        return Ok(client);
    }
    tracing::warn!("no trusted certificates on this machine: https endpoints cannot be reached");
    kind(base()).tls_certs_only([]).build().map_err(|_| NetError)
}

fn keeping(builder: ClientBuilder) -> ClientBuilder {
    builder.pool_idle_timeout(IDLE)
}

/// No connection is used twice. The peer is told, so that it is the one that closes and our ports are free at once. No
/// compression: where a body ends is then said by HTTP alone.
fn closing(builder: ClientBuilder) -> ClientBuilder {
    let headers = HeaderMap::from_iter([
        (CONNECTION, HeaderValue::from_static("close")),
        (ACCEPT_ENCODING, HeaderValue::from_static("identity")),
    ]);
    builder.pool_max_idle_per_host(0).default_headers(headers).gzip(false).connector_layer(Watch)
}

#[expect(clippy::disallowed_methods, reason = "this is the door for outbound HTTP")]
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

/// Why something was not sent that could have been.
pub const NO_LEAVE: &str = "it must not be sent any more";
const NO_CONNECTION_IN_TIME: &str = "no connection could be made in time";
/// Why an answer is given up that may still be coming.
pub const NO_ANSWER_IN_TIME: &str = "there was no complete answer within the timeout";
const CUT_OFF: &str = "the connection was lost before there was a complete answer";

/// Why there is no complete answer, told apart by whether anything can have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nothing was sent, provably: the name, the connection or TLS failed, or the request could not be built.
    #[error("{0}")]
    NotSent(&'static str),
    /// Something was sent or may have been: nobody knows what the other side did with it.
    #[error("{0}")]
    Lost(&'static str),
}

impl Failure {
    /// Reads what went wrong while a request was sent or its body was read.
    #[must_use]
    pub fn of(error: &reqwest::Error) -> Self {
        if error.is_builder() {
            return Self::NotSent("the request could not be built");
        }
        if error.is_connect() {
            return Self::NotSent(connecting(error));
        }
        if error.is_timeout() {
            // Also a timeout of the request's own that ends while still connecting: `Net::alone` keeps the two apart.
            return Self::Lost(NO_ANSWER_IN_TIME);
        }
        let unreadable = |kind| matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput);
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
    match io_kind(error) {
        Some(io::ErrorKind::ConnectionRefused) => "the connection was refused",
        Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => "the host cannot be reached",
        Some(io::ErrorKind::InvalidData) => "no secure connection could be made (TLS)",
        Some(io::ErrorKind::TimedOut) => NO_CONNECTION_IN_TIME,
        _ => "no connection could be made",
    }
}

/// What the innermost I/O error says of itself.
fn io_kind(error: &reqwest::Error) -> Option<io::ErrorKind> {
    let (mut source, mut kind) = (error.source(), None);
    while let Some(cause) = source {
        kind = cause.downcast_ref::<io::Error>().map(io::Error::kind).or(kind);
        source = cause.source();
    }
    kind
}

/// Sends a request and waits until its answer begins, for so long at most.
///
/// # Errors
/// Any [`Failure`]; which of the two matters to nobody who may repeat the request.
pub async fn begun(request: RequestBuilder, within: Duration) -> Result<Response, Failure> {
    match tokio::time::timeout(within, request.send()).await {
        Ok(sent) => sent.map_err(|error| Failure::of(&error)),
        Err(_) => Err(Failure::Lost(NO_ANSWER_IN_TIME)),
    }
}

/// The next bytes of a body, for which it waits so long at most; `None` when the body is complete.
///
/// # Errors
/// [`Failure::Lost`]: the body ended early, or nothing more came.
pub async fn next_bytes(response: &mut Response, within: Duration) -> Result<Option<Bytes>, Failure> {
    match tokio::time::timeout(within, response.chunk()).await {
        Ok(read) => read.map_err(|error| lost(&error)),
        Err(_) => Err(Failure::Lost(NO_ANSWER_IN_TIME)),
    }
}

/// Reads the end of a body of which everything that matters was read, so that its connection can be used again. It waits
/// only for what is on its way.
pub async fn read_off(mut response: Response) {
    let rest = async { while let Ok(Some(_)) = response.chunk().await {} };
    let _ = tokio::time::timeout(ON_ITS_WAY, rest).await;
}

/// Adds to `bytes` until the body ends or there are `limit`; says whether there was more.
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

/// An answer had begun: whatever is said of the error, the request was sent.
fn lost(error: &reqwest::Error) -> Failure {
    match Failure::of(error) {
        Failure::NotSent(why) | Failure::Lost(why) => Failure::Lost(why),
    }
}

#[cfg(test)]
mod tests;
