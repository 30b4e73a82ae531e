//! Reads requests with the journals of their tasks. One statement reads many requests: while a
//! statement is in flight, further requests wait, and the next statement reads the waiting requests
//! together. So the more requests are asked for, the fewer statements a request costs.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;
use uuid::Uuid;

use super::db::{Failure, Sql, Value, sql};
use super::journal::{Head, KeyedItem, journal};
use super::record::record;
use super::{ReadError, RequestRow, Store};
use crate::task::change::Journal;
use crate::task::id::RequestId;
use crate::task::status::RequestStatus;
use crate::task::time::Time;

/// The maximum number of requests that one statement reads.
const MAX_BATCH_REQUESTS: usize = 64;
/// The time after which a request is read by a statement of its own. The shared statement may read
/// a long journal, or wait for a database that does not answer.
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
        task: Head => flatten,
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

/// A request with its task's journal; `None` if there is no such request.
type RequestRead = Option<(RequestRow, Option<Journal>)>;

/// A request that waits. If `reply` is dropped, the caller reads the request alone.
#[derive(Debug)]
struct WaitingRequest {
    id: RequestId,
    reply: oneshot::Sender<RequestRead>,
}

/// The requests that wait to be read.
#[derive(Debug, Default)]
pub(super) struct RequestQueue(Mutex<Requests>);

#[derive(Debug, Default)]
struct Requests {
    waiting: VecDeque<WaitingRequest>,
    /// Whether a [`Reader`] exists. There is one at most.
    has_reader: bool,
}

impl RequestQueue {
    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request. Returns whether the caller must start a [`Reader`].
    fn add(&self, id: RequestId, reply: oneshot::Sender<RequestRead>) -> bool {
        let mut requests = self.lock();
        requests.waiting.push_back(WaitingRequest { id, reply });
        !std::mem::replace(&mut requests.has_reader, true)
    }

    /// Takes the requests for the next statement, in order, and each request once. Leaves out
    /// requests for which no caller waits any longer. If no request is left, the reader ends.
    fn take(&self) -> Vec<WaitingRequest> {
        let mut requests = self.lock();
        let (mut batch, mut later) = (Vec::new(), VecDeque::new());
        let mut ids = HashSet::new();
        while batch.len() < MAX_BATCH_REQUESTS
            && let Some(request) = requests.waiting.pop_front()
        {
            if request.reply.is_closed() {
                continue;
            }
            if ids.insert(request.id) {
                batch.push(request);
            } else {
                later.push_back(request);
            }
        }
        later.append(&mut requests.waiting);
        requests.waiting = later;
        requests.has_reader = !batch.is_empty();
        batch
    }
}

/// Reads the waiting requests, one batch after the other, until none waits.
struct Reader {
    store: Store,
    has_ended: bool,
}

impl Reader {
    async fn run(mut self) {
        loop {
            let batch = self.store.inner.request_queue.take();
            if batch.is_empty() {
                self.has_ended = true;
                return;
            }
            self.store.read_batch(batch).await;
        }
    }
}

impl Drop for Reader {
    /// Lets the next caller start another reader if this reader was dropped together with its
    /// runtime.
    fn drop(&mut self) {
        if !self.has_ended {
            self.store.inner.request_queue.lock().has_reader = false;
        }
    }
}

impl Store {
    /// Reads a request with the journal of its task, in one snapshot; `None` if there is no such
    /// request. The journal is `None` if it cannot be decoded or disagrees with the request's row.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the request itself cannot be decoded.
    pub async fn request_with_journal(&self, id: RequestId) -> Result<RequestRead, ReadError> {
        let (reply, result) = oneshot::channel();
        if self.inner.request_queue.add(id, reply) {
            let reader = Reader {
                store: self.clone(),
                has_ended: false,
            };
            self.inner.tasks.spawn(reader.run());
        }
        match timeout(MAX_WAIT, result).await {
            Ok(Ok(read)) => Ok(read),
            Ok(Err(_)) | Err(_) => self.read_alone(id).await,
        }
    }

    /// Reads requests by one statement. If the statement fails, drops all replies. If the journal
    /// of a request cannot be decoded, drops the reply to this request.
    async fn read_batch(&self, batch: Vec<WaitingRequest>) {
        let ids = batch.iter().map(|waiting| waiting.id.0).collect();
        let read = self.journals_of_requests(ids);
        let Some(Ok(mut found)) = self.inner.stop.run_until_cancelled(read).await else {
            return;
        };
        for WaitingRequest { id, reply } in batch {
            let read = match found.remove(&id.0) {
                None => None,
                Some((head, items)) => match head.read(id, &items) {
                    None => continue,
                    read => read,
                },
            };
            // The caller may read the request alone by now.
            let _ = reply.send(read);
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
    ) -> Result<HashMap<Uuid, (RequestHead, Vec<KeyedItem>)>, Failure> {
        let values = vec![Value::Ids(ids), Value::Now];
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
