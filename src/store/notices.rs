//! Reads notices, and replaces them by deliveries. A notice is the outbox entry of a commit: it
//! says that messages may have to be sent about the events of the commit. A commit writes the
//! notice in the same transaction as the events. If no entry of `notify.to` wants messages about
//! such events, the commit writes no notice. Later a sender reads the events, and replaces the
//! notice by deliveries.
//!
//! Invariant: one transaction removes a notice and inserts all its deliveries.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Transaction;
use uuid::Uuid;

use super::db::{DatabaseEngine, Sql, Value, sql, values};
use super::delivery_list::DeliveryChannel;
use super::record::record;
use super::sqlite::count_written;
use super::tasks::fact;
use super::{ReadError, Store};
use crate::task::change::Change;
use crate::task::event_name::event_name;
use crate::task::id::{ChangeId, RequestId, TaskId};
use crate::task::time::Time;

/// The events about which one entry of `notify.to` wants messages.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// The tenants; empty for all.
    pub tenants: Vec<String>,
    /// The agents of root tasks; empty for all.
    pub agents: Vec<String>,
    /// The names of the events.
    pub events: BTreeSet<&'static str>,
}

impl EventFilter {
    /// Whether the filter accepts this tenant. Does not check the root's agent or the event.
    #[must_use]
    pub fn matches_tenant(&self, tenant: &str) -> bool {
        is_empty_or_contains(&self.tenants, tenant)
    }

    /// Whether the filter accepts the tenant and the root's agent of a tree. Does not check the
    /// event.
    #[must_use]
    pub fn matches_tree(&self, tenant: &str, root_agent: &str) -> bool {
        self.matches_tenant(tenant) && is_empty_or_contains(&self.agents, root_agent)
    }
}

fn is_empty_or_contains(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|known| known == name)
}

/// The filters of the entries of `notify.to`, one for each entry.
#[derive(Clone, Debug, Default)]
pub struct EventFilters(pub Vec<EventFilter>);

impl EventFilters {
    /// Whether the filter of at least one entry accepts an event of this change, together with the
    /// tenant and the root's agent.
    pub(super) fn matches(&self, change: &Change) -> bool {
        self.0
            .iter()
            .filter(|filter| filter.matches_tree(&change.tenant, &change.root_agent))
            .any(|filter| names(change).any(|name| filter.events.contains(name)))
    }
}

fn names(change: &Change) -> impl Iterator<Item = &'static str> + '_ {
    change.tasks.iter().flat_map(|task| {
        let of_root = task.task_id == change.root;
        (task.last_seq + 1..)
            .zip(&task.facts)
            .map(move |(seq, fact)| event_name(fact, of_root, seq))
    })
}

/// A pointer to a commit about which messages are to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The notice's id, which equals the id of the change.
    pub id: Uuid,
    /// The root of the changed tree.
    pub root: TaskId,
    /// The change that wrote the notice.
    pub change: ChangeId,
    /// The number of the change's first event.
    pub event_number: i64,
}

record!(impl Notice { id, root, change, event_number });

/// The data about a change from which a sender decides which messages are sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangeEvents {
    /// The tenant of the changed tree.
    pub tenant: String,
    /// The name of the root's agent.
    pub root_agent: String,
    /// The events, by ascending number.
    pub events: Vec<EventHeader>,
}

/// An event of a change, without the content of the event.
#[derive(Clone, Debug, PartialEq)]
pub struct EventHeader {
    /// The event's number in the tree.
    pub number: i64,
    /// The event's name, such as `request.created`.
    pub name: &'static str,
    /// The request that the event is about; `None` if the event concerns no request.
    pub request: Option<RequestId>,
}

