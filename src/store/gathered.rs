//! Claims gathered deliveries. The due deliveries of one entry to one person, or to one room of
//! Slack or Teams, are claimed together and sent as one message. For each entry and person, a row
//! of the table `gathered` holds the earliest time of the next message (`next_at`).
//!
//! Invariant: at most one sender at a time sends messages of one entry to one person, unless a
//! sender is slower than its lease. In one transaction, a sender claims the person's deliveries and
//! sets the person's `next_at` to the end of the lease. Until this time, other senders claim no
//! deliveries to the person. After sending, the sender replaces `next_at` by the earliest time of
//! the next message. If `next_at` is no longer the end of the sender's lease, another sender has
//! claimed deliveries to the person since. The slow sender then leaves `next_at` as it is.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::Transaction;
use uuid::Uuid;

use super::change_rows::micros;
use super::db::{DatabaseEngine, Sql, Value, sql, values};
use super::deliveries::{ClaimedDelivery, claimed_columns};
use super::record::record;
use super::sql::request_changes;
use super::sqlite::{count_written, records};
use super::{ReadError, Store};

/// The maximum number of deliveries of one message. Also the maximum number of due deliveries among
/// which one claim looks for people.
const MAX_DELIVERIES: i64 = 1000;
/// A claim ignores a `next_at` that is later than the sum of the claim's time, the lease, the pause
/// and this margin. Such a `next_at` comes from a longer `gather` of an earlier configuration, or
/// from a clock that was set back since. The margin is needed because a claim may wait for the lock
/// of a row whose `next_at` a later claim has set.
const MARGIN: Duration = Duration::from_mins(1);
/// How long a row of the table `gathered` is kept after its `next_at`.
const RETENTION: Duration = Duration::from_hours(1);

/// Claims the due deliveries of an entry to at most `$3` people. The statement reads the entry's
/// first `$5` due deliveries (`due`), and chooses the people who have waited longest for one of
/// them. For each chosen person, the statement then claims up to `$5` of all the person's due
/// deliveries (`mine`). So the number of deliveries in a person's message does not depend on the
/// deliveries to other people. The statement skips rows that a claim of another replica has locked
/// at this moment; a later message has these deliveries.
///
/// Leaves out deliveries that change an earlier message (`task::event_name::REQUEST_CHANGES`). If a
/// person's `next_at` is in the future, postpones the person's deliveries until `next_at`, but by
/// at most one pause (`$6`). The limit is needed because `next_at` may be the end of another
/// sender's lease. When that sender has sent its message, it replaces `next_at` by the earliest
/// time of the next message, which may be before the end of the lease. Ignores a `next_at` that is
/// more than `$7` in the future (see `MARGIN`).
///
/// The statement is for Postgres only, because `SQLite` has no data-modifying CTEs. On `SQLite`,
/// the claim is a transaction of `DUE`, `NEXT_AT`, `SET_NEXT_AT`, `PUT_OFF` and `LEASE`.
const CLAIM: Sql = Sql::on_postgres(concat!(
    "
with moment as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint as at
), due as materialized (
    select d.delivery_id, d.tenant, d.person, d.due_at from delivery d
     where d.target = $2 and d.state = 'due' and d.due_at <= (select at from moment)
       and (d.lease_until is null or d.lease_until <= (select at from moment))
       and d.type not in ",
    request_changes!(),
    "
     order by d.due_at, d.delivery_id limit $5 for update of d skip locked
), waiting as materialized (
    select u.tenant, u.person, min(u.due_at) as since, min(g.next_at) as next_at
      from due u left join gathered g on g.target = $2 and g.tenant = u.tenant and g.person = u.person
       and g.next_at <= (select at from moment) + $7
     group by u.tenant, u.person
), chosen as materialized (
    select w.tenant, w.person from waiting w
     where w.next_at is null or w.next_at <= (select at from moment) order by w.since, w.tenant, w.person limit $3
), opened as (
    insert into gathered as g (target, tenant, person, next_at)
    select $2, c.tenant, c.person, m.at + $4 from chosen c cross join moment m order by c.tenant, c.person
    on conflict (target, tenant, person) do update set next_at = excluded.next_at
        where g.next_at <= excluded.next_at - $4 or g.next_at > excluded.next_at - $4 + $7
    returning g.tenant, g.person
), mine as materialized (
    select d.delivery_id as id from opened o cross join lateral (
        select e.delivery_id from delivery e
         where e.target = $2 and e.state = 'due' and e.due_at <= (select at from moment)
           and (e.lease_until is null or e.lease_until <= (select at from moment))
           and e.type not in ",
    request_changes!(),
    "
           and e.tenant = o.tenant and e.person = o.person
         order by e.due_at, e.delivery_id limit $5 for update of e skip locked) d
), later as (
    update delivery d set due_at = least(w.next_at, (select at from moment) + $6)
      from due u join waiting w on w.tenant = u.tenant and w.person = u.person
     where d.delivery_id = u.delivery_id and w.next_at > (select at from moment)
)
update delivery d set lease_until = m.at + $4
  from mine u cross join moment m where delivery_id = u.id
returning ",
    claimed_columns!()
));

