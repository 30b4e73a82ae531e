//! Reads idempotency rows and removes expired rows. The commit of a command also writes the row of
//! the command's key.
//!
//! A key lasts 24 hours by the database's clock (86400000000 microseconds in the statements). The
//! key of a decision never expires. The key of a call at a gate also lasts while the call's task is
//! open, and for 24 hours after the task has ended. An expired key counts as unused even before its
//! row is removed: the commit of the next command with this key replaces the row.

use std::slice;

use uuid::Uuid;

use super::db::{Sql, Value, sql, values};
use super::record::{Record, record};
use super::users::spelled;
use super::{ReadError, Store};
use crate::task::change::IdempotencyRow;
use crate::task::id::{RequestId, TaskId};
use crate::task::user::UserId;

const KEY: Sql = sql!(
    "select tenant, user_id, path, key, body_digest, task_id, request_id from idempotency
      where tenant = $1 and user_id " (spelled 1 2 6) " and path = $3 and key = $4
        and (request_id is not null or created_at > " (now 5) " - 86400000000)"
)
.by_key();

/// The path under which idempotency keys of gate calls are stored. The path is the same for all
/// surfaces (protocols such as REST and MCP), so that a key names the same call at each surface.
pub(crate) const GATE_KEY_PATH: &str = "/v1/gate/calls";

/// Finds the unexpired row of the key of a call at a gate. Such a key also lasts while its task is
/// open, so this statement reads the task. `KEY` finds the keys of all other commands and reads no
/// task.
///
/// The commit of a command does not read the task of the key. The commit alone would replace each
/// key older than 24 hours, even if the key's task is open. But the service runs this statement
/// before the commit. If this statement finds the key, the service answers the command from the
/// key's row and commits nothing. If the key has a row that this statement does not find, the row's
/// task has ended. An ended task does not run again, so the commit may replace the row.
const KEY_OF_CALL: Sql = sql!(
    "select i.tenant, i.user_id, i.path, i.key, i.body_digest, i.task_id, i.request_id from idempotency i
      where i.tenant = $1 and i.user_id " (spelled 1 2 6) " and i.path = $3 and i.key = $4
        and (i.request_id is not null or i.created_at > " (now 5) " - 86400000000
            or (select t.status in ('Running', 'Paused') or t.updated_at > " (now 5) " - 86400000000
                  from agent_task t where t.task_id = i.task_id))"
)
.by_key();

/// Removes expired keys, except the keys that `KEY_OF_CALL` still finds. A scalar subquery reads
/// the task of each key: Postgres runs it once for each key. For an `exists` in its place, Postgres
/// might read all tasks into a hash table.
///
/// Postgres skips rows that a commit is replacing or another replica is removing.
const REMOVE: Sql = sql!(
    "with spent as materialized (
        select i.tenant, i.user_id, i.path, i.key from idempotency i
         where i.request_id is null and i.created_at <= " (now 1) " - 86400000000
           and not (i.path = '/v1/gate/calls' and coalesce((select t.status in ('Running', 'Paused')
                or t.updated_at > " (now 1) " - 86400000000 from agent_task t where t.task_id = i.task_id), false))
         order by i.created_at limit $2 " (skip_locked) "
     )
     delete from idempotency where (tenant, user_id, path, key) in (select tenant, user_id, path, key from spent)
     returning created_at"
);

pub(super) const STATEMENTS: &[Sql] = &[KEY, KEY_OF_CALL, REMOVE];

record! {
    struct KeyRecord {
        tenant: String,
        user_id: String,
        path: String,
        key: String,
        body_digest: String,
        task_id: Uuid,
        request_id: Option<Uuid>,
    }
}

impl Store {
    /// Finds the unexpired row of an idempotency key, under any stored spelling of the user's id.
    /// If the setting `user_ids` was once `exact`, several spellings can have a row for the key. In
    /// this case, prefers the row with the caller's own spelling.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn idempotency(
        &self,
        tenant: &str,
        user: &UserId,
        path: &str,
        key: &str,
    ) -> Result<Option<IdempotencyRow>, ReadError> {
        let is_call = path == GATE_KEY_PATH;
        let statement = if is_call { KEY_OF_CALL } else { KEY };
        let (caller, post) = ((tenant, user), (path, key));
        let record = self.key_record(statement, caller, post, |record: &KeyRecord| {
            &record.user_id
        });
        Ok(record.await?.map(|record| IdempotencyRow {
            tenant: record.tenant,
            person: user.folded(),
            user_id: record.user_id,
            path: record.path,
            key: record.key,
            body_digest: record.body_digest,
            task_id: TaskId(record.task_id),
            request_id: record.request_id.map(RequestId),
        }))
    }

    /// Returns the row of a key, which `statement` finds under any stored spelling of the user's
    /// id. `spelling` returns the spelling in a row. Of several rows, prefers the row with the
    /// caller's own spelling.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub(super) async fn key_record<R: Record>(
        &self,
        statement: Sql,
        (tenant, user): (&str, &UserId),
        (path, key): (&str, &str),
        spelling: fn(&R) -> &str,
    ) -> Result<Option<R>, ReadError> {
        let [names, keys] = spelled(slice::from_ref(user));
        let values = values![tenant, names, path, key, Value::Now, keys];
        let mut records: Vec<R> = self.db().all(statement, values).await?;
        records.retain(|record| user.is_same_person(spelling(record)));
        let is_own = |record: &R| spelling(record) == user.as_str();
        let own = records.iter().position(is_own);
        Ok((!records.is_empty()).then(|| records.swap_remove(own.unwrap_or(0))))
    }

    /// Removes at most one batch of expired keys. Returns whether there may be more.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn remove_spent_keys(&self) -> Result<bool, ReadError> {
        Ok(self.db().remove_batch(REMOVE, &[]).await?)
    }
}
