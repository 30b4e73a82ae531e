//! Lists requests. First finds ids by ranges of an index, and then reads the requests with these
//! ids that match the filter. In a list for one person, the ranges have only requests that the
//! person may decide or has decided. So the cost of a page does not depend on the number of other
//! people's requests.

use std::slice;

use uuid::Uuid;

use super::db::{DatabaseEngine, Sql, Value, sql, values};
use super::page::{IdsFirst, MAX_PAGE_BYTES, Page};
use super::record::{Record, record};
use super::requests::RequestRecord;
use super::{ReadError, RequestFilter, RequestRow, Store};
use crate::task::status::RequestStatus;
use crate::task::user::Viewer;

/// Finds the open requests that a person may decide. Each of them has a row in `inbox` under one of
/// the person's keys (see `Store::keys`).
///
/// The texts for Postgres and `SQLite` differ because `SQLite` has no lateral join. So on `SQLite`
/// the statement runs once for each key.
const INBOX: Sql = Sql {
    postgres: "
select distinct x.request_id
  from unnest($3::text[], $4::text[]) as p (kind, name)
 cross join lateral (select i.request_id from inbox i
      where i.tenant = $1 and i.kind = p.kind and i.name = p.name and i.request_id > $2
      order by i.request_id limit $5) x
 order by x.request_id limit $5",
    sqlite: "
select request_id from inbox where tenant = $1 and kind = $3 and name = $4 and request_id > $2
 order by request_id limit $5",
    by_key: true,
};

/// Finds the requests (in any status) that a person may decide or has decided.
///
/// The texts for Postgres and `SQLite` differ because `SQLite` has no lateral join.
const OF_PERSON: Sql = Sql {
    postgres: "
select distinct x.request_id
  from unnest($3::text[], $4::text[]) as p (kind, name)
 cross join lateral (
    (select a.request_id from request_approver a
      where a.tenant = $1 and a.kind = p.kind and a.name = p.name and a.request_id > $2
      order by a.request_id limit $5)
     union all
    (select distinct d.request_id from decision d
      where d.tenant = $1 and d.user_id = p.name and p.kind = 'user' and d.request_id > $2
      order by d.request_id limit $5)) x
 order by x.request_id limit $5",
    sqlite: "
select request_id from (
    select * from (select request_id from request_approver
         where tenant = $1 and kind = $3 and name = $4 and request_id > $2 order by request_id limit $5)
     union
    select * from (select distinct request_id from decision
         where tenant = $1 and user_id = $4 and $3 = 'user' and request_id > $2 order by request_id limit $5))
 order by request_id limit $5",
    by_key: true,
};

const OPEN: Sql = sql!(
    "select r.request_id from intervention_request r
      where r.tenant = $1 and r.status = 'pending' and r.request_id > $2 order by r.request_id limit $3"
)
.by_key();

const OF_TENANT: Sql = sql!(
    "select r.request_id from intervention_request r
      where r.tenant = $1 and r.request_id > $2 order by r.request_id limit $3"
);

const OF_TREES: Sql = sql!(
    "select r.request_id from intervention_request r
      where r.tenant = $1 and r.request_id > $2 and r.root_task_id " (any 4 uuid) "
      order by r.request_id limit $3"
);