/// A message to be sent about one event.
#[derive(Clone, Debug, PartialEq)]
pub struct NewDelivery {
    /// The id of the new row, which the caller generates.
    pub id: Uuid,
    /// The notice of the commit that this delivery is about. One transaction removes the notice and
    /// inserts all its deliveries.
    pub notice: Notice,
    /// The tenant of the tree that the message is about.
    pub tenant: String,
    /// The name of the entry of `notify.to` that receives the message.
    pub target: String,
    /// How the message is sent.
    pub channel: DeliveryChannel,
    /// The person whom the message is for; empty if the message is for no person.
    pub person: String,
    /// The message's type: the name of its event or reminder.
    pub kind: &'static str,
    /// The event that the message is about. For a reminder, the event that opened the request.
    pub event: EventHeader,
    /// The time from which the message may be sent; `None` if the message may be sent at once. The
    /// delivery's `created_at` is set to the same time, so that the age of a reminder counts from
    /// the time at which the reminder is due.
    pub due_at: Option<Time>,
}

const NOTICES: Sql = sql!(
    "select notice_id as id, root_task_id as root, change_id as change, event_number from notice order by notice_id limit $1"
);

/// Selects the events of the changes that wrote the notices `$1`: of each change, at most `$3`
/// events, after its first `$2`. The events of a change are contiguous. Returns the body of an item
/// only if the event's name depends on it, otherwise an empty text. In place of a body of more than
/// `$4` bytes, returns null. The two parts of `found` find the two kinds of items that `events.rs`
/// describes: items whose `seq` equals their event number, and all others.
const CHANGE_EVENTS: Sql = sql!(
    "with found as (
        select n.notice_id, n.root_task_id, i.task_id, i.seq, i.event_number, i.type, i.request_id, i.body
          from notice n join agent_task_item i on i.task_id = n.root_task_id
           and i.seq >= n.event_number + $2 and i.seq < n.event_number + $2 + $3
           and i.event_number = i.seq and i.change_id = n.change_id
         where n.notice_id " (any 1 uuid) "
         union all
        select n.notice_id, n.root_task_id, i.task_id, i.seq, i.event_number, i.type, i.request_id, i.body
          from notice n join agent_task_item i on i.root_task_id = n.root_task_id
           and i.event_number >= n.event_number + $2 and i.event_number < n.event_number + $2 + $3
           and i.event_number <> i.seq and i.change_id = n.change_id
         where n.notice_id " (any 1 uuid) "
     )
     select f.notice_id, r.tenant, r.agent as root_agent, f.event_number, (f.task_id = f.root_task_id) as of_root, f.seq,
            f.type as kind, f.request_id, case when f.type not in ('task_status', 'request_closed') then ''
                when octet_length(f.body) <= $4 then f.body end as body
       from found f join agent_task r on r.task_id = f.root_task_id
      order by f.event_number"
)
.by_key();

/// Replaces notices by deliveries. Skips notices that another replica is replacing or has replaced.
///
/// With `is true`, Postgres looks each notice up in a hash table. Without it, the condition would
/// become a join, and the plan, which is made once, would compare each delivery with each notice.
///
/// The statement is for Postgres only, because `SQLite` has neither arrays nor data-modifying CTEs.
/// On `SQLite`, a transaction of `DELETE_NOTICE` and `INSERT_DELIVERY` replaces the notices.
const REPLACE: Sql = Sql::on_postgres(
    "
with held as materialized (
    select notice_id from notice where notice_id = any($2::uuid[]) order by notice_id for update skip locked
), inserted as (
    insert into delivery (delivery_id, tenant, target, person, type, root_task_id, change_id, event_number, request_id,
        channel, state, due_at, attempts, created_at)
    select d.delivery_id, d.tenant, d.target, d.person, d.type, d.root_task_id, d.change_id, d.event_number, d.request_id,
        d.channel, 'due', coalesce(d.due_at, m.at), 0, coalesce(d.due_at, m.at)
      from unnest($3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::uuid[], $10::bigint[],
            $11::uuid[], $12::text[], $13::text[], $14::bigint[])
        as d (delivery_id, notice_id, tenant, target, type, root_task_id, change_id, event_number,
            request_id, person, channel, due_at)
     cross join (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint as at) m
     where (d.notice_id in (select notice_id from held)) is true
    on conflict do nothing
    returning delivery_id
), deleted as (
    delete from notice n using held h where n.notice_id = h.notice_id
)
select delivery_id from inserted",
)
.by_key();

