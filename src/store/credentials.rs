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

/// Removes expired credentials. Postgres skips rows that a commit is replacing or another replica is
/// removing.
const REMOVE: Sql = sql!(
    "with spent as materialized (
        select task_id, name from credential where expires_at <= " (now 1) " order by expires_at limit $2 " (skip_locked) "
     )
     delete from credential where (task_id, name) in (select task_id, name from spent) returning created_at"
);

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
