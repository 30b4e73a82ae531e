//! Writes a batch of changes as one autocommit statement of Postgres. Each change concerns one
//! task, which is the root of its tree, and answers or closes at most one request (see
//! `is_single`). Most changes are of this kind; `commit_postgres.rs` writes all others.
//!
//! Each row of the subquery `n` is one change. The statement gets the items of all changes as one
//! list, and has such a list also for requests, approvers, decisions and keys. In each list, the
//! lines of a change are contiguous. `LINE_RANGES` gives the numbers of the first and the last of
//! these lines. By these numbers, the statement finds the lines of a change without a join of two
//! lists. So the cost of the statement is nearly linear in the number of changes, as long as the
//! lists are short (see `MAX_BATCH_LINES`). The update itself compares the task's version, so most
//! batches need no lock before the update. Tasks are locked before the update only if a change of
//! the batch answers or closes a request, or sets `asker_until` of a stored task.
//!
//! Invariant: task rows are locked in order of id, by `locked` or by the update, whose lines are
//! sorted by id. Request rows are locked after the task rows. If tasks are locked before the
//! update, the statement reads the clock only when it has all locks. A change is refused if its
//! task has another version than the change expects, if its request is not in the state that the
//! change requires, or if its `history_fence` differs from `doubted_at`.

use std::sync::OnceLock;

use super::commit_postgres::{STORED_KEYS, send};
use super::db::{Db, DbFailure, Sql};
use super::lists::{APPROVERS, DECISIONS, ITEMS, KEYS, LINE_RANGES, List, NOTICES, REQUESTS};
use super::rows::{ChangeRows, TaskLine};
use super::statement::postgres;
use super::tables::CLAIMABLE;
use super::task_columns::TASKS;
use crate::task::change::Guard;

/// The parts of the statement that a batch needs, as a sum of bits. The statement leaves out all
/// other parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts(usize);

const CREATES: usize = 1;
const UPDATES: usize = 1 << 1;
/// Set if a change answers or closes a request, or sets `asker_until` of a stored task.
const NEEDS_LOCKS: usize = 1 << 2;
const ASKS: usize = 1 << 3;
const USES_KEYS: usize = 1 << 4;
const ENDS: usize = 1 << 5;
/// Set if a change makes a task claimable, now or later.
const QUEUES: usize = 1 << 6;
/// Set if a change parks a task without a wake-up time, so that no worker claims the task.
const PARKS: usize = 1 << 7;
/// Set if a change writes a row of `notice`.
const WRITES_NOTICE: usize = 1 << 8;
/// The maximum number of lines in the lists of a batch. If a single change has more lines,
/// `commit_postgres.rs` writes it. The columns of a list are arrays. To find a text in an array,
/// Postgres scans the array from its first text, so the cost of a batch grows with the square of
/// the number of its lines.
pub(super) const MAX_BATCH_LINES: usize = 1_000;
const PART_COMBINATIONS: usize = 1 << 9;

static TEXTS: [OnceLock<String>; PART_COMBINATIONS] =
    [const { OnceLock::new() }; PART_COMBINATIONS];

impl Parts {
    fn for_batch(batch: &[&ChangeRows]) -> Self {
        let part = |part: usize, needed: fn(&ChangeRows) -> bool| {
            part * usize::from(batch.iter().any(|rows| needed(rows)))
        };
        let parts = [
            part(CREATES, |rows| {
                rows.tasks.iter().any(|line| line.new_task().is_some())
            }),
            part(UPDATES, |rows| {
                rows.tasks.iter().any(TaskLine::requires_version)
            }),
            part(NEEDS_LOCKS, |rows| {
                !rows.request_updates.is_empty() || rows.tasks.iter().any(changes_presence)
            }),
            part(ASKS, |rows| !rows.requests.is_empty()),
            part(USES_KEYS, |rows| rows.idempotency.is_some()),
            part(ENDS, |rows| rows.tasks.iter().any(TaskLine::ends)),
            part(QUEUES, |rows| rows.tasks.iter().any(TaskLine::queues)),
            part(PARKS, |rows| rows.tasks.iter().any(TaskLine::parks)),
            part(WRITES_NOTICE, |rows| rows.gets_notice),
        ];
        Self(parts.into_iter().sum())
    }

