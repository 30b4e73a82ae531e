//! Limits the open connections of a listener. When all slots are taken, the connection that has
//! been idle longest is closed to make room for a new client. A connection without a request is
//! idle. A connection with an unauthenticated request counts as idle, too, so a slow client cannot
//! keep its slot. Once the guard (`guard.rs`) has authenticated the caller, the connection is
//! protected: it is not closed for another client, however long the request takes. The protection
//! lasts until the bodies of the request and the response are dropped and the response is written.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::world::Locked;

#[derive(Clone, Debug)]
pub(crate) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max_open: usize,
    open: Locked<OpenConnections>,
    /// Notified when a slot becomes free or the set of idle connections changes.
    changed: Notify,
}

#[derive(Debug, Default)]
struct OpenConnections {
    count: usize,
    /// The number of connections that were told to close and have not closed yet.
    closing: usize,
    last_key: u64,
    /// The close tokens of the connections that may be closed for a new client, longest idle first.
    /// These connections serve no request, or an unauthenticated request.
    idle: BTreeMap<u64, CancellationToken>,
}

impl Connections {
    #[must_use]
    pub(crate) fn new(max_open: usize) -> Self {
        Self(Arc::new(Shared {
            max_open: max_open.max(1),
            open: Locked::default(),
            changed: Notify::new(),
        }))
    }

    /// Waits for a slot for one more connection. If all slots are taken, the connection that has
    /// been idle longest is closed.
    pub(crate) async fn wait_for_slot(&self) -> Arc<ConnectionSlot> {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if let Some(slot) = self.try_take() {
                return slot;
            }
            changed.await;
        }
    }

    fn try_take(&self) -> Option<Arc<ConnectionSlot>> {
        let mut open = self.0.open.lock();
        if open.count < self.0.max_open {
            open.count += 1;
            let close = CancellationToken::new();
            let idle_key = open.insert_idle(&close);
            return Some(Arc::new(ConnectionSlot {
                connections: self.clone(),
                close,
                idle_key: AtomicU64::new(idle_key),
                requests: AtomicUsize::new(0),
                requests_begun: AtomicU64::new(0),
                has_unwritten: AtomicBool::new(false),
                has_received: AtomicBool::new(false),
                multiplexed: AtomicBool::new(false),
                waker: AtomicWaker::new(),
            }));
        }
        // `wait_for_slot` may call this function several times for one client. If a connection was
        // told to close and has not closed yet, its slot will become free for this client, so no
        // further connection has to close.
        if open.count - open.closing >= self.0.max_open {
            open.close_longest_idle();
        }
        None
    }

    pub(crate) fn close_longest_idle(&self) {
        self.0.open.lock().close_longest_idle();
    }
}

impl OpenConnections {
    fn insert_idle(&mut self, close: &CancellationToken) -> u64 {
        self.last_key += 1;
        self.idle.insert(self.last_key, close.clone());
        self.last_key
    }

    fn close_longest_idle(&mut self) {
        if let Some((_, close)) = self.idle.pop_first() {
            self.closing += 1;
            close.cancel();
        }
    }
}

/// The slot of one connection. Dropping this value frees the slot.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    connections: Connections,
    close: CancellationToken,
    /// The connection's key in `OpenConnections::idle`; 0 while the connection is protected.
    idle_key: AtomicU64,
    /// The number of [`RequestInFlight`] handles that exist.
    requests: AtomicUsize,
    requests_begun: AtomicU64,
    has_unwritten: AtomicBool,
    has_received: AtomicBool,
    multiplexed: AtomicBool,
    waker: AtomicWaker,
}

/// The phase of a connection. The phase determines the timeout (`phase_timeout`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionPhase {
    /// The connection waits for the rest of a request's head, or for the first byte of the first
    /// request.
    Head,
    /// The connection serves a request. This phase has no timeout.
    Serving,
    /// The connection waits for the next request. On HTTP/1.1, the first byte of the next request
    /// ends this phase and begins `Head`. On HTTP/2, this phase lasts until a request begins.
    KeepAlive,
}

impl ConnectionSlot {
    /// Returns the token that is cancelled when the connection has to close to make room for
    /// another client.
    #[must_use]
    pub(crate) fn close_token(&self) -> &CancellationToken {
        &self.close
    }

    /// Registers the waker that is called when the connection's last [`RequestInFlight`] is
    /// dropped.
    pub(crate) fn register_waker(&self, context: &Context<'_>) {
        self.waker.register(context.waker());
    }

