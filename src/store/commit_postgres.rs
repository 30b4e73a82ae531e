//! Writes a batch of changes of any shape as one autocommit statement of Postgres.
//! `commit_single.rs` has a shorter statement for changes that concern only a root.
//!
//! Invariant: three subqueries decide whether a change is taken. They run before any other read, in
//! this order: `locked` locks the task rows of the batch in order of id, `held` locks the request
//! rows, and `held_grants` locks the standing decisions. These three read the rows as they are
//! after the wait for the locks. All other reads return the rows as they were before this wait, so
//! no other read may decide whether a change is taken. The only exception is the comparison with
//! `history_fence`, which reads the row of `database_identity`. Before the first statement of each
//! connection, this row is checked and updated if needed (see `identity.rs`), so each statement
//! reads that version of the row or a newer one. Nothing is written for a change that is not taken.
//! Each task row is updated at most once.

use std::sync::OnceLock;

use super::db::{Db, DbFailure, Sql, Value, values};
use super::lists::{
    APPROVERS, CHANGES, CREDENTIALS, DECISIONS, GRANTS, ITEMS, KEYS, List, NOTICES,
    REQUEST_UPDATES, REQUESTS, USES,
};
use super::rows::ChangeRows;
use super::statement::postgres;
use super::tables::CLAIMABLE;
use super::task_columns::TASKS;

const LISTS: [&List; 9] = [
    &CHANGES,
    &TASKS,
    &REQUEST_UPDATES,
    &ITEMS,
    &REQUESTS,
    &APPROVERS,
    &DECISIONS,
    &KEYS,
    &CREDENTIALS,
];

/// The parts of the statement that few batches need, as a sum of bits. A statement leaves out the
/// texts and the parameters of the parts that its batch does not need.
#[derive(Clone, Copy)]
struct Extras(usize);

/// Set if a change of the batch writes a notice, the outbox entry for messages about the change.
const HAS_NOTICES: usize = 1;
const HAS_GRANTS: usize = 1 << 1;
const COMBINATIONS: usize = 1 << 2;

static TEXTS: [OnceLock<String>; COMBINATIONS] = [const { OnceLock::new() }; COMBINATIONS];

impl Extras {
    fn for_batch(batch: &[&ChangeRows]) -> Self {
        let has_notices = batch.iter().any(|rows| rows.gets_notice);
        let has_grants = batch.iter().any(|rows| rows.has_grants());
        Self(HAS_NOTICES * usize::from(has_notices) + HAS_GRANTS * usize::from(has_grants))
    }

    fn has(self, part: usize) -> bool {
        self.0 & part != 0
    }

    fn lists(self) -> Vec<&'static List> {
        let mut lists = LISTS.to_vec();
        if self.has(HAS_GRANTS) {
            lists.extend([&GRANTS, &USES]);
        }
        if self.has(HAS_NOTICES) {
            lists.push(&NOTICES);
        }
        lists
    }

    fn text(self) -> String {
        let part = |part: usize, text: &'static str| if self.has(part) { text } else { "" };
        let grants = |text| part(HAS_GRANTS, text);
        postgres(
            WRITE,
            &self.lists(),
            &[
                ("at", "m.at"),
                ("base", "coalesce(l.next_event, 0)"),
                ("stored_keys", STORED_KEYS),
                ("claimable", CLAIMABLE),
                ("held_grants", grants(GRANTS_HELD)),
                ("counted_grants", grants(GRANTS_COUNTED)),
                ("refused_grants", grants(GRANTS_REFUSED)),
                ("written_grants", grants(GRANTS_WRITTEN)),
                ("inserted_notices", part(HAS_NOTICES, NOTICES_INSERTED)),
            ],
        )
    }

    fn statement(self) -> Sql {
        // `self.0` is below `COMBINATIONS`, so `TEXTS` has an entry for it.
        let text = TEXTS.get(self.0);
        Sql::on_postgres(text.map_or("", |text| text.get_or_init(|| self.text()))).by_key()
    }
}

/// Returns the statement for each combination of `Extras`. The statements are for Postgres only,
/// because `SQLite` has no data-modifying CTEs, no arrays and no row locks (see
/// `commit_sqlite.rs`).
pub(super) fn statements() -> impl Iterator<Item = Sql> {
    (0..COMBINATIONS).map(|parts| Extras(parts).statement())
}

