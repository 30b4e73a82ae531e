//! An open HTTP/1.1 connection, which carries one request at a time.

use std::pin::{Pin, pin};

use futures_util::FutureExt as _;
use futures_util::future::{Either, select};
use hyper::client::conn::http1;
use reqwest::header::{CONNECTION, HeaderMap};
use reqwest::{Body, Response, StatusCode, Version};
use tokio::time::Instant;

use super::guarded_connection::{GuardedConnection, MaySend, SendGate, Stream};
use super::single_exchange::ResponseSink;
use super::{CONNECTION_LOST, NetFailure, lost_failure};

/// The maximum number of header lines of a response. With hyper's default of 100, a complete
/// response with more header lines would count as lost.
const MAX_HEADERS: usize = 1_000;

/// A response that a sink has received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) status: StatusCode,
    /// Whether the peer announces that it closes the connection after the response.
    pub(super) announces_close: bool,
    /// Whether the response was read to its end.
    pub(super) is_complete: bool,
}

pub(super) struct OpenConnection {
    sender: http1::SendRequest<Body>,
    /// The future that reads and writes on the connection. `None` once the connection is over.
    driver: Option<Pin<Box<http1::Connection<GuardedConnection, Body>>>>,
    gate: SendGate,
    pub(super) opened_at: Instant,
}

impl OpenConnection {
    /// Wraps an open stream, on which no request has been sent yet.
    ///
    /// # Errors
    /// Fails with [`NetFailure::Lost`] if the connection is closed.
    pub(super) async fn new(stream: Stream) -> Result<Self, NetFailure> {
        let gate = SendGate::default();
        let guarded = GuardedConnection::new(stream, gate.clone());
        let handshake = http1::Builder::new()
            .max_headers(MAX_HEADERS)
            .handshake(guarded)
            .await;
        let (sender, driver) = handshake.map_err(|_| NetFailure::Lost(CONNECTION_LOST))?;
        Ok(Self {
            sender,
            driver: Some(Box::pin(driver)),
            gate,
            opened_at: Instant::now(),
        })
    }

    /// Returns whether the last request and its response are complete, and the connection is open.
    /// At the next request, [`GuardedConnection`] checks again that the connection is open.
    pub(super) fn is_ready(&mut self) -> bool {
        let driver = self.driver.as_mut();
        driver.is_some_and(|driver| driver.now_or_never().is_none()) && self.sender.is_ready()
    }

    /// Sends a request, and passes the response to `sink` while it arrives. `may_send` is called at
    /// most once, right before the first byte is written. After `deadline`, no further byte is
    /// written.
    ///
    /// # Errors
    /// Fails with [`NetFailure::Lost`] if no complete response arrived. [`OpenConnection::gate`]
    /// says whether anything was sent.
    pub(super) async fn exchange(
        &mut self,
        request: http::Request<Body>,
        may_send: MaySend,
        deadline: Instant,
        sink: &mut impl ResponseSink,
    ) -> Result<Received, NetFailure> {
        let Some(driver) = &mut self.driver else {
            return Err(NetFailure::Lost(CONNECTION_LOST));
        };
        self.gate.arm(may_send, deadline);
        let sender = &mut self.sender;
        let answered = async move {
            let sent = sender.send_request(request).await;
            let response = sent.map_err(|_| NetFailure::Lost(CONNECTION_LOST))?;
            read(response.map(Body::wrap).into(), sink).await
        };
        // One Tokio task drives the connection and waits for the answer, so no other task can delay
        // the write once the permit to send is given.
        match select(pin!(answered), driver).await {
            Either::Left((read, _)) => read,
            Either::Right((_, answered)) => {
                // The connection is over. If the driver did not take the request from its queue,
                // `answered` waits as long as the queue exists. Dropping the driver drops the
                // queue, so `answered` fails.
                self.driver = None;
                answered.await
            }
        }
    }

    pub(super) fn gate(&self) -> &SendGate {
        &self.gate
    }
}

async fn read(
    mut response: Response,
    sink: &mut impl ResponseSink,
) -> Result<Received, NetFailure> {
    let status = response.status();
    if status.is_informational() {
        return Err(NetFailure::Lost("the answer was not a final answer"));
    }
    let announces_close = announces_close(response.version(), response.headers());
    let received = |is_complete| Received {
        status,
        announces_close,
        is_complete,
    };
    sink.begin(status, response.headers());
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|error| lost_failure(&error))?
    {
        if !sink.take(&chunk) {
            return Ok(received(false));
        }
    }
    Ok(received(true))
}

/// Whether the peer closes the connection after its response. A peer with an older version than
/// HTTP/1.1 closes the connection unless its response has `Connection: keep-alive` (RFC 9112,
/// section 9.3).
fn announces_close(version: Version, headers: &HeaderMap) -> bool {
    let has_option = |name: &str| {
        let lines = headers.get_all(CONNECTION).iter();
        lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(','))
            .any(|option| option.trim().eq_ignore_ascii_case(name))
    };
    has_option("close") || (version < Version::HTTP_11 && !has_option("keep-alive"))
}
