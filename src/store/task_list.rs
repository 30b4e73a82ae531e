//! Lists tasks. First finds ids by ranges of an index, and then reads the tasks with these ids that
//! match the filter.

use std::cmp::Reverse;

use uuid::Uuid;

use super::db::{Sql, Value, sql, values};
use super::page::{IdsFirst, MAX_PAGE_BYTES, Page};
use super::record::record;
use super::task_columns::TaskRecord;
use super::{ReadError, Store, TaskFilter};
use crate::task::change::TaskRow;

/// Finds the root tasks of the given users, newest first.
///
/// The texts for Postgres and `SQLite` differ because `SQLite` has no lateral join. So on `SQLite`
/// the statement runs once for each user.
const OF_USERS: Sql = Sql {
    postgres: "
select x.task_id from unnest($2::text[]) as p (user_id)
 cross join lateral (select t.task_id from agent_task t
      where t.tenant = $1 and t.user_id = p.user_id and t.parent_task_id is null and t.task_id < $3
      order by t.task_id desc limit $4) x
 order by x.task_id desc limit $4",
    sqlite: "
select t.task_id from agent_task t
 where t.tenant = $1 and t.user_id = $2 and t.parent_task_id is null and t.task_id < $3
 order by t.task_id desc limit $4",
    by_key: true,
};

const OF_TENANT: Sql = sql!(
    "select t.task_id from agent_task t where t.tenant = $1 and t.parent_task_id is null and t.task_id < $2
      order by t.task_id desc limit $3"
);

const OF_TREES: Sql = sql!(
    "select t.task_id from agent_task t
      where t.tenant = $1 and t.task_id < $2
        and (t.task_id " (any 4 uuid) " or (t.parent_task_id is not null and t.root_task_id " (any 4 uuid) "))
      order by t.task_id desc limit $3"
);

/// Reads, among the given ids, the tasks that match the filter.
const MATCHING: Sql = sql!(
    "with page (task_id) as (select t.task_id from agent_task t
      where t.task_id " (any 1 uuid) "
        and (" (none 2 text) " or t.user_id " (any 2 text) ")
        and (" (none 3 text) " or t.status " (any 3 text) ")
        and (" (none 4 text) " or t.agent " (any 4 text) ")
        and (" (none 5 text) " or t.session_id " (any 5 text) ")
        and not t.agent " (any 6 text) "
        and not t.agent_version " (any 7 text) "
      order by t.task_id desc limit $8)" (fitting_tasks 9)
)
.by_key();

pub(super) const STATEMENTS: &[Sql] = &[OF_USERS, OF_TENANT, OF_TREES, MATCHING];

record! {
    /// A [`TaskRecord`] of a page. `found` is the number of matching tasks, counted up to one more
    /// than the limit.
    struct ListedRecord {
        record: TaskRecord => flatten,
        found: i64,
    }
}

/// The list of tasks that match `filter`, read by pages. `users` has the stored spellings of the
/// filter's user ids.
struct TaskSelection<'f> {
    filter: &'f TaskFilter,
    users: Vec<String>,
}

impl TaskFilter {
    fn values(&self) -> [Value; 5] {
        let statuses = self.statuses.iter();
        let statuses = statuses.map(|status| status.as_str().to_owned());
        [
            Value::Texts(statuses.collect()),
            Value::Texts(self.agents.clone()),
            Value::Texts(self.sessions.clone()),
            Value::Texts(self.without_agents.clone()),
            Value::Texts(self.without_versions.clone()),
        ]
    }
}

impl IdsFirst for TaskSelection<'_> {
    type Row = TaskRow;
    type Id = Uuid;

    fn is_inexact(&self) -> bool {
        let Self { filter, users } = self;
        let any = filter.statuses.is_empty()
            && filter.agents.is_empty()
            && filter.without_agents.is_empty()
            && filter.without_versions.is_empty()
            && filter.sessions.is_empty();
        !any || !(filter.roots.is_empty() || users.is_empty())
    }

    async fn ids(&self, store: &Store, before: Uuid, limit: i64) -> Result<Vec<Uuid>, ReadError> {
        let Self { filter, users } = self;
        let (tenant, db) = (&filter.tenant, store.db());
        let mut ids: Vec<Uuid> = if !filter.roots.is_empty() {
            let values = values![tenant, before, limit, filter.roots.as_slice()];
            db.all(OF_TREES, values).await?
        } else if users.is_empty() {
            db.all(OF_TENANT, values![tenant, before, limit]).await?
        } else {
            let users: Vec<_> = users.iter().map(|user| [user.clone()]).collect();
            let (head, end) = ([tenant.into()], [before.into(), limit.into()]);
            store.by_keys(OF_USERS, &head, &users, &end).await?
        };
        ids.sort_unstable_by_key(|id| Reverse(*id));
        ids.truncate(usize::try_from(limit).unwrap_or(0));
        Ok(ids)
    }

    async fn matching(
        &self,
        store: &Store,
        ids: Vec<Uuid>,
        limit: i64,
    ) -> Result<Page<TaskRow>, ReadError> {
        let Self { filter, users } = self;
        let mut values = values![ids, users.as_slice()];
        values.extend(filter.values());
        values.extend([
            Value::Int(limit.saturating_add(1)),
            Value::Int(MAX_PAGE_BYTES),
        ]);
        let records: Vec<ListedRecord> = store.db().all(MATCHING, values).await?;
        let found = records.first().map_or(0, |record| record.found);
        let rows = records.into_iter().map(|record| {
            let id = record.record.id();
            let row = record.record.row();
            row.inspect_err(|_| store.report_unreadable(id))
        });
        let rows = rows.collect::<Result<_, _>>()?;
        Ok(Page::cut(rows, found, limit))
    }
}

impl Store {
    /// Reads one page of tasks, newest first. Leaves out tasks whose row cannot be decoded.
    ///
    /// Besides the filter's `limit`, two limits end a page: the bytes of its tasks with their open
    /// requests, and the number of tasks that are compared with the filter. So a page may have
    /// fewer tasks than `limit` although more tasks follow.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn tasks(&self, filter: &TaskFilter) -> Result<Page<TaskRow>, ReadError> {
        let users = self.spellings(&filter.tenant, &filter.users).await?;
        let before = filter.before.map_or(Uuid::max(), |id| id.0);
        let list = TaskSelection { filter, users };
        list.page(self, filter.limit, before).await
    }
}
