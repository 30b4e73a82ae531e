//! A batch of changes as one autocommit statement.
//!
//! Invariant: `locked` locks every task row of the batch in order of id before anything else is
//! read; then `held` locks every request row. Both see the rows as they are after the wait for the
//! locks. Any other read of the tables sees them as they were before it, so only `locked` and
//! `held` decide whether a change is taken. Nothing is written for a change that is not taken. Each
//! task row is updated once.

use super::db::{Db, Failure, Sql, Value};
use super::record::record;
use super::rows::{Needs, Rows};

/// For Postgres only, because `SQLite` has no data-modifying CTEs, no arrays and no row locks: see
/// `commit_sqlite.rs`.
pub(super) const STATEMENT: Sql = Sql {
    postgres: WRITE,
    sqlite: "",
    by_key: true,
};

const WRITE: &str = "
with changes as materialized (
    select * from unnest($2::bigint[], $3::uuid[], $4::uuid[]) as c (change, change_id, root)
), named as materialized (
    select * from unnest($5::bigint[], $6::uuid[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[],
        $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[],
        $18::text[], $19::bigint[], $20::bigint[], $21::text[], $22::bigint[], $78::text[])
        as n (change, task_id, guard, version, last_seq, facts, events, busy, open_requests, prompt, completion,
            total, calls, status, status_seq, lease, owner, lasts, pinned)
), fixed as materialized (
    select * from unnest($23::uuid[], $24::uuid[], $25::uuid[], $26::text[], $27::text[], $28::text[], $29::text[],
        $30::text[], $31::text[], $32::text[])
        as f (task_id, parent_task_id, parent_call_id, tenant, user_id, session_id, agent, agent_version, agent_path,
            metadata)
), touched as materialized (
    select * from unnest($33::bigint[], $34::uuid[], $35::boolean[], $36::boolean[], $37::boolean[], $38::text[],
        $39::boolean[]) as u (change, request_id, is_open, in_time, overdue, status, resumed)
), locked as materialized (
    select t.task_id, t.root_task_id, t.version, t.last_seq, t.next_event, t.tenant, t.user_id
      from agent_task t where t.task_id = any($6::uuid[]) order by t.task_id for update of t
), held as materialized (
    select r.request_id, r.status, r.expires_at, r.required, r.call_id, r.tenant
      from intervention_request r
     where r.request_id = any($34::uuid[]) and (select count(*) from locked) >= 0
     order by r.request_id for update of r
), moment as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint as at
     where (select count(*) from locked) + (select count(*) from held) >= 0
), refused as materialized (
    select n.change
      from named n join changes c on c.change = n.change left join locked l on l.task_id = n.task_id
     where not coalesce(case n.guard
            when 0 then l.task_id is null
            when 1 then l.root_task_id = c.root and l.version = n.version and l.last_seq = n.last_seq
            else l.root_task_id = c.root end, false)
    union all
    select u.change from touched u left join held h on h.request_id = u.request_id cross join moment m
     where (u.is_open and coalesce(h.status, '') <> 'pending')
        or (u.in_time and h.expires_at <= m.at)
        or (u.overdue and coalesce(h.expires_at > m.at, true))
), taken as materialized (
    select c.change, c.change_id, c.root from changes c where c.change <> all (array(select change from refused))
), inserted_tasks as (
    insert into agent_task (task_id, root_task_id, parent_task_id, parent_call_id, tenant, user_id, session_id, agent,
        agent_version, agent_path, metadata, status, status_seq, version, last_seq, next_event, busy, open_requests,
        prompt_tokens, completion_tokens, total_tokens, model_calls, phase, lease_owner, lease_until, wake_at,
        takeovers, begun, created_at, updated_at)
    select f.task_id, k.root, f.parent_task_id, f.parent_call_id, f.tenant, f.user_id, f.session_id, f.agent,
        f.agent_version, f.agent_path, f.metadata, n.status, n.status_seq, 1, n.last_seq + n.facts, n.events, n.busy,
        n.open_requests, n.prompt, n.completion, n.total, n.calls,
        case n.lease when 1 then 'leased' when 3 then 'parked' else 'queued' end,
        case n.lease when 1 then n.owner end, case n.lease when 1 then m.at + n.lasts end,
        case n.lease when 3 then m.at + n.lasts end, 0, n.lease = 1, m.at, m.at
      from fixed f join named n on n.task_id = f.task_id join taken k on k.change = n.change cross join moment m
), updated_tasks as (
    update agent_task t set
        version = t.version + case n.guard when 1 then 1 else 0 end,
        last_seq = t.last_seq + n.facts,
        next_event = t.next_event + n.events,
        busy = t.busy + n.busy,
        open_requests = t.open_requests + n.open_requests,
        prompt_tokens = t.prompt_tokens + n.prompt,
        completion_tokens = t.completion_tokens + n.completion,
        total_tokens = t.total_tokens + n.total,
        model_calls = t.model_calls + n.calls,
        status = coalesce(n.status, t.status),
        status_seq = case when n.status is null then t.status_seq else n.status_seq end,
        agent_version = coalesce(n.pinned, t.agent_version),
        phase = case n.lease when 1 then 'leased' when 2 then 'queued' when 3 then 'parked' else t.phase end,
        lease_owner = case n.lease when 0 then t.lease_owner when 1 then n.owner end,
        lease_until = case n.lease when 0 then t.lease_until when 1 then m.at + n.lasts end,
        wake_at = case n.lease when 0 then t.wake_at when 3 then m.at + n.lasts end,
        takeovers = case when n.facts > 0 then 0 else t.takeovers end,
        fruitless = case when n.facts > 0 then 0 else t.fruitless end,
        begun = case n.lease when 0 then t.begun when 1 then true else false end,
        updated_at = case when n.facts > 0 then m.at else t.updated_at end
      from named n join taken k on k.change = n.change cross join moment m
     where n.guard <> 0 and t.task_id = n.task_id
), inserted_items as (
    insert into agent_task_item (task_id, seq, root_task_id, event_number, change_id, type, role, at, request_id, body)
    select i.task_id, i.seq, k.root, coalesce(l.next_event, 0) + i.ordinal, k.change_id, i.type, i.role, m.at,
        i.request_id, i.body
      from unnest($40::bigint[], $41::uuid[], $42::bigint[], $43::bigint[], $44::text[], $45::text[], $46::uuid[],
            $47::text[]) as i (change, task_id, seq, ordinal, type, role, request_id, body)
      join taken k on k.change = i.change left join locked l on l.task_id = k.root cross join moment m
), known as (
    select task_id, tenant, user_id from locked union all select task_id, tenant, user_id from fixed
), inserted_requests as (
    insert into intervention_request (request_id, task_id, seq, root_task_id, tenant, kind, status, required, call_id,
        created_at, expires_at)
    select a.request_id, a.task_id, a.seq, k.root, w.tenant, a.kind, a.status, a.required, a.call_id, m.at,
        m.at + a.expires_in
      from unnest($48::bigint[], $49::uuid[], $50::uuid[], $51::bigint[], $52::text[], $53::text[], $54::bigint[],
            $55::uuid[], $56::bigint[])
            as a (change, request_id, task_id, seq, kind, status, required, call_id, expires_in)
      join taken k on k.change = a.change join known w on w.task_id = a.task_id cross join moment m
), inserted_approvers as (
    insert into request_approver (tenant, kind, name, request_id)
    select w.tenant, p.kind, coalesce(p.name, w.user_id), p.request_id
      from unnest($57::bigint[], $58::uuid[], $59::uuid[], $60::text[], $61::text[])
            as p (change, request_id, task_id, kind, name)
      join taken k on k.change = p.change join known w on w.task_id = p.task_id
), updated_requests as (
    update intervention_request r
       set status = case when u.resumed and coalesce(u.status, h.status) = 'responded' then 'resumed'
            else coalesce(u.status, h.status) end
      from touched u join taken k on k.change = u.change join held h on h.request_id = u.request_id
     where r.request_id = u.request_id and (u.status is not null or (u.resumed and h.status = 'responded'))
), inserted_decisions as (
    insert into decision (tenant, user_id, request_id, tool_call_id, action, final, task_id, seq, at)
    select h.tenant, d.user_id, d.request_id, coalesce(d.call_id, h.call_id, d.request_id), d.action,
        d.settles or h.required <= 1, d.task_id, d.seq, m.at
      from unnest($62::bigint[], $63::uuid[], $64::uuid[], $65::text[], $66::text[], $67::boolean[], $68::uuid[],
            $69::bigint[]) as d (change, request_id, call_id, user_id, action, settles, task_id, seq)
      join taken k on k.change = d.change join held h on h.request_id = d.request_id cross join moment m
), used_keys as materialized (
    select y.tenant, y.user_id, y.path, y.key, y.body_digest, y.task_id, y.request_id, y.person, m.at
      from unnest($70::bigint[], $71::text[], $72::text[], $73::text[], $74::text[], $75::text[], $76::uuid[],
            $77::uuid[], $86::text[])
            as y (change, tenant, user_id, path, key, body_digest, task_id, request_id, person)
      join taken k on k.change = y.change cross join moment m
     order by y.tenant, y.path, y.key, y.user_id
), spent_keys as (
    -- One spelling of a person takes the place of another, which is another row of the table. The condition is written
    -- so that no plan looks at every key that is over.
    delete from idempotency i using used_keys y
     where i.tenant = y.tenant and i.person = y.person and i.path = y.path and i.key = y.key
       and i.created_at <= case when i.request_id is null then y.at - 86400000000 end
    returning 1
), inserted_keys as (
    insert into idempotency (tenant, user_id, path, key, body_digest, task_id, request_id, person, created_at)
    select y.tenant, y.user_id, y.path, y.key, y.body_digest, y.task_id, y.request_id, y.person, y.at
      from used_keys y where (select count(*) from spent_keys) >= 0
    -- A key that is over is used anew; one that is not (no task: null is forbidden) refuses the change whole.
    on conflict (tenant, user_id, path, key) do update set body_digest = excluded.body_digest,
        created_at = excluded.created_at, request_id = excluded.request_id, person = excluded.person,
        task_id = case when idempotency.request_id is null
            and idempotency.created_at <= excluded.created_at - 86400000000 then excluded.task_id end
), inserted_credentials as (
    insert into credential (task_id, name, tenant, root_task_id, request_id, key_id, sealed, created_at, expires_at)
    select s.task_id, s.name, w.tenant, k.root, s.request_id, s.key_id, s.sealed, m.at, m.at + s.expires_in
      from unnest($79::bigint[], $80::uuid[], $81::text[], $82::uuid[], $83::text[], $84::text[], $85::bigint[])
            as s (change, task_id, name, request_id, key_id, sealed, expires_in)
      join taken k on k.change = s.change join known w on w.task_id = s.task_id cross join moment m
     order by s.task_id, s.name
    on conflict (task_id, name) do update set request_id = excluded.request_id, key_id = excluded.key_id,
        sealed = excluded.sealed, created_at = excluded.created_at, expires_at = excluded.expires_at
), deleted_credentials as (
    -- What this statement does not see was committed with a version that its change does not name.
    delete from credential c using named n join taken k on k.change = n.change
     where n.status in ('Completed', 'Failed', 'Canceled') and c.task_id = n.task_id
)
select c.change, k.change is not null as taken, m.at
  from changes c left join taken k on k.change = c.change cross join moment m order by c.change";

