//! Claims tasks that no process drives. Renews and releases leases. A lease keeps two processes
//! from doing the same work, but fences nothing. The task's version is the fence: a claim
//! increments the version, so that the commits of the task's old driver fail.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::claim_statement::CLAIM;
use super::db::{Sql, Value, sql, values};
use super::record::record;
use super::{ReadError, Store};
use crate::task::id::TaskId;

/// After this number of fruitless leases, a task is driven alone (see [`Drive::Alone`]). A lease is
/// fruitless if it expires after work has begun. A new item of the task resets its count of
/// fruitless leases. SQL statements and indexes repeat the value of this constant.
pub const LONE_DRIVE_AFTER: i32 = 2;

/// Records whether work has begun under the current lease. If work has begun and the lease then
/// expires, the lease counts as fruitless (see [`LONE_DRIVE_AFTER`]).
const SET_BEGUN: Sql = sql!(
    "update agent_task set begun = $3 where task_id = $1 and phase = 'leased' and lease_owner = $2 returning task_id"
)
.by_key();

/// Renews leases.
///
/// The texts for Postgres and `SQLite` differ because only Postgres has row locks and the table
/// `claimable_task`. On Postgres, the renewal first locks the rows in order of id. Commits lock
/// rows in this order, too, so a commit and a renewal cannot deadlock.
///
/// On Postgres, a claim looks at a task when `claimable_task.due_at` has passed, and then checks
/// the lease itself. So `due_at` may be earlier than the end of the lease. To save writes, the
/// renewal changes `due_at` only in two cases: it is less than half a lease away, or it is after
/// the end of the new lease. In the second case, the database's clock was set back, and no claim
/// would look at the task in time. The new `due_at` is the end of the new lease.
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
     where c.task_id = mine.task_id and (c.due_at < m.at + $3 / 2 or c.due_at > m.at + $3)
)
update agent_task t set lease_until = m.at + $3
  from mine cross join moment m where t.task_id = mine.task_id returning t.task_id",
    sqlite: "
update agent_task set lease_until = $1 + $3
 where task_id in (select unhex(value) from json_each($4)) and phase = 'leased' and lease_owner = $2
returning task_id",
    by_key: false,
};

/// Releases leases, and queues the tasks. A task's driver may still be running. The next claim
/// increments the task's version, which fences off the driver's writes.
///
/// The texts for Postgres and `SQLite` differ for the reasons given at [`RENEW`].
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

pub(super) const STATEMENTS: &[Sql] = &[CLAIM, SET_BEGUN, RENEW, RELEASE];

record! {
    struct Candidate {
        task_id: Uuid,
        tenant: String,
        user_id: String,
        /// Whether the claim has taken the task. `false` only on Postgres, where the claim finds a
        /// task first and locks its row later. The locked row may show that the task must not be
        /// claimed (see [`CLAIM`]).
        taken: bool,
        sleeps: bool,
        takeovers: i64,
        fruitless: i64,
    }
}

/// A task that this process has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimedTask {
    /// The task's id. The process must load the task, because a claim does not read the journal.
    pub task: TaskId,
    /// How the process has to drive the task.
    pub drive: Drive,
    /// The number of the task's fruitless leases (see [`LONE_DRIVE_AFTER`]).
    pub fruitless: i32,
}

/// The way in which a process drives a claimed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// The process drives the task concurrently with other tasks.
    Fresh,
    /// Like `Fresh`, but a lease has expired since the task's last item. When work begins, the
    /// process must call [`Store::set_begun`]. If the new lease then expires, too, it counts as
    /// fruitless (see [`LONE_DRIVE_AFTER`]).
    Takeover,
    /// The process drives the task alone: no other task at the same time. The process must call
    /// [`Store::set_begun`] when work begins.
    Alone,
    /// The claim has put the task to sleep: the expired lease was fruitless, and the task now has
    /// at least [`LONE_DRIVE_AFTER`] fruitless leases. The process must not drive the task before
    /// it claims the task again.
    Asleep,
}

impl Candidate {
    fn claimed_task(&self) -> ClaimedTask {
        let drive = match (self.sleeps, self.takeovers, self.fruitless) {
            (true, ..) => Drive::Asleep,
            (false, _, fruitless) if fruitless >= i64::from(LONE_DRIVE_AFTER) => Drive::Alone,
            (false, 1.., _) => Drive::Takeover,
            (false, ..) => Drive::Fresh,
        };
        ClaimedTask {
            task: TaskId(self.task_id),
            drive,
            fruitless: i32::try_from(self.fruitless).unwrap_or(i32::MAX),
        }
    }
}

/// The tenant and the users whose tasks were claimed last. The next claim continues after these
/// names.
#[derive(Debug, Default)]
pub(super) struct LastServed {
    tenant: String,
    /// For each tenant, the user whose task was claimed last.
    users: BTreeMap<String, String>,
}

/// The maximum number of statements of one claim. If a statement finds tasks that it cannot claim,
/// the claim sends another statement.
const MAX_STATEMENTS_PER_CLAIM: usize = 16;

/// The maximum number of tenants in `LastServed::users`. If there are more, `record_claimed`
/// removes every second tenant. The next claim then serves the users of a removed tenant in
/// alphabetical order from the first user on.
const MAX_REMEMBERED_TENANTS: usize = 1000;

impl LastServed {
    /// Returns `users` as a parameter of [`CLAIM`]: a JSON list of pairs of tenant and user.
    fn users(&self) -> String {
        json!(self.users.iter().collect::<Vec<_>>()).to_string()
    }

