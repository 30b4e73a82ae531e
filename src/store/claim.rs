//! Leases: claims tasks that no process drives and renews the leases of tasks being driven. The
//! version is the fence; the lease only avoids wasted work.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::batch::micros;
use super::claim_statement::CLAIM;
use super::db::{Sql, Value, sql};
use super::record::record;
use super::{ReadError, Store};
use crate::task::id::TaskId;

/// A task is driven alone once this many of its leases have run out after work had begun, counted
/// since its last new item. The statements of claims, and indexes, repeat this number.
pub const BESIDE: i32 = 2;

/// Sets whether the current lease counts as fruitless if it expires.
const BEGIN: Sql = sql!(
    "update agent_task set begun = $3 where task_id = $1 and phase = 'leased' and lease_owner = $2 returning task_id"
)
.by_key();

/// The two texts differ because only Postgres has row locks and the table `claimable_task`.
/// Postgres first locks the rows in order of id, as every writer of several rows does. A renewal
/// writes `claimable_task.due_at` only if that time is less than half a lease away. So most
/// renewals save this write, and claims still do not find a task that is being driven.
const RENEW: Sql = Sql {
    postgres: "
with mine as materialized (
    select task_id from agent_task where task_id = any($4::uuid[]) and phase = 'leased' and lease_owner = $2
     order by task_id for update
), moment as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint as at
     where (select count(*) from mine) >= 0
), kept as (
    update claimable_task c set due_at = m.at + $3 from mine cross join moment m
     where c.task_id = mine.task_id and c.due_at < m.at + $3 / 2
)
update agent_task t set lease_until = m.at + $3
  from mine cross join moment m where t.task_id = mine.task_id returning t.task_id",
    sqlite: "
update agent_task set lease_until = $1 + $3
 where task_id in (select unhex(value) from json_each($4)) and phase = 'leased' and lease_owner = $2
returning task_id",
    by_key: false,
};

/// The two texts differ for the reasons given at [`RENEW`]. A driver of the task may still be
/// running; the next claim increments the version and so fences off that driver's writes.
const RELEASE: Sql = Sql {
    postgres: "
with mine as materialized (
    select task_id, tenant, user_id, fruitless from agent_task
     where task_id = any($2::uuid[]) and phase = 'leased' and lease_owner = $1 order by task_id for update
), queued as (
    insert into claimable_task (task_id, tenant, user_id, due_at, alone)
    select task_id, tenant, user_id, 0, fruitless >= 2 from mine
    on conflict (task_id) do update set due_at = excluded.due_at, alone = excluded.alone
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
    /// A candidate of a claim.
    struct Row {
        task_id: Uuid,
        tenant: String,
        user_id: String,
        /// Whether the task was claimed. On Postgres, a look at the task may show that it must not
        /// be claimed (see [`CLAIM`]).
        taken: bool,
        sleeps: bool,
        takeovers: i64,
        fruitless: i64,
    }
}

/// A task that this process has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The task's id; the claim does not read the journal.
    pub task: TaskId,
    /// Whether the task is driven beside other tasks, alone, or not yet.
    pub drive: Drive,
    /// How many leases of the task ran out after work had begun, since its last new item.
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
    /// Not yet: the claim has put the task to sleep, because its last lease was fruitless.
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

/// The tenant whose task was claimed last, and for each tenant the user whose task was claimed
/// last. The next claim continues after them.
#[derive(Debug, Default)]
pub(super) struct Turns {
    tenant: String,
    /// By tenant: the user whose task was claimed last.
    users: BTreeMap<String, String>,
}

/// The maximum number of statements of one claim. A claim sends another statement while the last
/// statement returned candidates that were not claimed.
const CLAIMS: usize = 16;

/// The maximum number of tenants whose last user is remembered. Beyond it, every second entry is
/// dropped; a dropped tenant starts over with its first user.
const REMEMBERED: usize = 1000;

impl Turns {
    /// Returns `users` as the parameter that [`CLAIM`] expects: a JSON list of pairs of tenant and
    /// user.
    fn users(&self) -> String {
        json!(self.users.iter().collect::<Vec<_>>()).to_string()
    }

    fn took(&mut self, claimed: &[&Row]) {
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

/// Returns the name that a claim served last: a tenant, or a user of one tenant. `names` has the
/// tenant, or the user, of each claimed task. A claim serves names in turns: in alphabetical order
/// from the first name after `last` to the end, then from the beginning. So the result is the last
/// name in this order among the most frequent names.
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
    /// and parked tasks whose wake time has come. With `alone`, at most one of them may be a task
    /// that must be driven alone. Increments the version of each claimed task, which fences off the
    /// task's old driver. For an expired lease, also increments `takeovers`, and `fruitless` if
    /// work had begun.
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
        let mut claimed = Vec::new();
        // Each statement corrects `claimable_task` for the candidates that are not to be claimed,
        // so the next statement does not find them again.
        for _ in 0..CLAIMS {
            let left = limit - i64::try_from(claimed.len()).unwrap_or(limit);
            let alone = alone
                && claimed
                    .iter()
                    .all(|row: &Row| row.fruitless < BESIDE.into());
            let mut rows = self.claim_once(owner, lease, left, alone).await?;
            let found = rows.len();
            rows.retain(|row| row.taken);
            let missed = rows.len() < found;
            claimed.append(&mut rows);
            if !missed {
                break;
            }
        }
        Ok(claimed.iter().map(Row::claimed).collect())
    }

    async fn claim_once(
        &self,
        owner: &str,
        lease: Duration,
        limit: i64,
        alone: bool,
    ) -> Result<Vec<Row>, ReadError> {
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
        let rows: Vec<Row> = self.db().write(CLAIM, values).await?;
        let taken: Vec<&Row> = rows.iter().filter(|row| row.taken).collect();
        self.turns().took(&taken);
        Ok(rows)
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

    /// Renews leases of this process. Returns those of `tasks` whose lease this process still
    /// holds.
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