    fn has(self, part: usize) -> bool {
        self.0 & part != 0
    }

    fn lists(self) -> Vec<&'static List> {
        let mut lists = vec![&TASKS, &LINE_RANGES, &ITEMS];
        if self.has(ASKS) {
            lists.extend([&REQUESTS, &APPROVERS]);
        }
        if self.has(NEEDS_LOCKS) {
            lists.push(&DECISIONS);
        }
        if self.has(USES_KEYS) {
            lists.push(&KEYS);
        }
        if self.has(WRITES_NOTICE) {
            lists.push(&NOTICES);
        }
        lists
    }

    fn statement(self) -> Sql {
        // `self.0` is below `PART_COMBINATIONS`, so `TEXTS` has an entry for it.
        let text = TEXTS.get(self.0);
        Sql::on_postgres(text.map_or("", |text| text.get_or_init(|| self.text()))).by_key()
    }

    fn text(self) -> String {
        let part = |part: usize, text: &'static str| if self.has(part) { text } else { "" };
        // With `NEEDS_LOCKS`, the statement reads the clock once, between the locks and the update.
        // This time (`n.moment`) applies to every change of the batch.
        let (ready, moment, time) = if self.has(NEEDS_LOCKS) {
            (LOCKED, "n.moment", "n.moment")
        } else {
            (UNLOCKED, "{now}", "t.updated_at")
        };
        let all = match (self.has(UPDATES), self.has(CREATES)) {
            (true, true) => "updated union all select * from created",
            (true, false) => "updated",
            (false, _) => "created",
        };
        let parts = [
            (CHANGES, ""),
            (ready, ""),
            (part(UPDATES, UPDATED), moment),
            (part(CREATES, FRESH), moment),
            (part(CREATES, CREATED), "n.at"),
            (ALL, "k.at"),
            (ITEMS_INSERTED, "k.at"),
            (part(ASKS, ASKED_INSERTED), "k.at"),
            (part(NEEDS_LOCKS, ANSWERED), "k.at"),
            (part(USES_KEYS, KEYS_INSERTED), "k.at"),
            (part(ENDS, CREDENTIALS_DELETED), ""),
            (part(QUEUES, CLAIMABLE_STORED), ""),
            (part(PARKS, CLAIMABLE_DELETED), ""),
            (part(WRITES_NOTICE, NOTICES_INSERTED), ""),
            (" select k.change, k.at from k", ""),
        ];
        let lists = self.lists();
        let filled = parts.map(|(template, at)| {
            let words = [
                ("at", at),
                ("base", "k.base"),
                ("fenced", FENCED),
                ("stored_keys", STORED_KEYS),
                ("claimable", CLAIMABLE),
                ("all", all),
                ("time", time),
            ];
            postgres(template, &lists, &words)
        });
        filled.concat()
    }
}

const CHANGES: &str = "with n as materialized (select * from {tasks+line_ranges n})";

/// The table expression `ready` for a batch without `NEEDS_LOCKS`. No rows are locked before the
/// update. The update reads the clock itself, after it has waited for the task's row.
const UNLOCKED: &str = "
, ready as (
    select n.*, null::bigint as required, null::uuid as own_call, null::bigint as moment from n
)";

/// The table expression `ready` for a batch with `NEEDS_LOCKS`, and the expressions before it that
/// lock tasks and requests. `held` waits for the lock of each request, and then reads the request.
const LOCKED: &str = "
, locked as materialized (
    select t.task_id from agent_task t where t.task_id = any({tasks.task_id}) order by t.task_id for update of t
), held as materialized (
    select n.*, r.required, r.call_id as own_call, r.status as found, r.expires_at
      from n join intervention_request r on r.request_id = n.updated_request
     where (select count(*) from locked) >= 0 order by r.request_id for update of r
), moment as materialized (
    select {now} as at where (select count(*) from locked) + (select count(*) from held) >= 0
), ready as materialized (
    select n.*, null::bigint as required, null::uuid as own_call, m.at as moment
      from n cross join moment m where n.updated_request is null
    union all
    select {tasks+line_ranges of h}, h.required, h.own_call, m.at as moment
      from held h cross join moment m
     where (not h.is_open or h.found = 'pending')
       and (not h.in_time or h.expires_at is null or h.expires_at > m.at)
       and (not h.overdue or h.expires_at <= m.at)
)";

