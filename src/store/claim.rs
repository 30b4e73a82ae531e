//! Leases: claims tasks that no process drives and renews the leases of tasks being driven. The
//! version is the fence; the lease only avoids wasted work.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::batch::micros;
use super::db::{Sql, Value, sql};
use super::record::record;
use super::{ReadError, Store};
use crate::task::id::TaskId;

/// A task is driven alone once this many of its leases have run out after work had begun, counted
/// since its last new item. The claim statement repeats this number.
pub const BESIDE: i32 = 2;

/// Claims tasks, in turns by tenant, and within a tenant by user: first one task of each tenant,
/// then a second task of each tenant, and so on. A tenant's first task is the oldest task of one
/// user, its second task is the oldest task of the next user. Each claim continues after the tenant
/// that the last claim ended with ($5), and within each tenant after the user whose task was
/// claimed last ($6). So a user with a thousand waiting tasks does not crowd out other users. $1 is
/// `Value::Now`, $2 the owner of the leases, $3 their duration, $4 the maximum number of tasks.
///
/// A lease is fruitless if it expires after work has begun; a new item resets the count of
/// fruitless leases. After the second fruitless lease, and after each further one, the task sleeps
/// for 1, 2, 4 … 60 seconds. It is then claimed only to be driven alone. A claim takes at most one
/// such task, ahead of all other tasks, and only if the process accepts it ($7).
///
/// The statements differ because `SQLite` has no row locks: it runs only one writer at a time. On
/// Postgres, a row that another writer has locked is skipped (its task is being driven), so a claim
/// never waits and cannot deadlock. With thousands of waiting tasks, most of the time goes into
/// sorting them by user. To sort faster, Postgres groups users by a hash (users with equal hashes
/// share a turn), and `SQLite` orders the tasks of a user by row number.
const CLAIM: Sql = Sql {
    postgres: "
with moment as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint as at
), served as materialized (
    select value ->> 0 as tenant, value ->> 1 as user_id from jsonb_array_elements($6::jsonb)
), due as (
    select t.task_id, t.tenant collate \"C\" as tenant, t.user_id collate \"C\" as user_id, t.fruitless >= 2 as alone,
        row_number() over (partition by hashtextextended(t.tenant || chr(1) || t.user_id, (t.fruitless >= 2)::int)
            order by t.task_id) as nth
      from agent_task t cross join moment m
     where (t.phase <> 'parked' or t.wake_at is not null)
       and (t.phase = 'queued' or (t.phase = 'leased' and t.lease_until <= m.at)
            or (t.phase = 'parked' and t.wake_at <= m.at))
       and (t.fruitless < 2 or $7)
), ranked as (
    select d.task_id, d.tenant, d.alone, row_number() over (
            partition by d.alone, case when not d.alone then d.tenant end
            order by d.nth, d.user_id <= coalesce(s.user_id, ''), d.user_id, d.task_id) as place
      from due d left join served s on s.tenant = d.tenant where d.nth <= $4 * 4
), first as materialized (
    select task_id, tenant, alone, place from ranked where place = 1 or not alone
     order by place, alone desc, tenant <= $5, tenant limit $4 * 4
), mine as materialized (
    select t.task_id, case when t.phase = 'leased' then 1 else 0 end as lost,
        t.fruitless + case when t.phase = 'leased' and t.begun then 1 else 0 end as fruitless,
        t.phase = 'leased' and t.begun and t.fruitless >= 1 as sleeps
      from first f join agent_task t on t.task_id = f.task_id cross join moment m
     where (t.phase = 'queued' or (t.phase = 'leased' and t.lease_until <= m.at)
            or (t.phase = 'parked' and t.wake_at <= m.at))
       and f.alone = (t.fruitless >= 2)
     order by f.place, f.alone desc, f.tenant <= $5, f.tenant limit $4 for update of t skip locked
)
update agent_task t set version = t.version + 1, takeovers = t.takeovers + mine.lost, fruitless = mine.fruitless,
    phase = case when mine.sleeps then 'parked' else 'leased' end,
    lease_owner = case when not mine.sleeps then $2 end,
    lease_until = case when not mine.sleeps then m.at + $3 end,
    wake_at = case when mine.sleeps then m.at + 1000000 * least(60, 1 << least(mine.fruitless - 2, 6)::int) end,
    begun = false
  from mine, moment m where t.task_id = mine.task_id