const WRITE: &str = "
with changes as materialized (
    select * from {changes c}
), named as materialized (
    select * from {tasks n}
), request_updates as materialized (
    select * from {request_updates u}
), locked as materialized (
    select t.task_id, t.root_task_id, t.version, t.last_seq, t.next_event
      from agent_task t where t.task_id = any({tasks.task_id}) order by t.task_id for update of t
), held as materialized (
    select r.request_id, r.status, r.expires_at, r.required, r.call_id, r.tenant
      from intervention_request r
     where r.request_id = any({request_updates.request_id}) and (select count(*) from locked) >= 0
     order by r.request_id for update of r
){held_grants}, moment as materialized (
    select {now} as at where (select count(*) from locked) + (select count(*) from held){counted_grants} >= 0
), refused as materialized (
    select n.change
      from named n left join locked l on l.task_id = n.task_id
     where not coalesce(case n.guard
            when 0 then l.task_id is null
            when 1 then l.root_task_id = n.root_task_id and l.version = n.version and l.last_seq = n.last_seq
            else l.root_task_id = n.root_task_id end, false)
    union all
    select u.change from request_updates u left join held h on h.request_id = u.request_id cross join moment m
     where (u.is_open and coalesce(h.status, '') <> 'pending')
        or (u.in_time and h.expires_at <= m.at)
        or (u.overdue and coalesce(h.expires_at > m.at, true))
    union all
    select c.change from changes c
     where c.history_fence <> coalesce((select k.doubted_at from database_identity k where k.id = 1), 0){refused_grants}
), taken as materialized (
    select c.change, c.root_task_id from changes c where c.change <> all (array(select change from refused))
), inserted_tasks as (
    insert into agent_task as t ({agent_task.columns})
    select {agent_task.values}
      from named n join taken c on c.change = n.change cross join moment m where n.guard = 0
    returning t.task_id, t.tenant, t.user_id, t.agent, t.call_key, {claimable}
), updated_tasks as (
    update agent_task t set {agent_task.sets}
      from named n join taken c on c.change = n.change cross join moment m
     where n.guard <> 0 and t.task_id = n.task_id
    returning t.task_id, t.tenant, t.user_id, t.agent, t.call_key, {claimable}, n.lease
), claims as materialized (
    select task_id, tenant, user_id, due_at, alone from inserted_tasks
    union all select task_id, tenant, user_id, due_at, alone from updated_tasks where lease <> 0
), stored_claimable as (
    insert into claimable_task ({claimable_task.columns})
    select {claimable_task.values} from claims c where c.due_at is not null
    on conflict (task_id) do update set due_at = excluded.due_at, alone = excluded.alone
), deleted_claimable as (
    delete from claimable_task q using claims c where c.due_at is null and q.task_id = c.task_id
), inserted_items as (
    insert into agent_task_item ({agent_task_item.columns})
    select {agent_task_item.values}
      from {items i} join taken c on c.change = i.change left join locked l on l.task_id = c.root_task_id
     cross join moment m
), known as (
    select task_id, tenant, user_id, agent, call_key from inserted_tasks
    union all select task_id, tenant, user_id, agent, call_key from updated_tasks
), inserted_requests as (
    insert into intervention_request ({intervention_request.columns})
    select {intervention_request.values}
      from {requests a} join taken c on c.change = a.change join known k on k.task_id = a.task_id cross join moment m
), inserted_approvers as (
    insert into request_approver ({request_approver.columns})
    select {request_approver.values}
      from {approvers p} join taken c on c.change = p.change join known k on k.task_id = p.task_id
), inserted_inbox as (
    insert into inbox ({inbox.columns})
    select {inbox.values}
      from {approvers p} join taken c on c.change = p.change join known k on k.task_id = p.task_id cross join moment m
     where p.open
), updated_requests as (
    update intervention_request r
       set status = case when u.resumed and coalesce(u.status, h.status) = 'responded' then 'resumed'
            else coalesce(u.status, h.status) end,
            closed_seq = coalesce(u.closed_seq, r.closed_seq)
      from request_updates u join taken c on c.change = u.change join held h on h.request_id = u.request_id
     where r.request_id = u.request_id and (u.status is not null or (u.resumed and h.status = 'responded'))
    returning r.request_id, r.status
), deleted_inbox as (
    delete from inbox i using updated_requests r where i.request_id = r.request_id and r.status <> 'pending'
), inserted_decisions as (
    insert into decision ({decision.columns})
    select {decision.values}
      from {decisions d} join taken c on c.change = d.change join held r on r.request_id = d.request_id
     cross join moment m
), used_keys ({idempotency.columns}) as materialized (
    select {idempotency.values} from {keys y} join taken c on c.change = y.change cross join moment m
     order by y.tenant, y.path, y.key, y.user_id
), {stored_keys}, inserted_credentials as (
    insert into credential ({credential.columns})
    select {credential.values}
      from {credentials s} join taken c on c.change = s.change join known k on k.task_id = s.task_id
     cross join moment m
     order by s.task_id, s.name
    on conflict (task_id, name) do update set request_id = excluded.request_id, key_id = excluded.key_id,
        sealed = excluded.sealed, created_at = excluded.created_at, expires_at = excluded.expires_at
), deleted_credentials as (
    -- A commit that stores another credential after this statement's snapshot also increments the task's version, so
    -- this change would be stale.
    delete from credential s using named n join taken c on c.change = n.change
     where n.status in ('Completed', 'Failed', 'Canceled') and s.task_id = n.task_id
){written_grants}{inserted_notices}
select c.change, m.at from taken c cross join moment m";

