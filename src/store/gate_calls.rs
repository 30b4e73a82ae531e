//! Reads the calls of one user at a gate: the earlier calls with which a proposed call is compared,
//! and the number of pending calls.
//!
//! The statements search four indexes:
//! - In `agent_task_call_key`, the calls with one key form one range.
//! - `intervention_request_gate` has the pending requests, and so leads to the pending calls. An
//!   index on the status in `agent_task` would find these calls, too, but nearly every commit would
//!   have to update that index.
//! - `intervention_request_reconcile` has the pending reconcile requests, and so leads to the calls
//!   of unknown outcome. Thus, no number of other pending calls hides such a call.
//! - In `agent_task_quarantine`, the newest change of a tool's quarantine is the last entry of one
//!   range.
//!
//! Each search reads a limited number of rows, so its cost does not grow with the number of all
//! calls ever made.

use std::slice;
use std::time::Duration;

use uuid::Uuid;

use super::db::{Sql, Value, sql, values};
use super::record::record;
use super::tasks::corrupt;
use super::users::spelled;
use super::{ReadError, Store};
use crate::task::id::TaskId;
use crate::task::status::TaskStatus;
use crate::task::time::Time;
use crate::task::user::UserId;

/// The maximum number of calls with one key that `EQUAL` looks at, the newest first. A proposal
/// that equals an open call continues that call, or is held until a person decides. So this many
/// newer equal calls hide an open call only if clients have demanded new calls (`attach: false`).
const MAX_EQUAL_CALLS: i64 = 200;
/// The maximum number of the user's pending reconcile requests that `EQUAL` looks at, the newest
/// first. Each of them may hold the proposed call, so this number is far above any usual one.
const MAX_RECONCILE_REQUESTS: i64 = 1000;

/// Selects the two groups of calls that [`Store::equal_calls`] returns. For each spelling of the
/// user's id, also selects the call with the newest change of the tool's quarantine. Only in the
/// rows of these changes, `quarantine_at` is not null.
///
/// The texts for Postgres and `SQLite` differ because `SQLite` has no lateral join. On `SQLite`,
/// correlated subqueries replace the join, and row numbers limit the rows for each spelling. On
/// Postgres, each lateral subquery has a `limit`, even if it finds at most one row. A subquery with
/// a `limit` runs once for each outer row, and searches an index by the values of this row. Without
/// the `limit`, the planner might turn the subquery into a join that reads a whole index.
const EQUAL: Sql = Sql {
    postgres: sql!(@pg []
        "
select c.user_id, c.task_id, c.status, c.call_key, c.asker_until, c.updated_at,
       coalesce((select true from intervention_request r where r.root_task_id = c.task_id and r.kind = 'reconcile'
            and coalesce(r.status, '') = 'pending' limit 1), false) as outcome_unknown,
       coalesce((select true from intervention_request r where r.root_task_id = c.task_id
            and coalesce(r.status, '') in ('responded', 'resumed') limit 1), false) as is_decided,
       c.quarantine_at, c.in_quarantine, " (now 9) " as moment
  from (
    (select y.* from " (people 1 3 10) " p cross join lateral (select p.user_id, x.* from unnest($6::text[]) as k (call_key)
          cross join lateral (select t.task_id, t.status, t.call_key, " (asker_until "true") ", t.updated_at,
                    null::bigint as quarantine_at, null::boolean as in_quarantine
               from agent_task t
              where t.tenant = $1 and t.agent = $2 and t.user_id = p.user_id and t.session_id = $4 and t.call_tool = $5
                and t.call_key = k.call_key
              order by t.task_id desc limit $8) x
          where x.status in ('Running', 'Paused') or x.updated_at >= " (now 9) " - $7::bigint
          order by case when x.status = 'Running' then 0 when x.status = 'Paused' then 2
                    when x.asker_until = 0 then 1 else 3 end, x.task_id desc limit 20) y)
     union all
    (select y.* from " (people 1 3 10) " p cross join lateral (select p.user_id, x.* from (select r.root_task_id from intervention_request r
              where r.tenant = $1 and r.gate = $2 and r.gate_user = p.user_id and r.status = 'pending'
                and r.kind = 'reconcile'
              order by r.request_id desc limit $11) q
          cross join lateral (select t.task_id, t.status, t.call_key, " (asker_until "true") ", t.updated_at,
                    null::bigint as quarantine_at, null::boolean as in_quarantine
               from agent_task t
              where t.task_id = q.root_task_id and t.session_id = $4 and t.call_tool = $5 and t.status = 'Paused'
                and t.call_key <> all($6::text[])
              limit 1) x
          order by x.task_id desc limit 20) y)
     union all
    (select p.user_id, x.* from " (people 1 3 10) " p
          cross join lateral (select t.task_id, t.status, t.call_key, t.asker_until, t.updated_at, t.quarantine_at, t.in_quarantine
               from agent_task t
              where t.tenant = $1 and t.agent = $2 and t.user_id = p.user_id and t.session_id = $4 and t.call_tool = $5
                and t.quarantine_at is not null
              order by t.quarantine_at desc, t.in_quarantine desc limit 1) x)
  ) c order by c.task_id desc"
    ),
    sqlite: sql!(@lite []
        "
select c.user_id, c.task_id, c.status, c.call_key, c.asker_until, c.updated_at,
       coalesce((select true from intervention_request r where r.root_task_id = c.task_id and r.kind = 'reconcile'
            and coalesce(r.status, '') = 'pending' limit 1), false) as outcome_unknown,
       coalesce((select true from intervention_request r where r.root_task_id = c.task_id
            and coalesce(r.status, '') in ('responded', 'resumed') limit 1), false) as is_decided,
       c.quarantine_at, c.in_quarantine, $9 as moment
  from (
    select p.user_id, t.task_id, t.status, t.call_key, t.asker_until, t.updated_at,
           null as quarantine_at, null as in_quarantine,
           row_number() over (partition by p.user_id order by case when t.status = 'Running' then 0
                when t.status = 'Paused' then 2 when t.asker_until = 0 then 1 else 3 end, t.task_id desc) as place
      from " (people 1 3 10) " p cross join json_each($6) k cross join agent_task t
     where t.task_id in (select i.task_id from agent_task i
            where i.tenant = $1 and i.agent = $2 and i.user_id = p.user_id and i.session_id = $4
              and i.call_tool = $5 and i.call_key = k.value
            order by i.task_id desc limit $8)
       and (t.status in ('Running', 'Paused') or t.updated_at >= $9 - $7)
     union all
    select p.user_id, t.task_id, t.status, t.call_key, t.asker_until, t.updated_at, null, null,
           row_number() over (partition by p.user_id order by t.task_id desc) as place
      from " (people 1 3 10) " p cross join intervention_request r cross join agent_task t
     where r.request_id in (select i.request_id from intervention_request i
            where i.tenant = $1 and i.gate = $2 and i.gate_user = p.user_id and i.status = 'pending'
              and i.kind = 'reconcile'
            order by i.request_id desc limit $11)
       and t.task_id = r.root_task_id and t.session_id = $4 and t.call_tool = $5 and t.status = 'Paused'
       and t.call_key not in (select value from json_each($6))
     union all
    select p.user_id, t.task_id, t.status, t.call_key, t.asker_until, t.updated_at, t.quarantine_at, t.in_quarantine, 1
      from " (people 1 3 10) " p cross join agent_task t
     where t.task_id = (select i.task_id from agent_task i
            where i.tenant = $1 and i.agent = $2 and i.user_id = p.user_id and i.session_id = $4
              and i.call_tool = $5 and i.quarantine_at is not null
            order by i.quarantine_at desc, i.in_quarantine desc limit 1)
  ) c where c.place <= 20 order by c.task_id desc"
    ),
    by_key: true,
};

