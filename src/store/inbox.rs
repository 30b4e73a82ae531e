//! Reads the inbox of a person: the open requests that the person can answer, and the requests that
//! the person has decided. Also finds out which requests have changed since an inbox was shown.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::db::{Engine, Sql, Value, sql};
use super::page::{IdsFirst, Page};
use super::record::record;
use super::request_list::{RequestList, Source};
use super::{ReadError, RequestFilter, RequestRow, Store, Viewer};
use crate::task::id::RequestId;
use crate::task::time::Time;

const MAX_NEW_REQUESTS: i64 = 1000;

/// Selects, among the given ids, the requests that match the filter and are not past their
/// deadline. If the person may not decide every request, leaves out requests of the person's own
/// tasks that do not name the owner as an approver. These requests have no row of the kind `owner`
/// in `inbox`.
const OPEN: Sql = sql!(
    "select r.request_id, r.expires_at,
            (select count(*) from agent_task_item i where i.request_id = r.request_id) as items,
            exists (select 1 from decision d where d.tenant = r.tenant and d.user_id " (any 8 text) "
                and d.request_id = r.request_id) as answered
       from intervention_request r join agent_task t on t.task_id = r.task_id
      where r.request_id " (any 2 uuid) " and r.tenant = $3
        and (" (none 4 text) " or r.status " (any 4 text) ")
        and (" (none 5 text) " or r.kind " (any 5 text) ")
        and (" (none 6 text) " or t.agent " (any 6 text) ")
        and (" (none 7 text) " or t.session_id " (any 7 text) ")
        and (r.expires_at is null or r.expires_at > " (now 1) ")
        and ($9 or not t.user_id " (any 8 text) " or exists (select 1 from inbox o where o.tenant = r.tenant
                and o.kind = 'owner' and o.name = t.user_id and o.request_id = r.request_id))
      order by r.request_id"
)
.by_key();

/// Selects the status and the number of items of the requests that an inbox shows. Also selects the
/// tenant's open requests with greater ids than a given id, up to a limit.
const READ_INBOX_STATE: Sql = sql!(
    "select r.request_id, r.status,
            (select count(*) from agent_task_item i where i.request_id = r.request_id) as items, true as shown
       from intervention_request r where r.request_id " (any 2 uuid) " and r.tenant = $1
     union all
     select * from (select r.request_id, r.status, 0 as items, false as shown
       from intervention_request r where r.tenant = $1 and r.status = 'pending' and r.request_id > $3
      order by r.request_id limit $4) n"
);

/// Finds the requests that a person has answered, newest first. Searches under each stored spelling
/// of the person's id.
///
/// The two texts differ because `SQLite` has no lateral join. So on `SQLite` the statement runs
/// once for each spelling.
const ANSWERED: Sql = Sql {
    postgres: "
select distinct x.request_id
  from unnest($2::text[]) as p (user_id)
 cross join lateral (select distinct d.request_id from decision d
      where d.tenant = $1 and d.user_id = p.user_id and d.request_id < $3
      order by d.request_id desc limit $4) x
 order by x.request_id desc limit $4",
    sqlite: "
select distinct request_id from decision where tenant = $1 and user_id = $2 and request_id < $3
 order by request_id desc limit $4",
    by_key: true,
};

/// Finds the requests (in any status) that a person may decide, newest first. Each of them has a
/// row in `request_approver` under one of the person's keys (see `Store::keys`).
///
/// The two texts differ for the same reason as the texts of `ANSWERED`.
const OF_KEYS: Sql = Sql {
    postgres: "
select distinct x.request_id
  from unnest($2::text[], $3::text[]) as p (kind, name)
 cross join lateral (select a.request_id from request_approver a
      where a.tenant = $1 and a.kind = p.kind and a.name = p.name and a.request_id < $4
      order by a.request_id desc limit $5) x
 order by x.request_id desc limit $5",
    sqlite: "
select request_id from request_approver where tenant = $1 and kind = $2 and name = $3 and request_id < $4
 order by request_id desc limit $5",
    by_key: true,
};

const DECIDED: Sql = sql!(
    "select r.request_id from intervention_request r
      where r.tenant = $1 and r.status in ('responded', 'resumed') and r.request_id < $2
      order by r.request_id desc limit $3"
);

pub(super) const STATEMENTS: &[Sql] = &[OPEN, READ_INBOX_STATE, ANSWERED, OF_KEYS, DECIDED];

record! {
    struct Id {
        request_id: Uuid,
    }
}

