//! Lists deliveries for admins, and makes deliveries due again.

use uuid::Uuid;

use super::db::{Sql, Value, sql, values};
use super::page::Page;
use super::record::{AnyRow, record};
use super::tasks::corrupt;
use super::{ReadError, Store};
use crate::task::event_name::{REQUEST_EXPIRING, REQUEST_WAITING};
use crate::task::id::{ChangeId, RequestId, TaskId};
use crate::task::time::Time;

/// The state of a delivery, as stored and as shown to admins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryState {
    /// The message is to be sent, now or later.
    Due,
    /// The receiver, mail server or chat service has accepted the message.
    Sent,
    /// No further attempt is made: the last permitted attempt failed, an attempt failed for a
    /// permanent reason, or no message could be made.
    Dead,
    /// The message was not sent, because it no longer has a recipient.
    Dropped,
}

impl DeliveryState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Due, Self::Sent, Self::Dead, Self::Dropped];

    /// Returns the name of the state in the API and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Sent => "sent",
            Self::Dead => "dead",
            Self::Dropped => "dropped",
        }
    }

    /// Returns the state with this name; `None` if there is no such state.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// How a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryChannel {
    /// A signed POST.
    Webhook,
    /// A mail to a person.
    Mail,
    /// A message in a room of Slack.
    Slack,
    /// A card in a room of Teams.
    Teams,
}

impl DeliveryChannel {
    const ALL: [Self; 4] = [Self::Webhook, Self::Mail, Self::Slack, Self::Teams];

    /// Returns the name of the channel in the API, in the database and in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Mail => "mail",
            Self::Slack => "slack",
            Self::Teams => "teams",
        }
    }
}

/// A delivery as an admin sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeliveryRow {
    /// The delivery's id. Newer deliveries have greater ids.
    pub id: Uuid,
    /// The name of the entry of `notify.to` that receives the message.
    pub target: String,
    /// How the message is sent.
    pub channel: DeliveryChannel,
    /// The person whom the message is for; `None` if the message is for no person.
    pub person: Option<String>,
    /// The message's type: the name of its event or reminder.
    pub kind: String,
    /// The root of the tree that the message is about.
    pub root: TaskId,
    /// The change that the message is about.
    pub change: ChangeId,
    /// The number of the event that the message is about.
    pub event_number: i64,
    /// The request that the message is about; `None` if its event concerns no request.
    pub request: Option<RequestId>,
    /// The state at the time of the read.
    pub state: DeliveryState,
    /// The number of attempts since the delivery was created, or since an ended delivery was made
    /// due again.
    pub attempts: i64,
    /// The time from which the next attempt may be made. For an ended delivery, the time from which
    /// its last attempt could be made.
    pub due_at: Time,
    /// The time at which the delivery left the state `Due`; `None` while the delivery is `Due`.
    pub ended_at: Option<Time>,
    /// The last attempt; `None` if there was none.
    pub last: Option<LastAttempt>,
}

impl DeliveryRow {
    /// Returns the id of the message, the same for each attempt.
    #[must_use]
    pub fn message_id(&self) -> String {
        match (self.kind.as_str(), self.request) {
            (REQUEST_EXPIRING | REQUEST_WAITING, Some(request)) => {
                reminder_id(request, &self.target)
            }
            _ => message_id(self.change, self.event_number),
        }
    }
}

/// Returns the id of the reminder that the entry `target` of `notify.to` gets about `request`.
#[must_use]
pub fn reminder_id(request: RequestId, target: &str) -> String {
    format!("tmr_{request}_{target}")
}

/// Returns the id of the message about an event. The id includes the change, because after a
/// restore another change may get the same event number.
#[must_use]
pub fn message_id(change: ChangeId, event_number: i64) -> String {
    format!("evt_{}_{event_number}", change.0.simple())
}

/// The last attempt at a delivery.
#[derive(Clone, Debug, PartialEq)]
pub struct LastAttempt {
    /// The time at which the attempt ended.
    pub at: Time,
    /// The status of the HTTP answer; `None` if there was no answer.
    pub http_status: Option<i64>,
    /// The reason for the failure; `None` for a success.
    pub problem: Option<String>,
    /// How long the attempt took, in milliseconds.
    pub milliseconds: i64,
}

