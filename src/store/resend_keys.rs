//! Carries out a POST that makes deliveries due and has an idempotency key. One commit makes the
//! deliveries due, and stores the key together with the count of these deliveries. A later POST
//! with the same key makes no delivery due, and gets the stored count as its answer.
//!
//! As in `idempotency.rs`, a key lasts 24 hours by the database's clock (86400000000 microseconds
//! in the statements), and an expired key counts as unused. The key's row concerns no task, so its
//! `task_id` is the nil id.

use rusqlite::Transaction;
use uuid::Uuid;

use super::db::{DatabaseEngine, Sql, Value, sql, values};
use super::delivery_list::{RESEND, RESEND_ALL, ResendFilter};
use super::record::record;
use super::sqlite::count_written;
use super::{ReadError, Store};
use crate::task::user::{UserId, UserKey};

/// The idempotency key of a POST that makes deliveries due.
#[derive(Clone, Debug)]
pub struct ResendKey {
    /// The tenant of the caller and of the deliveries.
    pub tenant: String,
    /// The caller.
    pub user: UserId,
    /// The method and the path of the POST.
    pub path: String,
    /// The value of the `Idempotency-Key` header.
    pub key: String,
    /// The digest of the body.
    pub body_digest: String,
}

/// The stored result of a POST that has an idempotency key and made deliveries due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResend {
    /// The digest of the POST's body.
    pub body_digest: String,
    /// The number of deliveries that the POST made due.
    pub count: usize,
}

/// The maximum number of deliveries that a POST with a key makes due. One statement updates all of
/// them, so the limit keeps this statement from delaying other writers for long.
const MAX_KEYED: i64 = 20_000;

/// The deliveries that a POST makes due.
#[derive(Clone, Debug)]
pub enum ResendTarget {
    /// The delivery with this id.
    One(Uuid),
    /// The deliveries that match the filter, which must name the caller's tenant.
    All(ResendFilter),
}

const STORED: Sql = sql!(
    "select user_id, body_digest, resent from idempotency
      where tenant = $1 and user_id " (spelled 1 2 6) " and path = $3 and key = $4
        and created_at > " (now 5) " - 86400000000 and resent is not null"
)
.by_key();

/// Builds a statement that makes deliveries due and stores the idempotency key of the POST. The
/// update `$update` makes the deliveries due. It may use `$chosen`, a common table expression. If
/// at least [`ResendTarget::least`] deliveries became due, the statement stores the key.
///
/// The new row replaces an expired row of the key, even if the expired row spells the person's user
/// id in another way. If the key has an unexpired row, another POST has used the key, and the
/// statement fails: it sets `task_id` to null, which the table forbids, or it violates a unique
/// index (see `DbFailure::is_idempotency_key_used`).
macro_rules! resend_on_postgres {
    ($chosen:literal, $update:literal) => {
        concat!(
            "
with moment as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint as at
)",
            $chosen,
            ", resent as (",
            $update,
            "), counted as materialized (
    select count(*) as count from resent
), used_key as materialized (
    select $2::text as tenant, $3::text as user_id, $4::text as path, $5::text as key, $6::text as body_digest,
           nullif($7::text, '') as person, m.at, c.count
      from moment m cross join counted c where c.count >= $8::bigint
), spent_keys as (
    delete from idempotency i using used_key y
     where i.tenant = y.tenant and i.person = y.person and i.path = y.path and i.key = y.key
       and i.created_at <= case when i.request_id is null then y.at - 86400000000 end
    returning 1
), inserted_key as (
    insert into idempotency (tenant, user_id, path, key, body_digest, task_id, person, created_at, resent)
    select y.tenant, y.user_id, y.path, y.key, y.body_digest, '00000000-0000-0000-0000-000000000000'::uuid, y.person, y.at,
           y.count
      from used_key y where (select count(*) from spent_keys) >= 0
    on conflict (tenant, user_id, path, key) do update set body_digest = excluded.body_digest,
        created_at = excluded.created_at, person = excluded.person, resent = excluded.resent,
        task_id = case when idempotency.created_at <= excluded.created_at - 86400000000 then excluded.task_id end
)
select count from counted"
        )
    };
}