returning t.task_id, t.tenant, t.user_id, t.phase = 'parked' as sleeps, t.takeovers, t.fruitless",
    sqlite: "
with served as materialized (
    select value ->> 0 as tenant, value ->> 1 as user_id from json_each($6)
), due as (
    select rowid as id, tenant, user_id, fruitless >= 2 as alone,
        row_number() over (partition by tenant, user_id, fruitless >= 2 order by rowid) as nth
      from agent_task
     where (phase <> 'parked' or wake_at is not null)
       and (phase = 'queued' or (phase = 'leased' and lease_until <= $1) or (phase = 'parked' and wake_at <= $1))
       and (fruitless < 2 or $7)
), ranked as (
    select d.id, d.tenant, d.alone, row_number() over (
            partition by d.alone, case when not d.alone then d.tenant end
            order by d.nth, d.user_id <= coalesce(s.user_id, ''), d.user_id, d.id) as place
      from due d left join served s on s.tenant = d.tenant where d.nth <= $4
)
update agent_task set version = version + 1, takeovers = takeovers + (phase = 'leased'),
    fruitless = fruitless + (phase = 'leased' and begun),
    phase = case when phase = 'leased' and begun and fruitless >= 1 then 'parked' else 'leased' end,
    lease_owner = case when phase = 'leased' and begun and fruitless >= 1 then null else $2 end,
    lease_until = case when phase = 'leased' and begun and fruitless >= 1 then null else $1 + $3 end,
    wake_at = case when phase = 'leased' and begun and fruitless >= 1
        then $1 + 1000000 * min(60, 1 << min(fruitless - 1, 6)) end,
    begun = false
 where rowid in (
    select id from ranked where place = 1 or not alone order by place, alone desc, tenant <= $5, tenant limit $4)
returning task_id, tenant, user_id, phase = 'parked' as sleeps, takeovers, fruitless",
    by_key: false,
};

/// Sets whether the current lease counts as fruitless if it expires.
const BEGIN: Sql = sql!(
    "update agent_task set begun = $3 where task_id = $1 and phase = 'leased' and lease_owner = $2 returning task_id"
)
.by_key();

/// The statements differ because Postgres first locks the rows in order of id, as every writer of
/// several rows does.
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

/// The statements differ for the reason given for [`RENEW`]. The driver may still be finishing; the
/// next claim increments the version and so fences off that driver's writes.
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

pub(super) const STATEMENTS: &[Sql] = &[CLAIM, BEGIN, RENEW, RELEASE];

record! {
    /// A task whose lease was written.
    pub(super) struct Leased {
        task_id: Uuid,
    }
}

record! {
    /// A row changed by a claim.
    struct Row {
        task_id: Uuid,
        tenant: String,
        user_id: String,
        sleeps: bool,
        takeovers: i64,
        fruitless: i64,
    }
}

/// A claimed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The claimed task's id.
    pub task: TaskId,
    /// How to drive the task.
    pub drive: Drive,
    /// How many leases ran out after work had begun, since the last new item.
    pub fruitless: i32,
}

/// How to drive a claimed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// Concurrently with other tasks.
    Fresh,
    /// Concurrently with other tasks; an earlier lease was lost, so [`Store::begin`] is called when
    /// work begins.
    Again,
    /// The process drives no other task at the same time. [`Store::begin`] is called when work
    /// begins.
    Alone,
    /// Not yet: the task sleeps.
    Later,
}

impl Row {
    fn claimed(&self) -> Claimed {
        let drive = match (self.sleeps, self.takeovers, self.fruitless) {
            (true, ..) => Drive::Later,
            (false, _, fruitless) if fruitless >= i64::from(BESIDE) => Drive::Alone,
            (false, 1.., _) => Drive::Again,
            (false, ..) => Drive::Fresh,
        };
        Claimed {
            task: TaskId(self.task_id),
            drive,
            fruitless: i32::try_from(self.fruitless).unwrap_or(i32::MAX),
        }
    }
}

/// The tenant and users that the last claims ended with.
#[derive(Debug, Default)]
pub(super) struct Turns {
    tenant: String,
    /// The last user of each tenant.
    users: BTreeMap<String, String>,
}

/// The maximum number of tenants whose last user is remembered. Beyond it, every second entry is
/// dropped; a dropped tenant starts over with its first user.
const REMEMBERED: usize = 1000;

