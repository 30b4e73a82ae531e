//! Reads sealed credentials, and removes expired credentials. The commit of a decision writes the
//! credentials that the decision supplies. The commit that ends a task removes the task's
//! credentials.

use super::db::{Sql, Value, sql, values};
use super::record::record;
use super::{ReadError, Store};
use crate::task::credential::CredentialRow;
use crate::task::id::TaskId;

const CREDENTIALS: Sql = sql!(
    "select task_id, name, request_id, key_id, sealed as text, created_at, expires_at from credential
      where task_id " (any 1 uuid) " and (expires_at is null or expires_at > " (now 2) ") order by task_id, name"
)
.by_key();

/// Removes expired credentials.
///
/// The texts for Postgres and `SQLite` differ because `SQLite` has no row locks. Postgres skips
/// rows that a commit is replacing or another replica is removing.
const REMOVE: Sql = Sql {
    postgres: "
with over as materialized (
    select task_id, name from credential
     where expires_at <= (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint)
     order by expires_at limit $2 for update skip locked
)
delete from credential c using over o where c.task_id = o.task_id and c.name = o.name returning c.created_at",
    sqlite: "
delete from credential where rowid in (
    select rowid from credential where expires_at <= $1 order by expires_at limit $2)
returning created_at",
    by_key: false,
};

pub(super) const STATEMENTS: &[Sql] = &[CREDENTIALS, REMOVE];

record!(impl CredentialRow { task_id, name, request_id, key_id, text, created_at, expires_at });

impl Store {
    /// Reads the unexpired credentials of `tasks`. Expiry follows the database's clock.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn credentials(&self, tasks: &[TaskId]) -> Result<Vec<CredentialRow>, ReadError> {
        let values = values![tasks, Value::Now];
        Ok(self.db().all(CREDENTIALS, values).await?)
    }

    /// Removes at most one batch of expired credentials. Returns whether there may be more.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn remove_expired_credentials(&self) -> Result<bool, ReadError> {
        Ok(self.db().remove_batch(REMOVE, &[]).await?)
    }
}
