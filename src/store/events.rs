//! Reads a tree's events: the tree's items in the order of their event numbers. Also reads the
//! state of a request right after the commit of an event.
//!
//! An item has two numbers: its `seq` in the journal of its task, and its event number in the tree.
//! If an item is stored before any sub-agent has added an item, its two numbers are equal, and it
//! is found by the key (task, `seq`). The two numbers of every later item differ, and such items
//! are found by an index on the event number. A tree without sub-agents has no entry in this index.
//!
//! Invariant: events are numbered under the lock of the root's row, so a reader that continues from
//! the last number it has seen misses no event. The size of one read is limited in bytes, but the
//! read may exceed this limit by its last item.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::yield_now;
use uuid::Uuid;

use super::db::{Sql, Value, sql, values};
use super::record::record;
use super::requests::{RequestRecord, assemble_requests};
use super::shared_queue::SharedQueue;
use super::tasks::{corrupt, fact, names};
use super::{ReadError, RequestRow, Store};
use crate::task::change::IdempotencyRow;
use crate::task::id::{ChangeId, RequestId, TaskId};
use crate::task::item::{Fact, Item};
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::time::Time;

/// The time after which a caller no longer waits for the shared statement, and reads its event
/// alone. The shared statement may read large events of other deliveries.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// The share of an event in the size of a batch. A statement reads at most four events, because an
/// event may have several megabytes.
const EVENT_SIZE: usize = 16;

/// Chooses the events of a page by the sizes of their bodies (`ReadLimit::bytes`), and then loads
/// the bodies of these events.
const EVENTS_OF_ROOT: Sql = sql!(
    "with page (task_id, seq, event_number, size) as (
        select * from (select task_id, seq, event_number, octet_length(body) as size from agent_task_item
             where task_id = $1 and seq > $2 and event_number = seq order by seq limit $3) a
         union all
        select * from (select task_id, seq, event_number, octet_length(body) as size from agent_task_item
             where root_task_id = $1 and event_number > $2 and event_number <> seq
             order by event_number limit $3) b
         order by event_number limit $3
     ),
     summed (task_id, seq, ahead) as (
        select task_id, seq, sum(size) over (order by event_number) - size from page
     )
     select i.event_number, i.task_id, i.seq, i.at, i.body, i.change_id, t.agent_path,
            (t.parent_task_id is null) as of_root
       from summed p join agent_task_item i on i.task_id = p.task_id and i.seq = p.seq
       join agent_task t on t.task_id = i.task_id
      where p.ahead < $4 order by i.event_number"
)
.by_key();

/// Like `EVENTS_OF_ROOT`, for a sub-agent's task and its descendants. Finds their items by the
/// index `agent_task_item_tree`. This index has every item whose event number differs from its
/// `seq`. The event number of each item of these tasks is greater than its `seq`, because the first
/// events of the tree are items of the root.
const EVENTS_OF_SUBTREE: Sql = sql!(
    "with recursive below (task_id) as (
        select task_id from agent_task where task_id = $5
        union all
        select c.task_id from below b join agent_task c on c.parent_task_id = b.task_id
         where c.root_task_id = $1 and c.parent_task_id is not null
     ),
     page (task_id, seq, event_number, size) as (
        select task_id, seq, event_number, octet_length(body) from agent_task_item
         where root_task_id = $1 and event_number > $2 and event_number <> seq
           and task_id in (select task_id from below)
         order by event_number limit $3
     ),
     summed (task_id, seq, ahead) as (
        select task_id, seq, sum(size) over (order by event_number) - size from page
     )
     select i.event_number, i.task_id, i.seq, i.at, i.body, i.change_id, t.agent_path,
            (t.parent_task_id is null) as of_root
       from summed p join agent_task_item i on i.task_id = p.task_id and i.seq = p.seq
       join agent_task t on t.task_id = i.task_id
      where p.ahead < $4 order by i.event_number"
);

