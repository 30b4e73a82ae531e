//! All outbound HTTP: two clients from one builder. What must stay true: nothing is repeated by itself, no redirect is
//! followed, no proxy is taken from the environment, bodies are read up to a bound, and what failed is told apart by
//! whether anything can have been sent. The texts of failures are fixed words: no URL, no host, no header can be in one.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::{Client, ClientBuilder, Response};

/// How every request of ours calls itself.
pub const USER_AGENT: &str = concat!("holdpoint/", env!("CARGO_PKG_VERSION"));

/// How long name resolution, TCP and TLS may take together.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection for calls that may be repeated is kept.
const IDLE: Duration = Duration::from_secs(30);
/// The same for calls that may not: a peer that just closed a connection would leave the outcome unknown.
const IDLE_FRESH: Duration = Duration::from_secs(1);

/// The clients. Cheap to clone; one for the whole process.
#[derive(Clone, Debug)]
pub struct Net {
    repeatable: Client,
    fresh: Client,
    /// For requests that have less time than connecting may take: by how long it may take there, and what is kept idle.
    hurried: Arc<Mutex<BTreeMap<(Duration, Duration), Client>>>,
}

impl Net {
    /// Builds them. A machine without any trusted certificate still reaches plain HTTP; HTTPS fails there before
    /// anything is sent.
    ///
    /// # Errors
    /// [`NetError`] when TLS cannot be set up at all.
    pub fn new() -> Result<Self, NetError> {
        Ok(Self { repeatable: build(IDLE, CONNECT)?, fresh: build(IDLE_FRESH, CONNECT)?, hurried: Arc::default() })
    }

    /// For what may be repeated: models, and tools that are `read_only` or `idempotent`.
    #[must_use]
    pub fn repeatable(&self) -> &Client {
        &self.repeatable
    }

    /// For what may happen once only: its connections have been idle for less than a second, or are new.
    #[must_use]
    pub fn fresh(&self) -> &Client {
        &self.fresh
    }

    /// As [`Net::repeatable`], for requests with this total timeout.
    #[must_use]
    pub fn repeatable_within(&self, total: Duration) -> Client {
        self.within(total, IDLE, &self.repeatable)
    }

    /// As [`Net::fresh`], for requests with this total timeout: connecting gets a part of it only, so that a connection
    /// that is never made is known as that, and not as a request whose outcome nobody knows.
    #[must_use]
    pub fn fresh_within(&self, total: Duration) -> Client {
        self.within(total, IDLE_FRESH, &self.fresh)
    }

    fn within(&self, total: Duration, idle: Duration, usual: &Client) -> Client {
        if total > CONNECT {
            return usual.clone();
        }
        let connect = total * 3 / 4;
        let mut hurried = self.hurried.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = hurried.get(&(connect, idle)) {
            return client.clone();
        }
        let client = build(idle, connect).unwrap_or_else(|_| usual.clone());
        hurried.insert((connect, idle), client.clone());
        client
    }
}

fn build(idle: Duration, connect: Duration) -> Result<Client, NetError> {
    if let Ok(client) = base(idle, connect).build() {
        return Ok(client);
    }
    tracing::warn!("no trusted certificates on this machine: https endpoints cannot be reached");
    base(idle, connect).tls_certs_only([]).build().map_err(|_| NetError)
}

#[expect(clippy::disallowed_methods, reason = "this is the door for outbound HTTP")]
fn base(idle: Duration, connect: Duration) -> ClientBuilder {
    Client::builder()
        .user_agent(USER_AGENT)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .no_proxy()
        .referer(false)
        .tcp_nodelay(true)
        .connect_timeout(connect)
        .pool_idle_timeout(idle)
}

/// TLS could not be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the HTTP client could not be built: TLS is not usable on this machine")]
pub struct NetError;

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
            // Also a total timeout that ends while still connecting: which of the two it was cannot be seen
            // (`Net::fresh_within` keeps the two apart).
            return Self::Lost("there was no complete answer within the timeout");
        }
        if error.is_decode() {
            return Self::Lost("the answer could not be decoded");
        }
        Self::Lost("the connection was lost before there was a complete answer")
    }
}

fn connecting(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        return "no connection could be made in time";
    }
    if error.is_dns() {
        return "the host's name could not be resolved";
    }
    let mut source = error.source();
    let mut kind = None;
    while let Some(cause) = source {
        kind = cause.downcast_ref::<io::Error>().map(io::Error::kind).or(kind);
        source = cause.source();
    }
    match kind {
        Some(io::ErrorKind::ConnectionRefused) => "the connection was refused",
        Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => "the host cannot be reached",
        Some(io::ErrorKind::InvalidData) => "no secure connection could be made (TLS)",
        Some(io::ErrorKind::TimedOut) => "no connection could be made in time",
        _ => "no connection could be made",
    }
}

