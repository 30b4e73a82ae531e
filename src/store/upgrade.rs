//! Corrects the tables `claimable_task` and `inbox` during an upgrade. An older version of the
//! service does not write these tables, and replicas of that version may still run. Each table is
//! corrected for a day after the migration that created it. For Postgres only, because one process
//! alone uses a `SQLite` file.

use std::time::Duration;

use uuid::Uuid;

use super::db::{DatabaseEngine, Sql, Value, values};
use super::record::record;
use super::{ReadError, Store};

/// Reads the next page of tasks, and returns the page's last task. Adds the missing
/// `claimable_task` rows of the tasks that may be claimed now or later, and lowers each `due_at`
/// that is too late. If another transaction changes a task at the same time, the stored `due_at`
/// may be too early. An early `due_at` does no harm, because a claim checks the task itself and
/// corrects the row.
const CLAIMABLE: Sql = Sql::on_postgres(
    "
with upgraded as materialized (
    select 1 from _sqlx_migrations where version = 11 and installed_on > now() - interval '1 day'
), page as materialized (
    select task_id, tenant, user_id, phase, lease_until, wake_at, fruitless from agent_task
     where task_id > $1 and (select count(*) from upgraded) > 0 order by task_id limit $2
), added as (
    insert into claimable_task (task_id, tenant, user_id, due_at, alone)
    select task_id, tenant, user_id, case phase when 'leased' then lease_until when 'parked' then wake_at else 0 end,
        fruitless >= 2
      from page where phase <> 'parked' or wake_at is not null
    on conflict (task_id) do update set due_at = excluded.due_at where claimable_task.due_at > excluded.due_at
)
select task_id, '' as tenant, '' as kind, '' as name, (select count(*) from page) as rows from page
 order by task_id desc limit 1"
).by_key();

/// Reads the next page of `request_approver`, and returns the page's last row. For the approvers on
/// the page, adds missing rows of `inbox`, and deletes from `inbox` the rows of closed requests.
/// Locks each request whose `inbox` row is missing or must be deleted, so that no commit closes the
/// request during the correction. Skips requests that another transaction has locked. A later pass
/// corrects them.
const INBOX: Sql = Sql::on_postgres(
    "
with upgraded as materialized (
    select 1 from _sqlx_migrations where version = 12 and installed_on > now() - interval '1 day'
), page as materialized (
    select tenant, kind, name, request_id from request_approver
     where (tenant, kind, name, request_id) > ($3, $4, $5, $1) and (select count(*) from upgraded) > 0
     order by tenant, kind, name, request_id limit $2
), wrong as materialized (
    select p.*, r.status from page p join intervention_request r on r.request_id = p.request_id
     where (r.status = 'pending') <> exists (select 1 from inbox i
        where i.tenant = p.tenant and i.kind = p.kind and i.name = p.name and i.request_id = p.request_id)
     order by p.request_id for update of r skip locked
), added as (
    insert into inbox (tenant, kind, name, request_id)
    select tenant, kind, name, request_id from wrong where status = 'pending'
    on conflict (tenant, kind, name, request_id) do nothing
), deleted as (
    delete from inbox i using wrong w
     where w.status <> 'pending' and i.tenant = w.tenant and i.kind = w.kind and i.name = w.name
       and i.request_id = w.request_id
)
select request_id as task_id, tenant, kind, name, (select count(*) from page) as rows from page
 order by tenant desc, kind desc, name desc, request_id desc limit 1"
).by_key();

pub(super) const STATEMENTS: &[Sql] = &[CLAIMABLE, INBOX];

const MAX_PAGE_ROWS: i64 = 5_000;

record! {
    /// The last row of a page that `CLAIMABLE` or `INBOX` has read. `rows` is the number of rows of
    /// the page.
    #[derive(Debug)]
    struct LastRow {
        task_id: Uuid,
        tenant: String,
        kind: String,
        name: String,
        rows: i64,
    }
}

/// The pause between two passes over the tables `agent_task` and `request_approver`.
const PASS_INTERVAL: Duration = Duration::from_mins(10);

/// The progress of a pass over the tables `agent_task` and `request_approver`.
#[derive(Debug, Default)]
pub struct UpgradeCursor {
    /// The last row of `agent_task` that was read. `None` before the first page and after the last.
    task: Option<LastRow>,
    /// The same for `request_approver`.
    approver: Option<LastRow>,
    /// The machine's uptime at which the next pass begins.
    next_at: Duration,
}

impl Store {
    /// Reads the next page of `agent_task` and of `request_approver`, and corrects the rows of
    /// `claimable_task` and `inbox` that belong to them. Does nothing while the pause between two
    /// passes lasts. Returns whether more pages follow.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn upgrade(&self, cursor: &mut UpgradeCursor) -> Result<bool, ReadError> {
        if matches!(self.db().engine, DatabaseEngine::Sqlite(_)) {
            return Ok(false);
        }
        let uptime = self.db().clock.uptime();
        if uptime < cursor.next_at {
            return Ok(false);
        }
        cursor.task = self.upgrade_page(CLAIMABLE, cursor.task.take()).await?;
        cursor.approver = self.upgrade_page(INBOX, cursor.approver.take()).await?;
        let more = cursor.task.is_some() || cursor.approver.is_some();
        if !more {
            cursor.next_at = uptime + PASS_INTERVAL;
        }
        Ok(more)
    }

    async fn upgrade_page(
        &self,
        sql: Sql,
        after: Option<LastRow>,
    ) -> Result<Option<LastRow>, ReadError> {
        let id = after.as_ref().map_or(Uuid::nil(), |last| last.task_id);
        let mut values = values![id, MAX_PAGE_ROWS];
        if sql.postgres.contains("$3") {
            let (tenant, kind, name) =
                after.map_or_else(Default::default, |last| (last.tenant, last.kind, last.name));
            values.extend([tenant, kind, name].map(Value::Text));
        }
        let last: Option<LastRow> = self.db().write(sql, values).await?.pop();
        Ok(last.filter(|last| last.rows == MAX_PAGE_ROWS))
    }
}