/// Makes one delivery due, as `RESEND` does, and stores the POST's idempotency key. For Postgres
/// only: `SQLite` has no data-modifying common table expressions, and runs several statements in a
/// transaction instead.
const RESEND_WITH_KEY: Sql = Sql::on_postgres(resend_on_postgres!(
    "",
    "
    update delivery d set
        attempts = case when d.state = 'due' then d.attempts else 0 end,
        came_early = case when d.state = 'due' then d.came_early else 0 end,
        lease_until = case when d.state = 'due' and d.lease_until > d.due_at then d.lease_until end,
        due_at = case when d.state = 'due' and d.due_at < m.at then d.due_at else m.at end,
        created_at = case when d.state = 'due' then d.created_at else m.at end,
        state = 'due', ended_at = null
      from moment m where d.tenant = $2 and d.delivery_id = $9::uuid
    returning 1
"
));

/// Makes up to `MAX_KEYED` matching deliveries due, and stores the POST's idempotency key. Without
/// a key, `RESEND_ALL` makes the deliveries due in several smaller batches. For Postgres only, like
/// `RESEND_WITH_KEY`.
///
/// The statement waits for locked rows. If it skipped them, the second of two simultaneous POSTs
/// with one key would skip the rows of the first, store the key with the count 0, and so make the
/// first POST fail.
const RESEND_ALL_WITH_KEY: Sql = Sql::on_postgres(
    resend_on_postgres!(
        ", chosen as materialized (
    select delivery_id from delivery
     where tenant = $2 and target = $9::text and state = $10::text and created_at >= $11::bigint order by delivery_id
     limit $12::bigint for update
)",
        "
    update delivery d set state = 'due', attempts = 0, came_early = 0, lease_until = null, ended_at = null, due_at = m.at,
        created_at = m.at
      from chosen c cross join moment m where d.delivery_id = c.delivery_id
    returning 1
"
    )
);

/// Deletes the expired row of the key, in the transaction on `SQLite`. The next statement,
/// `INSERT_KEY`, replaces an expired row only if the two rows spell the person's user id in the
/// same way. With the setting `UserIds::Folded`, the expired row may have another spelling, so this
/// statement finds that row by the folded id (`$7`). With `UserIds::Exact`, a user id has only one
/// spelling. `$7` is then empty, and this statement deletes nothing.
const DELETE_SPENT_KEY: Sql = Sql::on_sqlite(
    "
delete from idempotency
 where tenant = $2 and person = nullif($7, '') and path = $4 and key = $5
   and request_id is null and created_at <= $1 - 86400000000",
);

/// Stores the key with the number of deliveries that became due, in the transaction on `SQLite`.
/// Replaces an expired row of the key that `DELETE_SPENT_KEY` has left. If the key has an unexpired
/// row, another POST has used the key. The statement then sets `task_id` to null, which the table
/// forbids, so that the transaction fails.
const INSERT_KEY: Sql = Sql::on_sqlite(
    "
insert into idempotency (tenant, user_id, path, key, body_digest, task_id, person, created_at, resent)
values ($2, $3, $4, $5, $6, zeroblob(16), nullif($7, ''), $1, $8)
    on conflict (tenant, user_id, path, key) do update set body_digest = excluded.body_digest,
        created_at = excluded.created_at, person = excluded.person, resent = excluded.resent,
        task_id = case when idempotency.created_at <= excluded.created_at - 86400000000 then excluded.task_id end"
);

pub(super) const STATEMENTS: &[Sql] = &[
    STORED,
    RESEND_WITH_KEY,
    RESEND_ALL_WITH_KEY,
    DELETE_SPENT_KEY,
    INSERT_KEY,
];

record! {
    struct StoredRecord {
        user_id: String,
        body_digest: String,
        resent: i64,
    }
}

impl ResendTarget {
    /// Returns the minimum number of deliveries that a POST must make due. With fewer deliveries,
    /// the POST fails, and its key is not stored. The number is 1 for a single delivery, which may
    /// not exist. It is 0 for a filter: the POST succeeds even if the filter matches no delivery.
    fn least(&self) -> i64 {
        match self {
            Self::One(_) => 1,
            Self::All(_) => 0,
        }
    }

