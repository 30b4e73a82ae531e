//! Reads sealed credentials, and removes expired credentials. The commit of a decision writes the
//! credentials that the decision supplies. The commit that ends a task removes the task's
//! credentials.

use uuid::Uuid;

use super::db::{Sql, Value, sql};
use super::record::record;
use super::{ReadError, Store};
use crate::task::credential::CredentialRow;
use crate::task::id::{RequestId, TaskId};
use crate::task::time::Time;

const CREDENTIALS: Sql = sql!(
    "select task_id, name, request_id, key_id, sealed, created_at, expires_at from credential
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

record! {
    struct Record {
        task_id: Uuid,
        name: String,
        request_id: Uuid,
        key_id: String,
        sealed: String,
        created_at: i64,
        expires_at: Option<i64>,
    }
}

impl Store {
    /// Reads the unexpired credentials of `tasks`. Expiry follows the database's clock.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn credentials(&self, tasks: &[TaskId]) -> Result<Vec<CredentialRow>, ReadError> {
        let values = vec![
            Value::Ids(tasks.iter().map(|task| task.0).collect()),
            Value::Now,
        ];
        let records: Vec<Record> = self.db().all(CREDENTIALS, values).await?;
        let rows = records.into_iter().map(|record| CredentialRow {
            task_id: TaskId(record.task_id),
            name: record.name,
            request_id: RequestId(record.request_id),
            key_id: record.key_id,
            text: record.sealed,
            created_at: Time(record.created_at),
            expires_at: record.expires_at.map(Time),
        });
        Ok(rows.collect())
    }

    /// Removes at most one batch of expired credentials. Returns whether there may be more.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn remove_expired_credentials(&self) -> Result<bool, ReadError> {
        Ok(self.db().remove_batch(REMOVE, &[]).await?)
    }
}
