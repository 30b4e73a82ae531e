//! Lists the open requests that wait for a person. The first statement searches ranges of an index
//! for candidates, which are open requests that may wait for the person. For most candidates, the
//! index also has the columns that show whether the request waits for the person. For all other
//! candidates, a second statement (`OPEN`) reads the request itself.

use uuid::Uuid;

use super::db::{Sql, Value, sql, values};
use super::inbox::answers;
use super::page::{IdsFirst, Page};
use super::record::record;
use super::request_list::{OWNER, RequestSelection, RequestSource};
use super::{ReadError, RequestFilter, RequestRow, Store};
use crate::task::id::RequestId;
use crate::task::time::Time;

/// Finds the open requests that a person may decide. Each of them has a row in `inbox` under one of
/// the person's keys (see `Store::keys`). Parameter 6 has the spellings of the person's id.
///
/// If the first answer closes the request, `known` is true, and `waits` says whether the request
/// waits for the person. If the request may need several answers, `known` is false and `waits` has
/// no meaning, because the person may already have answered. [`OPEN`] then checks the request
/// itself.
///
/// A request past its deadline waits for no person. If the task is the person's own, the request
/// waits for the person only if it names the owner as an approver.
///
/// The texts for Postgres and `SQLite` differ because `SQLite` has no lateral join. So on `SQLite`
/// the statement runs once for each key.
const OF_KEYS: Sql = Sql {
    postgres: sql!(
        "select x.request_id, min(x.expires_at) as expires_at, bool_and(x.known) as known, bool_or(x.waits) as waits
           from unnest($4::text[], $5::text[]) as p (kind, name)
          cross join lateral (
             select i.request_id, i.expires_at, coalesce(i.one_answer, false) as known,
                    (i.expires_at is null or i.expires_at > " (now 1) ")
                    and (i.kind = 'owner' or coalesce(not i.owner " (any 6 text) ", false)) as waits
               from inbox i
              where i.tenant = $2 and i.kind = p.kind and i.name = p.name and i.request_id > $3
              order by i.request_id limit $7) x
          group by x.request_id order by x.request_id limit $7"
    )
    .postgres,
    sqlite: sql!(
        "select request_id, expires_at, coalesce(one_answer, false) as known,
                (expires_at is null or expires_at > " (now 1) ")
                and (kind = 'owner' or coalesce(not owner " (any 6 text) ", false)) as waits
           from inbox where tenant = $2 and kind = $4 and name = $5 and request_id > $3
          order by request_id limit $7"
    )
    .sqlite,
    by_key: true,
};

/// Finds all open requests of the tenant, with the same columns as [`OF_KEYS`], for a person who
/// may decide all of them.
const OF_TENANT: Sql = sql!(
    "select r.request_id, r.expires_at, coalesce(r.one_answer, false) as known,
            (r.expires_at is null or r.expires_at > " (now 1) ") as waits
       from intervention_request r
      where r.tenant = $2 and r.status = 'pending' and r.request_id > $3 order by r.request_id limit $4"
)
.by_key();

