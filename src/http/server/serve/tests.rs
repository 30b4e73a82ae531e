//! Tests of the accept loop, its timeouts and its limits. Connections are in memory, and only the
//! tests advance the clock.

mod http2;

use async_trait::async_trait;
use axum::body::Bytes;
use axum::middleware::{Next, from_fn};
use axum::routing::{get, post};
use futures_util::{StreamExt as _, stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinHandle;

use std::sync::Weak;

use super::*;
use crate::http::server::write_timeout::WRITE_TIMEOUT;
use crate::task::time::Time;
use crate::world::captured::Captured;

struct ManualClock(watch::Sender<Duration>);

impl ManualClock {
    fn advance(&self, by: Duration) {
        self.0.send_modify(|now| *now += by);
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time(0)
    }

    fn uptime(&self) -> Duration {
        *self.0.borrow()
    }

    async fn sleep(&self, time: Duration) {
        let (end, mut time_changes) = (self.uptime() + time, self.0.subscribe());
        while *time_changes.borrow_and_update() < end {
            time_changes.changed().await.unwrap();
        }
    }
}

struct Opened(mpsc::UnboundedReceiver<io::Result<DuplexStream>>);

impl Acceptor for Opened {
    type Io = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        match self.0.recv().await {
            Some(opened) => Ok((opened?, ([127, 0, 0, 1], 4711).into())),
            None => std::future::pending().await,
        }
    }
}

struct Setup {
    clock: Arc<ManualClock>,
    connections: Connections,
    opened: mpsc::UnboundedSender<io::Result<DuplexStream>>,
    closed: CancellationToken,
    /// Each permit lets the handler of `/held` respond to one request.
    leave: Arc<Semaphore>,
    /// Notified when a request reaches `/held`.
    held: Arc<Notify>,
    router: watch::Sender<Router>,
    server: JoinHandle<()>,
}

impl Setup {
    fn new(most: usize) -> Self {
        Self::speaking(most, None)
    }

    fn speaking(most: usize, http2: Option<PingTimes>) -> Self {
        let clock = Arc::new(ManualClock(watch::Sender::new(Duration::ZERO)));
        let (opened, accepts) = mpsc::unbounded_channel();
        let (closing, leave, held) = (
            CancellationToken::new(),
            Arc::new(Semaphore::new(0)),
            Arc::new(Notify::new()),
        );
        let (waits, tells) = (Arc::clone(&leave), Arc::clone(&held));
        let answers_later = || async move {
            tells.notify_one();
            waits.acquire().await.unwrap().forget();
            "held"
        };
        let endless = || async {
            Body::from_stream(stream::iter([Ok::<_, io::Error>("first")]).chain(stream::pending()))
        };
        let router = Router::new()
            .route(
                "/",
                get(|ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.to_string() }),
            )
            .route("/held", get(answers_later))
            .route("/endless", get(endless))
            .route("/large", get(|| async { "x".repeat(1024 * 1024) }))
            .route(
                "/body",
                post(|body: Bytes| async move { body.len().to_string() }),
            )
            .route("/early", post(answers_first))
            .route_layer(from_fn(kept))
            .route(
                "/sign-in",
                post(|body: Bytes| async move { body.len().to_string() }),
            );
        let connections = Connections::new(most);
        let router = watch::Sender::new(router);
        let server = Server {
            router: router.subscribe(),
            connections: connections.clone(),
            clock: Arc::<ManualClock>::clone(&clock),
            http2,
        };
        let server = TaskTracker::new().spawn(server.serve(Opened(accepts), closing.clone()));
        Self {
            clock,
            connections,
            opened,
            closed: closing,
            leave,
            held,
            router,
            server,
        }
    }

    fn open(&self) -> Client {
        let (client, server) = duplex(64 * 1024);
        self.opened.send(Ok(server)).unwrap();
        Client(client)
    }
}

/// Responds before the body has arrived. A Tokio task then reads the body to its end.
async fn answers_first(body: Body) -> &'static str {
    TaskTracker::new().spawn(axum::body::to_bytes(body, usize::MAX));
    "early"
}