const DELETE_NOTICE: &str = "delete from notice where notice_id = $1 returning notice_id";

const INSERT_DELIVERY: &str = "
insert into delivery (delivery_id, tenant, target, person, type, root_task_id, change_id, event_number, request_id,
    channel, state, due_at, attempts, created_at)
values ($1, $2, $3, $10, $4, $5, $6, $7, nullif($8, zeroblob(16)), $11, 'due', $9, 0, $9)
on conflict do nothing returning delivery_id";

pub(super) const STATEMENTS: &[Sql] = &[
    NOTICES,
    CHANGE_EVENTS,
    REPLACE,
    Sql::on_sqlite(DELETE_NOTICE),
    Sql::on_sqlite(INSERT_DELIVERY),
];

record! {
    struct EventHeaderRecord {
        notice_id: Uuid,
        tenant: String,
        root_agent: String,
        event_number: i64,
        of_root: bool,
        seq: i64,
        kind: String,
        request_id: Option<Uuid>,
        body: Option<String>,
    }
}

impl EventHeaderRecord {
    /// Returns the event of this item; `None` if the item has no body here or cannot be decoded, or
    /// if its type never leads to a message.
    fn event(&self) -> Option<EventHeader> {
        let name = match self.kind.as_str() {
            "intervention_requested" => "request.created",
            "decision" => "request.decided",
            "sub_agent_started" => "sub_agent.started",
            "task_status" | "request_closed" => {
                let fact = fact(self.body.as_deref()?).ok()?;
                event_name(&fact, self.of_root, self.seq)
            }
            _ => return None,
        };
        Some(EventHeader {
            number: self.event_number,
            name,
            request: self.request_id.map(RequestId),
        })
    }
}

/// The maximum size of a body, in bytes, that is read together with the events of other changes.
const MAX_SHARED_BODY_BYTES: i64 = 8 * 1024;
/// The maximum number of events of a change that one statement reads.
const MAX_EVENTS_PER_READ: i64 = 64;

impl Store {
    /// Sets the events about which messages are sent; a commit with such an event writes a notice.
    /// Only the first call takes effect.
    pub fn set_event_filters(&self, filters: EventFilters) {
        let _ = self.inner.committer.event_filters.set(filters);
    }

    /// Waits until this process has written a [`Notice`] or made a delivery due.
    pub async fn wait_for_notice(&self) {
        self.inner.feed.sender_wakeup.notified().await;
    }