/// Counts a user's pending requests at a gate, up to a limit. There is one count for each stored
/// spelling of the user's id. A pending call has exactly one pending request, so the counts are
/// also the numbers of pending calls.
///
/// Postgres plans this statement once, without the values of the parameters. Because of the inner
/// `limit`, the plan reads only the user's pending requests from the index. Without the `limit`,
/// the plan would read all pending requests of the gate, and compare each request's user.
const OPEN: Sql = sql!(
    "select p.user_id, (select count(*) from (select 1 from intervention_request r
      where r.tenant = $1 and r.gate = $2 and r.gate_user = p.user_id and r.status = 'pending' limit $4) x) as calls
  from " (people 1 3 5) " p"
)
.by_key();

/// Selects the spellings of the user's id for which a call of the tool has a call key. Reads one
/// entry of `agent_task_call_key` for each spelling. The `limit` has the same purpose as in `EQUAL`.
const KEYED: Sql = sql!(
    "select p.user_id from " (people 1 3 6) " p
  where (select true from agent_task t
      where t.tenant = $1 and t.agent = $2 and t.user_id = p.user_id and t.session_id = $4 and t.call_tool = $5
        and t.call_key is not null limit 1)"
)
.by_key();

pub(super) const STATEMENTS: &[Sql] = &[EQUAL, OPEN, KEYED];

record! {
    struct EqualRecord {
        user_id: String,
        task_id: Uuid,
        status: String,
        call_key: String,
        asker_until: Option<i64>,
        updated_at: i64,
        outcome_unknown: bool,
        is_decided: bool,
        quarantine_at: Option<i64>,
        in_quarantine: Option<bool>,
        moment: i64,
    }
}

/// The earlier calls that affect how a new call of their tool is handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCalls {
    /// The equal calls and the other calls of the tool whose outcome is unknown, newest first.
    pub calls: Vec<EqualCall>,
    /// The call that put the tool into quarantine in this session (see `task/quarantine.rs`).
    /// `None` if the tool is not in quarantine: either no call put it there, or a person has since
    /// decided a call of the tool.
    pub quarantined_by: Option<TaskId>,
}