/// Locks the standing decisions under which the changes start calls. Runs after the subquery `held`
/// has locked the requests.
const GRANTS_HELD: &str = ", used_grants as materialized (
    select w.change, w.grant_id, w.calls, sum(w.calls) over (partition by w.grant_id order by w.change) as upto from {uses w}
), held_grants as materialized (
    select g.grant_id, g.uses, g.used, g.expires_at, g.revoked_at from standing_grant g
     where g.grant_id = any({uses.grant_id}) and (select count(*) from held) >= 0 order by g.grant_id for update of g
)";

const GRANTS_COUNTED: &str = " + (select count(*) from held_grants)";

/// Refuses a change if one of the standing decisions that it uses is missing, revoked or expired,
/// or has too few uses left for this change and the earlier changes of the batch.
const GRANTS_REFUSED: &str = "
    union all
    select w.change from used_grants w left join held_grants g on g.grant_id = w.grant_id cross join moment m
     where coalesce(g.revoked_at is not null or g.expires_at <= m.at or g.used + w.upto > g.uses, true)";

const GRANTS_WRITTEN: &str = ", inserted_grants as (
    insert into standing_grant ({standing_grant.columns})
    select {standing_grant.values}
      from {grants g} join taken c on c.change = g.change join known k on k.task_id = g.task_id cross join moment m
), updated_grants as (
    update standing_grant s set used = h.used + w.calls
      from (select w.grant_id, sum(w.calls)::bigint as calls
              from used_grants w join taken c on c.change = w.change group by w.grant_id) w
      join held_grants h on h.grant_id = w.grant_id
     where s.grant_id = w.grant_id
)";

const NOTICES_INSERTED: &str = ", inserted_notices as (
    insert into notice ({notice.columns})
    select {notice.values}
      from {notices o} join taken c on c.change = o.change left join locked l on l.task_id = c.root_task_id
)";

/// Stores the rows of `idempotency` that the subquery `used_keys` returns. `commit_single.rs` uses
/// this part, too.
pub(super) const STORED_KEYS: &str = "spent_keys as (
    -- Deletes the expired row of the key, which may have another spelling of the user id; the new row replaces it. The
    -- `case` keeps the planner from the index on `created_at`, by which a plan would read all expired keys.
    delete from idempotency i using used_keys y
     where i.tenant = y.tenant and i.person = y.person and i.path = y.path and i.key = y.key
       and i.created_at <= case when i.request_id is null then y.created_at - 86400000000 end
    returning 1
), inserted_keys as (
    insert into idempotency ({idempotency.columns})
    select * from used_keys where (select count(*) from spent_keys) >= 0
    -- An expired key is replaced. For an unexpired key, `task_id` becomes null, which the table forbids: the statement fails.
    on conflict (tenant, user_id, path, key) do update set body_digest = excluded.body_digest,
        created_at = excluded.created_at, request_id = excluded.request_id, person = excluded.person,
        task_id = case when idempotency.request_id is null
            and idempotency.created_at <= excluded.created_at - 86400000000 then excluded.task_id end
)";

/// Writes a batch. Returns for each change, in the order of the batch, the time of the commit, or
/// `None` if the change is stale. `repeated` is true for changes of a batch that failed. Such
/// changes are sent on a connection of another pool, so that the writer can write further batches.
pub(super) async fn write(
    db: &Db,
    batch: &[&ChangeRows],
    repeated: bool,
) -> Result<Vec<Option<i64>>, DbFailure> {
    let extras = Extras::for_batch(batch);
    send(db, extras.statement(), &extras.lists(), batch, repeated).await
}

/// Sends the statement `sql` for a batch. The parameters are [`Value::Now`], the `asker_owner` of
/// this process, and the columns of `lists`. Returns the results as [`write`] does.
pub(super) async fn send(
    db: &Db,
    sql: Sql,
    lists: &[&List],
    batch: &[&ChangeRows],
    repeated: bool,
) -> Result<Vec<Option<i64>>, DbFailure> {
    let mut values = values![Value::Now, db.asker_lock.owner()];
    for list in lists {
        values.extend((list.arrays)(batch));
    }
    // Each row is a change that was written: its position in the batch, and the time of the commit.
    let taken: Vec<(i64, i64)> = db.write_batch(sql.postgres, values, repeated).await?;
    let mut times = vec![None; batch.len()];
    for (change, at) in taken {
        let time = usize::try_from(change)
            .ok()
            .and_then(|index| times.get_mut(index));
        let Some(time) = time else {
            return Err(DbFailure::sent(sqlx::Error::Protocol(
                "a change of the batch was expected".to_owned(),
            )));
        };
        *time = Some(at);
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_without_notices_and_grants_has_no_text_and_no_parameter_for_them() {
        for extras in (0..COMBINATIONS).map(Extras) {
            let (text, lists) = (extras.text(), extras.lists());
            let (has_notices, has_grants) = (extras.has(HAS_NOTICES), extras.has(HAS_GRANTS));
            assert_eq!(text.contains("notice"), has_notices);
            assert_eq!(text.contains("grant"), has_grants);
            let more = usize::from(has_notices) + 2 * usize::from(has_grants);
            assert_eq!(lists.len(), LISTS.len() + more);
        }
    }
}