/// Compares [`ChangeRows::history_fence`] with `doubted_at` (see `commit_postgres.rs`), which is
/// null if the database was never restored.
const FENCED: &str = "n.history_fence = coalesce(
        (select k.doubted_at from database_identity k where k.id = 1), 0)";

const UPDATED: &str = "
, updated as (
    update agent_task t set {agent_task.sets}
      from ready n
     where n.guard = 1 and t.task_id = n.task_id and t.root_task_id = n.task_id and t.version = n.version
       and t.last_seq = n.last_seq and {fenced}
    returning {line_ranges of n}, n.change, n.required, n.own_call, t.task_id, t.tenant, t.user_id, t.agent, t.call_key,
        {time} as at, t.next_event - n.events as base, n.lease, n.lease_time, {claimable}
)";

const FRESH: &str = "
, fresh as materialized (
    select n.*, {at} as at from ready n
     where n.guard = 0 and not exists (select 1 from agent_task t where t.task_id = n.task_id)
)";

const CREATED: &str = "
, inserted_tasks as (
    insert into agent_task ({agent_task.columns}) select {agent_task.values} from fresh n
), created as (
    select {line_ranges of n}, n.change, n.required, n.own_call, n.task_id, n.tenant, n.user_id, n.agent, n.call_key,
        n.at, 0::bigint as base, n.lease, n.lease_time,
        case n.lease when 2 then 0 else n.at + n.lease_time end as due_at, false as alone
      from fresh n
)";

/// The subquery `k`, which has the changes that are written: the rows of `updated` and of
/// `created`. The later parts of the statement read the columns of `k`.
const ALL: &str = "
, k as materialized (select * from {all})";

const ITEMS_INSERTED: &str = "
, inserted_items as (
    insert into agent_task_item ({agent_task_item.columns})
    select {agent_task_item.values}
      from k cross join lateral generate_series(k.items_from, k.items_to) g cross join lateral {items[g] i}
)";

const ASKED_INSERTED: &str = "
, inserted_requests as (
    insert into intervention_request ({intervention_request.columns})
    select {intervention_request.values}
      from k cross join lateral generate_series(k.requests_from, k.requests_to) g cross join lateral {requests[g] a}
), inserted_approvers as (
    insert into request_approver ({request_approver.columns})
    select {request_approver.values}
      from k cross join lateral generate_series(k.approvers_from, k.approvers_to) g
     cross join lateral {approvers[g] p}
), inserted_inbox as (
    insert into inbox ({inbox.columns})
    select {inbox.values}
      from k cross join lateral generate_series(k.approvers_from, k.approvers_to) g
     cross join lateral {approvers[g] p} where p.open
)";

const ANSWERED: &str = "
, updated_requests as (
    update intervention_request r set status = k.becomes, closed_seq = k.closed_seq from k where r.request_id = k.updated_request and k.becomes is not null
), deleted_inbox as (
    delete from inbox i using k where i.request_id = k.updated_request and k.becomes is not null
), inserted_decisions as (
    insert into decision ({decision.columns})
    select {decision.values}
      from k cross join lateral generate_series(k.decisions_from, k.decisions_to) g
     cross join lateral {decisions[g] d}
     cross join lateral (select k.tenant, k.required, k.own_call as call_id) r
)";

const KEYS_INSERTED: &str = "
, used_keys ({idempotency.columns}) as materialized (
    select {idempotency.values}
      from k cross join lateral generate_series(k.keys_from, k.keys_to) g cross join lateral {keys[g] y}
     order by y.tenant, y.path, y.key, y.user_id
), {stored_keys}";

/// Deletes all credentials of each task that ends. The statement cannot see a credential that
/// another commit stores after the statement's snapshot. But such a commit increments the task's
/// version, so the change that ends the task is refused as stale.
const CREDENTIALS_DELETED: &str = "
, deleted_credentials as (
    delete from credential s using k where k.ends and s.task_id = k.task_id
)";