    /// Records that the connection begins to serve a request. Returns `None` if the connection was
    /// told to close before the request's head was complete.
    #[must_use]
    pub(crate) fn begin_request(self: &Arc<Self>) -> Option<RequestInFlight> {
        let mut open = self.connections.0.open.lock();
        if self.close.is_cancelled() {
            return None;
        }
        let idle_key = self.idle_key.load(Ordering::Relaxed);
        // On HTTP/2, an earlier request of an authenticated caller may still be in progress. Then
        // the connection stays protected. Otherwise the connection counts as idle until the guard
        // authenticates the caller of the new request.
        let protected = self.is_multiplexed() && idle_key == 0 && self.is_serving();
        if !protected {
            open.idle.remove(&idle_key);
            self.idle_key
                .store(open.insert_idle(&self.close), Ordering::Relaxed);
        }
        drop(open);
        self.connections.0.changed.notify_one();
        self.requests_begun.fetch_add(1, Ordering::Relaxed);
        self.has_received.store(false, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        Some(RequestInFlight(Arc::clone(self)))
    }

    /// Protects the connection: while the connection serves a request, it is not closed to make
    /// room for another client.
    pub(crate) fn protect(&self) {
        let mut open = self.connections.0.open.lock();
        if !self.close.is_cancelled() {
            open.idle.remove(&self.idle_key.swap(0, Ordering::Relaxed));
        }
    }

    /// Records that requests may overlap on the connection (HTTP/2).
    pub(crate) fn mark_multiplexed(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
    }

    fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Ordering::Relaxed)
    }

    /// Records that bytes were received while no request is served. On HTTP/1.1, such bytes begin
    /// the next request.
    pub(crate) fn note_received(&self) {
        if !self.is_serving() {
            self.has_received.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_unwritten(&self, waits: bool) {
        self.has_unwritten.store(waits, Ordering::Relaxed);
    }

    /// Returns the phase, and the number of requests that have begun. If a protected connection
    /// serves no request any more, this function marks the connection as idle.
    pub(crate) fn phase(&self) -> (ConnectionPhase, u64) {
        let requests_begun = self.requests_begun.load(Ordering::Relaxed);
        if self.is_serving() {
            return (ConnectionPhase::Serving, requests_begun);
        }
        if self.idle_key.load(Ordering::Relaxed) == 0 {
            self.mark_idle();
        }
        // On HTTP/2, received bytes may be frames such as pings, which begin no request.
        let received = self.has_received.load(Ordering::Relaxed) && !self.is_multiplexed();
        let begun = requests_begun == 0 || received;
        (
            if begun {
                ConnectionPhase::Head
            } else {
                ConnectionPhase::KeepAlive
            },
            requests_begun,
        )
    }

    /// Marks the connection as idle if it is protected and serves no request. Both conditions are
    /// checked under the lock: two Tokio tasks of an HTTP/2 connection call [`Self::phase`], and
    /// only one of them may add the connection to the idle connections.
    fn mark_idle(&self) {
        let mut open = self.connections.0.open.lock();
        let protected = self.idle_key.load(Ordering::Relaxed) == 0;
        if protected && !self.is_serving() && !self.close.is_cancelled() {
            self.idle_key
                .store(open.insert_idle(&self.close), Ordering::Relaxed);
            drop(open);
            self.connections.0.changed.notify_one();
        }
    }

    fn is_serving(&self) -> bool {
        self.requests.load(Ordering::Acquire) > 0 || self.has_unwritten.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.connections.0.open.lock();
        open.count -= 1;
        if self.close.is_cancelled() {
            open.closing -= 1;
        }
        open.idle.remove(&self.idle_key.load(Ordering::Relaxed));
        drop(open);
        self.connections.0.changed.notify_one();
    }
}

/// A handle of a request in flight. The bodies of the request and of the response hold clones of
/// the handle. The connection stays in the serving phase at least until the last clone is dropped.
#[derive(Debug)]
pub(crate) struct RequestInFlight(Arc<ConnectionSlot>);

impl Clone for RequestInFlight {
    fn clone(&self) -> Self {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for RequestInFlight {
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
    _serving: RequestInFlight,
}

impl<B> CountedBody<B> {
    pub(crate) fn new(body: B, serving: RequestInFlight) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_that_two_threads_find_idle_is_listed_once() {
        let connections = Connections::new(1);
        for _ in 0..100 {
            let slot = connections.try_take().unwrap();
            let request = slot.begin_request().unwrap();
            slot.protect();
            drop(request);
            let started = AtomicUsize::new(0);
            let open = connections.0.open.lock();
            std::thread::scope(|threads| {
                for _ in 0..2 {
                    threads.spawn(|| {
                        started.fetch_add(1, Ordering::Relaxed);
                        slot.phase();
                    });
                }
                while started.load(Ordering::Relaxed) < 2 {
                    std::thread::yield_now();
                }
                drop(open);
            });
            assert_eq!(connections.0.open.lock().idle.len(), 1);
        }
    }
}
