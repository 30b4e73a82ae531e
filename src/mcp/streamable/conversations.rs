//! Keeps the conversations with one server in memory. Invariant: no conversation of one user is
//! continued for another user. So each conversation is kept under a digest of the headers with
//! which it began, because the headers may contain a user's credentials.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderValue};
use tokio::time::Instant;
use url::Url;

use super::super::wire::Revision;
use super::{CLOSE_TIMEOUT, SESSION_HEADER, VERSION_HEADER};
use crate::net::{Net, send_request};
use crate::secret::Secret;
use crate::world::Locked;

/// The maximum number of conversations that are kept.
pub(super) const MAX_CONVERSATIONS: usize = 1024;

/// A digest of the headers with which a conversation begins.
pub(super) type HeadersDigest = [u8; 32];

/// The values that each request to the server repeats: the protocol revision, and the id of the
/// session. `session` is `None` if the server began no session, as in the stateless revision.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    pub(super) revision: Revision,
    pub(super) session: Option<HeaderValue>,
    /// All clones of a conversation share this value. A request in flight holds a clone. So if a
    /// clone exists besides the kept conversation, the conversation is in use.
    pub(super) in_use: Arc<()>,
}

impl Conversation {
    pub(super) fn new(revision: Revision) -> Self {
        Self {
            revision,
            session: None,
            in_use: Arc::default(),
        }
    }
}

/// A conversation with the server, the headers of its next request, and the OAuth token in these
/// headers.
pub(super) struct Context {
    pub(super) conversation: Conversation,
    pub(super) headers: HeaderMap,
    pub(super) token: Option<Secret<String>>,
}

/// A part of a [`Context`] that is replaced once the server has refused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Renewal {
    Session,
    Token,
}

impl Context {
    /// Returns a context for `conversation`, with the headers and the token of this context.
    pub(super) fn with(&self, conversation: Conversation) -> Self {
        Self {
            conversation,
            headers: self.headers.clone(),
            token: self.token.clone(),
        }
    }

    /// Returns the part of this context that the server refuses with `status`: the session or the
    /// token. Returns `None` if `status` refuses neither, or if the context does not have the
    /// refused part.
    pub(super) fn refused_part(&self, status: StatusCode) -> Option<Renewal> {
        match status {
            // Many servers answer an unknown session with 400 instead of 404.
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => {
                self.conversation.session.as_ref().map(|_| Renewal::Session)
            }
            StatusCode::UNAUTHORIZED => self.token.as_ref().map(|_| Renewal::Token),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Conversations(Locked<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Each conversation, with the time of its last use.
    by_headers: BTreeMap<HeadersDigest, (Instant, Conversation)>,
    /// The locks of the conversations that begin at the moment. A lock is dropped once no request
    /// holds it or waits for it.
    begin_locks: BTreeMap<HeadersDigest, Weak<tokio::sync::Mutex<()>>>,
}

impl Conversations {
    /// Returns the conversation that is kept under `key`, and records the time of this use.
    pub(super) fn get(&self, key: &HeadersDigest) -> Option<Conversation> {
        let mut kept = self.0.lock();
        let (used, conversation) = kept.by_headers.get_mut(key)?;
        *used = Instant::now();
        Some(conversation.clone())
    }

    /// Returns the lock for beginning the conversation of `key`. A request holds the lock while it
    /// begins the conversation. A concurrent request with the same headers waits for the lock, and
    /// then uses the conversation that has begun.
    pub(super) fn begin_lock(&self, key: HeadersDigest) -> Arc<tokio::sync::Mutex<()>> {
        let mut kept = self.0.lock();
        let known = kept.begin_locks.get(&key).and_then(Weak::upgrade);
        let begin_lock = known.unwrap_or_default();
        kept.begin_locks.retain(|_, lock| lock.strong_count() > 0);
        kept.begin_locks.insert(key, Arc::downgrade(&begin_lock));
        begin_lock
    }

    /// Keeps a conversation. If more than [`MAX_CONVERSATIONS`] are kept, removes the conversation
    /// whose last use is the oldest, and returns it. Does not remove a conversation in use, because
    /// a server may abort the calls of a session that ends.
    pub(super) fn insert(
        &self,
        key: HeadersDigest,
        conversation: Conversation,
    ) -> Option<Conversation> {
        let mut kept = self.0.lock();
        kept.by_headers.insert(key, (Instant::now(), conversation));
        if kept.by_headers.len() <= MAX_CONVERSATIONS {
            return None;
        }
        let is_idle = |conversation: &Conversation| Arc::strong_count(&conversation.in_use) == 1;
        let idle = kept
            .by_headers
            .iter()
            .filter(|(_, (_, kept))| is_idle(kept));
        let least_recent = idle.min_by_key(|(_, (used, _))| *used);
        let least_recent = least_recent.map(|(key, _)| *key)?;
        let (_, removed) = kept.by_headers.remove(&least_recent)?;
        Some(removed)
    }

    /// Removes the conversation that is kept under `key`, if its session is `session`. A newer
    /// session is kept.
    pub(super) fn forget(&self, key: &HeadersDigest, session: &HeaderValue) {
        let mut kept = self.0.lock();
        let known = kept.by_headers.get(key);
        if known.is_some_and(|(_, known)| known.session.as_ref() == Some(session)) {
            kept.by_headers.remove(key);
        }
    }

    /// Removes and returns all conversations.
    pub(super) fn take(&self) -> Vec<Conversation> {
        let kept = std::mem::take(&mut self.0.lock().by_headers);
        kept.into_values().map(|(_, taken)| taken).collect()
    }
}

/// Ends the sessions of `ended`. Each session is ended by a request with `headers`.
pub(super) async fn end_sessions(net: Net, url: Url, headers: HeaderMap, ended: Vec<Conversation>) {
    let sessions = ended.into_iter();
    let sessions = sessions.filter_map(|it| Some((it.revision, it.session?)));
    let ends = sessions.map(|(revision, session)| {
        let request = net.repeatable().delete(url.clone());
        let request = request
            .headers(headers.clone())
            .header(SESSION_HEADER, session);
        let request = request.header(VERSION_HEADER, revision.as_str());
        send_request(request, CLOSE_TIMEOUT)
    });
    join_all(ends).await;
}