/// A call at a gate that is equal to a proposed call, or a call of the same tool whose outcome is
/// unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EqualCall {
    /// The task that carries out the call.
    pub task_id: TaskId,
    /// The status of the task: `Paused` while the call is pending.
    pub status: TaskStatus,
    /// The key by which equal calls are found, see [`crate::task::change::KeyedCall`].
    pub call_key: String,
    /// The time until which the asker, the client that proposed the call, waits; see
    /// [`crate::task::change::TaskRow::asker_until`].
    pub asker_until: Option<Time>,
    /// The time of the commit of the task's last item. An ended call ended at this time.
    pub updated_at: Time,
    /// Whether a reconcile request is pending, because the outcome of the call is unknown.
    pub outcome_unknown: bool,
    /// Whether a person has decided a request of the call.
    pub is_decided: bool,
    /// The time of the read, by the database's clock.
    pub now: Time,
}

impl Store {
    /// Reads the earlier calls that affect how a new call of `tool` is handled. All of them are
    /// calls of one user, in one session and at one gate. [`FoundCalls::calls`] has two groups:
    /// - the equal calls: they have one of the `keys`, and either are open or ended at most
    ///   `max_age` ago, by the database's clock. Only the newest `MAX_EQUAL_CALLS` calls with a key
    ///   are looked at.
    /// - the other calls of the tool whose outcome is unknown and about which people are asked.
    ///
    /// For each stored spelling of the user's id, a group has at most 20 calls. Of more than 20
    /// equal calls, the group has the running calls first, then the ended calls whose asker left
    /// before it got the result, then the paused calls, then the other ended calls.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    #[expect(
        clippy::too_many_arguments,
        reason = "together they are the identity of a call"
    )]
    pub async fn equal_calls(
        &self,
        tenant: &str,
        gate: &str,
        user: &UserId,
        session_id: &str,
        tool: &str,
        keys: &[String],
        max_age: Duration,
    ) -> Result<FoundCalls, ReadError> {
        let [names, name_keys] = spelled(slice::from_ref(user));
        let values = values![
            tenant,
            gate,
            names,
            session_id,
            tool,
            keys,
            max_age,
            MAX_EQUAL_CALLS,
            Value::Now,
            name_keys,
            MAX_RECONCILE_REQUESTS,
        ];
        let records: Vec<EqualRecord> = self.db().all(EQUAL, values).await?;
        let call = |record: EqualRecord| {
            let status = TaskStatus::parse(&record.status);
            Ok(EqualCall {
                task_id: TaskId(record.task_id),
                status: status.ok_or_else(|| corrupt("a task's status"))?,
                call_key: record.call_key,
                asker_until: record.asker_until.map(Time),
                updated_at: Time(record.updated_at),
                outcome_unknown: record.outcome_unknown,
                is_decided: record.is_decided,
                now: Time(record.moment),
            })
        };
        let own = records
            .into_iter()
            .filter(|record| user.is_same_person(&record.user_id));
        let (changes, calls): (Vec<_>, Vec<_>) =
            own.partition(|record| record.quarantine_at.is_some());
        let newest = changes
            .iter()
            .max_by_key(|change| (change.quarantine_at, change.in_quarantine))
            .filter(|change| change.in_quarantine == Some(true));
        let calls: Result<Vec<_>, ReadError> = calls.into_iter().map(call).collect();
        Ok(FoundCalls {
            calls: calls?,
            quarantined_by: newest.map(|change| TaskId(change.task_id)),
        })
    }

    /// Whether a call of `tool` by this user, in this session and at this gate, has a call key. If
    /// not, [`Store::equal_calls`] finds no equal call for any keys.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn has_keyed_calls(
        &self,
        tenant: &str,
        gate: &str,
        user: &UserId,
        session_id: &str,
        tool: &str,
    ) -> Result<bool, ReadError> {
        let [names, name_keys] = spelled(slice::from_ref(user));
        let values = values![tenant, gate, names, session_id, tool, name_keys];
        let users: Vec<String> = self.db().all(KEYED, values).await?;
        Ok(users.iter().any(|user_id| user.is_same_person(user_id)))
    }

    /// Counts the pending calls of a user at a gate, up to `limit`.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn open_calls(
        &self,
        tenant: &str,
        gate: &str,
        user: &UserId,
        limit: u32,
    ) -> Result<u32, ReadError> {
        let [names, keys] = spelled(slice::from_ref(user));
        let values = values![tenant, gate, names, i64::from(limit), keys];
        let counts: Vec<(String, i64)> = self.db().all(OPEN, values).await?;
        let own = counts
            .iter()
            .filter(|(user_id, _)| user.is_same_person(user_id));
        let calls: i64 = own.map(|(_, calls)| calls).sum();
        let calls = u32::try_from(calls).map_err(|_| corrupt("a number of calls"))?;
        Ok(calls.min(limit))
    }
}
