//! Tests of connections that are kept for later requests.

use super::*;
use crate::net::kept_connections::KeptConnections;

/// The answer of a peer that closes an idle connection.
const STRAY: &[u8] = b"HTTP/1.1 408 Late\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno";

const KEPT: ConnectionUse = ConnectionUse::Kept([1; 32]);

/// A [`Net`], and the fake server that it connects to.
struct Peer {
    net: Net,
    url: String,
    listener: TcpListener,
}

impl Peer {
    async fn new() -> Self {
        Self::keeping_for(Duration::from_hours(1)).await
    }

    /// Starts the fake server. `keep_time` is how long the [`Net`] keeps a connection.
    async fn keeping_for(keep_time: Duration) -> Self {
        let (listener, url) = listening().await;
        let kept = KeptConnections::keeping_for(keep_time);
        let net = Net {
            kept,
            ..Net::new().unwrap()
        };
        Self { net, url, listener }
    }

    async fn send(
        &self,
        permit: SendPermit,
        connection: ConnectionUse,
    ) -> Result<Vec<u8>, NetFailure> {
        self.send_body(permit, connection, "").await
    }

    async fn send_body(
        &self,
        permit: SendPermit,
        connection: ConnectionUse,
        body: &str,
    ) -> Result<Vec<u8>, NetFailure> {
        let limits = |_| BodyLimits {
            enough_bytes: 2,
            max_bytes: 2,
        };
        let within = Duration::from_secs(5);
        let mut request = request(&self.url);
        *request.body_mut() = (!body.is_empty()).then(|| body.to_owned().into());
        let sent = self
            .net
            .send_single(request, within, permit, connection, limits);
        sent.await.map(|answer| answer.body)
    }

    /// Sends a request that may use a kept connection. Answers it on a new connection, and
    /// returns this connection.
    async fn exchange_on_new_connection(&self) -> TcpStream {
        self.exchange_on_new(permitted(), KEPT).await
    }

    /// Sends a request, answers it on a new connection, and returns this connection.
    async fn exchange_on_new(&self, permit: SendPermit, connection: ConnectionUse) -> TcpStream {
        let (answer, peer) = tokio::join!(self.send(permit, connection), async {
            let (mut peer, _) = self.listener.accept().await.unwrap();
            assert!(peer.read(&mut [0; 4096]).await.unwrap() > 0);
            peer.write_all(ANSWER).await.unwrap();
            peer
        });
        assert_eq!(answer, Ok(b"ok".to_vec()));
        peer
    }

    /// Sends a request, answers it on `kept`, and returns the received request.
    async fn exchange_on(&self, kept: &mut TcpStream) -> String {
        let (answer, received) = tokio::join!(self.send(permitted(), KEPT), async {
            let mut received = [0; 4096];
            let read = kept.read(&mut received).await.unwrap();
            assert!(read > 0);
            kept.write_all(ANSWER).await.unwrap();
            String::from_utf8_lossy(&received[..read]).into_owned()
        });
        assert_eq!(answer, Ok(b"ok".to_vec()));
        received
    }

    /// Sends a request, answers it on `kept` with `answer`, and returns the outcome.
    async fn outcome_on(&self, kept: &mut TcpStream, answer: &[u8]) -> Result<Vec<u8>, NetFailure> {
        let (outcome, ()) = tokio::join!(self.send(permitted(), KEPT), async {
            assert!(kept.read(&mut [0; 4096]).await.unwrap() > 0);
            kept.write_all(answer).await.unwrap();
        });
        outcome
    }
}

#[tokio::test]
async fn connection_carries_the_next_request_to_its_origin() {
    let peer = Peer::new().await;
    let mut connection = peer.exchange_on_new_connection().await;
    for _ in 0..3 {
        let received = peer.exchange_on(&mut connection).await;
        assert!(!received.contains("connection: close"), "{received}");
    }
}

#[tokio::test]
async fn request_with_its_own_connection_neither_uses_nor_leaves_one() {
    let peer = Peer::new().await;
    let _kept = peer.exchange_on_new_connection().await;
    for _ in 0..2 {
        let (answer, received) = tokio::join!(peer.send(permitted(), ConnectionUse::Own), async {
            let (mut own, _) = peer.listener.accept().await.unwrap();
            let mut received = vec![0; 4096];
            let read = own.read(&mut received).await.unwrap();
            received.truncate(read);
            own.write_all(ANSWER).await.unwrap();
            assert_eq!(own.read(&mut [0; 16]).await.unwrap(), 0);
            String::from_utf8(received).unwrap()
        });
        assert_eq!(answer, Ok(b"ok".to_vec()));
        assert!(received.contains("connection: close"), "{received}");
    }
}

#[tokio::test]
async fn origin_that_closes_a_kept_connection_gets_new_connections() {
    let peer = Peer::new().await;
    drop(peer.exchange_on_new_connection().await);
    let _second = peer.exchange_on_new_connection().await;
    let _third = peer.exchange_on_new_connection().await;
}

