//! Begins, finds and ends browser sessions, and removes expired sessions. The store never sees a
//! token or a key, only digests. The row of a session holds the digest of the session's token, and
//! the binding: a digest over the token and the API key that opened the session.
//!
//! A session expires by the database's clock. An expired session counts as absent even before its
//! row is removed.

use std::time::Duration;

use super::db::{Sql, Value, sql, values};
use super::{ReadError, Store};

const BEGIN: Sql = sql!(
    "insert into browser_session (token_sha256, binding, expires_at) values ($2, $3, " (now 1) " + $4)
     returning expires_at"
)
.by_key();

const FIND: Sql = sql!(
    "select binding from browser_session where token_sha256 = $2 and expires_at > " (now 1)
)
.by_key();

const END: Sql =
    sql!("delete from browser_session where token_sha256 = $1 returning expires_at").by_key();

/// Removes expired sessions. Postgres skips rows that another replica is removing.
const REMOVE: Sql = sql!(
    "with spent as materialized (
        select token_sha256 from browser_session where expires_at <= " (now 1) " order by expires_at limit $2 " (skip_locked) "
     )
     delete from browser_session where token_sha256 in (select token_sha256 from spent) returning expires_at"
);

pub(super) const STATEMENTS: &[Sql] = &[BEGIN, FIND, END, REMOVE];

impl Store {
    /// Begins a session that lasts for `life`.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer. It is then unknown whether the session was
    /// stored, so the caller must not give the session's token to a browser.
    pub async fn begin_session(
        &self,
        token_sha256: &str,
        binding: &str,
        life: Duration,
    ) -> Result<(), ReadError> {
        let values = values![Value::Now, token_sha256, binding, life];
        self.db().count_written(BEGIN, values).await?;
        Ok(())
    }

    /// Returns the binding of an unexpired session; `None` if there is no such session.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn session(&self, token_sha256: &str) -> Result<Option<String>, ReadError> {
        let values = values![Value::Now, token_sha256];
        Ok(self.db().one(FIND, values).await?)
    }

    /// Ends a session, if it exists.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer. The session may then still exist.
    pub async fn end_session(&self, token_sha256: &str) -> Result<(), ReadError> {
        let values = values![token_sha256];
        self.db().count_written(END, values).await?;
        Ok(())
    }

    /// Removes at most one batch of expired sessions. Returns whether there may be more.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn remove_spent_sessions(&self) -> Result<bool, ReadError> {
        Ok(self.db().remove_batch(REMOVE, &[]).await?)
    }
}
