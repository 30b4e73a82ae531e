//! Tests of sending requests, and of their failures.

mod kept_connections;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use reqwest::Request;
use tokio::time::Instant;

use super::*;

/// A complete answer that keeps the connection open.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Returns the listener of a fake endpoint, and its URL.
async fn listening() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    (listener, url)
}

/// Answers each connection with the next of `answers`, then closes the connection. Returns the URL,
/// and a handle whose output is the list of received requests.
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

/// Reads a request whose body has `content-length` bytes. Returns the request's head and body.
pub(crate) async fn receive(peer: &mut TcpStream) -> (String, String) {
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let read = peer.read(&mut chunk).await.unwrap();
        bytes.extend_from_slice(&chunk[..read]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(read > 0, "half a request: {text}");
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .to_lowercase()
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            return (head.to_owned(), body.to_owned());
        }
    }
}

fn request(url: &str) -> Request {
    Request::new(reqwest::Method::GET, url.parse().unwrap())
}

fn leave(
    decided: impl Future<Output = Option<Instant>> + Send + 'static,
    holds: bool,
) -> SendPermit {
    SendPermit {
        decision: decided.boxed(),
        may_send: Arc::new(move || holds),
    }
}

fn permitted() -> SendPermit {
    leave(async { Some(Instant::now()) }, true)
}

async fn get(net: &Net, url: &str) -> Result<(Vec<u8>, bool), NetFailure> {
    let answer = net
        .send_single(
            request(url),
            Duration::from_secs(5),
            permitted(),
            ConnectionUse::Own,
            |_| BodyLimits {
                enough_bytes: 10,
                max_bytes: 10,
            },
        )
        .await?;
    Ok((answer.body, answer.is_truncated))
}

/// Returns a socket whose address refuses connections. The socket is bound but does not listen, so
/// the port stays reserved.
pub(crate) fn refusing_socket() -> tokio::net::TcpSocket {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}

#[tokio::test]
async fn response_with_several_hundred_header_lines_is_complete() {
    let lines = "x-line: v\r\n".repeat(500);
    let answer = format!("HTTP/1.1 200 OK\r\n{lines}content-length: 2\r\n\r\nhi");
    let (url, _) = endpoint(vec![answer.leak()]).await;
    let net = Net::new().unwrap();
    assert_eq!(get(&net, &url).await, Ok((b"hi".to_vec(), false)));
}

#[tokio::test]
async fn refused_connection_is_reported_as_not_sent() {
    let socket = refusing_socket();
    let url = format!("http://{}/", socket.local_addr().unwrap());
    assert_eq!(
        get(&Net::new().unwrap(), &url).await,
        Err(NetFailure::NotSent("the connection was refused"))
    );
}

#[tokio::test]
async fn name_that_is_not_resolved_is_reported_as_not_sent() {
    // No name of a host has a part of more than 63 characters, so no server is asked for this name.
    let url = format!("http://{}.invalid/", "x".repeat(64));
    assert_eq!(
        get(&Net::new().unwrap(), &url).await,
        Err(NetFailure::NotSent(NOT_RESOLVED))
    );
}

#[tokio::test]
async fn peer_that_does_not_speak_tls_is_reported_as_not_sent() {
    let (url, _seen) = endpoint(vec![
        "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
    ])
    .await;
    let failure = get(&Net::new().unwrap(), &url.replace("http:", "https:"))
        .await
        .unwrap_err();
    assert!(matches!(failure, NetFailure::NotSent(_)), "{failure:?}");
}