    fn record_claimed(&mut self, claimed: &[&Candidate]) {
        let mut tenants: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for row in claimed {
            tenants.entry(&row.tenant).or_default().push(&row.user_id);
        }
        for (tenant, users) in tenants {
            let before = self.users.get(tenant).map_or("", String::as_str);
            if let Some(last) = last_served_name(users, before) {
                self.users.insert(tenant.to_owned(), last);
            }
        }
        if let Some(tenant) =
            last_served_name(claimed.iter().map(|row| row.tenant.as_str()), &self.tenant)
        {
            self.tenant = tenant;
        }
        if self.users.len() > MAX_REMEMBERED_TENANTS {
            let mut keep = false;
            self.users.retain(|_, _| {
                keep = !keep;
                keep
            });
        }
    }
}

/// Returns the name that a claim has served last. The names are tenants, or users of one tenant.
/// `names` has one element for each claimed task: the tenant or the user of the task. `last` is the
/// name that the previous claim served last.
///
/// A claim takes tasks in rounds. Each round takes one task of each name that still has tasks. So
/// the last round has served exactly the names with the most claimed tasks. A round serves the
/// names after `last` in alphabetical order, then the names up to `last` in alphabetical order. The
/// result is the name that comes last in this order among the names with the most claimed tasks.
fn last_served_name<'a>(names: impl IntoIterator<Item = &'a str>, last: &str) -> Option<String> {
    let mut counts: BTreeMap<(bool, &str), usize> = BTreeMap::new();
    for name in names {
        *counts.entry((name <= last, name)).or_default() += 1;
    }
    let highest_count = counts.values().max().copied()?;
    counts
        .iter()
        .rev()
        .find(|(_, count)| **count == highest_count)
        .map(|((_, name), _)| (*name).to_owned())
}

impl Store {
    /// Claims up to `limit` tasks that no process drives: queued tasks, tasks whose lease expired,
    /// and parked tasks whose wake time has come. Claims at most one task that must be driven alone
    /// ([`Drive::Alone`]), and no such task if `alone` is false. Increments the version of each
    /// claimed task, so that the commits of the task's old driver fail. If a task's lease expired,
    /// increments `takeovers`. If work on the task had begun under this lease
    /// ([`Store::set_begun`]), also increments `fruitless`. If `fruitless` is then at least
    /// [`LONE_DRIVE_AFTER`], puts the task to sleep ([`Drive::Asleep`]).
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn claim(
        &self,
        owner: &str,
        lease: Duration,
        limit: i64,
        alone: bool,
    ) -> Result<Vec<ClaimedTask>, ReadError> {
        let mut claimed = Vec::new();
        // A statement may find tasks that it cannot claim. The statement then corrects the tasks'
        // rows of `claimable_task`, so that the next statement does not find these tasks again.
        for _ in 0..MAX_STATEMENTS_PER_CLAIM {
            let remaining = limit - i64::try_from(claimed.len()).unwrap_or(limit);
            let alone = alone
                && claimed
                    .iter()
                    .all(|row: &Candidate| row.fruitless < LONE_DRIVE_AFTER.into());
            let mut rows = self.claim_once(owner, lease, remaining, alone).await?;
            let found = rows.len();
            rows.retain(|row| row.taken);
            let has_unclaimed = rows.len() < found;
            claimed.append(&mut rows);
            if !has_unclaimed {
                break;
            }
        }
        Ok(claimed.iter().map(Candidate::claimed_task).collect())
    }

    async fn claim_once(
        &self,
        owner: &str,
        lease: Duration,
        limit: i64,
        alone: bool,
    ) -> Result<Vec<Candidate>, ReadError> {
        let (tenant, users) = {
            let last_served = self.inner.last_served.lock();
            (last_served.tenant.clone(), last_served.users())
        };
        let values = values![Value::Now, owner, lease, limit.max(0), tenant, users, alone];
        let rows: Vec<Candidate> = self.db().write(CLAIM, values).await?;
        let taken: Vec<&Candidate> = rows.iter().filter(|row| row.taken).collect();
        self.inner.last_served.lock().record_claimed(&taken);
        Ok(rows)
    }

    /// Records whether work on a claimed task has `begun`. If work has begun and the lease then
    /// expires, the lease is fruitless. Returns `false` if this process no longer holds the lease.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn set_begun(
        &self,
        owner: &str,
        task: TaskId,
        begun: bool,
    ) -> Result<bool, ReadError> {
        let values = values![task, owner, begun];
        Ok(self.db().count_written(SET_BEGUN, values).await? > 0)
    }

    /// Renews the leases of `tasks` for the duration `lease`. Returns the tasks whose lease this
    /// process still holds.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn renew(
        &self,
        owner: &str,
        lease: Duration,
        tasks: &[TaskId],
    ) -> Result<Vec<TaskId>, ReadError> {
        let values = values![Value::Now, owner, lease, tasks];
        Ok(self.db().write(RENEW, values).await?)
    }

    /// Releases the leases of `tasks` at shutdown, so that other processes need not wait until the
    /// leases expire. Returns the tasks whose lease was released and which are queued now.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn release(&self, owner: &str, tasks: &[TaskId]) -> Result<Vec<TaskId>, ReadError> {
        Ok(self.db().write(RELEASE, values![owner, tasks]).await?)
    }
}
