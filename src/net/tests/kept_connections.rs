//! Tests of connections that are kept for later requests.

use super::*;
use crate::net::kept_connections::KeptConnections;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// The fake peer of a [`Net`].
struct Peer {
    net: Net,
    url: String,
    listener: TcpListener,
}

impl Peer {
    async fn new() -> Self {
        Self::keeping_for(Duration::from_hours(1)).await
    }

    /// `keep_time` is how long the service keeps a connection.
    async fn keeping_for(keep_time: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
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
    ) -> Result<Vec<u8>, Failure> {
        let limits = |_| BodyLimits {
            enough_bytes: 2,
            max_bytes: 2,
        };
        let within = Duration::from_secs(5);
        let request = request(&self.url);
        let sent = self
            .net
            .send_single(request, within, permit, connection, limits);
        sent.await.map(|answer| answer.body)
    }

    /// Sends a request that may use a kept connection. Answers it on a new connection, and
    /// returns this connection.
    async fn exchange_on_new_connection(&self) -> tokio::net::TcpStream {
        let (answer, peer) = tokio::join!(self.send(permitted(), ConnectionUse::Kept), async {
            let (mut peer, _) = self.listener.accept().await.unwrap();
            assert!(peer.read(&mut [0; 4096]).await.unwrap() > 0);
            peer.write_all(ANSWER).await.unwrap();
            peer
        });
        assert_eq!(answer, Ok(b"ok".to_vec()));
        peer
    }
}

#[tokio::test]
async fn connection_carries_the_next_request_to_its_origin() {
    let peer = Peer::new().await;
    let mut connection = peer.exchange_on_new_connection().await;
    for _ in 0..3 {
        let (answer, received) = tokio::join!(peer.send(permitted(), ConnectionUse::Kept), async {
            let mut received = [0; 4096];
            let read = connection.read(&mut received).await.unwrap();
            connection.write_all(ANSWER).await.unwrap();
            String::from_utf8_lossy(&received[..read]).into_owned()
        });
        assert_eq!(answer, Ok(b"ok".to_vec()));
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
    let (lost, ()) = tokio::join!(peer.send(permitted(), ConnectionUse::Kept), async {
        assert!(first.read(&mut [0; 4096]).await.unwrap() > 0);
        drop(first);
    });
    assert!(matches!(lost, Err(Failure::Lost(_))), "{lost:?}");
    let _second = peer.exchange_on_new_connection().await;
    let _third = peer.exchange_on_new_connection().await;
}

#[tokio::test]
async fn connection_that_closes_while_the_permit_is_awaited_is_replaced() {
    let peer = Peer::new().await;
    let first = peer.exchange_on_new_connection().await;
    let (decide, decided) = tokio::sync::oneshot::channel();
    let permit = leave(async { decided.await.ok() }, true);
    let (answer, ()) = tokio::join!(peer.send(permit, ConnectionUse::Kept), async {
        drop(first);
        // The kept connection sees the end once it is polled.
        let _ = decide.send(Instant::now());
        let (mut second, _) = peer.listener.accept().await.unwrap();
        assert!(second.read(&mut [0; 4096]).await.unwrap() > 0);
        second.write_all(ANSWER).await.unwrap();
    });
    assert_eq!(answer, Ok(b"ok".to_vec()));
}

#[tokio::test]
async fn request_without_a_permit_writes_nothing_to_a_kept_connection() {
    for refused in [
        leave(async { None }, true),
        leave(async { Some(Instant::now()) }, false),
    ] {
        let peer = Peer::new().await;
        let mut first = peer.exchange_on_new_connection().await;
        let answer = peer.send(refused, ConnectionUse::Kept).await;
        assert_eq!(answer, Err(Failure::NotSent(NOT_PERMITTED)));
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
        let (sent, ()) = tokio::join!(peer.send(permitted(), ConnectionUse::Kept), async {
            let (mut first, _) = peer.listener.accept().await.unwrap();
            assert!(first.read(&mut [0; 4096]).await.unwrap() > 0);
            first.write_all(answer).await.unwrap();
            assert_eq!(first.read(&mut [0; 16]).await.unwrap_or(0), 0);
        });
        assert_eq!(sent.unwrap().len(), 2);
    }
}
