//! The open connections of a listener: how many there are, and which of them serve no request. When all places are
//! taken, the connection that has served none for the longest time is closed for the next client. A connection serves from
//! the head of a request until both bodies are gone and the answer is written. Once a key or a session has shown whose
//! request it is, its connection is kept: a request that waits and an open stream are never closed for others. A stranger's
//! request is, longest first, however slowly its body is sent or its answer is read.

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
pub struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    open: Mutex<Open>,
    /// A place is free, or a connection stopped serving.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    /// Connections that were told to close and have not closed yet.
    closing: usize,
    last: u64,
    /// Connections that may be closed, longest first: they serve no request, or a stranger's.
    idle: BTreeMap<u64, CancellationToken>,
}

impl Connections {
    /// At most so many connections; never fewer than one.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Shared { most: most.max(1), open: Mutex::default(), changed: Notify::new() }))
    }

    /// A place for one more connection, as soon as there is one.
    pub async fn place(&self) -> Arc<Place> {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if let Some(place) = self.take() {
                return place;
            }
            changed.await;
        }
    }

    fn take(&self) -> Option<Arc<Place>> {
        let mut open = self.lock();
        if open.all < self.0.most {
            open.all += 1;
            let close = CancellationToken::new();
            let idle = open.insert(&close);
            return Some(Arc::new(Place {
                connections: self.clone(),
                close,
                idle: AtomicU64::new(idle),
                requests: AtomicUsize::new(0),
                served: AtomicU64::new(0),
                unwritten: AtomicBool::new(false),
                heard: AtomicBool::new(false),
                waker: AtomicWaker::new(),
            }));
        }
        // One connection is closed for one client: others that are about to close are not counted twice.
        if open.all - open.closing >= self.0.most {
            open.close_longest();
        }
        None
    }

    /// Closes the connection that has served no request for the longest time, if there is one.
    pub fn close_longest(&self) {
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

/// The place of one connection; free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    connections: Connections,
    close: CancellationToken,
    /// Its key among those that may be closed; 0 while it is kept.
    idle: AtomicU64,
    /// Bodies that are still in use.
    requests: AtomicUsize,
    served: AtomicU64,
    unwritten: AtomicBool,
    heard: AtomicBool,
    waker: AtomicWaker,
}

/// How a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallState {
    /// The head of a request is awaited: after the opening, or after its first byte.
    Head,
    /// A request is served.
    Serving,
    /// An answer was written, and nothing has come since.
    Kept,
}

impl Place {
    /// Cancelled when the connection has to close for another client.
    #[must_use]
    pub fn close(&self) -> &CancellationToken {
        &self.close
    }

    /// Wakes the connection's task when its last body is gone.
    pub fn wake_by(&self, context: &Context<'_>) {
        self.waker.register(context.waker());
    }

    /// Begins to serve a request. `None`: the connection was told to close before its head was there.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> Option<Serving> {
        let mut open = self.connections.lock();
        if self.close.is_cancelled() {
            return None;
        }
        open.idle.remove(&self.idle.load(Ordering::Relaxed));
        self.idle.store(open.insert(&self.close), Ordering::Relaxed);
        drop(open);
        self.connections.0.changed.notify_one();
        self.served.fetch_add(1, Ordering::Relaxed);
        self.heard.store(false, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        Some(Serving(Arc::clone(self)))
    }

    /// The request is a known caller's: its connection is not closed for others until it is served.
    pub fn keep(&self) {
        let mut open = self.connections.lock();
        if !self.close.is_cancelled() {
            open.idle.remove(&self.idle.swap(0, Ordering::Relaxed));
        }
    }

    /// Notes bytes that came; those of a body are no next request.
    pub fn heard(&self) {
        if !self.serves() {
            self.heard.store(true, Ordering::Relaxed);
        }
    }

    /// Notes whether bytes wait to be written.
    pub fn unwritten(&self, waits: bool) {
        self.unwritten.store(waits, Ordering::Relaxed);
    }

    /// How it stands, and how many requests it has begun; one that stopped serving can be closed from now on.
    pub fn settle(&self) -> (CallState, u64) {
        let served = self.served.load(Ordering::Relaxed);
        if self.serves() {
            return (CallState::Serving, served);
        }
        if self.idle.load(Ordering::Relaxed) == 0 && !self.close.is_cancelled() {
            let mut open = self.connections.lock();
            self.idle.store(open.insert(&self.close), Ordering::Relaxed);
            drop(open);
            self.connections.0.changed.notify_one();
        }
        let begun = served == 0 || self.heard.load(Ordering::Relaxed);
        (if begun { CallState::Head } else { CallState::Kept }, served)
    }

    fn serves(&self) -> bool {
        self.requests.load(Ordering::Acquire) > 0 || self.unwritten.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
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

/// A request that is being served: what holds a clone of it, its bodies, keeps the connection from being idle.
#[derive(Debug)]
pub struct Serving(Arc<Place>);

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

/// A body whose connection serves until it is dropped.
#[derive(Debug)]
pub struct Served<B> {
    body: B,
    _serving: Serving,
}

impl<B> Served<B> {
    /// The body of this request or of its answer.
    pub fn new(body: B, serving: Serving) -> Self {
        Self { body, _serving: serving }
    }
}

impl<B: Body + Unpin> Body for Served<B> {
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