/// Reads, among the given ids, the requests that match the filter. `$8` says whether requests past
/// their deadline can match. Reads the first requests whose items add up to at most `$10` bytes,
/// and always the first request. `page` has all columns of the requests, so that each row of a
/// request and of a task is read once. The items are read twice: `sized` reads their sizes, and the
/// last query reads only the bodies within the limit.
const MATCHING: Sql = sql!(
    "with page as (
        select r.request_id, r.task_id, r.root_task_id, r.tenant, t.user_id as owner, t.session_id, t.agent_path,
               r.status, r.created_at, r.expires_at, r.seq, r.closed_seq
          from intervention_request r join agent_task t on t.task_id = r.task_id
         where r.request_id " (any 2 uuid) " and r.tenant = $3
           and (" (none 4 text) " or r.status " (any 4 text) ")
           and (" (none 5 text) " or r.kind " (any 5 text) ")
           and (" (none 6 text) " or t.agent " (any 6 text) ")
           and (" (none 7 text) " or t.session_id " (any 7 text) ")
           and ($8 or r.expires_at is null or r.expires_at > " (now 1) ")
         order by r.request_id limit $9
     ),
     sized as (
        select r.*, (select coalesce(sum(octet_length(i.body)), 0) from agent_task_item i where " (of_request) ") as size
          from page r
     ),
     summed as (
        select s.*, sum(s.size) over (order by s.request_id) as upto, count(*) over () as found from sized s
     )
     select r.request_id, r.task_id, r.root_task_id, r.tenant, r.owner, r.session_id, r.agent_path, r.status,
            r.created_at, r.expires_at, r.seq as asked_seq, i.seq, i.at, i.body,
            (select doubted_at from database_identity where id = 1) as doubted_at, r.found, " (now 1) " as moment
       from summed r join agent_task_item i on " (of_request) "
      where r.upto <= $10 or r.upto = r.size order by r.request_id, i.seq"
)
.by_key();

pub(super) const STATEMENTS: &[Sql] = &[INBOX, OF_PERSON, OPEN, OF_TENANT, OF_TREES, MATCHING];

record! {
    /// One item of a request in a page. `found` is the same in all records of the page: the number
    /// of matching requests, counted up to one more than the limit.
    struct ListedRecord {
        record: RequestRecord => flatten,
        found: i64,
    }
}

/// The kind of the keys (see [`Store::keys`]) that stand for the owners of requests' tasks.
pub(super) const OWNER: &str = "owner";

pub(super) enum RequestSource {
    /// The requests of one person: the statement that finds them, and the person's keys (see
    /// `Store::keys`). The statement is `INBOX` for open requests alone, otherwise `OF_PERSON`.
    Keys(Sql, Vec<[String; 2]>),
    /// All open requests of the tenant.
    Open,
    /// All requests of the tenant.
    Tenant,
    /// All requests of the filter's trees.
    Trees,
}

pub(super) struct RequestSelection<'f> {
    pub(super) filter: &'f RequestFilter,
    pub(super) source: RequestSource,
}

impl IdsFirst for RequestSelection<'_> {
    type Row = RequestRow;
    type Id = Uuid;

    fn is_inexact(&self) -> bool {
        let open_only = !matches!(self.source, RequestSource::Trees) && self.filter.only_pending();
        !self.filter.any_kind() || !(open_only || self.filter.statuses.is_empty())
    }

    async fn ids(&self, store: &Store, after: Uuid, limit: i64) -> Result<Vec<Uuid>, ReadError> {
        let Self { filter, source } = self;
        let (tenant, db) = (&filter.tenant, store.db());
        let mut ids: Vec<Uuid> = match source {
            RequestSource::Keys(sql, keys) => {
                let head = [tenant.into(), after.into()];
                store.by_keys(*sql, &head, keys, &[limit.into()]).await?
            }
            RequestSource::Open => db.all(OPEN, values![tenant, after, limit]).await?,
            RequestSource::Tenant => db.all(OF_TENANT, values![tenant, after, limit]).await?,
            RequestSource::Trees => {
                let values = values![tenant, after, limit, filter.roots.as_slice()];
                db.all(OF_TREES, values).await?
            }
        };
        ids.sort_unstable();
        ids.dedup();
        ids.truncate(usize::try_from(limit).unwrap_or(0));
        Ok(ids)
    }

    async fn matching(
        &self,
        store: &Store,
        ids: Vec<Uuid>,
        limit: i64,
    ) -> Result<Page<RequestRow>, ReadError> {
        let Self { filter, .. } = self;
        let mut values = values![Value::Now, ids, &filter.tenant];
        values.extend(filter.values());
        values.extend([
            Value::Bool(filter.overdue || !filter.only_pending()),
            Value::Int(limit.saturating_add(1)),
            Value::Int(MAX_PAGE_BYTES),
        ]);
        let records: Vec<ListedRecord> = store.db().all(MATCHING, values).await?;
        let found = records.first().map_or(0, |record| record.found);
        let rows =
            store.decode_requests(records.into_iter().map(|record| record.record).collect())?;
        Ok(Page::cut(rows, found, limit))
    }
}