/// Writes the rows of `claimable_task`. A claim looks at a task once `due_at` has passed. If a
/// change takes a lease, `due_at` becomes the end of the lease. The statement skips this write if
/// the stored `due_at` is in the second half of the lease, and `alone` stays the same. A claim may
/// then look at the task before the end of the lease. Such a claim corrects `due_at` and does not
/// take the task. `RENEW` (see `claim.rs`) saves writes in the same way.
///
/// The statement reads the task's row of `claimable_task` as of its snapshot. A later commit may
/// have deleted this row. But such a commit increments the task's version, so this change is
/// refused as stale.
const CLAIMABLE_STORED: &str = "
, stored_claimable as (
    insert into claimable_task ({claimable_task.columns})
    select {claimable_task.values} from k c
     where c.lease <> 0 and c.due_at is not null and coalesce((
        select q.due_at from claimable_task q where c.lease = 1 and q.task_id = c.task_id and q.alone = c.alone
        ), -1) not between c.due_at - coalesce(c.lease_time, 0) / 2 and c.due_at
    on conflict (task_id) do update set due_at = excluded.due_at, alone = excluded.alone
)";

const CLAIMABLE_DELETED: &str = "
, deleted_claimable as (
    delete from claimable_task c using k where k.lease <> 0 and k.due_at is null and c.task_id = k.task_id
)";

/// Writes the notices. For each change, the statement searches the array of notices. This costs
/// little, because a batch has few notices.
const NOTICES_INSERTED: &str = "
, inserted_notices as (
    insert into notice ({notice.columns})
    select {notice.values}
      from k cross join lateral (select array_position({notices.change}, k.change) as g) p
     cross join lateral {notices[g] o} where p.g is not null
)";

pub(super) fn statements() -> impl Iterator<Item = Sql> {
    let all = (0..PART_COMBINATIONS).map(Parts);
    all.filter(|parts| parts.has(CREATES | UPDATES))
        .map(Parts::statement)
}

/// Whether the line sets `asker_until` of a stored task. If so, the statement must return the time
/// that it reads under the locks, because `asker_until` counts from this time. The statement cannot
/// return `updated_at` instead, because a change without items does not set `updated_at`.
fn changes_presence(line: &TaskLine) -> bool {
    line.requires_version() && line.task.asker.is_some()
}

pub(super) fn is_single(rows: &ChangeRows) -> bool {
    let [line] = rows.tasks.as_slice() else {
        return false;
    };
    let is_root = line.task.task_id == rows.root;
    let has_one_update_at_most = match rows.request_updates.as_slice() {
        [] => rows.decisions.is_empty(),
        [update] => {
            update.status.is_some()
                && rows
                    .decisions
                    .iter()
                    .all(|line| line.request_id == update.request_id)
        }
        _ => false,
    };
    is_root
        && !rows.is_general
        && rows.lines() <= MAX_BATCH_LINES
        && !matches!(line.task.guard, Guard::Any)
        && (line.facts > 0 || changes_presence(line))
        && line.facts == line.events
        && has_one_update_at_most
        && (line.requires_version() || rows.request_updates.is_empty())
        && rows.credentials.is_empty()
        && !rows.has_grants()
}

/// Writes a batch of changes for which [`is_single`] is true. Returns for each change, in the order
/// of the batch, the time of the commit, or `None` if the change is stale.
pub(super) async fn write(
    db: &Db,
    batch: &[&ChangeRows],
    repeated: bool,
) -> Result<Vec<Option<i64>>, DbFailure> {
    let mut sorted: Vec<(usize, &ChangeRows)> = batch.iter().copied().enumerate().collect();
    sorted.sort_by_key(|(_, rows)| rows.root);
    let (numbers, rows): (Vec<usize>, Vec<&ChangeRows>) = sorted.into_iter().unzip();
    let parts = Parts::for_batch(&rows);
    let times = send(db, parts.statement(), &parts.lists(), &rows, repeated).await?;
    let mut answers: Vec<_> = numbers.into_iter().zip(times).collect();
    answers.sort_unstable_by_key(|(number, _)| *number);
    Ok(answers.into_iter().map(|(_, time)| time).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_without_a_notice_has_no_text_and_no_parameter_for_notices() {
        for parts in (0..PART_COMBINATIONS)
            .map(Parts)
            .filter(|parts| !parts.has(WRITES_NOTICE))
        {
            let more = Parts(parts.0 | WRITES_NOTICE);
            assert_eq!(parts.lists().len() + 1, more.lists().len());
            assert!(!parts.text().contains("notice"));
            assert!(more.text().contains("insert into notice"));
        }
    }
}