#[tokio::test]
async fn answer_that_ends_early_is_lost_and_not_repeated() {
    let (url, seen) = endpoint(vec!["", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"]).await;
    let net = Net::new().unwrap();
    let lost = NetFailure::Lost("the connection was lost before there was a complete answer");
    assert_eq!(get(&net, &url).await, Err(lost));
    let half = get(&net, &url).await.unwrap_err();
    assert!(matches!(half, NetFailure::Lost(_)), "{half:?}");
    assert_eq!(seen.await.unwrap().len(), 2);
}

#[tokio::test]
async fn silent_peer_is_lost_at_the_timeout_also_within_the_body() {
    let (listener, url) = listening().await;
    let net = Net::new().unwrap();
    // Even on a busy machine, the request must be sent within this time.
    let in_time = Duration::from_secs(2);
    let room = |_| BodyLimits {
        enough_bytes: 100,
        max_bytes: 100,
    };
    let late = Err(NetFailure::Lost(
        "there was no complete answer within the timeout",
    ));
    let send = || {
        let own = ConnectionUse::Own;
        net.send_single(request(&url), in_time, permitted(), own, room)
    };
    assert_eq!(send().await, late);
    drop(listener.accept().await.unwrap());
    let (answer, _peer) = tokio::join!(send(), async {
        let (mut peer, _) = listener.accept().await.unwrap();
        assert!(peer.read(&mut [0; 4096]).await.unwrap() > 0);
        peer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
            .await
            .unwrap();
        peer
    });
    assert_eq!(answer, late);
}

#[tokio::test]
async fn connection_that_is_never_made_is_not_a_lost_request() {
    let listener = refusing_socket().listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    // The listener accepts no connection. Once its queue is full, connecting hangs.
    let mut queue = Vec::new();
    while let Ok(peer) =
        tokio::time::timeout(Duration::from_secs(2), TcpStream::connect(address)).await
    {
        queue.push(peer.unwrap());
    }
    let net = Net::new().unwrap();
    for within in [50, 200] {
        let room = |_| BodyLimits {
            enough_bytes: 10,
            max_bytes: 10,
        };
        let url = format!("http://{address}/");
        let answer = net
            .send_single(
                request(&url),
                Duration::from_millis(within),
                permitted(),
                ConnectionUse::Own,
                room,
            )
            .await;
        assert_eq!(
            answer,
            Err(NetFailure::NotSent("no connection could be made in time"))
        );
    }
}

#[tokio::test]
async fn long_body_is_cut_and_a_redirect_is_an_answer() {
    let redirect =
        "HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 11\r\n\r\nhello world";
    let (url, seen) = endpoint(vec![redirect]).await;
    assert_eq!(
        get(&Net::new().unwrap(), &url).await,
        Ok((b"hello worl".to_vec(), true))
    );
    let seen = seen.await.unwrap();
    assert_eq!(seen.len(), 1);
    assert!(
        seen[0].contains(&format!("user-agent: {USER_AGENT}")),
        "{}",
        seen[0]
    );
    assert!(!seen[0].contains("referer"), "{}", seen[0]);
}

#[tokio::test]
async fn call_without_a_permit_writes_nothing_to_its_open_connection() {
    for refused in [
        leave(async { None }, true),
        leave(async { Some(Instant::now()) }, false),
    ] {
        refused_call_writes_nothing(refused).await;
    }
}

async fn refused_call_writes_nothing(refused: SendPermit) {
    let (listener, url) = listening().await;
    let net = Net::new().unwrap();
    let room = |_: StatusCode| BodyLimits {
        enough_bytes: 1,
        max_bytes: 1,
    };
    let (answer, received) = tokio::join!(
        net.send_single(
            request(&url),
            Duration::from_secs(5),
            refused,
            ConnectionUse::Own,
            room
        ),
        async {
            let (mut peer, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            peer.read_to_end(&mut received).await.unwrap();
            received
        }
    );
    assert_eq!(answer, Err(NetFailure::NotSent(NOT_PERMITTED)));
    assert_eq!(received, b"");
}

#[tokio::test]
async fn request_waits_for_its_permit_on_an_open_connection_and_its_time_begins_then() {
    let (listener, url) = listening().await;
    let (net, within) = (Net::new().unwrap(), Duration::from_secs(2));
    let room = |_: StatusCode| BodyLimits {
        enough_bytes: 2,
        max_bytes: 2,
    };
    let (permit, decided) = tokio::sync::oneshot::channel();
    let leave = leave(async { decided.await.ok() }, true);
    let (answer, ()) = tokio::join!(
        net.send_single(request(&url), within, leave, ConnectionUse::Own, room),
        async {
            let (mut peer, _) = listener.accept().await.unwrap();
            let mut received = [0; 4096];
            let longer = within + Duration::from_millis(200);
            let early = tokio::time::timeout(longer, peer.read(&mut received)).await;
            assert!(early.is_err(), "bytes before the permit");
            permit.send(Instant::now()).unwrap();
            assert!(peer.read(&mut received).await.unwrap() > 0);
            peer.write_all(ANSWER).await.unwrap();
        }
    );
    assert_eq!(answer.unwrap().body, b"ok");
}

/// The exchange calls `may_send` only after `decision` has returned, and only once, although the
/// request of 4 MiB takes many writes.
#[tokio::test]
async fn permit_is_asked_for_at_the_write_and_not_before() {
    let (listener, url) = listening().await;
    let net = Net::new().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let (count, before) = (Arc::clone(&asked), Arc::clone(&asked));
    let leave = SendPermit {
        decision: async move {
            assert_eq!(before.load(Ordering::SeqCst), 0);
            Some(Instant::now())
        }
        .boxed(),
        may_send: Arc::new(move || count.fetch_add(1, Ordering::SeqCst) == 0),
    };
    let mut call = request(&url);
    *call.method_mut() = reqwest::Method::POST;
    *call.body_mut() = Some(vec![b'x'; 4 << 20].into());
    let room = |_: StatusCode| BodyLimits {
        enough_bytes: 2,
        max_bytes: 2,
    };
    let (answer, received) = tokio::join!(
        net.send_single(
            call,
            Duration::from_secs(30),
            leave,
            ConnectionUse::Own,
            room
        ),
        async {
            let (mut peer, _) = listener.accept().await.unwrap();
            let (mut received, mut buffer) = (0, vec![0; 1 << 16]);
            while received < 4 << 20 {
                received += peer.read(&mut buffer).await.unwrap();
            }
            peer.write_all(ANSWER).await.unwrap();
            received
        }
    );
    assert_eq!(answer.unwrap().body, b"ok");
    assert!(received > 4 << 20);
    assert_eq!(
        asked.load(Ordering::SeqCst),
        1,
        "a request of many writes asks once"
    );
}

#[tokio::test]
async fn connection_that_the_peer_closes_before_the_permit_was_not_sent_on() {
    let (listener, url) = listening().await;
    let net = Net::new().unwrap();
    let (closed, decided) = tokio::sync::oneshot::channel();
    let leave = leave(async { decided.await.ok() }, false);
    let room = |_: StatusCode| BodyLimits {
        enough_bytes: 1,
        max_bytes: 1,
    };
    let (answer, ()) = tokio::join!(
        net.send_single(
            request(&url),
            Duration::from_secs(5),
            leave,
            ConnectionUse::Own,
            room
        ),
        async {
            drop(listener.accept().await.unwrap());
            closed.send(Instant::now()).unwrap();
        }
    );
    assert!(matches!(answer, Err(NetFailure::NotSent(_))), "{answer:?}");
}

/// Blocks the thread of the runtime until more than a second after `within`, as if the process were
/// suspended over the deadline of an exchange. Then yields, so that the runtime fires the timers.
async fn stand_still_over(within: Duration) {
    std::thread::sleep(within + Duration::from_millis(1_200));
    tokio::task::yield_now().await;
}

#[tokio::test]
async fn answer_is_taken_after_the_process_was_suspended_over_the_deadline() {
    let (listener, url) = listening().await;
    let (net, within) = (Net::new().unwrap(), Duration::from_secs(1));
    let room = |_: StatusCode| BodyLimits {
        enough_bytes: 2,
        max_bytes: 2,
    };
    let own = ConnectionUse::Own;
    let (answer, ()) = tokio::join!(
        net.send_single(request(&url), within, permitted(), own, room),
        async {
            let (mut peer, _) = listener.accept().await.unwrap();
            assert!(peer.read(&mut [0; 4096]).await.unwrap() > 0);
            stand_still_over(within).await;
            peer.write_all(ANSWER).await.unwrap();
        }
    );
    assert_eq!(answer.unwrap().body, b"ok");
}

/// The request is larger than the buffers of both sockets together, so a part of the request is
/// still unwritten at the deadline.
#[tokio::test]
async fn rest_of_a_request_is_not_written_after_the_process_was_suspended_over_the_deadline() {
    let (listener, url) = listening().await;
    let (net, within) = (Net::new().unwrap(), Duration::from_secs(1));
    let mut call = request(&url);
    *call.method_mut() = reqwest::Method::POST;
    *call.body_mut() = Some(vec![b'x'; 64 << 20].into());
    let room = |_: StatusCode| BodyLimits {
        enough_bytes: 2,
        max_bytes: 2,
    };
    let own = ConnectionUse::Own;
    let (answer, received) = tokio::join!(
        net.send_single(call, within, permitted(), own, room),
        async {
            let (mut peer, _) = listener.accept().await.unwrap();
            peer.read_exact(&mut [0]).await.unwrap();
            stand_still_over(within).await;
            tokio::io::copy(&mut peer, &mut tokio::io::sink())
                .await
                .unwrap()
        }
    );
    assert_eq!(answer, Err(NetFailure::Lost(NO_ANSWER_IN_TIME)));
    assert!(received < 64 << 20, "{received}");
}

#[test]
fn redirect_is_a_status_of_3xx_other_than_304() {
    for status in [300, 301, 302, 303, 307, 308] {
        assert!(is_redirect(status), "{status}");
    }
    for status in [200, 299, 304, 400] {
        assert!(!is_redirect(status), "{status}");
    }
}

#[test]
fn retry_after_is_read_in_seconds_or_as_a_date_and_bounded() {
    let now = Time(1_445_412_480_000_000 - 5_000_000);
    let asked = |value: &str| {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
        retry_after(&headers, now, Duration::from_mins(1))
    };
    assert_eq!(asked("3"), Some(Duration::from_secs(3)));
    assert_eq!(asked("0.5"), Some(Duration::from_millis(500)));
    let date = |seconds: &str| asked(&format!("Wed, 21 Oct 2015 07:{seconds} GMT"));
    assert_eq!(date("28:00"), Some(Duration::from_secs(5)));
    assert_eq!(date("27:00"), Some(Duration::ZERO));
    for long in ["7200", "18446744073709551616", "1e300"] {
        assert_eq!(asked(long), Some(Duration::from_mins(1)), "{long}");
    }
    for nonsense in ["soon", "-1", "-1e300", "NaN", ""] {
        assert_eq!(asked(nonsense), None, "{nonsense}");
    }
    let none = HeaderMap::new();
    assert_eq!(retry_after(&none, now, Duration::from_mins(1)), None);
}