/// Selects the items of a request (the question, the decisions and the closing item) as of the end
/// of one commit. The parameters name one item of this commit: its task (`$2`), its `seq` (`$3`)
/// and its change (`$4`). `last` is the `seq` of the commit's last item in this task.
const REQUEST_AFTER: Sql = sql!(
    "with change (last) as (
        select coalesce(
            (select min(j.seq) - 1 from agent_task_item j
              where j.task_id = $2 and j.seq > $3 and j.change_id <> $4),
            (select last_seq from agent_task where task_id = $2))
     )
     select " (request) ", r.created_at as moment, c.last
       from change c join intervention_request r on r.request_id = $1
       join agent_task_item i on " (of_request) " and i.seq <= c.last
       join agent_task t on t.task_id = r.task_id
      order by i.seq"
)
.by_key();

/// Selects the events of deliveries, and the columns of each tree's root that a message shows.
/// Leaves out a delivery whose change did not write the event. `after` is the body of the last
/// `task_status` item that the event's task has at the end of this change. This item has the task's
/// status after the change.
const MESSAGE_EVENTS: Sql = sql!(
    "with told as materialized (
        select delivery_id, root_task_id, change_id, event_number from delivery where delivery_id " (any 1 uuid) "
     ), found as (
        select d.delivery_id, d.root_task_id, i.event_number, i.task_id, i.seq, i.at, i.body, i.change_id
          from told d join agent_task_item i on i.task_id = d.root_task_id and i.seq = d.event_number
           and i.event_number = i.seq and i.change_id = d.change_id
         union all
        select d.delivery_id, d.root_task_id, i.event_number, i.task_id, i.seq, i.at, i.body, i.change_id
          from told d join agent_task_item i on i.root_task_id = d.root_task_id and i.event_number = d.event_number
           and i.event_number <> i.seq and i.change_id = d.change_id
     )
     select f.delivery_id, f.event_number, f.task_id, f.seq, f.at, f.body, f.change_id, t.agent_path,
            (t.parent_task_id is null) as of_root,
            r.tenant, r.user_id, r.session_id, r.agent as root_agent, r.metadata,
            (select s.body from agent_task_item s
              where s.task_id = f.task_id and s.type = 'task_status' and s.seq <= coalesce(
                    (select min(j.seq) - 1 from agent_task_item j
                      where j.task_id = f.task_id and j.seq > f.seq and j.change_id <> f.change_id),
                    t.last_seq)
              order by s.seq desc limit 1) as after
       from found f join agent_task t on t.task_id = f.task_id join agent_task r on r.task_id = f.root_task_id"
)
.by_key();

/// Finds the first event of the change that wrote an item. The events of a change are contiguous,
/// so the statement walks back from the item.
const FIRST_OF_CHANGE: Sql = sql!(
    "with recursive back (root_task_id, event_number, change_id) as (
        select root_task_id, event_number, change_id from agent_task_item where task_id = $1 and seq = $2
     " (first_of_changes)
)
.by_key();

/// Finds the first event of the change that stored an idempotency key. To find an item of this
/// change, compares the times: the key's row and the items of its change have the same time.
const FIRST_OF_KEY: Sql = sql!(
    "with recursive back (root_task_id, event_number, change_id) as (
        select i.root_task_id, i.event_number, i.change_id
          from idempotency k join agent_task_item i on i.task_id = k.task_id and i.at = k.created_at
         where k.tenant = $1 and k.user_id = $2 and k.path = $3 and k.key = $4 and k.task_id = $5
     "(first_of_changes)
)
.by_key();

pub(super) const STATEMENTS: &[Sql] = &[
    EVENTS_OF_ROOT,
    EVENTS_OF_SUBTREE,
    REQUEST_AFTER,
    MESSAGE_EVENTS,
    FIRST_OF_CHANGE,
    FIRST_OF_KEY,
];

/// One event: an item with its number within the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The event's number within the tree: 1, 2, 3 …, without gaps.
    pub number: i64,
    /// The task that the item belongs to.
    pub task_id: TaskId,
    /// Whether the item's task is the root of the tree.
    pub of_root: bool,
    /// The names of the agents from the root's agent to the agent of the item's task.
    pub agent_path: Vec<String>,
    /// The commit that wrote the item.
    pub change: ChangeId,
    /// The item, with its `seq` and time in the task's journal.
    pub item: Item,
}

/// A task of a tree with its descendants; the whole tree if the task is the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subtree {
    /// The root of the tree.
    pub root: TaskId,
    /// The root of the subtree. Equals `root` if the whole tree is read.
    pub task: TaskId,
}

