//! Claims due deliveries, and removes old deliveries that have ended. A delivery is a message to
//! one entry of `notify.to`, about one event or as one reminder. If the entry sends to people, there
//! is a delivery for each person. `attempts.rs` records the attempts. `delivery_list.rs` lists
//! deliveries for admins.
//!
//! Invariant: a delivery has at most one unexpired lease. So two processes send a delivery at the
//! same time only if the first process is still sending when its lease expires.
//!
//! The column `lease_until` has two meanings. For a claimed delivery, it is the end of the lease,
//! which is after `due_at`. For an unclaimed delivery whose receiver asked for a wait
//! (`Retry-After`), it is the end of this wait, which is at most `due_at`.

use std::time::Duration;

use uuid::Uuid;

use super::db::{Sql, Value, sql, values};
use super::record::{AnyRow, record};
use super::{ReadError, Store};
use crate::task::id::{ChangeId, RequestId, TaskId};
use crate::task::time::Time;

/// How long a delivery stays listed after it was sent or dropped.
const RETENTION: Duration = Duration::from_hours(3 * 24);
/// How long a delivery stays listed after it has become `Dead`.
const DEAD_RETENTION: Duration = Duration::from_hours(30 * 24);
/// How long the deliveries of an updatable chat message are kept after the last journal item about
/// a request in the message. Such an item leads to an update of the message, and each attempt at
/// the update needs these deliveries. The last attempt at an update comes before this time ends.
const UPDATABLE_FOR: Duration = Duration::from_hours(4 * 24);
/// How long a due delivery that this replica cannot send is kept for other replicas, whose
/// configuration may differ. After this time this replica drops the delivery.
const ORPHAN_TIMEOUT: Duration = Duration::from_hours(24);

/// A delivery that this process has claimed. The process may send it until the lease ends.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimedDelivery {
    /// The delivery's id, for [`Store::record_attempt`].
    pub id: Uuid,
    /// The tenant of the tree that the message is about.
    pub tenant: String,
    /// The person whom the message is for; empty if the message is for no person.
    pub person: String,
    /// The root of the tree that the message is about.
    pub root: TaskId,
    /// The change that the message is about.
    pub change: ChangeId,
    /// The number of the event that the message is about.
    pub event_number: i64,
    /// The message's type: the name of its event or reminder.
    pub kind: String,
    /// The request that the message is about; `None` if its event concerns no request.
    pub request: Option<RequestId>,
    /// The number of attempts before this claim. The count starts again at 0 when an ended delivery
    /// is made due again.
    pub attempts: i64,
    /// Whether the due time of an attempt was set without the backoff. Two events do this: another
    /// message to the entry succeeds ([`Store::make_waiting_deliveries_due`]), or the receiver asks
    /// for a wait after too many messages ([`super::NextState::Postponed`]).
    pub came_early: bool,
    /// The end of the claim's lease, in microseconds. This value fences off slow senders: an
    /// attempt is recorded only while the row still has the value.
    pub lease_until: i64,
    /// The time at which the delivery was created, or at which the ended delivery was last made due
    /// again. A reminder counts as created when it is due.
    pub created_at: Time,
}

record!(impl ClaimedDelivery {
    id, tenant, person, root, change, event_number, kind, request, attempts, came_early, lease_until,
    created_at
});

/// Expires the leases of all deliveries when a `SQLite` file is opened, because the process that
/// took them has ended.
pub(super) const EXPIRE_LEASES: Sql = sql!(
    "update delivery set lease_until = null where state = 'due' and lease_until > due_at returning target"
);

/// Finds which of the given entries have a due delivery that can be claimed: without a lease, or
/// with an expired lease. The index orders an entry's deliveries by due time, so the search ends at
/// the first such delivery.
///
/// The texts for Postgres and `SQLite` differ because `SQLite` has no `unnest`.
const DUE: Sql = Sql {
    postgres: "
select x.target from unnest($2::text[]) as x (target)
  cross join (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint as at) m
 where exists (select 1 from delivery d where d.target = x.target and d.state = 'due' and d.due_at <= m.at
    and (d.lease_until is null or d.lease_until <= m.at))",
    sqlite: "
select x.value as target from json_each($2) x
 where exists (select 1 from delivery d where d.target = x.value and d.state = 'due' and d.due_at <= $1
    and (d.lease_until is null or d.lease_until <= $1))",
    by_key: false,
};

