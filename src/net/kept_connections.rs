//! Keeps connections open after a response, for the next request of the same user to the same
//! origin with the same credentials.
//!
//! A peer may close a kept connection just as a request is written, and then the outcome of the
//! request is unknown. So only requests that may be repeated use a kept connection, and a
//! connection is kept for a shorter time than the keep-alive timeout of common servers (2 to 75
//! seconds). If a kept connection fails nevertheless, the same user's later requests to this origin
//! get new connections for a while.
//!
//! If a peer sends bytes between two responses, the service closes the connection. Limitation: on a
//! TLS connection, the service does not notice the bytes before they make up a complete TLS record.
//! So it may use a connection on which a part of a record has arrived.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use tokio::time::Instant;

use super::open_connection::OpenConnection;
use crate::world::Locked;

/// How long a connection is kept without a request.
const KEEP_TIME: Duration = Duration::from_secs(1);
/// The maximum age of a kept connection, so that a change of the host's addresses takes effect.
const MAX_AGE: Duration = Duration::from_secs(30);
/// How long requests with a [`KeptKey`] get new connections after a kept connection has failed.
const AVOID_TIME: Duration = Duration::from_mins(10);
/// The maximum number of connections that a process keeps. `http/server/descriptors.rs` reserves a
/// file descriptor for each of these connections.
const MAX_KEPT: usize = 32;
const MAX_AVOIDED: usize = 1000;

/// Identifies the requests that may share a connection: those with the same origin, and the same
/// digest in [`ConnectionUse::Kept`].
///
/// [`ConnectionUse::Kept`]: super::ConnectionUse::Kept
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeptKey(String, [u8; 32]);

impl KeptKey {
    pub(super) fn new(url: &Url, group: [u8; 32]) -> Self {
        Self(url.origin().ascii_serialization(), group)
    }
}

/// The kept connections of a process. Clones share them.
#[derive(Clone)]
pub(super) struct KeptConnections {
    keep_time: Duration,
    state: Arc<Locked<State>>,
}

#[derive(Default)]
struct State {
    /// For each key, the kept connections, each with the time since which it is kept, oldest first.
    connections: BTreeMap<KeptKey, Vec<(Instant, OpenConnection)>>,
    /// For each avoided key, the time until which the requests with this key get new connections.
    avoided: BTreeMap<KeptKey, Instant>,
    /// Whether the Tokio task that closes expired connections is running.
    is_reaped: bool,
}

impl std::fmt::Debug for KeptConnections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeptConnections({})", self.state.lock().count())
    }
}

impl Default for KeptConnections {
    fn default() -> Self {
        Self::keeping_for(KEEP_TIME)
    }
}

impl KeptConnections {
    /// Returns an empty set of connections. `keep_time` is how long a connection is kept without a
    /// request.
    pub(super) fn keeping_for(keep_time: Duration) -> Self {
        Self {
            keep_time,
            state: Arc::default(),
        }
    }

    /// Whether requests with this key get new connections now, because a kept connection has
    /// failed.
    pub(super) fn is_avoided(&self, key: &KeptKey) -> bool {
        let until = self.state.lock().avoided.get(key).copied();
        until.is_some_and(|until| until > Instant::now())
    }

    /// Takes the key's most recently kept connection, with the time until which it may be used.
    /// Returns `None` if no connection is kept for the key. If the peer has closed the connection,
    /// avoids the key (see [`Self::avoid`]) and returns `None`.
    pub(super) fn take(&self, key: &KeptKey) -> Option<(OpenConnection, Instant)> {
        let mut state = self.state.lock();
        state.close_expired(self.keep_time);
        let (since, mut connection) = state.connections.get_mut(key)?.pop()?;
        if connection.is_ready() {
            return Some((connection, since + self.keep_time));
        }
        state.avoid(key.clone());
        None
    }

    /// Keeps a connection whose last response was read to its end. Drops the connection if the
    /// connection is closed or too old, if the key is avoided (see [`Self::avoid`]), or if too many
    /// connections are kept.
    pub(super) fn keep(&self, key: KeptKey, mut connection: OpenConnection) {
        if self.is_avoided(&key)
            || connection.opened_at.elapsed() > MAX_AGE
            || !connection.is_ready()
        {
            return;
        }
        let mut state = self.state.lock();
        if state.count() >= MAX_KEPT {
            return;
        }
        let of_key = state.connections.entry(key).or_default();
        of_key.push((Instant::now(), connection));
        if !std::mem::replace(&mut state.is_reaped, true) {
            let kept = self.clone();
            #[expect(
                clippy::disallowed_methods,
                reason = "the Tokio task ends soon after the last request"
            )]
            tokio::spawn(async move { kept.reap().await });
        }
    }

    /// Gives requests with this key new connections for a while, and closes the key's kept
    /// connections.
    pub(super) fn avoid(&self, key: KeptKey) {
        self.state.lock().avoid(key);
    }

    /// Closes expired connections at intervals of half the `keep_time`, until none is kept.
    async fn reap(&self) {
        loop {
            #[expect(
                clippy::disallowed_methods,
                reason = "connections age by the time of the machine"
            )]
            tokio::time::sleep(self.keep_time / 2).await;
            let mut state = self.state.lock();
            state.close_expired(self.keep_time);
            if state.connections.is_empty() {
                state.is_reaped = false;
                return;
            }
        }
    }
}

impl State {
    fn avoid(&mut self, key: KeptKey) {
        self.connections.remove(&key);
        let now = Instant::now();
        self.avoided.retain(|_, until| *until > now);
        if self.avoided.len() >= MAX_AVOIDED {
            self.avoided.pop_first();
        }
        self.avoided.insert(key, now + AVOID_TIME);
    }

    fn close_expired(&mut self, keep_time: Duration) {
        let now = Instant::now();
        self.connections.retain(|_, connections| {
            connections.retain(|(since, _)| now.duration_since(*since) < keep_time);
            !connections.is_empty()
        });
    }

    fn count(&self) -> usize {
        self.connections.values().map(Vec::len).sum()
    }
}