/// A page of events, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Events {
    /// The events, by ascending number.
    pub events: Vec<Event>,
    /// Whether more events may follow. If `false`, no further event existed at the time of the
    /// read.
    pub more: bool,
    /// The number of the event before which the read stopped, because the event cannot be decoded.
    pub unreadable: Option<i64>,
}

/// An event with the data of its tree that a message shows.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageEvent {
    /// The event that the message is about.
    pub event: Event,
    /// The tenant of the tree.
    pub tenant: String,
    /// The owner of the tree.
    pub user_id: String,
    /// The session id of the tree.
    pub session_id: String,
    /// The name of the root's agent.
    pub root_agent: String,
    /// The metadata of the tree, as JSON text.
    pub metadata: String,
    /// The status of the event's task right after the commit of the event.
    pub status_after: TaskStatus,
}

/// The deliveries whose events wait to be read.
pub(super) type EventQueue = SharedQueue<Uuid, Result<Option<MessageEvent>, ReadError>>;

/// The limits of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimit {
    /// The maximum number of events.
    pub events: i64,
    /// The number of bytes that ends a read: once the bodies together have this size, no event is
    /// added.
    pub bytes: i64,
}

record! {
    struct EventRecord {
        event_number: i64,
        task_id: Uuid,
        seq: i64,
        at: i64,
        body: String,
        change_id: Uuid,
        agent_path: String,
        of_root: bool,
    }
}

impl EventRecord {
    fn event(self) -> Result<Event, ReadError> {
        Ok(Event {
            number: self.event_number,
            task_id: TaskId(self.task_id),
            of_root: self.of_root,
            agent_path: names(&self.agent_path)?,
            change: ChangeId(self.change_id),
            item: Item {
                seq: self.seq,
                at: Time(self.at),
                fact: fact(&self.body)?,
            },
        })
    }
}

record! {
    struct RequestAfterRecord {
        record: RequestRecord => flatten,
        last: i64,
    }
}

record! {
    struct MessageRecord {
        delivery_id: Uuid,
        event: EventRecord => flatten,
        tenant: String,
        user_id: String,
        session_id: String,
        root_agent: String,
        metadata: String,
        after: Option<String>,
    }
}

impl MessageRecord {
    fn read(self) -> Result<MessageEvent, ReadError> {
        let Some(Fact::TaskStatus { status, .. }) = self.after.as_deref().map(fact).transpose()?
        else {
            return Err(corrupt("a task without a status"));
        };
        Ok(MessageEvent {
            event: self.event.event()?,
            tenant: self.tenant,
            user_id: self.user_id,
            session_id: self.session_id,
            root_agent: self.root_agent,
            metadata: self.metadata,
            status_after: status,
        })
    }
}

