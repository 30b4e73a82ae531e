//! Leases: taking over what nobody drives, and keeping what is being driven. The version is the fence, the lease only
//! avoids wasted work.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

use super::batch::micros;
use super::db::{Sql, Value};
use super::{ReadError, Store};
use crate::task::id::TaskId;

/// Fair by tenant: each tenant's oldest first, then each one's second …, and from one claim to the next it goes on with
/// the tenant after the last one ($5), so that a tenant with a thousand waiting tasks is one among others.
///
/// Differs because `SQLite` has no row locks: its one writer already excludes the others. On Postgres a row that
/// somebody else is writing to is left alone (it is being driven), so a claim never waits and cannot deadlock.
const CLAIM: Sql = Sql {
    postgres: "
with moment as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint as at
), ranked as (
    select t.task_id, t.tenant, row_number() over (partition by t.tenant order by t.task_id) as place
      from agent_task t cross join moment m
     where (t.phase <> 'parked' or t.wake_at is not null)
       and (t.phase = 'queued' or (t.phase = 'leased' and t.lease_until <= m.at)
            or (t.phase = 'parked' and t.wake_at <= m.at))
), first as materialized (
    select task_id, tenant, place from ranked order by place, tenant <= $5, tenant limit $4 * 4
), mine as materialized (
    select t.task_id from first f join agent_task t on t.task_id = f.task_id cross join moment m
     where (t.phase = 'queued' or (t.phase = 'leased' and t.lease_until <= m.at)
            or (t.phase = 'parked' and t.wake_at <= m.at))
     order by f.place, f.tenant <= $5, f.tenant limit $4 for update of t skip locked
)
update agent_task t set version = t.version + 1, takeovers = t.takeovers + case t.phase when 'leased' then 1 else 0 end,
    phase = 'leased', lease_owner = $2, lease_until = m.at + $3, wake_at = null
  from mine, moment m where t.task_id = mine.task_id returning t.task_id, t.tenant",
    sqlite: "
update agent_task set version = version + 1, takeovers = takeovers + case phase when 'leased' then 1 else 0 end,
    phase = 'leased', lease_owner = $2, lease_until = $1 + $3, wake_at = null
 where task_id in (
    select task_id from (
        select task_id, tenant, row_number() over (partition by tenant order by task_id) as place from agent_task
         where (phase <> 'parked' or wake_at is not null)
           and (phase = 'queued' or (phase = 'leased' and lease_until <= $1)
                or (phase = 'parked' and wake_at <= $1))
    ) order by place, tenant <= $5, tenant limit $4)
returning task_id, tenant",
    by_key: false,
};

/// Differs because on Postgres the rows are locked in the order of ids first, as every writer of several rows does.
const RENEW: Sql = Sql {
    postgres: "
with mine as materialized (
    select task_id from agent_task where task_id = any($4::uuid[]) and phase = 'leased' and lease_owner = $2
     order by task_id for update
)
update agent_task t
   set lease_until = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint + $3
  from mine where t.task_id = mine.task_id returning t.task_id",
    sqlite: "
update agent_task set lease_until = $1 + $3
 where task_id in (select unhex(value) from json_each($4)) and phase = 'leased' and lease_owner = $2
returning task_id",
    by_key: false,
};

/// Differs for the same reason. The driver may still be ending: its version is fenced off by the next claim.
const RELEASE: Sql = Sql {
    postgres: "
with mine as materialized (
    select task_id from agent_task where task_id = any($2::uuid[]) and phase = 'leased' and lease_owner = $1
     order by task_id for update
)
update agent_task t set phase = 'queued', lease_owner = null, lease_until = null
  from mine where t.task_id = mine.task_id returning t.task_id",
    sqlite: "
update agent_task set phase = 'queued', lease_owner = null, lease_until = null
 where task_id in (select unhex(value) from json_each($2)) and phase = 'leased' and lease_owner = $1
returning task_id",
    by_key: false,
};

pub(super) const STATEMENTS: &[Sql] = &[CLAIM, RENEW, RELEASE];

/// A task that was written to.
#[derive(FromRow)]
pub(super) struct Leased {
    task_id: Uuid,
}

/// A task that was taken over.
#[derive(FromRow)]
struct Claimed {
    task_id: Uuid,
    tenant: String,
}

/// The tenant that came last in a claim that began after `last`: one of those with the most tasks in it.
fn last_of(claimed: &[Claimed], last: &str) -> Option<String> {
    let mut counts: BTreeMap<(bool, &str), usize> = BTreeMap::new();
    for task in claimed {
        *counts.entry((task.tenant.as_str() <= last, &task.tenant)).or_default() += 1;
    }
    let most = counts.values().max().copied()?;
    counts.iter().rev().find(|(_, count)| **count == most).map(|((_, tenant), _)| (*tenant).to_owned())
}

impl Store {
    /// Takes over up to `limit` tasks that nobody drives: queued ones, those whose lease ran out, and parked ones whose
    /// time has come. Bumps each one's version (the old driver's fence) and, where a lease ran out, its `takeovers`.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or what is stored cannot be understood.
    pub async fn claim(&self, owner: &str, lease: Duration, limit: i64) -> Result<Vec<TaskId>, ReadError> {
        let last = self.last_tenant().clone();
        let values = vec![
            Value::Now,
            Value::Text(owner.to_owned()),
            Value::Int(micros(lease)),
            Value::Int(limit.max(0)),
            Value::Text(last.clone()),
        ];
        let claimed: Vec<Claimed> = self.db().write(CLAIM, values).await?;
        if let Some(tenant) = last_of(&claimed, &last) {
            *self.last_tenant() = tenant;
        }
        Ok(claimed.into_iter().map(|task| TaskId(task.task_id)).collect())
    }

    /// Renews the leases this process holds. Returns the tasks whose lease is still its own.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or what is stored cannot be understood.
    pub async fn renew(&self, owner: &str, lease: Duration, tasks: &[TaskId]) -> Result<Vec<TaskId>, ReadError> {
        let ids = tasks.iter().map(|id| id.0).collect();
        let values = vec![Value::Now, Value::Text(owner.to_owned()), Value::Int(micros(lease)), Value::Ids(ids)];
        self.leased(RENEW, values).await
    }

    /// Lets go of leases of a process that goes down, so that others need not wait until they are over. Returns the
    /// tasks that are queued now.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or what is stored cannot be understood.
    pub async fn release(&self, owner: &str, tasks: &[TaskId]) -> Result<Vec<TaskId>, ReadError> {
        let ids = tasks.iter().map(|id| id.0).collect();
        self.leased(RELEASE, vec![Value::Text(owner.to_owned()), Value::Ids(ids)]).await
    }

    async fn leased(&self, sql: Sql, values: Vec<Value>) -> Result<Vec<TaskId>, ReadError> {
        let rows: Vec<Leased> = self.db().write(sql, values).await?;
        Ok(rows.into_iter().map(|row| TaskId(row.task_id)).collect())
    }

    fn last_tenant(&self) -> MutexGuard<'_, String> {
        self.inner.last_tenant.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