/// Marks the connection as protected, as `server/guard.rs` does for an authenticated caller. The
/// server does not close a protected connection to make room.
async fn kept(request: axum::extract::Request, next: Next) -> Response {
    request
        .extensions()
        .get::<Weak<ConnectionSlot>>()
        .and_then(Weak::upgrade)
        .unwrap()
        .protect();
    next.run(request).await
}

struct Client(DuplexStream);

impl Client {
    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    async fn get(&mut self, path: &str) {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n"))
            .await;
    }

    /// Returns the head and the body of the next response.
    async fn answer(&mut self) -> (String, String) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.expect("the connection was closed"));
        }
        let head = String::from_utf8(head).unwrap();
        let length = head
            .split("content-length: ")
            .nth(1)
            .and_then(|rest| rest.lines().next());
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).await.unwrap();
        (head, String::from_utf8(body).unwrap())
    }

    /// Sends `GET /`, and checks that the response is 200.
    async fn asks(&mut self) {
        self.get("/").await;
        let (head, body) = self.answer().await;
        assert!(
            head.starts_with("HTTP/1.1 200 OK\r\n") && body == "127.0.0.1:4711",
            "{head}"
        );
    }

    async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.0.read_to_end(&mut rest).await;
        rest
    }

    async fn is_closed(&mut self) -> bool {
        self.rest().await.is_empty()
    }
}

fn just_before(time: Duration) -> Duration {
    time.saturating_sub(Duration::from_millis(1))
}

#[tokio::test]
async fn silent_connection_is_closed_10_seconds_after_its_opening() {
    let setup = Setup::new(10);
    let (mut silent, mut late) = (setup.open(), setup.open());
    tokio::task::yield_now().await;
    setup.clock.advance(just_before(HEADER_TIMEOUT));
    late.asks().await;
    setup.clock.advance(Duration::from_millis(1));
    assert!(silent.is_closed().await);
    late.asks().await;
}

#[tokio::test]
async fn partial_request_head_is_closed_after_10_seconds_however_slowly_it_arrives() {
    let setup = Setup::new(10);
    let mut slow = setup.open();
    for byte in ["GET / HT", "TP/1.1\r\n", "host: h"] {
        slow.send(byte).await;
        tokio::task::yield_now().await;
        setup.clock.advance(Duration::from_secs(3));
        tokio::task::yield_now().await;
    }
    setup.clock.advance(Duration::from_secs(1));
    assert!(slow.is_closed().await);
    // On a kept-alive connection, the ten seconds of `HEADER_TIMEOUT` begin with the first byte of
    // the next request.
    let mut kept = setup.open();
    kept.asks().await;
    setup.clock.advance(Duration::from_secs(70));
    kept.send("G").await;
    tokio::task::yield_now().await;
    setup.clock.advance(just_before(HEADER_TIMEOUT));
    kept.send("ET / HTTP/1.1\r\nhost: h\r\n\r\n").await;
    assert!(kept.answer().await.0.starts_with("HTTP/1.1 200"));
    kept.send("G").await;
    tokio::task::yield_now().await;
    setup.clock.advance(HEADER_TIMEOUT);
    assert!(kept.is_closed().await);
}

#[tokio::test]
async fn kept_connection_is_closed_after_75_seconds_without_a_request() {
    let setup = Setup::new(10);
    let mut kept = setup.open();
    for _ in 0..3 {
        kept.asks().await;
        setup.clock.advance(just_before(KEEP_ALIVE_TIMEOUT));
    }
    kept.asks().await;
    setup.clock.advance(KEEP_ALIVE_TIMEOUT);
    assert!(kept.is_closed().await);
}

