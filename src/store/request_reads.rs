//! Reads requests with the journals of their tasks. Requests that are read at the same time share
//! statements (see `shared_queue.rs`).

use std::collections::{BTreeMap, HashMap};
use std::iter::repeat_n;
use std::time::Duration;

use tokio::sync::oneshot;
use uuid::Uuid;

use super::db::{DbFailure, Sql, Value, sql, values};
use super::journal::{JournalHead, KeyedItem, journal};
use super::record::record;
use super::shared_queue::SharedQueue;
use super::{ReadError, RequestRow, Store};
use crate::task::change::Journal;
use crate::task::id::RequestId;
use crate::task::status::RequestStatus;
use crate::task::time::Time;

/// The time after which a caller no longer waits for the shared statement, and reads its request
/// alone. The shared statement may read another request's long journal.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// Like `JOURNAL` in `journal.rs`, but finds tasks by their requests, and also returns columns of
/// the requests.
const JOURNALS_OF_REQUESTS: Sql = sql!(
    "select " (task) ", r.request_id as key, i.seq, i.at, i.body, i.event_number, " (now 2) " as moment,
            (select doubted_at from database_identity where id = 1) as doubted_at,
            r.status as request_status, r.seq as asked_seq, r.created_at as asked_at, r.expires_at
       from intervention_request r join agent_task t on t.task_id = r.task_id
       join agent_task_item i on i.task_id = t.task_id
       left join agent_task_item s on s.task_id = t.task_id and s.seq = t.status_seq and i.seq = 1
      where r.request_id " (any 1 uuid) " order by r.request_id, i.seq"
)
.by_key();

pub(super) const STATEMENTS: &[Sql] = &[JOURNALS_OF_REQUESTS];

record! {
    struct RequestHead {
        task: JournalHead => flatten,
        request: RequestColumns => flatten,
    }
}

record! {
    struct RequestColumns {
        request_status: String,
        asked_seq: i64,
        asked_at: i64,
        expires_at: Option<i64>,
    }
}

impl RequestColumns {
    /// Assembles the request from its row and its task's journal. Returns `None` if the row and the
    /// journal disagree.
    fn row(&self, id: RequestId, journal: &Journal) -> Option<RequestRow> {
        let items = journal.items.iter().map(|item| (item.at, item));
        let request = RequestRow::from_journal(&journal.row, items, id)?;
        let request = RequestRow {
            status: RequestStatus::parse(&self.request_status)?,
            created_at: Time(self.asked_at),
            expires_at: self.expires_at.map(Time),
            ..request
        };
        let request = request.read_at(journal.now, journal.history_uncertain_until);
        (request.asked_seq == self.asked_seq).then_some(request)
    }
}

impl RequestHead {
    /// Assembles a request and its task's journal. Returns `None` if the journal cannot be decoded
    /// or disagrees with the request's row.
    fn read(self, id: RequestId, items: &[KeyedItem]) -> Option<(RequestRow, Option<Journal>)> {
        let journal = journal(self.task, items).ok()?;
        let row = self.request.row(id, &journal)?;
        Some((row, Some(journal)))
    }
}

/// A request with its task's journal; `None` if there is no such request. The journal is `None` if
/// it cannot be decoded or disagrees with the request's row.
type RequestRead = Option<(RequestRow, Option<Journal>)>;

/// The requests that one statement reads, each with the callers that asked for it.
type Batch = BTreeMap<RequestId, Vec<oneshot::Sender<RequestRead>>>;

/// The requests that wait to be read.
pub(super) type RequestQueue = SharedQueue<RequestId, RequestRead>;

fn take(queue: &RequestQueue) -> Batch {
    let mut batch = Batch::new();
    for (id, reply) in queue.take(|_| 1) {
        batch.entry(id).or_default().push(reply);
    }
    batch
}

impl Store {
    /// Reads a request with the journal of its task, in one snapshot; `None` if there is no such
    /// request. The journal is `None` if it cannot be decoded or disagrees with the request's row.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the request itself cannot be decoded.
    pub async fn request_with_journal(&self, id: RequestId) -> Result<RequestRead, ReadError> {
        let queue = &self.inner.request_queue;
        let shared = queue.share(self, id, MAX_WAIT, Self::read_waiting);
        match shared.await {
            Some(read) => Ok(read),
            None => self.read_alone(id).await,
        }
    }

    /// Reads the requests in the queue, batch after batch, until the queue is empty.
    async fn read_waiting(self) {
        loop {
            let batch = take(&self.inner.request_queue);
            if batch.is_empty() {
                return;
            }
            self.read_batch(batch).await;
        }
    }

    /// Reads requests by one statement. If the statement fails, drops all replies. If the journal
    /// of a request cannot be decoded, drops the replies about this request.
    async fn read_batch(&self, batch: Batch) {
        let ids = batch.keys().map(|id| id.0).collect();
        let read = self.journals_of_requests(ids);
        let Some(Ok(mut found)) = self.inner.stop.run_until_cancelled(read).await else {
            return;
        };
        for (id, replies) in batch {
            let read = match found.remove(&id.0) {
                None => None,
                Some((head, items)) => match head.read(id, &items) {
                    None => continue,
                    read => read,
                },
            };
            let reads = repeat_n(read, replies.len());
            for (reply, read) in replies.into_iter().zip(reads) {
                // The send fails if the caller no longer waits: it may read the request alone by
                // now.
                let _ = reply.send(read);
            }
        }
    }

    /// Reads a request by a statement of its own.
    async fn read_alone(&self, id: RequestId) -> Result<RequestRead, ReadError> {
        let found = self.journals_of_requests(vec![id.0]).await;
        match found.map_err(ReadError::from) {
            Ok(mut found) => {
                let Some((head, items)) = found.remove(&id.0) else {
                    return Ok(None);
                };
                if let Some(read) = head.read(id, &items) {
                    return Ok(Some(read));
                }
            }
            Err(ReadError::Corrupt(_)) => {}
            Err(ReadError::Unavailable) => return Err(ReadError::Unavailable),
        }
        Ok(self.request(id).await?.map(|row| (row, None)))
    }

    async fn journals_of_requests(
        &self,
        ids: Vec<Uuid>,
    ) -> Result<HashMap<Uuid, (RequestHead, Vec<KeyedItem>)>, DbFailure> {
        let values = values![ids, Value::Now];
        let groups: Vec<(RequestHead, Vec<KeyedItem>)> =
            self.db().groups(JOURNALS_OF_REQUESTS, values).await?;
        let keyed = groups.into_iter().filter_map(|(head, items)| {
            let key = items.first()?.key;
            Some((key, (head, items)))
        });
        Ok(keyed.collect())
    }
}

#[cfg(test)]
mod tests;