impl Store {
    /// Reads one page of requests, oldest first. Leaves out requests that cannot be decoded. A page
    /// has limits for the number of its requests, for their bytes, and for the number of requests
    /// that are looked at. So it may have fewer requests than the filter's `limit` although more
    /// follow.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a value other than a request cannot be
    /// decoded.
    pub async fn requests(&self, filter: &RequestFilter) -> Result<Page<RequestRow>, ReadError> {
        let source = self.source(filter).await?;
        let after = filter.after.map_or(Uuid::nil(), |id| id.0);
        let list = RequestSelection { filter, source };
        list.page(self, filter.limit, after).await
    }

    /// Runs a statement that finds rows by keys: once with all keys on Postgres, and once for each
    /// key on `SQLite`. The first parameters are `head`, the next are the keys, and the last are
    /// `end`.
    pub(super) async fn by_keys<R: Record, const N: usize>(
        &self,
        sql: Sql,
        head: &[Value],
        keys: &[[String; N]],
        end: &[Value],
    ) -> Result<Vec<R>, ReadError> {
        let with_key = |key: [Value; N]| -> Vec<Value> {
            let values = head.iter().cloned().chain(key);
            values.chain(end.iter().cloned()).collect()
        };
        if matches!(self.db().engine, DatabaseEngine::Postgres { .. }) {
            let column = |place: usize| {
                let names = keys.iter().filter_map(|key| key.get(place).cloned());
                Value::Texts(names.collect())
            };
            let values = with_key(std::array::from_fn(column));
            return Ok(self.db().all(sql, values).await?);
        }
        let mut rows = Vec::new();
        for key in keys {
            let values = with_key(key.clone().map(Value::Text));
            rows.append(&mut self.db().all(sql, values).await?);
        }
        Ok(rows)
    }

    pub(super) async fn source(&self, filter: &RequestFilter) -> Result<RequestSource, ReadError> {
        if !filter.roots.is_empty() {
            return Ok(RequestSource::Trees);
        }
        let pending = filter.only_pending();
        match &filter.person {
            Some(person) if !person.decides_everything => {
                let keys = self.keys(&filter.tenant, person).await?;
                Ok(RequestSource::Keys(
                    if pending { INBOX } else { OF_PERSON },
                    keys,
                ))
            }
            _ if pending => Ok(RequestSource::Open),
            _ => Ok(RequestSource::Tenant),
        }
    }

    /// Returns a person's keys. A key is a pair of a kind and a name. The kinds `owner` and `user`
    /// stand for the user with this name, and `group` for the members of the group. The table
    /// `request_approver` has a row for each request and each key of its approvers. `inbox` has the
    /// same rows for open requests alone. So the person's keys find the requests that the person
    /// may decide.
    pub(super) async fn keys(
        &self,
        tenant: &str,
        person: &Viewer,
    ) -> Result<Vec<[String; 2]>, ReadError> {
        let spellings = self
            .spellings(tenant, slice::from_ref(&person.user_id))
            .await?;
        let users = spellings
            .into_iter()
            .flat_map(|name| [[OWNER.to_owned(), name.clone()], ["user".to_owned(), name]]);
        let groups = person
            .groups
            .iter()
            .map(|name| ["group".to_owned(), name.clone()]);
        Ok(users.chain(groups).collect())
    }
}

impl RequestFilter {
    fn only_pending(&self) -> bool {
        self.statuses == [RequestStatus::Pending]
    }

    /// Whether the filter accepts every kind, agent and session.
    pub(super) fn any_kind(&self) -> bool {
        self.kinds.is_empty() && self.agents.is_empty() && self.sessions.is_empty()
    }

    /// Returns the statuses, kinds, agents and sessions, as parameters.
    pub(super) fn values(&self) -> [Value; 4] {
        let statuses = self.statuses.iter();
        let statuses = statuses.map(|status| status.as_str().to_owned());
        [
            Value::Texts(statuses.collect()),
            Value::Texts(self.kinds.clone()),
            Value::Texts(self.agents.clone()),
            Value::Texts(self.sessions.clone()),
        ]
    }
}