/// A filter for [`Store::deliveries`].
#[derive(Clone, Debug, Default)]
pub struct DeliveryFilter {
    /// The tenant of the deliveries.
    pub tenant: String,
    /// The entries of the deliveries; empty for all entries.
    pub targets: Vec<String>,
    /// The states of the deliveries; empty for all states.
    pub states: Vec<DeliveryState>,
    /// The requests that the deliveries are about; empty for all deliveries.
    pub requests: Vec<RequestId>,
    /// The roots of the trees that the deliveries are about; empty for all trees.
    pub roots: Vec<TaskId>,
    /// The id of a delivery. If set, selects the older deliveries, which have smaller ids.
    pub before: Option<Uuid>,
    /// The maximum number of deliveries of a page.
    pub limit: i64,
}

/// A filter for [`Store::resend_all`].
#[derive(Clone, Debug)]
pub struct ResendFilter {
    /// The tenant of the deliveries.
    pub tenant: String,
    /// The entry of the deliveries.
    pub target: String,
    /// The state of the deliveries, which must not be `Due`.
    pub state: DeliveryState,
    /// The earliest time of creation of the deliveries; `None` for any time. A delivery that ended
    /// and was made due again counts as created when it was made due again.
    pub since: Option<Time>,
}

const LIST: Sql = sql!(
    "select delivery_id, target, channel, person, type as kind, root_task_id, change_id, event_number, request_id, state, attempts,
            due_at, ended_at, last_at, last_status, last_problem, last_milliseconds
       from delivery where tenant = $1 and delivery_id < $2
        and (" (none 4 text) " or target " (any 4 text) ") and (" (none 5 text) " or state " (any 5 text) ")
        and (" (none 6 uuid) " or request_id " (any 6 uuid) ") and (" (none 7 uuid) " or root_task_id " (any 7 uuid) ")
      order by delivery_id desc limit $3"
);

const FIND: Sql =
    sql!("select delivery_id from delivery where tenant = $1 and delivery_id = $2").by_key();

/// Makes a delivery due now. A delivery in the state `due` keeps its number of attempts and its
/// lease, because a process may be sending it. If the delivery waits because its receiver asked for
/// a wait, this wait ends. An ended delivery gets all its attempts again: its number of attempts
/// becomes 0, and it counts as created now.
pub(super) const RESEND: Sql = sql!(
    "update delivery set
        attempts = case when state = 'due' then attempts else 0 end,
        came_early = case when state = 'due' then came_early else 0 end,
        lease_until = case when state = 'due' and lease_until > due_at then lease_until end,
        due_at = case when state = 'due' and due_at < " (now 1) " then due_at else " (now 1) " end,
        created_at = case when state = 'due' then created_at else " (now 1) " end,
        state = 'due', ended_at = null
      where tenant = $2 and delivery_id = $3 returning delivery_id"
)
.by_key();

/// Makes at most one batch of ended deliveries due now, as `RESEND` does. Selects the deliveries by
/// tenant, entry, state and earliest time of creation. Takes only deliveries with ids greater than
/// `$7`, in order of id.
pub(super) const RESEND_ALL: Sql = sql!(
    "with moment as materialized (select " (now 1) " as at), chosen as materialized (
        select delivery_id from delivery
         where tenant = $2 and target = $3 and state = $4 and created_at >= $5 and delivery_id > $7
         order by delivery_id limit $6 " (skip_locked) "
     )
     update delivery set state = 'due', attempts = 0, came_early = 0, lease_until = null, ended_at = null,
        due_at = (select at from moment), created_at = (select at from moment)
      where delivery_id in (select delivery_id from chosen) returning delivery_id"
);

pub(super) const STATEMENTS: &[Sql] = &[LIST, FIND, RESEND, RESEND_ALL];

/// The maximum number of deliveries that one statement makes due.
const BATCH: usize = 1000;

record! {
    struct DeliveryRecord {
        delivery_id: Uuid,
        target: String,
        channel: String,
        person: String,
        kind: String,
        root_task_id: Uuid,
        change_id: Uuid,
        event_number: i64,
        request_id: Option<Uuid>,
        state: String,
        attempts: i64,
        due_at: i64,
        ended_at: Option<i64>,
        last_at: Option<i64>,
        last_status: Option<i64>,
        last_problem: Option<String>,
        last_milliseconds: Option<i64>,
    }
}