/// The columns of a [`ClaimedDelivery`]. On Postgres, a claim joins `delivery` with other relations.
/// These must not have columns of the same names, because the names would be ambiguous.
macro_rules! claimed_columns {
    () => {
        "delivery_id as id, tenant, person, root_task_id as root, change_id as change, event_number, type as kind,
    request_id as request, attempts, came_early <> 0 as came_early, lease_until, created_at"
    };
}
pub(super) use claimed_columns;

/// Claims due deliveries of an entry, the oldest first. `$5` is the list of the types to claim. If
/// this list is empty, claims deliveries of every type.
const CLAIM: Sql = sql!(
    "with moment as materialized (select " (now 1) " as at), free as materialized (
        select d.delivery_id as id from delivery d
         where d.target = $2 and d.state = 'due' and d.due_at <= (select at from moment)
           and (d.lease_until is null or d.lease_until <= (select at from moment))
           and (" (none 5 text) " or d.type " (any 5 text) ")
         order by d.due_at, d.delivery_id limit $3 " (skip_locked) "
     )
     update delivery set lease_until = (select at from moment) + $4 where delivery_id in (select id from free)
     returning " (claimed_delivery)
)
.by_key();

/// Ends the lease of a delivery without an attempt. The delivery is due again after `$4`.
///
/// The `coalesce` serves the same purpose as in `attempts.rs`.
const PUT_OFF: Sql = sql!(
    "update delivery set lease_until = null, due_at = " (now 1) " + $4
      where delivery_id = $2 and lease_until = $3 and coalesce(state, '') = 'due' returning target"
)
.by_key();

/// Finds out whether an entry has a delivery that `MAKE_WAITING_DUE` can make due earlier. Such a
/// delivery meets three conditions:
/// - It waits for another attempt after at least two failures. A delivery with one failure waits
///   only seconds, and if an early attempt failed, too, the next wait would be minutes.
/// - Its receiver asked for no wait, or for a wait that ends before `due_at`.
/// - It is not among the deliveries `$3`.
const HAS_WAITING: Sql = sql!(
    "select target from delivery where target = $2 and state = 'due' and due_at > " (now 1) " and attempts > 1
        and (lease_until is null or lease_until < due_at) and not delivery_id " (any 3 uuid) " limit 1"
);

/// Changes the due time of each delivery that meets the conditions of `HAS_WAITING`. If the
/// delivery's receiver asked for a wait that has not ended, the delivery becomes due at the end of
/// this wait. Otherwise the delivery becomes due now.
const MAKE_WAITING_DUE: Sql = sql!(
    "update delivery set came_early = 1,
        due_at = case when lease_until > " (now 1) " then lease_until else " (now 1) " end
      where target = $2 and state = 'due' and due_at > " (now 1) " and attempts > 1
        and (lease_until is null or lease_until < due_at) and not delivery_id " (any 3 uuid)
    " returning target"
);

/// Drops deliveries that have been due for at least `$3` and that this configuration cannot send:
/// - deliveries whose entry is not among the configured entries (`$2`),
/// - deliveries that change an earlier message (`task::event_name::REQUEST_CHANGES`) and whose
///   entry is among those that cannot change messages (`$4`).
///
/// Overwrites all columns about the last attempt, so that the reason for the drop is not shown
/// beside the HTTP status of an earlier attempt.
const DROP: Sql = sql!(
    "update delivery set state = 'dropped', lease_until = null, ended_at = " (now 1) ",
        last_at = " (now 1) ", last_status = null, last_milliseconds = 0,
        last_problem = case when target " (any 2 text) " then 'the entry''s settings no longer select this message'
            else 'no entry of the configuration has this name' end
      where state = 'due' and due_at <= " (now 1) " - $3
        and (not target " (any 2 text) "
            or target " (any 4 text) " and type in " (request_changes) ")
     returning target"
);