#[tokio::test]
async fn waiting_request_and_open_stream_are_not_idle() {
    let setup = Setup::new(2);
    let (mut waits, mut watches) = (setup.open(), setup.open());
    waits.get("/held").await;
    setup.held.notified().await;
    watches.get("/endless").await;
    watches.answer().await;
    let mut third = setup.open();
    third.get("/").await;
    for _ in 0..10 {
        setup.clock.advance(Duration::from_mins(10));
        tokio::task::yield_now().await;
    }
    let mut first = [0; 5 + "5\r\n\r\n".len()];
    watches.0.read_exact(&mut first).await.unwrap();
    setup.leave.add_permits(1);
    assert_eq!(waits.answer().await.1, "held");
    // After its response, the connection `waits` is idle. The server closes this connection to make
    // room for `third`.
    assert!(third.answer().await.0.starts_with("HTTP/1.1 200"));
    assert!(waits.is_closed().await);
    drop(watches);
    setup.open().asks().await;
}

#[tokio::test]
async fn longest_idle_connection_makes_room_for_the_next() {
    let setup = Setup::new(3);
    let (mut first, mut second, mut third) = (setup.open(), setup.open(), setup.open());
    for client in [&mut first, &mut second, &mut third] {
        client.asks().await;
    }
    first.asks().await;
    // `second` has been idle longest, because `first` has just sent another request.
    setup.open().asks().await;
    assert!(second.is_closed().await);
    third.asks().await;
    // A connection with an incomplete request head counts as idle.
    for _ in 0..200 {
        let mut half = setup.open();
        half.send("GET / HTTP/1.1\r\n").await;
        std::mem::forget(half);
    }
    for _ in 0..5 {
        setup.open().asks().await;
    }
}

#[tokio::test]
async fn request_on_a_connection_that_was_told_to_close_is_not_answered() {
    let setup = Setup::new(1);
    let mut first = setup.open();
    first.asks().await;
    // Opening `next` makes the server close `first`, which sends a request at the same time.
    let mut next = setup.open();
    first.get("/").await;
    assert!(first.is_closed().await);
    next.asks().await;
}

#[tokio::test]
async fn unauthenticated_request_makes_room_for_the_next_client() {
    let setup = Setup::new(2);
    let mut strangers = [setup.open(), setup.open()];
    for stranger in &mut strangers {
        stranger
            .send("POST /sign-in HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\n\r\nab")
            .await;
        tokio::task::yield_now().await;
    }
    let mut known = setup.open();
    known.get("/held").await;
    setup.held.notified().await;
    assert!(strangers[0].is_closed().await);
    // The connection of `known` is protected, so the server closes `strangers[1]` instead.
    setup.open().asks().await;
    assert!(strangers[1].is_closed().await);
    setup.leave.add_permits(1);
    assert_eq!(known.answer().await.1, "held");
}

#[tokio::test]
async fn client_that_reads_nothing_is_closed_and_is_not_idle_before() {
    let setup = Setup::new(1);
    let mut deaf = setup.open();
    deaf.get("/large").await;
    tokio::task::yield_now().await;
    let mut next = setup.open();
    next.get("/").await;
    for _ in 0..5 {
        // The client reads some bytes just before the write timeout, which then begins anew.
        setup.clock.advance(just_before(WRITE_TIMEOUT));
        deaf.0.read_exact(&mut vec![0; 32 * 1024]).await.unwrap();
        tokio::task::yield_now().await;
    }
    setup.clock.advance(WRITE_TIMEOUT);
    assert!(next.answer().await.0.starts_with("HTTP/1.1 200"));
    assert!(deaf.rest().await.len() < 1024 * 1024 - 5 * 32 * 1024);
}

#[tokio::test]
async fn body_that_is_still_read_keeps_its_connection() {
    let setup = Setup::new(10);
    let mut slow = setup.open();
    slow.send("POST /body HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\n\r\nab")
        .await;
    tokio::task::yield_now().await;
    setup.clock.advance(Duration::from_mins(2));
    tokio::task::yield_now().await;
    slow.send("cd").await;
    assert_eq!(slow.answer().await.1, "4");
    setup.clock.advance(just_before(KEEP_ALIVE_TIMEOUT));
    slow.asks().await;
}