record! {
    struct OpenRecord {
        request_id: Uuid,
        expires_at: Option<i64>,
        items: i64,
        answered: bool,
    }
}

record! {
    struct InboxStateRecord {
        request_id: Uuid,
        status: String,
        items: i64,
        shown: bool,
    }
}

/// An open request of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// The request's id. A newer request has a greater id.
    pub id: RequestId,
    /// The request's deadline; `None` if the request does not expire.
    pub expires_at: Option<Time>,
    /// The number of answers so far.
    pub answers: usize,
}

struct OpenList<'f>(RequestList<'f>);

impl IdsFirst for OpenList<'_> {
    type Row = OpenRequest;

    fn may_filter(&self) -> bool {
        self.0.may_filter()
    }

    async fn ids(&self, store: &Store, after: Uuid, limit: i64) -> Result<Vec<Uuid>, ReadError> {
        self.0.ids(store, after, limit).await
    }

    async fn matching(
        &self,
        store: &Store,
        ids: Vec<Uuid>,
        limit: i64,
    ) -> Result<Page<OpenRequest>, ReadError> {
        let open = store.open_among(self.0.filter, ids).await?;
        let found = i64::try_from(open.len()).unwrap_or(i64::MAX);
        Ok(Page::cut(open, found, limit))
    }
}

/// The result of [`Store::inbox_state`]: which requests of an inbox are still open, and which are
/// new.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboxState {
    /// The shown requests that are still open, each with its number of answers.
    pub open: BTreeMap<RequestId, usize>,
    /// The open requests with ids greater than `after` that the inbox does not show, the oldest
    /// first.
    pub new: Vec<RequestId>,
    /// Whether more open requests follow those in `new`.
    pub more: bool,
}