impl Store {
    /// Reads the events of a tree or subtree with numbers greater than `after`, in order. Stops
    /// before an event that cannot be decoded.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn events(
        &self,
        subtree: Subtree,
        after: i64,
        limit: ReadLimit,
    ) -> Result<Events, ReadError> {
        let mut values = values![subtree.root, after, limit.events, limit.bytes];
        let sql = if subtree.task == subtree.root {
            EVENTS_OF_ROOT
        } else {
            values.push(Value::Id(subtree.task.0));
            EVENTS_OF_SUBTREE
        };
        let records: Vec<EventRecord> = self.db().all(sql, values).await?;
        let mut read = Events::default();
        let mut bytes = 0;
        for record in records {
            bytes += i64::try_from(record.body.len()).unwrap_or(i64::MAX);
            let (task, number) = (TaskId(record.task_id), record.event_number);
            if let Ok(event) = record.event() {
                read.events.push(event);
            } else {
                self.report_unreadable(task);
                (read.more, read.unreadable) = (true, Some(number));
                return Ok(read);
            }
        }
        let count = i64::try_from(read.events.len()).unwrap_or(i64::MAX);
        read.more = count >= limit.events || bytes >= limit.bytes;
        Ok(read)
    }

    /// Reads the request that an event is about, as of the commit that wrote the event. Also
    /// returns the last `seq` of the event's task after that commit. The returned status is never
    /// `Resumed`, because the request's own items do not show whether the request was resumed.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn request_after(
        &self,
        request: RequestId,
        event: &Event,
    ) -> Result<(RequestRow, i64), ReadError> {
        let values = values![request, event.task_id, event.item.seq, event.change];
        let records: Vec<RequestAfterRecord> = self.db().all(REQUEST_AFTER, values).await?;
        let last = records
            .first()
            .map(|record| record.last)
            .ok_or_else(|| corrupt("an event without its request"))?;
        let records: Vec<RequestRecord> = records.into_iter().map(|record| record.record).collect();
        let mut closed = None;
        for record in &records {
            if let Fact::RequestClosed { status, .. } = fact(&record.body)? {
                closed = Some(status);
            }
        }
        let mut row = assemble_requests(records)?
            .into_iter()
            .next()
            .ok_or_else(|| corrupt("an answer without its request"))?;
        let answered = row.answers.iter().any(|(_, answer)| answer.closes);
        let status_by_answers = if answered {
            RequestStatus::Responded
        } else {
            RequestStatus::Pending
        };
        row.status = closed.unwrap_or(status_by_answers);
        // The items do not show the values of these two fields at the time of the commit, so both
        // fields are false.
        (row.expired, row.history_uncertain) = (false, false);
        Ok((row, last))
    }

    /// Reads the event of a delivery for its message. Events that are read at the same time share
    /// statements. Returns `None` if the tree no longer has the event, or if another change than
    /// the delivery's wrote it.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn message_event(&self, delivery: Uuid) -> Result<Option<MessageEvent>, ReadError> {
        let queue = &self.inner.event_queue;
        let shared = queue.share(self, delivery, MAX_WAIT, Self::read_waiting_events);
        if let Some(read) = shared.await {
            return read;
        }
        let mut events = self.message_events(vec![delivery]).await?;
        events.remove(&delivery).transpose()
    }

    /// Reads the events of the deliveries in the queue, batch after batch, until the queue is
    /// empty. If a statement fails, drops the replies of its batch.
    async fn read_waiting_events(self) {
        loop {
            // The attempts of one claim begin together. The Tokio tasks that are ready to run now
            // come first, and may add their deliveries to the batch.
            yield_now().await;
            let batch = self.inner.event_queue.take(|_| EVENT_SIZE);
            // Of several callers with the same delivery, only the last gets a reply.
            let replies: BTreeMap<_, _> = batch.into_iter().collect();
            if replies.is_empty() {
                return;
            }
            let read = self.message_events(replies.keys().copied().collect());
            let Some(Ok(mut events)) = self.inner.stop.run_until_cancelled(read).await else {
                continue;
            };
            for (delivery, reply) in replies {
                // The send fails if the caller no longer waits for the event.
                let _ = reply.send(events.remove(&delivery).transpose());
            }
        }
    }

    /// Reads the events of deliveries by one statement. Leaves out the deliveries for which
    /// [`Self::message_event`] returns `None`.
    async fn message_events(
        &self,
        deliveries: Vec<Uuid>,
    ) -> Result<BTreeMap<Uuid, Result<MessageEvent, ReadError>>, ReadError> {
        let values = values![deliveries];
        let found: Vec<MessageRecord> = self.db().all(MESSAGE_EVENTS, values).await?;
        let events = found.into_iter().map(|record| {
            let (id, task) = (record.delivery_id, TaskId(record.event.task_id));
            let read = record.read();
            if read.is_err() {
                self.report_unreadable(task);
            }
            (id, read)
        });
        Ok(events.collect())
    }

    /// Returns the number of the first event of the change that wrote an item; `None` if there is
    /// no such item.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn first_event(&self, task: TaskId, seq: i64) -> Result<Option<i64>, ReadError> {
        let values = values![task, seq];
        Ok(self.db().one(FIRST_OF_CHANGE, values).await?)
    }

    /// Returns the number of the first event of the change that stored an idempotency key. `None`
    /// if the change wrote no events, or the key is no longer stored.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn first_event_of(&self, key: &IdempotencyRow) -> Result<Option<i64>, ReadError> {
        let texts = [&key.tenant, &key.user_id, &key.path, &key.key]
            .into_iter()
            .map(|text| Value::Text(text.clone()));
        let values = texts.chain([Value::Id(key.task_id.0)]).collect();
        Ok(self.db().one(FIRST_OF_KEY, values).await?)
    }
}
