//! Limits the claims of an ask: after its limit, the ask starts no approved call.

use tokio::time::Instant;

use crate::store::{ReadError, Store};

/// The condition under which an ask may start an approved call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimLimit {
    /// The ask starts calls only before this time. After it, the client may have stopped waiting,
    /// and would not get the permit.
    Until(Instant),
    /// The ask starts calls only while a browser session lasts. The text is the hash of the
    /// session's token, by which the store finds the session.
    Session(String),
}

impl ClaimLimit {
    /// Whether the time of [`ClaimLimit::Until`] has come.
    pub(super) fn is_late(&self) -> bool {
        match self {
            Self::Until(until) => Instant::now() >= *until,
            Self::Session(_) => false,
        }
    }

    /// Whether `limit` names a browser session that has ended, for example by a sign-out.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub(super) async fn session_has_ended(
        limit: Option<&Self>,
        store: &Store,
    ) -> Result<bool, ReadError> {
        match limit {
            Some(Self::Session(token_sha256)) => Ok(store.session(token_sha256).await?.is_none()),
            Some(Self::Until(_)) | None => Ok(false),
        }
    }
}
