//! Keeps connections open after a response, for the next request to the same origin.
//!
//! A peer may close a kept connection just as a request is written, and then the outcome of the
//! request is unknown. So only requests that may be repeated use a kept connection, a connection is
//! kept for a shorter time than common servers do (2 to 75 seconds), and an origin that closes a
//! kept connection nevertheless gets new connections for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Uri;
use tokio::time::Instant;

use super::open_connection::OpenConnection;

/// How long a connection is kept without a request.
const KEEP_TIME: Duration = Duration::from_secs(1);
/// The age after which a connection is not kept, so that a change of the host's addresses counts.
const MAX_AGE: Duration = Duration::from_secs(30);
/// How long an origin gets new connections after it has closed a kept one.
const AVOID_TIME: Duration = Duration::from_mins(10);
const MAX_KEPT: usize = 128;
const MAX_AVOIDED: usize = 1000;

/// The scheme and the authority of a URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Origin(String);

impl Origin {
    pub(super) fn of(uri: &Uri) -> Self {
        let scheme = uri.scheme_str().unwrap_or_default();
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        Self(format!("{scheme}://{authority}"))
    }
}

/// The kept connections of a process. Clones share them.
#[derive(Clone)]
pub(super) struct KeptConnections {
    keep_time: Duration,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// For each origin, its connections in the order in which they were kept, with these times.
    connections: BTreeMap<Origin, Vec<(Instant, OpenConnection)>>,
    count: usize,
    /// The origins that get new connections, until these times.
    avoided: BTreeMap<Origin, Instant>,
    /// Whether a Tokio task closes the connections whose time is over.
    is_reaped: bool,
}

impl std::fmt::Debug for KeptConnections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeptConnections({})", self.lock().count)
    }
}

impl Default for KeptConnections {
    fn default() -> Self {
        Self::keeping_for(KEEP_TIME)
    }
}

impl KeptConnections {
    /// `keep_time` is how long a connection is kept without a request.
    pub(super) fn keeping_for(keep_time: Duration) -> Self {
        Self {
            keep_time,
            state: Arc::default(),
        }
    }

    /// Takes the connection to `origin` that was used last; `None` if no open one is kept.
    pub(super) fn take(&self, origin: &Origin) -> Option<OpenConnection> {
        let mut state = self.lock();
        state.close_expired(self.keep_time);
        let kept = state.connections.get_mut(origin)?.pop();
        let (_, mut connection) = kept?;
        state.count -= 1;
        if connection.is_ready() {
            return Some(connection);
        }
        state.avoid(origin.clone());
        None
    }

    /// Keeps a connection whose last response was read to its end. Closes it instead if the peer
    /// has closed it, if it is old, or if too many are kept.
    pub(super) fn keep(&self, origin: Origin, mut connection: OpenConnection) {
        let now = Instant::now();
        let mut state = self.lock();
        let is_avoided = state.avoided.get(&origin).is_some_and(|until| *until > now);
        let is_old = now.duration_since(connection.opened_at) > MAX_AGE;
        if is_avoided || is_old || state.count >= MAX_KEPT || !connection.is_ready() {
            return;
        }
        state.count += 1;
        let of_origin = state.connections.entry(origin).or_default();
        of_origin.push((now, connection));
        if !std::mem::replace(&mut state.is_reaped, true) {
            let kept = self.clone();
            #[expect(
                clippy::disallowed_methods,
                reason = "it ends soon after the last request"
            )]
            tokio::spawn(async move { kept.reap().await });
        }
    }

    /// Uses new connections for this origin for a while, and closes the kept ones.
    pub(super) fn avoid(&self, origin: Origin) {
        self.lock().avoid(origin);
    }

    /// Closes the connections whose time is over, until none is kept.
    async fn reap(&self) {
        loop {
            #[expect(
                clippy::disallowed_methods,
                reason = "connections age by the time of the machine"
            )]
            tokio::time::sleep(self.keep_time / 2).await;
            let mut state = self.lock();
            state.close_expired(self.keep_time);
            if state.count == 0 {
                state.is_reaped = false;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn avoid(&mut self, origin: Origin) {
        let closed = self.connections.remove(&origin).unwrap_or_default();
        self.count -= closed.len();
        let now = Instant::now();
        self.avoided.retain(|_, until| *until > now);
        if self.avoided.len() >= MAX_AVOIDED {
            self.avoided.pop_first();
        }
        self.avoided.insert(origin, now + AVOID_TIME);
    }

    fn close_expired(&mut self, keep_time: Duration) {
        let (now, mut count) = (Instant::now(), 0);
        self.connections.retain(|_, connections| {
            connections.retain(|(since, _)| now.duration_since(*since) < keep_time);
            count += connections.len();
            !connections.is_empty()
        });
        self.count = count;
    }
}
