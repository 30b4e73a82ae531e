//! Reads requests. One statement reads a request's row, the question as it was asked, and the
//! decisions so far.

use std::slice;

use uuid::Uuid;

use super::db::{Sql, Value, sql, values};
use super::record::{AnyRow, record};
use super::tasks::{corrupt, fact, names};
use super::{ReadError, RequestFilter, RequestRow, Store};
use crate::task::id::{RequestId, TaskId};
use crate::task::item::Fact;
use crate::task::status::RequestStatus;
use crate::task::time::Time;
use crate::task::user::Viewer;

const REQUEST: Sql = sql!(
    "select " (request) ", " (now 2) " as moment
       from intervention_request r join agent_task t on t.task_id = r.task_id
       join agent_task_item i on " (of_request) "
      where r.request_id = $1 order by i.seq"
)
.by_key();

const PENDING: Sql = sql!(
    "with recursive below (task_id) as (
        select task_id from agent_task where task_id = $2
        union all
        select c.task_id from below b join agent_task c on c.parent_task_id = b.task_id
         where c.root_task_id = $1 and c.parent_task_id is not null
     )
     select " (request) ", " (now 3) " as moment
       from intervention_request r join below b on b.task_id = r.task_id
       join agent_task t on t.task_id = r.task_id join agent_task_item i on " (of_request) "
       join agent_task_item q on q.task_id = r.task_id and q.seq = r.seq
      where r.root_task_id = $1 and r.status = 'pending' order by q.event_number, i.seq"
);

/// Selects the open requests of a whole tree. Finds the rows by `root_task_id`, so it need not
/// search for descendants. Postgres also has a partial index on open requests, with the requests of
/// all trees. `coalesce` keeps the planner from using that index.
const PENDING_OF_ROOT: Sql = sql!(
    "select " (request) ", " (now 2) " as moment
       from intervention_request r join agent_task t on t.task_id = r.task_id
       join agent_task_item i on " (of_request) "
       join agent_task_item q on q.task_id = r.task_id and q.seq = r.seq
      where r.root_task_id = $1 and coalesce(r.status, '') = 'pending' order by q.event_number, i.seq"
)
.by_key();

/// Like `PENDING_OF_ROOT`, for several whole trees.
const PENDING_OF_ROOTS: Sql = sql!(
    "select " (request) ", " (now 2) " as moment
       from intervention_request r join agent_task t on t.task_id = r.task_id
       join agent_task_item i on " (of_request) "
       join agent_task_item q on q.task_id = r.task_id and q.seq = r.seq
      where r.root_task_id " (any 1 uuid) " and coalesce(r.status, '') = 'pending'
      order by r.root_task_id, q.event_number, i.seq"
);

/// Like `PENDING_OF_ROOTS`, but without the items of the requests.
const PENDING_IDS_OF_ROOTS: Sql = sql!(
    "select r.request_id from intervention_request r
      where r.root_task_id " (any 1 uuid) " and coalesce(r.status, '') = 'pending'"
);

const OVERDUE: Sql = sql!(
    "select r.request_id, r.task_id from intervention_request r
      where r.status = 'pending' and r.expires_at is not null and r.expires_at <= " (now 1) "
      order by r.expires_at limit $2 offset $3"
);

const FIND_INVOLVED: Sql = sql!(
    "select r.request_id from intervention_request r join agent_task t on t.task_id = r.root_task_id
      where r.root_task_id = $1 and ($2
        or exists (select 1 from request_approver a where a.tenant = r.tenant and a.request_id = r.request_id
             and ((a.kind = 'owner' and a.name " (any 3 text) ")
                 -- An owner may decide only if a row of the kind `owner` exists.
                 or (a.kind = 'user' and a.name " (any 3 text) " and not t.user_id " (any 3 text) ")
                 or (a.kind = 'group' and a.name " (any 4 text) " and not t.user_id " (any 3 text) ")))
        or exists (select 1 from decision d
             where d.tenant = r.tenant and d.user_id " (any 3 text) " and d.request_id = r.request_id))
      limit 1"
);

pub(super) const STATEMENTS: &[Sql] = &[
    REQUEST,
    PENDING,
    PENDING_OF_ROOT,
    PENDING_OF_ROOTS,
    PENDING_IDS_OF_ROOTS,
    OVERDUE,
    FIND_INVOLVED,
];

/// The page size with which [`Store::pending_of`] reads the requests again if a request cannot be
/// decoded.
const READABLE_PER_READ: i64 = 200;

record! {
    /// One item of a request, together with the request's row.
    pub(super) struct RequestRecord {
        request_id: Uuid,
        task_id: Uuid,
        root_task_id: Uuid,
        tenant: String,
        owner: String,
        session_id: String,
        agent_path: String,
        status: String,
        created_at: i64,
        expires_at: Option<i64>,
        asked_seq: i64,
        seq: i64,
        at: i64,
        pub(super) body: String,
        moment: i64,
        doubted_at: Option<i64>,
    }
}