/// Sets `next_at` to 0 if a lease of an earlier process delays the next message. Runs when a
/// `SQLite` file is opened, because the earlier process has then ended. The earlier process set
/// `next_at` to the end of its lease, so the statement changes each `next_at` that equals the end
/// of a delivery's lease. Runs before `deliveries::EXPIRE_LEASES`, which deletes the leases.
pub(super) const EXPIRE_LEASES: Sql = sql!(
    "update gathered set next_at = 0
      where exists (select 1 from delivery d
         where d.target = gathered.target and d.tenant = gathered.tenant and d.person = gathered.person
           and d.state = 'due' and d.lease_until = gathered.next_at and d.lease_until > d.due_at)
     returning target"
);

const DUE: Sql = Sql::on_sqlite(concat!(
    "select delivery_id, tenant, person from delivery
      where target = $1 and state = 'due' and due_at <= $2 and (lease_until is null or lease_until <= $2)
        and type not in ",
    request_changes!(),
    "
      order by due_at, delivery_id limit $3",
));

const NEXT_AT: Sql = Sql::on_sqlite(
    "select next_at from gathered where target = $1 and tenant = $2 and person = $3",
);

const SET_NEXT_AT: Sql = Sql::on_sqlite(
    "insert into gathered (target, tenant, person, next_at) values ($1, $2, $3, $4)
     on conflict (target, tenant, person) do update set next_at = excluded.next_at returning next_at",
);

const PUT_OFF: Sql =
    Sql::on_sqlite("update delivery set due_at = $2 where delivery_id = $1 returning target");

/// Claims the due deliveries of an entry to one person, at most `$6`.
const LEASE: Sql = Sql::on_sqlite(concat!(
    "update delivery set lease_until = $5
      where delivery_id in (select delivery_id from delivery
         where target = $1 and state = 'due' and due_at <= $4 and (lease_until is null or lease_until <= $4)
           and type not in ",
    request_changes!(),
    "
           and tenant = $2 and person = $3
         order by due_at, delivery_id limit $6)
     returning ",
    claimed_columns!()
));

/// Sets the earliest time of the next message to a person: `$6` from now. Changes nothing if
/// `next_at` has changed since the claim, because another sender has then claimed deliveries to the
/// person.
const ALLOW_NEXT_MESSAGE: Sql = sql!(
    "update gathered set next_at = " (now 1) " + $6
      where target = $2 and tenant = $3 and person = $4 and next_at = $5 returning target"
)
.by_key();

const REMOVE_SPENT: Sql =
    sql!("delete from gathered where next_at <= " (now 1) " - $2 returning target");

pub(super) const STATEMENTS: &[Sql] = &[
    CLAIM,
    EXPIRE_LEASES,
    DUE,
    NEXT_AT,
    SET_NEXT_AT,
    PUT_OFF,
    LEASE,
    ALLOW_NEXT_MESSAGE,
    REMOVE_SPENT,
];

record! {
    struct DueRecord {
        delivery_id: Uuid,
        tenant: String,
        person: String,
    }
}