#[tokio::test]
async fn body_that_is_read_after_its_answer_keeps_its_connection() {
    let setup = Setup::new(10);
    let mut slow = setup.open();
    slow.send("POST /early HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\n\r\nab")
        .await;
    assert_eq!(slow.answer().await.1, "early");
    setup.clock.advance(Duration::from_mins(2));
    tokio::task::yield_now().await;
    slow.send("cd").await;
    slow.asks().await;
}

#[tokio::test]
async fn http_2_is_refused_with_prior_knowledge_and_by_upgrade() {
    let setup = Setup::new(10);
    let mut prior = setup.open();
    prior
        .send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0")
        .await;
    assert!(prior.is_closed().await, "no frame, no answer");
    let mut upgrade = setup.open();
    upgrade
        .send("GET / HTTP/1.1\r\nhost: h\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n")
        .await;
    assert!(upgrade.answer().await.0.starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn head_over_64_kib_is_refused() {
    let setup = Setup::new(10);
    let start = "GET / HTTP/1.1\r\nhost: h\r\na: ";
    let head = |size: usize| format!("{start}{}\r\n\r\n", "x".repeat(size - start.len() - 4));
    let mut fits = setup.open();
    fits.send(&head(MAX_HEADER_SIZE)).await;
    assert!(fits.answer().await.0.starts_with("HTTP/1.1 200"));
    for text in [
        head(MAX_HEADER_SIZE + 1),
        format!("{start}{}", "x".repeat(MAX_HEADER_SIZE)),
        head(5 * MAX_HEADER_SIZE),
    ] {
        let mut large = setup.open();
        let _ = large.0.write_all(text.as_bytes()).await;
        assert!(large.rest().await.starts_with(b"HTTP/1.1 431 "));
    }
}

#[tokio::test]
async fn shutdown_closes_idle_connections_and_answers_the_others() {
    let setup = Setup::new(10);
    let (mut silent, mut half, mut kept, mut waits) =
        (setup.open(), setup.open(), setup.open(), setup.open());
    half.send("GET /").await;
    kept.asks().await;
    waits.get("/held").await;
    setup.held.notified().await;
    setup.closed.cancel();
    for client in [&mut silent, &mut half, &mut kept] {
        assert!(client.is_closed().await);
    }
    assert!(!setup.server.is_finished());
    setup.leave.add_permits(1);
    let (head, body) = waits.answer().await;
    assert!(
        head.contains("connection: close") && body == "held",
        "{head}"
    );
    assert!(waits.is_closed().await);
    setup.server.await.unwrap();
}

#[tokio::test]
async fn failed_accept_neither_stops_the_server_nor_spins() {
    let captured = Captured::default();
    let printing = tracing_subscriber::fmt().with_writer(captured.writer());
    let _printing = tracing::subscriber::set_default(printing.finish());
    let setup = Setup::new(10);
    let mut kept = setup.open();
    kept.asks().await;
    let fail = |error: fn() -> io::Error| {
        for _ in 0..3 {
            setup.opened.send(Err(error())).unwrap();
        }
    };
    fail(|| io::ErrorKind::ConnectionAborted.into());
    setup.open().asks().await;
    // After EMFILE (24), the accept loop closes an idle connection to free a descriptor, and pauses
    // before each new `accept`.
    fail(|| io::Error::from_raw_os_error(24));
    let mut next = setup.open();
    next.get("/").await;
    assert!(kept.is_closed().await);
    for _ in 0..3 {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let mut byte = [0];
        assert!(
            futures_util::FutureExt::now_or_never(next.0.read(&mut byte)).is_none(),
            "the loop pauses"
        );
        setup.clock.advance(ACCEPT_PAUSE);
    }
    assert!(next.answer().await.0.starts_with("HTTP/1.1 200"));
    assert_eq!(captured.text().matches("(os error 24)").count(), 1);
    setup.connections.close_longest_idle();
}

#[tokio::test]
async fn open_connection_is_answered_by_the_router_that_was_set_since() {
    let setup = Setup::new(10);
    let mut client = setup.open();
    client.asks().await;
    let router = Router::new().route("/", get(|| async { "new" }));
    drop(setup.router.send_replace(router));
    client.get("/").await;
    assert_eq!(client.answer().await.1, "new");
}