    /// Reads the oldest notices, at most `limit`.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn notices(&self, limit: i64) -> Result<Vec<Notice>, ReadError> {
        Ok(self.db().all(NOTICES, values![limit]).await?)
    }

    /// Reads the events of the changes that wrote the notices, in the order of the notices. Leaves
    /// out events that lead to no message, and events whose item cannot be decoded. Returns no
    /// events for a notice that has been replaced, or whose tree no longer has the events.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn change_events(&self, notices: &[Notice]) -> Result<Vec<ChangeEvents>, ReadError> {
        let ids: Vec<Uuid> = notices.iter().map(|notice| notice.id).collect();
        let (mut changes, large) = self.read_changes(ids, MAX_SHARED_BODY_BYTES).await?;
        // Each large change is read alone, so that memory never holds the large bodies of two.
        for id in large {
            let (change, _) = self.read_changes(vec![id], i64::MAX).await?;
            changes.extend(change);
        }
        let of_notice = |notice: &Notice| changes.remove(&notice.id).unwrap_or_default();
        Ok(notices.iter().map(of_notice).collect())
    }

    /// Reads the changes of these notices. A body of more than `max_body_bytes` is not read, so the
    /// events of its change are incomplete. Also returns the ids of the notices of these changes.
    async fn read_changes(
        &self,
        mut unread: Vec<Uuid>,
        max_body_bytes: i64,
    ) -> Result<(BTreeMap<Uuid, ChangeEvents>, BTreeSet<Uuid>), ReadError> {
        let mut changes: BTreeMap<Uuid, ChangeEvents> = BTreeMap::new();
        let (mut large, mut offset) = (BTreeSet::new(), 0);
        while !unread.is_empty() {
            let values = values![unread, offset, MAX_EVENTS_PER_READ, max_body_bytes];
            let found: Vec<EventHeaderRecord> = self.db().all(CHANGE_EVENTS, values).await?;
            let mut counts: BTreeMap<Uuid, i64> = BTreeMap::new();
            for record in found {
                let id = record.notice_id;
                *counts.entry(id).or_default() += 1;
                if record.body.is_none() {
                    large.insert(id);
                }
                let change = changes.entry(id).or_default();
                change.events.extend(record.event());
                (change.tenant, change.root_agent) = (record.tenant, record.root_agent);
            }
            counts.retain(|id, count| *count == MAX_EVENTS_PER_READ && !large.contains(id));
            unread = counts.into_keys().collect();
            offset += MAX_EVENTS_PER_READ;
        }
        Ok((changes, large))
    }

    /// Replaces notices by deliveries, in one transaction. If another process is replacing or has
    /// replaced a notice, skips this notice and its deliveries. Returns the number of inserted
    /// deliveries.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer. The notices may have been replaced.
    pub async fn replace_notices(
        &self,
        notices: &[Notice],
        deliveries: Vec<NewDelivery>,
    ) -> Result<usize, ReadError> {
        let ids: Vec<Uuid> = notices.iter().map(|notice| notice.id).collect();
        if let DatabaseEngine::Sqlite(_) = self.db().engine {
            let job = move |transaction: &Transaction<'_>, at| {
                let mut inserted = 0;
                for id in ids {
                    if count_written(transaction, DELETE_NOTICE, &[Value::Id(id)])? == 0 {
                        continue;
                    }
                    for delivery in deliveries.iter().filter(|one| one.notice.id == id) {
                        let values = delivery.values(at);
                        inserted += count_written(transaction, INSERT_DELIVERY, &values)?;
                    }
                }
                Ok(inserted)
            };
            return Ok(self.db().write_transaction(job).await?);
        }
        let values = columns(ids, &deliveries);
        Ok(self.db().count_written(REPLACE, values).await?)
    }
}

impl NewDelivery {
    fn values(&self, at: i64) -> Vec<Value> {
        values![
            self.id,
            &self.tenant,
            &self.target,
            self.kind,
            self.notice.root,
            self.notice.change,
            self.event.number,
            self.event.request.map_or(Uuid::nil(), |id| id.0),
            self.due_at.map_or(at, |due| due.0),
            &self.person,
            self.channel.as_str(),
        ]
    }
}

fn columns(notices: Vec<Uuid>, all: &[NewDelivery]) -> Vec<Value> {
    let ids = |of: &dyn Fn(&NewDelivery) -> Uuid| Value::Ids(all.iter().map(of).collect());
    let texts = |of: &dyn Fn(&NewDelivery) -> &str| {
        Value::Texts(all.iter().map(|one| of(one).to_owned()).collect())
    };
    let numbers = all.iter().map(|one| Some(one.event.number)).collect();
    let requests = all.iter().map(|one| one.event.request.map(|id| id.0));
    values![
        Value::Now,
        notices,
        ids(&|one| one.id),
        ids(&|one| one.notice.id),
        texts(&|one| &one.tenant),
        texts(&|one| &one.target),
        texts(&|one| one.kind),
        ids(&|one| one.notice.root.0),
        ids(&|one| one.notice.change.0),
        Value::MaybeInts(numbers),
        Value::MaybeIds(requests.collect()),
        texts(&|one| &one.person),
        texts(&|one| one.channel.as_str()),
        Value::MaybeInts(all.iter().map(|one| one.due_at.map(|due| due.0)).collect()),
    ]
}
