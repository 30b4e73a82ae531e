//! Reading idempotency rows; they are written in the commit of their effect.

use sqlx::FromRow;
use uuid::Uuid;

use super::db::{Sql, Value, sql};
use super::{ReadError, Store};
use crate::task::change::IdempotencyRow;
use crate::task::id::{RequestId, TaskId};

const KEY: Sql = sql!(
    "select tenant, user_id, path, key, body_digest, task_id, request_id from idempotency
      where tenant = $1 and user_id = $2 and path = $3 and key = $4"
)
.by_key();

pub(super) const STATEMENTS: &[Sql] = &[KEY];

#[derive(FromRow)]
struct KeyRecord {
    tenant: String,
    user_id: String,
    path: String,
    key: String,
    body_digest: String,
    task_id: Uuid,
    request_id: Option<Uuid>,
}

impl Store {
    /// The row of an idempotency key.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or what is stored cannot be understood.
    pub async fn idempotency(
        &self,
        tenant: &str,
        user: &str,
        path: &str,
        key: &str,
    ) -> Result<Option<IdempotencyRow>, ReadError> {
        let values = [tenant, user, path, key].into_iter().map(|text| Value::Text(text.to_owned())).collect();
        let record: Option<KeyRecord> = self.db().one(KEY, values).await?;
        Ok(record.map(|record| IdempotencyRow {
            tenant: record.tenant,
            user_id: record.user_id,
            path: record.path,
            key: record.key,
            body_digest: record.body_digest,
            task_id: TaskId(record.task_id),
            request_id: record.request_id.map(RequestId),
        }))
    }
}
