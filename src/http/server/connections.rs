//! The open connections of a listener: how many there are, and which are idle. When all slots are
//! taken, the connection that has been idle longest is closed for the next client. A connection
//! serves a request from the end of the request's head until the bodies of the request and the
//! response are dropped and the response is written. Once the guard has authenticated the caller,
//! the connection is protected: it is not closed for another client, however long the request waits
//! or streams. A connection with an unauthenticated request counts as idle, so that a client that
//! sends or reads slowly cannot keep its slot.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The connections of one listener.
#[derive(Clone, Debug)]
pub(crate) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    open: Mutex<Open>,
    /// Notified when a slot becomes free or the set of idle connections changes.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    /// Connections that were told to close and have not closed yet.
    closing: usize,
    last: u64,
    /// Connections that may be closed, longest idle first: they serve no request or only
    /// unauthenticated requests.
    idle: BTreeMap<u64, CancellationToken>,
}

impl Connections {
    /// Allows `most` connections, and at least one.
    #[must_use]
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Shared {
            most: most.max(1),
            open: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// Waits for a slot for one more connection.
    pub(crate) async fn slot(&self) -> Arc<ConnectionSlot> {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if let Some(slot) = self.take() {
                return slot;
            }
            changed.await;
        }
    }

    fn take(&self) -> Option<Arc<ConnectionSlot>> {
        let mut open = self.lock();
        if open.all < self.0.most {
            open.all += 1;
            let close = CancellationToken::new();
            let idle = open.insert(&close);
            return Some(Arc::new(ConnectionSlot {
                connections: self.clone(),
                close,
                idle: AtomicU64::new(idle),
                requests: AtomicUsize::new(0),
                served: AtomicU64::new(0),
                unwritten: AtomicBool::new(false),
                received: AtomicBool::new(false),
                multiplexed: AtomicBool::new(false),
                waker: AtomicWaker::new(),
            }));
        }
        // A connection that was told to close counts as a free slot, so that a waiting client
        // closes only one connection.
        if open.all - open.closing >= self.0.most {
            open.close_longest();
        }
        None
    }

    /// Closes the connection that has been idle longest, if any is idle.
    pub(crate) fn close_longest(&self) {
        self.lock().close_longest();
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn insert(&mut self, close: &CancellationToken) -> u64 {
        self.last += 1;
        self.idle.insert(self.last, close.clone());
        self.last
    }

    fn close_longest(&mut self) {
        if let Some((_, close)) = self.idle.pop_first() {
            self.closing += 1;
            close.cancel();
        }
    }
}

/// The slot of one connection; dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    connections: Connections,
    close: CancellationToken,
    /// The connection's key in `Open::idle`; 0 while it is protected.
    idle: AtomicU64,
    /// The number of [`Serving`] handles, which the requests in flight and their bodies hold.
    requests: AtomicUsize,
    served: AtomicU64,
    unwritten: AtomicBool,
    received: AtomicBool,
    /// Whether requests overlap on the connection (HTTP/2).
    multiplexed: AtomicBool,
    waker: AtomicWaker,
}

/// The phase of a connection. The phase decides the timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionPhase {
    /// Waits for the rest of a request's head, or for the first byte of the first request.
    Head,
    /// Serves a request. This phase has no timeout.
    Serving,
    /// Waits for the next request; no byte has arrived since the last response.
    KeepAlive,
}

impl ConnectionSlot {
    /// Returns the token that is cancelled when the connection has to close for another client.
    #[must_use]
    pub(crate) fn close(&self) -> &CancellationToken {
        &self.close
    }

    /// Registers the waker that is called when the connection's last body is dropped.
    pub(crate) fn register_waker(&self, context: &Context<'_>) {
        self.waker.register(context.waker());
    }

    /// Begins to serve a request; `None` when the connection was told to close before the head was
    /// complete.
    #[must_use]
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Serving> {
        let mut open = self.connections.lock();
        if self.close.is_cancelled() {
            return None;
        }
        let idle = self.idle.load(Ordering::Relaxed);
        // On an HTTP/2 connection, another request must not end the protection by an earlier
        // request.
        let protected = self.is_multiplexed() && idle == 0 && self.serves();
        if !protected {
            open.idle.remove(&idle);
            self.idle.store(open.insert(&self.close), Ordering::Relaxed);
        }
        drop(open);
        self.connections.0.changed.notify_one();
        self.served.fetch_add(1, Ordering::Relaxed);
        self.received.store(false, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        Some(Serving(Arc::clone(self)))
    }

    /// Keeps the connection from being closed for another client until the request is served.
    pub(crate) fn protect(&self) {
        let mut open = self.connections.lock();
        if !self.close.is_cancelled() {
            open.idle.remove(&self.idle.swap(0, Ordering::Relaxed));
        }
    }

    /// Notes that requests overlap on the connection.
    pub(crate) fn multiplex(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
    }

    fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Ordering::Relaxed)
    }

    /// Notes received bytes. They begin the next request unless they belong to a body.
    pub(crate) fn received(&self) {
        if !self.serves() {
            self.received.store(true, Ordering::Relaxed);
        }
    }

    /// Notes whether bytes wait to be written.
    pub(crate) fn unwritten(&self, waits: bool) {
        self.unwritten.store(waits, Ordering::Relaxed);
    }

    /// Returns the phase, and how many requests have begun. If the connection has stopped serving,
    /// marks it as idle.
    pub(crate) fn phase(&self) -> (ConnectionPhase, u64) {
        let served = self.served.load(Ordering::Relaxed);
        if self.serves() {
            return (ConnectionPhase::Serving, served);
        }
        if self.idle.load(Ordering::Relaxed) == 0 && !self.close.is_cancelled() {
            let mut open = self.connections.lock();
            self.idle.store(open.insert(&self.close), Ordering::Relaxed);
            drop(open);
            self.connections.0.changed.notify_one();
        }
        // Bytes on an HTTP/2 connection may be frames outside of requests, such as pings. They do
        // not begin a request.
        let received = self.received.load(Ordering::Relaxed) && !self.is_multiplexed();
        let begun = served == 0 || received;
        (
            if begun {
                ConnectionPhase::Head
            } else {
                ConnectionPhase::KeepAlive
            },
            served,
        )
    }

    fn serves(&self) -> bool {
        self.requests.load(Ordering::Acquire) > 0 || self.unwritten.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        open.all -= 1;
        if self.close.is_cancelled() {
            open.closing -= 1;
        }
        open.idle.remove(&self.idle.load(Ordering::Relaxed));
        drop(open);
        self.connections.0.changed.notify_one();
    }
}

/// A handle of a request in flight. Each body holds a clone; the connection serves until the last
/// clone is dropped.
#[derive(Debug)]
pub(crate) struct Serving(Arc<ConnectionSlot>);

impl Clone for Serving {
    fn clone(&self) -> Self {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.0.requests.fetch_sub(1, Ordering::Release) == 1 {
            self.0.waker.wake();
        }
    }
}

/// A body that keeps its connection in the serving phase until the body is dropped.
#[derive(Debug)]
pub(crate) struct CountedBody<B> {
    body: B,
    _serving: Serving,
}

impl<B> CountedBody<B> {
    pub(crate) fn new(body: B, serving: Serving) -> Self {
        Self {
            body,
            _serving: serving,
        }
    }
}

impl<B: Body + Unpin> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