impl Store {
    /// Reads one page of the open requests that the filter's person may decide and has not
    /// answered, oldest first. The filter's kinds, agents and sessions apply, too. Each page looks
    /// at a limited number of requests, so it may have fewer than the filter's `limit` although
    /// more follow.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn open_requests(
        &self,
        filter: &RequestFilter,
    ) -> Result<Page<OpenRequest>, ReadError> {
        let source = self.source(filter).await?;
        let after = filter.after.map_or(Uuid::nil(), |id| id.0);
        let list = OpenList(RequestList { filter, source });
        list.page(self, filter.limit, after).await
    }

    /// Returns the requests among `ids` that the filter's person can still answer.
    async fn open_among(
        &self,
        filter: &RequestFilter,
        ids: Vec<Uuid>,
    ) -> Result<Vec<OpenRequest>, ReadError> {
        let person = filter.person.clone().unwrap_or_default();
        let users = std::slice::from_ref(&person.user_id);
        let spellings = self.spellings(&filter.tenant, users).await?;
        let tenant = Value::Text(filter.tenant.clone());
        let mut values = vec![Value::Now, Value::Ids(ids), tenant];
        values.extend(filter.values());
        values.extend([
            Value::Texts(spellings),
            Value::Bool(person.decides_everything),
        ]);
        let found: Vec<OpenRecord> = self.db().all(OPEN, values).await?;
        // A person who has answered some calls of a request may still answer its other calls. The
        // request itself must be read to find out.
        let answered = found.iter().filter(|record| record.answered);
        let answered: Vec<_> = answered
            .map(|record| RequestId(record.request_id))
            .collect();
        let rows = self.requests_by_id(&filter.tenant, &answered).await?;
        let is_still_open = |id: RequestId| {
            let row = rows.iter().find(|row| row.spec.request_id == id);
            row.is_some_and(|row| row.state().open_calls(&person.user_id).next().is_some())
        };
        let open = found.into_iter().map(|record| {
            let request = OpenRequest {
                id: RequestId(record.request_id),
                expires_at: record.expires_at.map(Time),
                answers: answers(record.items),
            };
            (request, record.answered)
        });
        Ok(open
            .filter(|(request, answered)| !answered || is_still_open(request.id))
            .map(|(request, _)| request)
            .collect())
    }

    /// Reads requests by their ids, in any status, in the order of the ids. Leaves out unknown ids.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn requests_by_id(
        &self,
        tenant: &str,
        ids: &[RequestId],
    ) -> Result<Vec<RequestRow>, ReadError> {
        let filter = RequestFilter {
            tenant: tenant.to_owned(),
            overdue: true,
            ..RequestFilter::default()
        };
        let list = RequestList {
            filter: &filter,
            source: Source::Open,
        };
        let mut unread: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        unread.sort_unstable();
        let mut rows = Vec::new();
        while !unread.is_empty() {
            let limit = i64::try_from(unread.len()).unwrap_or(i64::MAX);
            let page = list.matching(self, unread.clone(), limit).await?;
            let read_to = page.rows.last().map(|row| row.spec.request_id.0);
            rows.extend(page.rows);
            match read_to.filter(|_| page.more) {
                Some(read_to) => unread.retain(|id| *id > read_to),
                None => break,
            }
        }
        Ok(rows)
    }

    /// Returns the ids of requests that a person has answered and that are older than `before`: at
    /// most `limit` ids, the newest first. With `all`, also returns requests that the person can
    /// decide or could have decided; some of these may still be open.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn decided_requests(
        &self,
        tenant: &str,
        person: &Viewer,
        all: bool,
        before: Option<RequestId>,
        limit: i64,
    ) -> Result<Vec<RequestId>, ReadError> {
        let before = Value::Id(before.map_or(Uuid::max(), |id| id.0));
        let tenant_value = Value::Text(tenant.to_owned());
        let end = [before, Value::Int(limit)];
        let users = std::slice::from_ref(&person.user_id);
        let spellings = self.spellings(tenant, users).await?;
        let answered: Vec<[String; 1]> = spellings.into_iter().map(|name| [name]).collect();
        let mut ids = self
            .ids_by_keys(ANSWERED, &tenant_value, &answered, &end)
            .await?;
        if all && person.decides_everything {
            let values = [tenant_value].into_iter().chain(end).collect();
            ids.append(&mut self.db().all(DECIDED, values).await?);
        } else if all {
            let keys = self.keys(tenant, person).await?.into_iter();
            let keys: Vec<[String; 2]> = keys.map(|(kind, name)| [kind.to_owned(), name]).collect();
            ids.append(
                &mut self
                    .ids_by_keys(OF_KEYS, &tenant_value, &keys, &end)
                    .await?,
            );
        }
        let mut ids: Vec<RequestId> = ids.into_iter().map(|id| RequestId(id.request_id)).collect();
        ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        ids.dedup();
        ids.truncate(usize::try_from(limit).unwrap_or(0));
        Ok(ids)
    }

    /// Runs a statement that finds ids by keys: once with all keys on Postgres, and once for each
    /// key on `SQLite`.
    async fn ids_by_keys<const N: usize>(
        &self,
        sql: Sql,
        tenant: &Value,
        keys: &[[String; N]],
        end: &[Value],
    ) -> Result<Vec<Id>, ReadError> {
        let with_key = |key: [Value; N]| -> Vec<Value> {
            let values = [tenant.clone()].into_iter().chain(key);
            values.chain(end.iter().cloned()).collect()
        };
        if matches!(self.db().engine, Engine::Postgres { .. }) {
            let column = |place: usize| {
                let names = keys.iter().filter_map(|key| key.get(place).cloned());
                Value::Texts(names.collect())
            };
            let values = with_key(std::array::from_fn(column));
            return Ok(self.db().all(sql, values).await?);
        }
        let mut ids = Vec::new();
        for key in keys {
            let values = with_key(key.clone().map(Value::Text));
            ids.append(&mut self.db().all(sql, values).await?);
        }
        Ok(ids)
    }

    /// Reads, in one statement, which of the `shown` requests are still open, and the tenant's
    /// other open requests with ids greater than `after`.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn inbox_state(
        &self,
        tenant: &str,
        shown: &[RequestId],
        after: RequestId,
    ) -> Result<InboxState, ReadError> {
        let values = vec![
            Value::Text(tenant.to_owned()),
            Value::Ids(shown.iter().map(|id| id.0).collect()),
            Value::Id(after.0),
            Value::Int(MAX_NEW_REQUESTS),
        ];
        let found: Vec<InboxStateRecord> = self.db().all(READ_INBOX_STATE, values).await?;
        let mut state = InboxState::default();
        for record in found {
            let id = RequestId(record.request_id);
            if !record.shown {
                state.new.push(id);
            } else if record.status == "pending" {
                state.open.insert(id, answers(record.items));
            }
        }
        state.more = i64::try_from(state.new.len()).is_ok_and(|count| count >= MAX_NEW_REQUESTS);
        state.new.retain(|id| !state.open.contains_key(id));
        Ok(state)
    }
}

/// Returns the number of answers to an open request. `items` is the number of journal items about
/// the request: one that opened it, and one for each answer.
fn answers(items: i64) -> usize {
    usize::try_from(items - 1).unwrap_or(0)
}