record! {
    /// The result for one change of a batch; not `taken` means stale.
    struct Line {
        taken: bool,
        at: i64,
    }
}

/// Writes a batch. Results are in the order of the batch; `None` is stale.
pub(super) async fn write(db: &Db, batch: &[&Rows]) -> Result<Vec<Option<i64>>, Failure> {
    let lines: Vec<Line> = db.write(STATEMENT, columns(batch)).await?;
    if lines.len() != batch.len() {
        return Err(Failure::sent(sqlx::Error::Protocol(
            "one answer per change was expected".to_owned(),
        )));
    }
    Ok(lines
        .into_iter()
        .map(|line| line.taken.then_some(line.at))
        .collect())
}

/// The lines of all changes, each with the index of its change.
fn lines<'b, T: 'b>(
    batch: &'b [&Rows],
    of: impl Fn(&'b Rows) -> &'b [T] + 'b,
) -> impl Iterator<Item = (i64, &'b T)> + Clone + 'b
where
    Vec<(i64, &'b T)>: Clone,
{
    let all: Vec<(i64, &T)> = (0_i64..)
        .zip(batch)
        .flat_map(|(change, rows)| of(rows).iter().map(move |line| (change, line)))
        .collect();
    all.into_iter()
}

fn columns(batch: &[&Rows]) -> Vec<Value> {
    let mut values = vec![Value::Now];
    values.push(Value::Ints((0_i64..).take(batch.len()).collect()));
    values.push(Value::Ids(batch.iter().map(|rows| rows.change).collect()));
    values.push(Value::Ids(batch.iter().map(|rows| rows.root.0).collect()));
    tasks(batch, &mut values);
    touched(batch, &mut values);
    items(batch, &mut values);
    requests(batch, &mut values);
    decisions(batch, &mut values);
    pinned(batch, &mut values);
    credentials(batch, &mut values);
    values
}

/// Shorthands for one column each.
macro_rules! ints {
    ($from:expr, $line:ident => $value:expr) => {
        Value::Ints($from.clone().map(|(_, $line)| $value).collect())
    };
}
macro_rules! ids {
    ($from:expr, $line:ident => $value:expr) => {
        Value::Ids($from.clone().map(|(_, $line)| $value).collect())
    };
}
macro_rules! texts {
    ($from:expr, $line:ident => $value:expr) => {
        Value::Texts($from.clone().map(|(_, $line)| $value).collect())
    };
}
macro_rules! maybe_ids {
    ($from:expr, $line:ident => $value:expr) => {
        Value::MaybeIds($from.clone().map(|(_, $line)| $value).collect())
    };
}
macro_rules! maybe_ints {
    ($from:expr, $line:ident => $value:expr) => {
        Value::MaybeInts($from.clone().map(|(_, $line)| $value).collect())
    };
}
macro_rules! maybe_texts {
    ($from:expr, $line:ident => $value:expr) => {
        Value::MaybeTexts($from.clone().map(|(_, $line)| $value).collect())
    };
}
macro_rules! bools {
    ($from:expr, $line:ident => $value:expr) => {
        Value::Bools($from.clone().map(|(_, $line)| $value).collect())
    };
}
macro_rules! change {
    ($from:expr) => {
        Value::Ints($from.clone().map(|(change, _)| change).collect())
    };
}

fn tasks(batch: &[&Rows], values: &mut Vec<Value>) {
    let named = lines(batch, |rows| &rows.tasks);
    values.extend([
        change!(named),
        ids!(named, line => line.task_id),
        ints!(named, line => line.guard),
        ints!(named, line => line.version),
        ints!(named, line => line.last_seq),
        ints!(named, line => line.facts),
        ints!(named, line => line.events),
        ints!(named, line => line.busy),
        ints!(named, line => line.open_requests),
        ints!(named, line => line.prompt_tokens),
        ints!(named, line => line.completion_tokens),
        ints!(named, line => line.total_tokens),
        ints!(named, line => line.model_calls),
        maybe_texts!(named, line => line.status.map(str::to_owned)),
        ints!(named, line => line.status_seq),
        ints!(named, line => line.lease),
        maybe_texts!(named, line => line.lease_owner.clone()),
        maybe_ints!(named, line => line.lease_time),
    ]);
    let new: Vec<_> = named
        .filter_map(|(_, line)| line.fixed.as_ref().map(|fixed| (line.task_id, fixed)))
        .collect();
    let new = new.into_iter();
    values.extend([
        Value::Ids(new.clone().map(|(task, _)| task).collect()),
        maybe_ids!(new, fixed => fixed.parent_task_id),
        maybe_ids!(new, fixed => fixed.parent_call_id),
        texts!(new, fixed => fixed.tenant.clone()),
        texts!(new, fixed => fixed.user_id.clone()),
        texts!(new, fixed => fixed.session_id.clone()),
        texts!(new, fixed => fixed.agent.clone()),
        texts!(new, fixed => fixed.agent_version.clone()),
        texts!(new, fixed => fixed.agent_path.clone()),
        texts!(new, fixed => fixed.metadata.clone()),
    ]);
}

fn credentials(batch: &[&Rows], values: &mut Vec<Value>) {
    let sealed = lines(batch, |rows| &rows.credentials);
    values.extend([
        change!(sealed),
        ids!(sealed, line => line.task_id),
        texts!(sealed, line => line.sealed.name.clone()),
        ids!(sealed, line => line.sealed.request_id.0),
        texts!(sealed, line => line.sealed.key_id.clone()),
        texts!(sealed, line => line.sealed.text.clone()),
        maybe_ints!(sealed, line => line.expires_in),
    ]);
    let keys = lines(batch, |rows| rows.idempotency.as_slice());
    values.push(
        maybe_texts!(keys, line => line.person.as_ref().map(|person| person.as_str().to_owned())),
    );
}

/// The changed agent versions: the column `pinned` of `named`, which is bound apart from its other
/// columns.
fn pinned(batch: &[&Rows], values: &mut Vec<Value>) {
    let named = lines(batch, |rows| &rows.tasks);
    values.push(maybe_texts!(named, line => line.agent_version.clone()));
}

fn touched(batch: &[&Rows], values: &mut Vec<Value>) {
    let touched = lines(batch, |rows| &rows.touched);
    values.extend([
        change!(touched),
        ids!(touched, line => line.request_id),
        bools!(touched, line => line.needs.open()),
        bools!(touched, line => line.needs == Needs::InTime),
        bools!(touched, line => line.needs == Needs::Overdue),
        maybe_texts!(touched, line => line.status.map(|status| status.as_str().to_owned())),
        bools!(touched, line => line.resumed),
    ]);
}

fn items(batch: &[&Rows], values: &mut Vec<Value>) {
    let items = lines(batch, |rows| &rows.items);
    values.extend([
        change!(items),
        ids!(items, line => line.task_id),
        ints!(items, line => line.seq),
        ints!(items, line => line.ordinal),
        texts!(items, line => line.kind.to_owned()),
        texts!(items, line => line.role.to_owned()),
        maybe_ids!(items, line => line.request_id),
        texts!(items, line => line.body.clone()),
    ]);
}

fn requests(batch: &[&Rows], values: &mut Vec<Value>) {
    let asked = lines(batch, |rows| &rows.asked);
    let approvers = lines(batch, |rows| &rows.approvers);
    values.extend([
        change!(asked),
        ids!(asked, line => line.request_id),
        ids!(asked, line => line.task_id),
        ints!(asked, line => line.seq),
        texts!(asked, line => line.kind.to_owned()),
        texts!(asked, line => line.status.as_str().to_owned()),
        ints!(asked, line => line.required),
        maybe_ids!(asked, line => line.call_id),
        maybe_ints!(asked, line => line.expires_in),
        change!(approvers),
        ids!(approvers, line => line.request_id),
        ids!(approvers, line => line.task_id),
        texts!(approvers, line => line.kind.to_owned()),
        maybe_texts!(approvers, line => line.name.clone()),
    ]);
}

fn decisions(batch: &[&Rows], values: &mut Vec<Value>) {
    let decisions = lines(batch, |rows| &rows.decisions);
    let keys = lines(batch, |rows| rows.idempotency.as_slice());
    values.extend([
        change!(decisions),
        ids!(decisions, line => line.request_id),
        maybe_ids!(decisions, line => line.call_id),
        texts!(decisions, line => line.user_id.clone()),
        texts!(decisions, line => line.action.to_owned()),
        bools!(decisions, line => line.settles),
        ids!(decisions, line => line.task_id),
        ints!(decisions, line => line.seq),
        change!(keys),
        texts!(keys, line => line.tenant.clone()),
        texts!(keys, line => line.user_id.clone()),
        texts!(keys, line => line.path.clone()),
        texts!(keys, line => line.key.clone()),
        texts!(keys, line => line.body_digest.clone()),
        ids!(keys, line => line.task_id.0),
        maybe_ids!(keys, line => line.request_id.map(|id| id.0)),
    ]);
}