/// Reads a body, `limit` bytes at most, and says whether there was more. Bounded in time by the timeout that the
/// request was given: set one on each (`RequestBuilder::timeout`), it runs until the body's end.
///
/// # Errors
/// [`Failure::Lost`]: the body ended early, or too late.
pub async fn read_bounded(mut response: Response, limit: usize) -> Result<(Vec<u8>, bool), Failure> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| lost(&error))? {
        let room = limit - bytes.len();
        if chunk.len() > room {
            bytes.extend_from_slice(chunk.get(..room).unwrap_or_default());
            return Ok((bytes, true));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok((bytes, false))
}

/// An answer had begun: whatever is said of the error, the request was sent.
fn lost(error: &reqwest::Error) -> Failure {
    match Failure::of(error) {
        Failure::NotSent(why) | Failure::Lost(why) => Failure::Lost(why),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;

    /// Answers each connection with the next of `answers`, then closes it; returns what it was sent.
    async fn endpoint(answers: Vec<&'static str>) -> (String, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/secret-path", listener.local_addr().unwrap());
        #[expect(clippy::disallowed_methods, reason = "the fake endpoint of a test")]
        let seen = tokio::spawn(async move {
            let mut seen = Vec::new();
            for answer in answers {
                let (mut peer, _) = listener.accept().await.unwrap();
                let mut buffer = vec![0; 4096];
                let read = peer.read(&mut buffer).await.unwrap();
                seen.push(String::from_utf8_lossy(&buffer[..read]).into_owned());
                peer.write_all(answer.as_bytes()).await.unwrap();
            }
            seen
        });
        (url, seen)
    }

    async fn get(net: &Net, url: &str) -> Result<(Vec<u8>, bool), Failure> {
        let sent = net.fresh().get(url).timeout(Duration::from_secs(5)).send().await;
        read_bounded(sent.map_err(|error| Failure::of(&error))?, 10).await
    }

    #[tokio::test]
    async fn a_refused_connection_was_provably_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        assert_eq!(get(&Net::new().unwrap(), &url).await, Err(Failure::NotSent("the connection was refused")));
    }

    #[tokio::test]
    async fn a_peer_that_does_not_speak_tls_was_provably_not_sent_anything() {
        let (url, _seen) = endpoint(vec!["HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"]).await;
        let failure = get(&Net::new().unwrap(), &url.replace("http:", "https:")).await.unwrap_err();
        assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    }

    #[tokio::test]
    async fn what_ends_early_after_sending_is_lost_and_is_not_repeated() {
        let (url, seen) = endpoint(vec!["", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"]).await;
        let net = Net::new().unwrap();
        let lost = Failure::Lost("the connection was lost before there was a complete answer");
        assert_eq!(get(&net, &url).await, Err(lost));
        let half = get(&net, &url).await.unwrap_err();
        assert!(matches!(half, Failure::Lost(_)), "{half:?}");
        assert_eq!(seen.await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn a_silent_peer_is_lost_when_the_time_is_over_also_within_the_body() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let net = Net::new().unwrap();
        let in_time = Duration::from_millis(50);
        let silent = net.fresh().get(&url).timeout(in_time).send().await.unwrap_err();
        assert_eq!(Failure::of(&silent), Failure::Lost("there was no complete answer within the timeout"));
        drop(listener.accept().await.unwrap());
        let sent = net.fresh().get(&url).timeout(in_time).send();
        let (sent, _peer) = tokio::join!(sent, async {
            let (mut peer, _) = listener.accept().await.unwrap();
            assert!(peer.read(&mut [0; 4096]).await.unwrap() > 0);
            peer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf").await.unwrap();
            peer
        });
        let failure = read_bounded(sent.unwrap(), 100).await.unwrap_err();
        assert_eq!(failure, Failure::Lost("there was no complete answer within the timeout"));
    }

    #[tokio::test]
    async fn a_connection_that_is_never_made_is_not_a_lost_request_however_short_the_time() {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        // Nobody accepts: when the queue is full, connecting hangs.
        let mut queue = Vec::new();
        while let Ok(peer) =
            tokio::time::timeout(Duration::from_millis(50), tokio::net::TcpStream::connect(address)).await
        {
            queue.push(peer.unwrap());
        }
        let net = Net::new().unwrap();
        let total = Duration::from_millis(200);
        for client in [net.fresh_within(total), net.repeatable_within(total), net.fresh_within(total)] {
            let error = client.get(format!("http://{address}/")).timeout(total).send().await.unwrap_err();
            assert_eq!(Failure::of(&error), Failure::NotSent("no connection could be made in time"));
        }
        assert_eq!(net.hurried.lock().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn a_long_body_is_cut_and_a_redirect_is_an_answer() {
        let redirect = "HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 11\r\n\r\nhello world";
        let (url, seen) = endpoint(vec![redirect]).await;
        assert_eq!(get(&Net::new().unwrap(), &url).await, Ok((b"hello worl".to_vec(), true)));
        let seen = seen.await.unwrap();
        assert_eq!(seen.len(), 1);
        assert!(seen[0].contains(&format!("user-agent: {USER_AGENT}")), "{}", seen[0]);
        assert!(!seen[0].contains("referer"), "{}", seen[0]);
    }
}