impl Turns {
    /// The last user of each tenant, as [`CLAIM`] expects them in $6: JSON pairs of tenant and
    /// user.
    fn users(&self) -> String {
        json!(self.users.iter().collect::<Vec<_>>()).to_string()
    }

    fn took(&mut self, claimed: &[Row]) {
        let mut tenants: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for row in claimed {
            tenants.entry(&row.tenant).or_default().push(&row.user_id);
        }
        for (tenant, users) in tenants {
            let before = self.users.get(tenant).map_or("", String::as_str);
            if let Some(last) = last_of(users, before) {
                self.users.insert(tenant.to_owned(), last);
            }
        }
        if let Some(tenant) = last_of(claimed.iter().map(|row| row.tenant.as_str()), &self.tenant) {
            self.tenant = tenant;
        }
        if self.users.len() > REMEMBERED {
            let mut keeps = false;
            self.users.retain(|_, _| {
                keeps = !keeps;
                keeps
            });
        }
    }
}

/// The name (of a tenant, or of a user of one tenant) that a claim served last. `names` has the
/// name of each claimed task. The claim served names in turns, starting after `last`, so the result
/// is the last one in that order among the most frequent names.
fn last_of<'a>(names: impl IntoIterator<Item = &'a str>, last: &str) -> Option<String> {
    let mut counts: BTreeMap<(bool, &str), usize> = BTreeMap::new();
    for name in names {
        *counts.entry((name <= last, name)).or_default() += 1;
    }
    let most = counts.values().max().copied()?;
    counts
        .iter()
        .rev()
        .find(|(_, count)| **count == most)
        .map(|((_, name), _)| (*name).to_owned())
}

impl Store {
    /// Claims up to `limit` tasks that no process drives: queued tasks, tasks whose lease expired,
    /// and parked tasks whose wake time has come; with `alone`, at most one task that must be
    /// driven alone. Increments the version of each, which fences off its old driver. For an
    /// expired lease it also increments `takeovers`, and `fruitless` if work had begun.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn claim(
        &self,
        owner: &str,
        lease: Duration,
        limit: i64,
        alone: bool,
    ) -> Result<Vec<Claimed>, ReadError> {
        let (tenant, users) = {
            let turns = self.turns();
            (turns.tenant.clone(), turns.users())
        };
        let values = vec![
            Value::Now,
            Value::Text(owner.to_owned()),
            Value::Int(micros(lease)),
            Value::Int(limit.max(0)),
            Value::Text(tenant),
            Value::Text(users),
            Value::Bool(alone),
        ];
        let claimed: Vec<Row> = self.db().write(CLAIM, values).await?;
        self.turns().took(&claimed);
        Ok(claimed.iter().map(Row::claimed).collect())
    }

    /// Records whether work on a claimed task has `begun`: if so, an expired lease counts as
    /// fruitless. Returns `false` if this process no longer holds the lease.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn begin(&self, owner: &str, task: TaskId, begun: bool) -> Result<bool, ReadError> {
        let values = vec![
            Value::Id(task.0),
            Value::Text(owner.to_owned()),
            Value::Bool(begun),
        ];
        Ok(!self.leased(BEGIN, values).await?.is_empty())
    }

    /// Renews this process's leases. Returns the tasks whose lease it still holds.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn renew(
        &self,
        owner: &str,
        lease: Duration,
        tasks: &[TaskId],
    ) -> Result<Vec<TaskId>, ReadError> {
        let ids = tasks.iter().map(|id| id.0).collect();
        let values = vec![
            Value::Now,
            Value::Text(owner.to_owned()),
            Value::Int(micros(lease)),
            Value::Ids(ids),
        ];
        self.leased(RENEW, values).await
    }

    /// Releases leases at shutdown, so that other processes need not wait for them to expire.
    /// Returns the tasks that are now queued.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn release(&self, owner: &str, tasks: &[TaskId]) -> Result<Vec<TaskId>, ReadError> {
        let ids = tasks.iter().map(|id| id.0).collect();
        self.leased(
            RELEASE,
            vec![Value::Text(owner.to_owned()), Value::Ids(ids)],
        )
        .await
    }

    async fn leased(&self, sql: Sql, values: Vec<Value>) -> Result<Vec<TaskId>, ReadError> {
        let rows: Vec<Leased> = self.db().write(sql, values).await?;
        Ok(rows.into_iter().map(|row| TaskId(row.task_id)).collect())
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.inner
            .turns
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
