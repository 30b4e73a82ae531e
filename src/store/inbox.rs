//! Reads the requests that a person has decided, and finds out which requests have changed since an
//! inbox was shown.

use std::collections::BTreeMap;
use std::slice::from_ref;

use uuid::Uuid;

use super::db::{Sql, Value, sql, values};
use super::page::IdsFirst as _;
use super::record::record;
use super::request_list::{RequestSelection, RequestSource};
use super::{ReadError, RequestFilter, RequestRow, Store};
use crate::task::id::RequestId;
use crate::task::user::Viewer;

const MAX_NEW_REQUESTS: i64 = 1000;

/// Selects the status and the number of items of the requests that an inbox shows. Also selects the
/// tenant's open requests with greater ids than a given id, up to a limit.
const READ_INBOX_STATE: Sql = sql!(
    "select r.request_id, r.status,
            (select count(*) from agent_task_item i where " (of_request) ") as items, true as shown
       from intervention_request r where r.request_id " (any 2 uuid) " and r.tenant = $1
     union all
     select * from (select r.request_id, r.status, 0 as items, false as shown
       from intervention_request r where r.tenant = $1 and r.status = 'pending' and r.request_id > $3
      order by r.request_id limit $4) n"
);

/// Finds the requests that a person has answered, newest first. Searches under each stored spelling
/// of the person's id.
///
/// The texts for Postgres and `SQLite` differ because `SQLite` has no lateral join. So on `SQLite`
/// the statement runs once for each spelling.
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
/// The texts for Postgres and `SQLite` differ because `SQLite` has no lateral join.
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

/// Finds the requests with a final answer, newest first. The index `decision_final` has only final
/// answers, so the statement does not read approvals that needed a further approval.
///
/// The text for `SQLite` has the sign `+` before `d.tenant`, so that `SQLite` uses no index for the
/// tenant. Without the sign, `SQLite` would search the primary key by the tenant, read all answers
/// of the tenant and sort them.
const DECIDED: Sql = Sql {
    postgres: "
select distinct d.request_id from decision d where d.final and d.tenant = $1 and d.request_id < $2
 order by d.request_id desc limit $3",
    sqlite: "
select distinct d.request_id from decision d where d.final and +d.tenant = $1 and d.request_id < $2
 order by d.request_id desc limit $3",
    by_key: false,
};

pub(super) const STATEMENTS: &[Sql] = &[READ_INBOX_STATE, ANSWERED, OF_KEYS, DECIDED];

record! {
    struct InboxStateRecord {
        request_id: Uuid,
        status: String,
        items: i64,
        shown: bool,
    }
}

/// The result of [`Store::inbox_state`]: the shown requests that are still open, and the open
/// requests that are not shown yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboxState {
    /// The shown requests that are still open, each with its number of answers.
    pub open: BTreeMap<RequestId, usize>,
    /// The open requests that are not among the shown requests, the oldest first. Their ids are
    /// greater than the argument `after` of [`Store::inbox_state`].
    pub new: Vec<RequestId>,
    /// The last id that the read looked at, if the read ended at its limit. The next read continues
    /// after this id, because more open requests may follow. `None` if the read looked at all
    /// requests.
    pub more_after: Option<RequestId>,
}

impl Store {
    /// Reads requests by their ids, in any status, in the order of the ids. Leaves out unknown ids,
    /// and requests that cannot be decoded.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`] when the database does not answer.
    pub async fn requests_by_id(
        &self,
        tenant: &str,
        ids: &[RequestId],
    ) -> Result<Vec<RequestRow>, ReadError> {
        self.filter_map_requests(tenant, ids, Some).await
    }

    /// Like [`Store::requests_by_id`], but calls `map` with each request, and returns the results
    /// that are not `None`. The requests are read in pages of a few MiB. All requests of a page are
    /// passed to `map` before the next page is read, so that the memory holds only one page besides
    /// the results.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`] when the database does not answer.
    pub async fn filter_map_requests<T: Send>(
        &self,
        tenant: &str,
        ids: &[RequestId],
        mut map: impl FnMut(RequestRow) -> Option<T> + Send,
    ) -> Result<Vec<T>, ReadError> {
        let filter = RequestFilter {
            tenant: tenant.to_owned(),
            overdue: true,
            ..RequestFilter::default()
        };
        let list = RequestSelection {
            filter: &filter,
            source: RequestSource::Open,
        };
        let mut unread: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        unread.sort_unstable();
        let mut results = Vec::new();
        while !unread.is_empty() {
            let limit = i64::try_from(unread.len()).unwrap_or(i64::MAX);
            let page = list.readable(self, unread.clone(), limit).await?;
            let read_to = page.rows.last().map(|row| row.spec.request_id.0);
            results.extend(page.rows.into_iter().filter_map(&mut map));
            match read_to.filter(|_| page.more) {
                Some(read_to) => unread.retain(|id| *id > read_to),
                None => break,
            }
        }
        Ok(results)
    }

    /// Returns the ids of the requests that a person has answered. If `all` is true, adds further
    /// requests:
    /// - for a person who decides everything, the tenant's requests with a final answer;
    /// - for any other person, the requests that the person may decide, whether answered or not.
    ///
    /// Some of the requests may still be open, or have expired, so the caller must check the
    /// status. Returns only ids less than `before`: at most `limit` ids, the newest first.
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
        let head = [Value::Text(tenant.to_owned())];
        let end = [before, Value::Int(limit)];
        let users = from_ref(&person.user_id);
        let spellings = self.spellings(tenant, users).await?;
        let answered: Vec<[String; 1]> = spellings.into_iter().map(|name| [name]).collect();
        let mut ids: Vec<RequestId> = self.by_keys(ANSWERED, &head, &answered, &end).await?;
        if all && person.decides_everything {
            let values = head.into_iter().chain(end).collect();
            ids.append(&mut self.db().all(DECIDED, values).await?);
        } else if all {
            let keys = self.keys(tenant, person).await?;
            ids.append(&mut self.by_keys(OF_KEYS, &head, &keys, &end).await?);
        }
        ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        ids.dedup();
        ids.truncate(usize::try_from(limit).unwrap_or(0));
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
        let values = values![tenant, shown, after, MAX_NEW_REQUESTS];
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
        let more = i64::try_from(state.new.len()).is_ok_and(|count| count >= MAX_NEW_REQUESTS);
        state.more_after = state.new.last().copied().filter(|_| more);
        state.new.retain(|id| !state.open.contains_key(id));
        Ok(state)
    }
}

/// Returns the number of answers to an open request. `items` is the number of journal items about
/// the request: the item that opened the request, and an item for each answer.
pub(super) fn answers(items: i64) -> usize {
    usize::try_from(items - 1).unwrap_or(0)
}
