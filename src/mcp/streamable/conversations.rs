//! Keeps the conversations with one server in memory. Invariant: no conversation of one user is
//! continued for another user. So each conversation is kept under a digest of the headers with
//! which it began, because the headers may contain a user's credentials.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use reqwest::header::HeaderValue;
use serde_json::Value;

use super::super::wire::Revision;

/// A digest of the headers with which a conversation begins.
pub(super) type HeadersDigest = [u8; 32];

/// A conversation with the server. `session` is `None` if the server began no session. `server` is
/// the server's `serverInfo`.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    pub(super) revision: Revision,
    pub(super) session: Option<HeaderValue>,
    pub(super) server: Value,
}

impl Conversation {
    pub(super) fn new(revision: Revision) -> Self {
        Self {
            revision,
            session: None,
            server: Value::Null,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Conversations(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    by_headers: BTreeMap<HeadersDigest, Conversation>,
    /// The locks of the conversations that begin at the moment. A lock is dropped once no request
    /// holds it or waits for it.
    begin_locks: BTreeMap<HeadersDigest, Weak<tokio::sync::Mutex<()>>>,
}

impl Conversations {
    pub(super) fn get(&self, key: &HeadersDigest) -> Option<Conversation> {
        self.lock().by_headers.get(key).cloned()
    }

    /// Returns the lock that a request holds while it begins the conversation, so that a concurrent
    /// request with the same headers does not begin another.
    pub(super) fn begin_lock(&self, key: HeadersDigest) -> Arc<tokio::sync::Mutex<()>> {
        let mut kept = self.lock();
        let known = kept.begin_locks.get(&key).and_then(Weak::upgrade);
        let begin_lock = known.unwrap_or_default();
        kept.begin_locks.retain(|_, lock| lock.strong_count() > 0);
        kept.begin_locks.insert(key, Arc::downgrade(&begin_lock));
        begin_lock
    }

    pub(super) fn insert(&self, key: HeadersDigest, conversation: Conversation) {
        self.lock().by_headers.insert(key, conversation);
    }

    /// Removes the conversation if its session is `session`. A session that has replaced `session`
    /// is kept.
    pub(super) fn forget(&self, key: &HeadersDigest, session: &HeaderValue) {
        let mut kept = self.lock();
        let known = kept.by_headers.get(key);
        if known.is_some_and(|known| known.session.as_ref() == Some(session)) {
            kept.by_headers.remove(key);
        }
    }

    /// Removes and returns all conversations.
    pub(super) fn take(&self) -> Vec<Conversation> {
        let kept = std::mem::take(&mut self.lock().by_headers);
        kept.into_values().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