/// Selects, among the given ids, the requests that match the filter and are not past their
/// deadline. Leaves out a request of the person's own task, except in two cases:
/// - The request names the owner as an approver: it has a row of the kind `owner` in `inbox`.
/// - The person may decide every request (`$9`).
///
/// `answered` says whether the person has answered the request, at least in part.
const OPEN: Sql = sql!(
    "select r.request_id, r.expires_at,
            (select count(*) from agent_task_item i where " (of_request) ") as items,
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

pub(super) const STATEMENTS: &[Sql] = &[OF_KEYS, OF_TENANT, OPEN];

record! {
    #[derive(Clone, Copy)]
    struct Candidate {
        request_id: Uuid,
        expires_at: Option<i64>,
        known: bool,
        waits: bool,
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

impl Candidate {
    /// Returns a candidate with `known` false, so that [`OPEN`] reads the request itself.
    const fn unknown(request_id: Uuid) -> Self {
        Self {
            request_id,
            expires_at: None,
            known: false,
            waits: false,
        }
    }

    /// Returns the open request if the index alone shows that it waits for the person; otherwise
    /// `None`. The first answer closes such a request (`known`), so it has no answers yet.
    fn request(self) -> Option<OpenRequest> {
        (self.known && self.waits).then_some(OpenRequest {
            id: RequestId(self.request_id),
            expires_at: self.expires_at.map(Time),
            answers: 0,
        })
    }
}

impl From<Candidate> for Uuid {
    fn from(candidate: Candidate) -> Self {
        candidate.request_id
    }
}

struct OpenList<'f>(RequestSelection<'f>);

impl IdsFirst for OpenList<'_> {
    type Row = OpenRequest;
    type Id = Candidate;

    fn is_inexact(&self) -> bool {
        self.0.is_inexact()
    }

    async fn ids(
        &self,
        store: &Store,
        after: Uuid,
        limit: i64,
    ) -> Result<Vec<Candidate>, ReadError> {
        let RequestSelection { filter, source } = &self.0;
        let tenant = &filter.tenant;
        match source {
            RequestSource::Keys(_, keys) if filter.any_kind() => {
                let head = [Value::Now, tenant.into(), after.into()];
                store.candidates_of_keys(&head, keys, limit).await
            }
            RequestSource::Open if filter.any_kind() => {
                let values = values![Value::Now, tenant, after, limit];
                Ok(store.db().all(OF_TENANT, values).await?)
            }
            RequestSource::Keys(..)
            | RequestSource::Open
            | RequestSource::Tenant
            | RequestSource::Trees => {
                let ids = self.0.ids(store, after, limit).await?;
                Ok(ids.into_iter().map(Candidate::unknown).collect())
            }
        }
    }

    async fn matching(
        &self,
        store: &Store,
        candidates: Vec<Candidate>,
        limit: i64,
    ) -> Result<Page<OpenRequest>, ReadError> {
        let unknown = candidates.iter().filter(|candidate| !candidate.known);
        let unknown: Vec<Uuid> = unknown.map(|candidate| candidate.request_id).collect();
        let mut open: Vec<_> = candidates
            .into_iter()
            .filter_map(Candidate::request)
            .collect();
        if !unknown.is_empty() {
            open.append(&mut store.open_among(self.0.filter, unknown).await?);
            open.sort_unstable_by_key(|request| request.id);
        }
        let found = i64::try_from(open.len()).unwrap_or(i64::MAX);
        Ok(Page::cut(open, found, limit))
    }
}

impl Store {
    /// Reads one page of the open requests that the filter's person can still answer, oldest first.
    /// Leaves out requests that cannot be decoded. The filter must select the status `Pending`
    /// alone. Each page looks at a limited number of requests, so it may have fewer than the
    /// filter's `limit` although more follow.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a value other than a request cannot be
    /// decoded.
    pub async fn open_requests(
        &self,
        filter: &RequestFilter,
    ) -> Result<Page<OpenRequest>, ReadError> {
        let source = self.source(filter).await?;
        let after = filter.after.map_or(Uuid::nil(), |id| id.0);
        let list = OpenList(RequestSelection { filter, source });
        list.page(self, filter.limit, after).await
    }

    /// Finds at most `limit` open requests that have a row in `inbox` under one of `keys` (see
    /// `Store::keys`), in the order of their ids. `head` has the first three parameters of
    /// [`OF_KEYS`].
    async fn candidates_of_keys(
        &self,
        head: &[Value],
        keys: &[[String; 2]],
        limit: i64,
    ) -> Result<Vec<Candidate>, ReadError> {
        let owners = keys.iter().filter(|[kind, _]| kind == OWNER);
        let spellings = Value::Texts(owners.map(|[_, name]| name.clone()).collect());
        let end = [spellings, Value::Int(limit)];
        let mut found: Vec<Candidate> = self.by_keys(OF_KEYS, head, keys, &end).await?;
        // A request under several keys, such as two groups of the person, is several candidates.
        // The candidates whose `waits` is true come first, and `dedup_by_key` keeps the first.
        found.sort_unstable_by_key(|candidate| (candidate.request_id, !candidate.waits));
        found.dedup_by_key(|candidate| candidate.request_id);
        found.truncate(usize::try_from(limit).unwrap_or(0));
        Ok(found)
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
        let mut values = values![Value::Now, ids, &filter.tenant];
        values.extend(filter.values());
        values.extend([
            Value::Texts(spellings),
            Value::Bool(person.decides_everything),
        ]);
        let found: Vec<OpenRecord> = self.db().all(OPEN, values).await?;
        // A person who has answered some calls of a request may still answer its other calls. To
        // find out, the rows and items of such requests are read as well.
        let answered = found.iter().filter(|record| record.answered);
        let answered: Vec<_> = answered
            .map(|record| RequestId(record.request_id))
            .collect();
        let id_if_open = |row: RequestRow| {
            let is_open = row.state().open_calls(&person.user_id).next().is_some();
            is_open.then_some(row.spec.request_id.0)
        };
        let still_open = self.filter_map_requests(&filter.tenant, &answered, id_if_open);
        let still_open = still_open.await?;
        let open = found
            .iter()
            .filter(|record| !record.answered || still_open.contains(&record.request_id));
        let open = open.map(|record| OpenRequest {
            id: RequestId(record.request_id),
            expires_at: record.expires_at.map(Time),
            answers: answers(record.items),
        });
        Ok(open.collect())
    }
}