impl ResendFilter {
    /// Returns the parameters of `RESEND_ALL`: the time, the values of this filter, the maximum
    /// number of deliveries, and `after`. Only deliveries with ids greater than `after` become due.
    pub(super) fn values(&self, now: Value, limit: i64, after: Uuid) -> Vec<Value> {
        values![
            now,
            &self.tenant,
            &self.target,
            self.state.as_str(),
            self.since.map_or(0, |since| since.0),
            limit,
            after,
        ]
    }
}

impl DeliveryRecord {
    fn row(self) -> Result<DeliveryRow, ReadError> {
        let state = DeliveryState::parse(&self.state);
        let state = state.ok_or_else(|| corrupt("the state of a delivery"))?;
        let mut channels = DeliveryChannel::ALL.into_iter();
        let channel = channels.find(|one| one.as_str() == self.channel);
        let channel = channel.ok_or_else(|| corrupt("the channel of a delivery"))?;
        let last = self.last_at.map(|at| LastAttempt {
            at: Time(at),
            http_status: self.last_status,
            problem: self.last_problem,
            milliseconds: self.last_milliseconds.unwrap_or(0),
        });
        Ok(DeliveryRow {
            id: self.delivery_id,
            target: self.target,
            channel,
            person: (!self.person.is_empty()).then_some(self.person),
            kind: self.kind,
            root: TaskId(self.root_task_id),
            change: ChangeId(self.change_id),
            event_number: self.event_number,
            request: self.request_id.map(RequestId),
            state,
            attempts: self.attempts,
            due_at: Time(self.due_at),
            ended_at: self.ended_at.map(Time),
            last,
        })
    }
}

impl Store {
    /// Reads one page of deliveries, newest first.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn deliveries(
        &self,
        filter: &DeliveryFilter,
    ) -> Result<Page<DeliveryRow>, ReadError> {
        let states = filter.states.iter().map(|state| state.as_str().to_owned());
        let values = values![
            &filter.tenant,
            filter.before.unwrap_or(Uuid::max()),
            filter.limit.saturating_add(1),
            filter.targets.as_slice(),
            states.collect::<Vec<_>>(),
            filter.requests.as_slice(),
            filter.roots.as_slice(),
        ];
        let records: Vec<DeliveryRecord> = self.db().all(LIST, values).await?;
        let found = i64::try_from(records.len()).unwrap_or(i64::MAX);
        let rows = records.into_iter().map(DeliveryRecord::row);
        Ok(Page::cut(
            rows.collect::<Result<_, _>>()?,
            found,
            filter.limit,
        ))
    }

    /// Returns whether the tenant has this delivery.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn has_delivery(&self, tenant: &str, id: Uuid) -> Result<bool, ReadError> {
        let found: Option<AnyRow> = self.db().one(FIND, values![tenant, id]).await?;
        Ok(found.is_some())
    }

    /// Makes a delivery due now. The attempts of an ended delivery are counted from 0 again, and
    /// its age counts from now. Returns `false` if the tenant has no such delivery.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn resend(&self, tenant: &str, id: Uuid) -> Result<bool, ReadError> {
        let values = values![Value::Now, tenant, id];
        let count = self.db().count_written(RESEND, values).await?;
        self.inner.feed.sender_wakeup.notify_one();
        Ok(count > 0)
    }

    /// Makes every delivery that matches the filter due now, as [`Self::resend`] does for one
    /// delivery. Returns the number of these deliveries.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer. Some of the deliveries may have become due
    /// nevertheless.
    pub async fn resend_all(&self, filter: &ResendFilter) -> Result<usize, ReadError> {
        let limit = i64::try_from(BATCH).unwrap_or(i64::MAX);
        // A delivery of this batch may be sent before the next batch, and may end in the filter's
        // state again. The next batch begins after the greatest id of this batch, so that no
        // delivery becomes due twice. The greatest id need not be the last of `found`, because
        // `returning` has no order.
        let (mut count, mut after) = (0, Uuid::nil());
        loop {
            let values = filter.values(Value::Now, limit, after);
            let found: Vec<Uuid> = self.db().write(RESEND_ALL, values).await?;
            count += found.len();
            after = found.iter().copied().max().unwrap_or(after);
            self.inner.feed.sender_wakeup.notify_one();
            if found.len() < BATCH {
                return Ok(count);
            }
        }
    }
}