/// Assembles requests from records, in the order of the records. The records of one request must be
/// contiguous.
pub(super) fn assemble_requests(records: Vec<RequestRecord>) -> Result<Vec<RequestRow>, ReadError> {
    let mut all: Vec<RequestRow> = Vec::new();
    let mut answers = Vec::new();
    let mut open = None;
    for record in records {
        let item = fact(&record.body)?;
        if let Fact::Decision {
            request_id,
            decision,
        } = item
        {
            answers.push((request_id, Time(record.at), decision));
            continue;
        }
        let Fact::InterventionRequested(spec) = item else {
            continue;
        };
        if record.seq != record.asked_seq || open == Some(record.request_id) {
            return Err(corrupt("a request that was asked twice"));
        }
        open = Some(record.request_id);
        let status =
            RequestStatus::parse(&record.status).ok_or_else(|| corrupt("a request's status"))?;
        let row = RequestRow {
            spec,
            asked_seq: record.asked_seq,
            task_id: TaskId(record.task_id),
            root_task_id: TaskId(record.root_task_id),
            tenant: record.tenant,
            owner: record.owner,
            session_id: record.session_id,
            agent_path: names(&record.agent_path)?,
            status,
            created_at: Time(record.created_at),
            expires_at: record.expires_at.map(Time),
            expired: false,
            history_uncertain: false,
            answers: Vec::new(),
        };
        all.push(row.read_at(Time(record.moment), record.doubted_at.map(Time)));
    }
    for (id, at, decision) in answers {
        let row = all.iter_mut().find(|row| row.spec.request_id == id);
        row.ok_or_else(|| corrupt("an answer without its request"))?
            .answers
            .push((at, decision));
    }
    Ok(all)
}

impl Store {
    async fn read_requests(
        &self,
        sql: Sql,
        values: Vec<Value>,
    ) -> Result<Vec<RequestRow>, ReadError> {
        self.decode_requests(self.db().all(sql, values).await?)
    }

    pub(super) fn decode_requests(
        &self,
        records: Vec<RequestRecord>,
    ) -> Result<Vec<RequestRow>, ReadError> {
        for record in records.iter().filter(|record| fact(&record.body).is_err()) {
            self.report_unreadable(TaskId(record.task_id));
        }
        assemble_requests(records)
    }

    /// Reads a request by its id; `None` if there is no such request.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn request(&self, id: RequestId) -> Result<Option<RequestRow>, ReadError> {
        let values = values![id, Value::Now];
        let rows = self.read_requests(REQUEST, values).await?;
        Ok(rows.into_iter().next())
    }

    /// Reads the open requests of a task and its descendants, in the order in which the requests
    /// were opened.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn pending(&self, root: TaskId, task: TaskId) -> Result<Vec<RequestRow>, ReadError> {
        if root == task {
            let values = values![root, Value::Now];
            return self.read_requests(PENDING_OF_ROOT, values).await;
        }
        let values = values![root, task, Value::Now];
        self.read_requests(PENDING, values).await
    }

    /// Reads the open requests of whole trees of a tenant, tree by tree. The requests of a tree are
    /// in the order in which they were opened. If any of these requests cannot be decoded, reads
    /// them again, page by page. The result then leaves out each request that cannot be decoded,
    /// and has the others in the order of their ids.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn pending_of(
        &self,
        tenant: &str,
        roots: &[TaskId],
    ) -> Result<Vec<RequestRow>, ReadError> {
        let values = values![roots, Value::Now];
        let read = self.read_requests(PENDING_OF_ROOTS, values).await;
        if !matches!(read, Err(ReadError::Corrupt(_))) {
            return read;
        }
        let mut filter = RequestFilter {
            tenant: tenant.to_owned(),
            roots: roots.to_vec(),
            statuses: vec![RequestStatus::Pending],
            overdue: true,
            limit: READABLE_PER_READ,
            ..RequestFilter::default()
        };
        let mut rows = Vec::new();
        loop {
            let page = self.requests(&filter).await?;
            let next = page.next(|row| row.spec.request_id.0);
            rows.extend(page);
            match next {
                Some(next) => filter.after = Some(RequestId(next)),
                None => return Ok(rows),
            }
        }
    }

    /// Returns the ids of the open requests of whole trees, in any order.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn pending_ids_of(&self, roots: &[TaskId]) -> Result<Vec<RequestId>, ReadError> {
        Ok(self.db().all(PENDING_IDS_OF_ROOTS, values![roots]).await?)
    }

    /// Whether a person may decide, or has decided, a request of a tree. The table
    /// `request_approver` says who may decide. The table `decision` says who has decided.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn is_involved(
        &self,
        tenant: &str,
        root: TaskId,
        person: &Viewer,
    ) -> Result<bool, ReadError> {
        let user = slice::from_ref(&person.user_id);
        let values = values![
            root,
            person.decides_everything,
            self.spellings(tenant, user).await?,
            person.groups.as_slice(),
        ];
        let found: Option<AnyRow> = self.db().one(FIND_INVOLVED, values).await?;
        Ok(found.is_some())
    }

    /// Reads open requests whose deadline has passed, by the database's clock, each with its task.
    /// The request with the earliest deadline comes first. Leaves out the first `skipped` of these
    /// requests, and returns at most `limit`. Does not read the content of the requests, so that a
    /// request with unreadable content does not delay the others.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn overdue(
        &self,
        skipped: usize,
        limit: usize,
    ) -> Result<Vec<(RequestId, TaskId)>, ReadError> {
        let count = |count: usize| Value::Int(i64::try_from(count).unwrap_or(i64::MAX));
        let values = values![Value::Now, count(limit), count(skipped)];
        Ok(self.db().all(OVERDUE, values).await?)
    }
}