    fn on_postgres(&self) -> (Sql, Vec<Value>) {
        match self {
            Self::One(id) => (RESEND_WITH_KEY, values![*id]),
            Self::All(filter) => {
                let values = values![
                    &filter.target,
                    filter.state.as_str(),
                    filter.since.map_or(0, |since| since.0),
                    MAX_KEYED,
                ];
                (RESEND_ALL_WITH_KEY, values)
            }
        }
    }

    fn on_sqlite(&self, tenant: &str, at: i64) -> (&'static str, Vec<Value>) {
        match self {
            Self::One(id) => (RESEND.sqlite, values![at, tenant, *id]),
            Self::All(filter) => {
                let values = filter.values(Value::Int(at), MAX_KEYED, Uuid::nil());
                (RESEND_ALL.sqlite, values)
            }
        }
    }
}

impl ResendKey {
    /// Returns the first parameters of the statements that store the key: the time, the columns of
    /// the key, and `count`. On Postgres, `count` is [`ResendTarget::least`]. On `SQLite`, `count`
    /// is the number of deliveries that became due.
    fn values(&self, now: Value, count: i64) -> Vec<Value> {
        let person = self.user.folded();
        values![
            now,
            &self.tenant,
            self.user.as_str(),
            &self.path,
            &self.key,
            &self.body_digest,
            person.as_ref().map_or("", UserKey::as_str),
            count,
        ]
    }
}

fn resend_on_sqlite(
    transaction: &Transaction<'_>,
    at: i64,
    target: &ResendTarget,
    key: &ResendKey,
) -> rusqlite::Result<i64> {
    let (update, values) = target.on_sqlite(&key.tenant, at);
    let count = count_written(transaction, update, &values)?;
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    if count >= target.least() {
        let values = key.values(Value::Int(at), count);
        for statement in [DELETE_SPENT_KEY, INSERT_KEY] {
            count_written(transaction, statement.sqlite, &values)?;
        }
    }
    Ok(count)
}

impl Store {
    /// Returns the result that [`Store::resend_with_key`] stored for an earlier POST with this key.
    /// `None` if there is no such result, or the key has expired. `user` may spell the caller's id
    /// differently than the earlier POST did.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn stored_resend(
        &self,
        tenant: &str,
        user: &UserId,
        path: &str,
        key: &str,
    ) -> Result<Option<StoredResend>, ReadError> {
        let (caller, post) = ((tenant, user), (path, key));
        let record = self.key_record(STORED, caller, post, |record: &StoredRecord| {
            &record.user_id
        });
        Ok(record.await?.map(|record| StoredResend {
            body_digest: record.body_digest,
            count: usize::try_from(record.resent).unwrap_or(0),
        }))
    }

    /// Makes deliveries due, as [`Store::resend`] and [`Store::resend_all`] do, and stores the key,
    /// in one commit. Returns the number of deliveries. If the target is one delivery, and the
    /// tenant has no such delivery, stores no key and returns 0. If another POST has used the key,
    /// writes nothing and returns `None`.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn resend_with_key(
        &self,
        target: &ResendTarget,
        key: &ResendKey,
    ) -> Result<Option<usize>, ReadError> {
        let written = match &self.db().engine {
            DatabaseEngine::Postgres { .. } => {
                let (statement, rest) = target.on_postgres();
                let mut values = key.values(Value::Now, target.least());
                values.extend(rest);
                let counts: Result<Vec<i64>, _> = self.db().write(statement, values).await;
                counts.map(|counts| counts.first().copied().unwrap_or(0))
            }
            DatabaseEngine::Sqlite(_) => {
                let (target, key) = (target.clone(), key.clone());
                let job = move |transaction: &Transaction<'_>, at: i64| {
                    resend_on_sqlite(transaction, at, &target, &key)
                };
                self.db().write_transaction(job).await
            }
        };
        match written {
            Ok(count) => {
                self.inner.feed.sender_wakeup.notify_one();
                Ok(Some(usize::try_from(count).unwrap_or(0)))
            }
            Err(failure) if failure.is_idempotency_key_used() => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }
}