/// Removes deliveries that ended long ago; dead deliveries are kept for longer. Keeps the
/// deliveries of a message that may still be changed, that is, if a request in the message is open
/// or got a journal item within [`UPDATABLE_FOR`].
///
/// Postgres skips rows that another replica is removing.
const REMOVE: Sql = sql!(
    "with moment as materialized (select " (now 1) " as at), spent as materialized (
        select d.delivery_id from delivery d
         where d.state <> 'due' and d.ended_at <= (select at from moment) - $3
           and (d.state <> 'dead' or d.ended_at <= (select at from moment) - $4)
           and (d.reference is null or not exists (select 1 from delivery m
                  join intervention_request r on r.request_id = m.request_id
                 where m.target = d.target and m.reference = d.reference
                   and (r.status = 'pending' or exists (select 1 from agent_task_item i
                         where " (of_request) " and i.at > (select at from moment) - $5))))
         order by d.ended_at limit $2 " (skip_locked) "
     )
     delete from delivery where delivery_id in (select delivery_id from spent) returning target"
);

pub(super) const STATEMENTS: &[Sql] = &[
    EXPIRE_LEASES,
    DUE,
    CLAIM,
    PUT_OFF,
    HAS_WAITING,
    MAKE_WAITING_DUE,
    DROP,
    REMOVE,
];

impl Store {
    /// Returns the entries among `targets` that have a due delivery to claim.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn entries_with_due(&self, targets: &[String]) -> Result<Vec<String>, ReadError> {
        let values = values![Value::Now, targets];
        Ok(self.db().all(DUE, values).await?)
    }

    /// Claims at most `limit` due deliveries of an entry, the oldest first, each for `lease`. If
    /// `kinds` is not empty, claims only deliveries of these types.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer. Some deliveries may have been claimed
    /// nevertheless. They can be claimed again once their leases have ended.
    pub async fn claim_deliveries(
        &self,
        target: &str,
        limit: i64,
        lease: Duration,
        kinds: &[&str],
    ) -> Result<Vec<ClaimedDelivery>, ReadError> {
        let values = values![Value::Now, target, limit, lease, kinds];
        let mut claimed: Vec<ClaimedDelivery> = self.db().write(CLAIM, values).await?;
        claimed.sort_unstable_by_key(|claimed| claimed.id);
        Ok(claimed)
    }

    /// Gives a claimed delivery back without an attempt. The delivery can be claimed again after
    /// `wait`. Does nothing if the delivery has ended, or if another process has claimed it since.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn put_off_delivery(
        &self,
        claimed: &ClaimedDelivery,
        wait: Duration,
    ) -> Result<(), ReadError> {
        let values = values![Value::Now, claimed.id, claimed.lease_until, wait];
        self.db().count_written(PUT_OFF, values).await?;
        Ok(())
    }

    /// Makes an entry's deliveries due now if they wait for another attempt after two or more
    /// failures, except the deliveries `except`. If a delivery's receiver asked for a wait that has
    /// not ended, the delivery becomes due at the end of this wait. Returns the number of
    /// deliveries that become due earlier than before.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn make_waiting_deliveries_due(
        &self,
        target: &str,
        except: Vec<Uuid>,
    ) -> Result<usize, ReadError> {
        let values = values![Value::Now, target, except];
        let waiting: Option<AnyRow> = self.db().one(HAS_WAITING, values.clone()).await?;
        if waiting.is_none() {
            return Ok(0);
        }
        Ok(self.db().count_written(MAKE_WAITING_DUE, values).await?)
    }

    /// Drops the deliveries that have been due for a day and that this replica cannot send:
    /// - deliveries whose entry is not among `targets`, the entries in this replica's
    ///   configuration,
    /// - deliveries that change an earlier message and whose entry is among `without_updates`, the
    ///   entries that claim no such deliveries.
    ///
    /// Returns the entry of each dropped delivery.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn drop_orphaned_deliveries(
        &self,
        targets: &[String],
        without_updates: &[String],
    ) -> Result<Vec<String>, ReadError> {
        let values = values![Value::Now, targets, ORPHAN_TIMEOUT, without_updates];
        Ok(self.db().write(DROP, values).await?)
    }

    /// Removes at most one batch of deliveries that ended long ago. Returns whether there may be
    /// more.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn remove_spent_deliveries(&self) -> Result<bool, ReadError> {
        let retentions = [RETENTION, DEAD_RETENTION, UPDATABLE_FOR];
        Ok(self.db().remove_batch(REMOVE, &retentions).await?)
    }
}