impl Store {
    /// Claims the due deliveries of an entry to at most `limit` people, for the duration `lease`.
    /// Returns one list of deliveries for each message. If the earliest time of a person's next
    /// message (`next_at`) is in the future, postpones the person's deliveries until this time, but
    /// by at most `pause`. `pause` is the entry's minimum time between two messages. Ignores a
    /// `next_at` that is too far in the future for this `lease` and `pause` (see `MARGIN`).
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer. Some deliveries may have been claimed
    /// nevertheless. They can be claimed again once their leases have ended.
    pub async fn claim_gathered(
        &self,
        target: &str,
        limit: i64,
        lease: Duration,
        pause: Duration,
    ) -> Result<Vec<Vec<ClaimedDelivery>>, ReadError> {
        let claimed: Vec<ClaimedDelivery> = if let DatabaseEngine::Sqlite(_) = self.db().engine {
            let target = target.to_owned();
            let (lease, pause) = (micros(lease), micros(pause));
            let job = move |transaction: &Transaction<'_>, at| {
                claim(transaction, &target, limit, lease, pause, at)
            };
            self.db().write_transaction(job).await?
        } else {
            let latest = lease + pause + MARGIN;
            let values = values![
                Value::Now,
                target,
                limit,
                lease,
                MAX_DELIVERIES,
                pause,
                latest,
            ];
            self.db().write(CLAIM, values).await?
        };
        let mut people: BTreeMap<_, Vec<ClaimedDelivery>> = BTreeMap::new();
        for claimed in claimed {
            let person = (claimed.tenant.clone(), claimed.person.clone());
            people.entry(person).or_default().push(claimed);
        }
        let mut messages: Vec<_> = people.into_values().collect();
        for message in &mut messages {
            message.sort_unstable_by_key(|claimed| claimed.id);
        }
        Ok(messages)
    }

    /// Sets the earliest time of the next message to the person of the delivery `claimed`: now plus
    /// `wait`. If another sender has claimed deliveries to this person since `claimed` was claimed,
    /// changes nothing and returns `false`.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn allow_next_message(
        &self,
        target: &str,
        claimed: &ClaimedDelivery,
        wait: Duration,
    ) -> Result<bool, ReadError> {
        let values = values![
            Value::Now,
            target,
            &claimed.tenant,
            &claimed.person,
            claimed.lease_until,
            wait,
        ];
        Ok(self.db().count_written(ALLOW_NEXT_MESSAGE, values).await? > 0)
    }

    /// Removes the rows of the table `gathered` whose `next_at` passed more than an hour ago. These
    /// rows delay no message any more.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn remove_spent_gathered(&self) -> Result<(), ReadError> {
        let values = values![Value::Now, RETENTION];
        self.db().count_written(REMOVE_SPENT, values).await?;
        Ok(())
    }
}

fn claim(
    transaction: &Transaction<'_>,
    target: &str,
    limit: i64,
    lease: i64,
    pause: i64,
    at: i64,
) -> rusqlite::Result<Vec<ClaimedDelivery>> {
    let text = |text: &str| Value::Text(text.to_owned());
    let values = [text(target), Value::Int(at), Value::Int(MAX_DELIVERIES)];
    let mut people: Vec<((String, String), Vec<Uuid>)> = Vec::new();
    for due in records::<DueRecord>(transaction, DUE.sqlite, &values)? {
        let person = (due.tenant, due.person);
        match people.iter_mut().find(|(known, _)| *known == person) {
            Some((_, ids)) => ids.push(due.delivery_id),
            None => people.push((person, vec![due.delivery_id])),
        }
    }
    let (mut claimed, mut opened) = (Vec::new(), 0);
    for ((tenant, person), ids) in people {
        let key = [text(target), text(&tenant), text(&person)];
        let next = records::<i64>(transaction, NEXT_AT.sqlite, &key)?;
        let latest = at + lease + pause + micros(MARGIN);
        let next = next.first().copied().filter(|next| *next <= latest);
        let next = next.unwrap_or(at);
        if next > at {
            let due_at = next.min(at + pause);
            for id in ids {
                let values = [Value::Id(id), Value::Int(due_at)];
                count_written(transaction, PUT_OFF.sqlite, &values)?;
            }
        } else if opened < limit {
            opened += 1;
            let [target, tenant, person] = key;
            let until = Value::Int(at + lease);
            let values = [target, tenant, person, until];
            count_written(transaction, SET_NEXT_AT.sqlite, &values)?;
            let [target, tenant, person, until] = values;
            let (now, most) = (Value::Int(at), Value::Int(MAX_DELIVERIES));
            let values = [target, tenant, person, now, until, most];
            claimed.append(&mut records(transaction, LEASE.sqlite, &values)?);
        }
    }
    Ok(claimed)
}