#[tokio::test]
async fn bytes_between_two_answers_close_a_kept_connection() {
    let peer = Peer::new().await;
    let mut first = peer.exchange_on_new_connection().await;
    first.write_all(ANSWER).await.unwrap();
    let _second = peer.exchange_on_new_connection().await;
    assert_eq!(first.read(&mut [0; 16]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn request_that_is_lost_on_a_kept_connection_is_not_sent_again() {
    let peer = Peer::new().await;
    let mut first = peer.exchange_on_new_connection().await;
    let (lost, ()) = tokio::join!(peer.send(permitted(), KEPT), async {
        assert!(first.read(&mut [0; 4096]).await.unwrap() > 0);
        drop(first);
    });
    assert!(matches!(lost, Err(NetFailure::Lost(_))), "{lost:?}");
    let _second = peer.exchange_on_new_connection().await;
    let _third = peer.exchange_on_new_connection().await;
}

#[tokio::test]
async fn connection_that_closes_while_the_permit_is_awaited_is_replaced() {
    let peer = Peer::new().await;
    let first = peer.exchange_on_new_connection().await;
    let (decide, decided) = tokio::sync::oneshot::channel();
    let permit = leave(async { decided.await.ok() }, true);
    tokio::join!(peer.exchange_on_new(permit, KEPT), async {
        drop(first);
        // The service has already taken the connection, and checks it again after the decision.
        let _ = decide.send(Instant::now());
    });
}

#[tokio::test]
async fn request_without_a_permit_writes_nothing_to_a_kept_connection() {
    for refused in [
        leave(async { None }, true),
        leave(async { Some(Instant::now()) }, false),
    ] {
        let peer = Peer::new().await;
        let mut first = peer.exchange_on_new_connection().await;
        let answer = peer.send(refused, KEPT).await;
        assert_eq!(answer, Err(NetFailure::NotSent(NOT_PERMITTED)));
        assert_eq!(first.read(&mut [0; 16]).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn connection_is_closed_when_its_time_without_a_request_is_over() {
    let keep_time = Duration::from_millis(50);
    let peer = Peer::keeping_for(keep_time).await;
    let began = Instant::now();
    let mut connection = peer.exchange_on_new_connection().await;
    assert_eq!(connection.read(&mut [0; 16]).await.unwrap(), 0);
    assert!(began.elapsed() >= keep_time);
}

#[tokio::test]
async fn answer_that_is_cut_or_announces_a_close_leaves_no_connection() {
    for answer in [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello".as_slice(),
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ] {
        let peer = Peer::new().await;
        let (sent, ()) = tokio::join!(peer.send(permitted(), KEPT), async {
            let (mut first, _) = peer.listener.accept().await.unwrap();
            assert!(first.read(&mut [0; 4096]).await.unwrap() > 0);
            first.write_all(answer).await.unwrap();
            assert_eq!(first.read(&mut [0; 16]).await.unwrap_or(0), 0);
        });
        assert_eq!(sent.unwrap().len(), 2);
    }
}

#[tokio::test]
async fn requests_of_two_users_share_no_connection() {
    let peer = Peer::new().await;
    let _first = peer.exchange_on_new_connection().await;
    let other = ConnectionUse::Kept([2; 32]);
    let _second = peer.exchange_on_new(permitted(), other).await;
}

#[tokio::test]
async fn error_that_closes_a_reused_connection_is_the_answer_to_its_request() {
    let long = format!(
        "HTTP/1.1 500 Broken\r\ncontent-length: 98\r\n\r\n{}",
        "no".repeat(49)
    );
    for answer in [
        "HTTP/1.1 409 Taken\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno",
        "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno",
        "HTTP/1.1 503 Later\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno",
        "HTTP/1.0 500 Broken\r\ncontent-length: 2\r\n\r\nno",
        long.as_str(),
    ] {
        let peer = Peer::new().await;
        let mut first = peer.exchange_on_new_connection().await;
        let outcome = peer.outcome_on(&mut first, answer.as_bytes()).await;
        assert_eq!(outcome, Ok(b"no".to_vec()), "{answer}");
        // The service closes `first`, and sends no further request on it. The next connection is
        // kept as usual.
        assert_eq!(first.read(&mut [0; 16]).await.unwrap_or(0), 0, "{answer}");
        let mut second = peer.exchange_on_new_connection().await;
        peer.exchange_on(&mut second).await;
    }
}

#[tokio::test]
async fn error_that_leaves_a_reused_connection_open_is_the_answer_to_its_request() {
    for status in ["404 Not Found", "408 Late", "500 Broken"] {
        let peer = Peer::new().await;
        let mut first = peer.exchange_on_new_connection().await;
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nno");
        let outcome = peer.outcome_on(&mut first, answer.as_bytes()).await;
        assert_eq!(outcome, Ok(b"no".to_vec()), "{status}");
        peer.exchange_on(&mut first).await;
    }
}

/// A peer may send a 408 when it closes an idle connection while the request is on its way. If a
/// peer has left the body of an earlier request unread, it takes this body for the beginning of the
/// next request, and refuses the body.
#[tokio::test]
async fn refusal_that_closes_a_reused_connection_may_belong_to_no_request() {
    for stray in [
        STRAY,
        b"HTTP/1.1 408 Late\r\nConnection: x, Close\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.0 408 Late\r\ncontent-length: 2\r\n\r\nno",
        b"HTTP/1.1 400 Bad\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno",
        b"HTTP/1.1 501 Unsupported\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno",
        b"HTTP/1.1 421 Misdirected\r\ncontent-length: 2\r\n\r\nno",
    ] {
        let peer = Peer::new().await;
        let mut first = peer.exchange_on_new_connection().await;
        let outcome = peer.outcome_on(&mut first, stray).await;
        assert!(matches!(outcome, Err(NetFailure::Lost(_))), "{outcome:?}");
        let _second = peer.exchange_on_new_connection().await;
        let _third = peer.exchange_on_new_connection().await;
    }
}

#[tokio::test]
async fn timeout_answer_that_closes_a_new_connection_is_the_answer_to_its_request() {
    let peer = Peer::new().await;
    let (outcome, ()) = tokio::join!(peer.send(permitted(), KEPT), async {
        let (mut first, _) = peer.listener.accept().await.unwrap();
        assert!(first.read(&mut [0; 4096]).await.unwrap() > 0);
        first.write_all(STRAY).await.unwrap();
    });
    assert_eq!(outcome, Ok(b"no".to_vec()));
}

#[tokio::test]
async fn answer_that_comes_before_its_request_is_written_is_not_its_answer() {
    for stray in [STRAY, ANSWER] {
        let peer = Peer::new().await;
        let mut first = peer.exchange_on_new_connection().await;
        let (decide, decided) = tokio::sync::oneshot::channel();
        let permit = leave(async { decided.await.ok() }, true);
        tokio::join!(peer.exchange_on_new(permit, KEPT), async {
            first.write_all(stray).await.unwrap();
            let _ = decide.send(Instant::now());
        });
        assert_eq!(first.read(&mut [0; 16]).await.unwrap_or(0), 0);
    }
}

#[tokio::test]
async fn stray_answer_on_another_connection_leaves_an_error_the_answer_to_its_request() {
    let peer = Peer::new().await;
    let mut first = peer.exchange_on_new_connection().await;
    let (outcome, ()) = tokio::join!(peer.send(permitted(), KEPT), async {
        assert!(first.read(&mut [0; 4096]).await.unwrap() > 0);
        let mut second = peer.exchange_on_new_connection().await;
        let stray = peer.outcome_on(&mut second, STRAY).await;
        assert!(matches!(stray, Err(NetFailure::Lost(_))), "{stray:?}");
        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno";
        first.write_all(answer).await.unwrap();
    });
    assert_eq!(outcome, Ok(b"no".to_vec()));
}

#[tokio::test]
async fn request_that_leaves_no_connection_asks_the_peer_to_close() {
    let peer = Peer::new().await;
    let body = "x".repeat(20_000);
    let mut received = Vec::new();
    let (answer, ()) = tokio::join!(peer.send_body(permitted(), KEPT, &body), async {
        let (mut first, _) = peer.listener.accept().await.unwrap();
        while received.len() < body.len() {
            assert!(first.read_buf(&mut received).await.unwrap() > 0);
        }
        first.write_all(ANSWER).await.unwrap();
    });
    assert_eq!(answer, Ok(b"ok".to_vec()));
    assert!(
        String::from_utf8(received)
            .unwrap()
            .contains("connection: close")
    );
    let _second = peer.exchange_on_new_connection().await;
}

#[tokio::test]
async fn connection_whose_time_ends_while_the_permit_is_awaited_is_replaced() {
    let peer = Peer::keeping_for(Duration::from_millis(50)).await;
    let _first = peer.exchange_on_new_connection().await;
    let until = Instant::now() + Duration::from_millis(100);
    let decided = async move {
        tokio::time::sleep_until(until).await;
        Some(Instant::now())
    };
    let _second = peer.exchange_on_new(leave(decided, true), KEPT).await;
}

#[tokio::test]
async fn kept_connection_is_used_although_no_further_one_is_kept() {
    let peer = Peer::new().await;
    let mut first = peer.exchange_on_new_connection().await;
    let mut others = Vec::new();
    for number in 100..140 {
        let other = ConnectionUse::Kept([number; 32]);
        others.push(peer.exchange_on_new(permitted(), other).await);
    }
    // The service has closed the connections that it does not keep.
    let mut last = others.pop().unwrap();
    assert_eq!(last.read(&mut [0; 16]).await.unwrap(), 0);
    peer.exchange_on(&mut first).await;
}
