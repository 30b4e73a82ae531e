//! A batch of changes as one `BEGIN IMMEDIATE` transaction. No other writer runs during the
//! transaction, so everything that it reads stays valid until it commits. Equivalent to
//! `commit_postgres.rs`, statement by statement.

use std::collections::HashMap;

use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::db::{Db, Failure, LiteTx, Value, hex, list};
use super::record::record;
use super::rows::{ANY, NEW, Needs, Rows, TaskLine, VERSION};
use crate::task::user::UserKey;

pub(super) const READ_TASKS: &str = "select task_id, root_task_id, version, last_seq, next_event,
    exists (select 1 from credential c where c.task_id = agent_task.task_id) as credentials from agent_task
    where task_id in (select unhex(value) from json_each($1))";

pub(super) const READ_REQUESTS: &str =
    "select request_id, status, expires_at from intervention_request
    where request_id in (select unhex(value) from json_each($1))";

pub(super) const INSERT_TASKS: &str = "
insert into agent_task (task_id, root_task_id, parent_task_id, parent_call_id, tenant, user_id, session_id, agent,
    agent_version, agent_path, metadata, status, status_seq, version, last_seq, next_event, busy, open_requests,
    prompt_tokens, completion_tokens, total_tokens, model_calls, phase, lease_owner, lease_until, wake_at, takeovers,
    begun, created_at, updated_at)
select unhex(value ->> 0), unhex(value ->> 1), unhex(value ->> 2), unhex(value ->> 3), value ->> 4, value ->> 5,
    value ->> 6, value ->> 7, value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, 1, value ->> 13,
    value ->> 14, value ->> 15, value ->> 16, value ->> 17, value ->> 18, value ->> 19, value ->> 20,
    case value ->> 21 when 1 then 'leased' when 3 then 'parked' else 'queued' end,
    case value ->> 21 when 1 then value ->> 22 end, case value ->> 21 when 1 then $2 + (value ->> 23) end,
    case value ->> 21 when 3 then $2 + (value ->> 23) end, 0, value ->> 21 = 1, $2, $2
  from json_each($1)";

pub(super) const UPDATE_TASKS: &str = "
update agent_task as t set
    version = t.version + case n.value ->> 1 when 1 then 1 else 0 end,
    last_seq = t.last_seq + (n.value ->> 2),
    next_event = t.next_event + (n.value ->> 3),
    busy = t.busy + (n.value ->> 4),
    open_requests = t.open_requests + (n.value ->> 5),
    prompt_tokens = t.prompt_tokens + (n.value ->> 6),
    completion_tokens = t.completion_tokens + (n.value ->> 7),
    total_tokens = t.total_tokens + (n.value ->> 8),
    model_calls = t.model_calls + (n.value ->> 9),
    status = coalesce(n.value ->> 10, t.status),
    status_seq = case when n.value ->> 10 is null then t.status_seq else n.value ->> 11 end,
    agent_version = coalesce(n.value ->> 15, t.agent_version),
    phase = case n.value ->> 12 when 1 then 'leased' when 2 then 'queued' when 3 then 'parked' else t.phase end,
    lease_owner = case n.value ->> 12 when 0 then t.lease_owner when 1 then n.value ->> 13 end,
    lease_until = case n.value ->> 12 when 0 then t.lease_until when 1 then $2 + (n.value ->> 14) end,
    wake_at = case n.value ->> 12 when 0 then t.wake_at when 3 then $2 + (n.value ->> 14) end,
    takeovers = case when n.value ->> 2 > 0 then 0 else t.takeovers end,
    fruitless = case when n.value ->> 2 > 0 then 0 else t.fruitless end,
    begun = case n.value ->> 12 when 0 then t.begun when 1 then true else false end,
    updated_at = case when n.value ->> 2 > 0 then $2 else t.updated_at end
  from json_each($1) as n where t.task_id = unhex(n.value ->> 0)";

pub(super) const INSERT_ITEMS: &str = "
insert into agent_task_item (task_id, seq, root_task_id, event_number, change_id, type, role, at, request_id, body)
select unhex(value ->> 0), value ->> 1, unhex(value ->> 2), value ->> 3, unhex(value ->> 4), value ->> 5, value ->> 6,
    $2, unhex(value ->> 7), value ->> 8
  from json_each($1)";

pub(super) const INSERT_REQUESTS: &str = "
insert into intervention_request (request_id, task_id, seq, root_task_id, tenant, kind, status, required, call_id,
    created_at, expires_at)
select unhex(a.value ->> 0), t.task_id, a.value ->> 2, t.root_task_id, t.tenant, a.value ->> 3, a.value ->> 4,
    a.value ->> 5, unhex(a.value ->> 6), $2, $2 + (a.value ->> 7)
  from json_each($1) as a join agent_task t on t.task_id = unhex(a.value ->> 1)";

pub(super) const INSERT_APPROVERS: &str = "
insert into request_approver (tenant, kind, name, request_id)
select t.tenant, p.value ->> 2, coalesce(p.value ->> 3, t.user_id), unhex(p.value ->> 0)
  from json_each($1) as p join agent_task t on t.task_id = unhex(p.value ->> 1)";

/// A decision is final if it settles its call, or if its request requires only one approval.
pub(super) const INSERT_DECISIONS: &str = "
insert into decision (tenant, user_id, request_id, tool_call_id, action, final, task_id, seq, at)
select r.tenant, d.value ->> 2, r.request_id, coalesce(unhex(d.value ->> 1), r.call_id, r.request_id), d.value ->> 3,
    (d.value ->> 4) or r.required <= 1, unhex(d.value ->> 5), d.value ->> 6, $2
  from json_each($1) as d join intervention_request r on r.request_id = unhex(d.value ->> 0)";

pub(super) const UPDATE_REQUESTS: &str = "
update intervention_request as r
   set status = case when (u.value ->> 2) and coalesce(u.value ->> 1, r.status) = 'responded' then 'resumed'
        else coalesce(u.value ->> 1, r.status) end
  from json_each($1) as u
 where r.request_id = unhex(u.value ->> 0)
   and (u.value ->> 1 is not null or ((u.value ->> 2) and r.status = 'responded'))";

/// A person may have used the key before, under another spelling of their user id, which has a row
/// of its own. If that use has expired, its row is deleted, so that the new row takes its place.
pub(super) const DELETE_SPENT_KEYS: &str = "
delete from idempotency where rowid in (
    select i.rowid from json_each($1) as y cross join idempotency i
     where i.tenant = y.value ->> 0 and i.person = y.value ->> 7 and i.path = y.value ->> 2 and i.key = y.value ->> 3
       and i.request_id is null and i.created_at <= $2 - 86400000000)";

pub(super) const INSERT_KEYS: &str = "
insert into idempotency (tenant, user_id, path, key, body_digest, task_id, request_id, person, created_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, unhex(value ->> 5), unhex(value ->> 6),
    value ->> 7, $2
  from json_each($1) where true
    on conflict (tenant, user_id, path, key) do update set body_digest = excluded.body_digest,
        created_at = excluded.created_at, request_id = excluded.request_id, person = excluded.person,
        task_id = case when idempotency.request_id is null
            and idempotency.created_at <= excluded.created_at - 86400000000 then excluded.task_id end";

pub(super) const INSERT_CREDENTIALS: &str = "
insert into credential (task_id, name, tenant, root_task_id, request_id, key_id, sealed, created_at, expires_at)
select t.task_id, c.value ->> 1, t.tenant, t.root_task_id, unhex(c.value ->> 2), c.value ->> 3, c.value ->> 4, $2,
    $2 + (c.value ->> 5)
  from json_each($1) as c join agent_task t on t.task_id = unhex(c.value ->> 0) where true
    on conflict (task_id, name) do update set request_id = excluded.request_id, key_id = excluded.key_id,
        sealed = excluded.sealed, created_at = excluded.created_at, expires_at = excluded.expires_at";

pub(super) const DELETE_CREDENTIALS: &str =
    "delete from credential where task_id in (select unhex(value) from json_each($1))";

/// For the test that prepares every statement.
pub(super) const STATEMENTS: &[&str] = &[
    READ_TASKS,
    READ_REQUESTS,
    INSERT_TASKS,
    UPDATE_TASKS,
    INSERT_ITEMS,
    INSERT_REQUESTS,
    INSERT_APPROVERS,
    INSERT_DECISIONS,
    UPDATE_REQUESTS,
    DELETE_SPENT_KEYS,
    INSERT_KEYS,
    INSERT_CREDENTIALS,
    DELETE_CREDENTIALS,
];

record! {
    struct TaskState {
        task_id: Uuid,
        root_task_id: Uuid,
        version: i64,
        last_seq: i64,
        next_event: i64,
        /// Whether the task has stored credentials.
        credentials: bool,
    }
}

record! {
    struct RequestState {
        request_id: Uuid,
        status: String,
        expires_at: Option<i64>,
    }
}

/// The current state of the rows that the batch names.
struct State {
    at: i64,
    tasks: HashMap<Uuid, TaskState>,
    requests: HashMap<Uuid, RequestState>,
}

/// Writes a batch. Results are in the order of the batch; `None` is stale.
pub(super) async fn write(db: &Db, batch: &[&Rows]) -> Result<Vec<Option<i64>>, Failure> {
    let mut tx = db.begin().await?;
    let written = in_transaction(&mut tx, db, batch)
        .await
        .map_err(Failure::sent)?;
    // A failed commit (a full disk, say) may still turn up in the log later, so its result counts
    // as lost and is looked up.
    tx.commit()
        .await
        .map_err(|error| Failure::sent(sqlx::Error::Protocol(error.to_string())))?;
    Ok(written)
}

async fn in_transaction(
    tx: &mut LiteTx,
    db: &Db,
    batch: &[&Rows],
) -> Result<Vec<Option<i64>>, sqlx::Error> {
    let state = read(tx, db.local_now().0, batch).await?;
    let taken: Vec<bool> = batch.iter().map(|rows| state.takes(rows)).collect();
    let rows: Vec<&Rows> = batch
        .iter()
        .zip(&taken)
        .filter(|(_, taken)| **taken)
        .map(|(rows, _)| *rows)
        .collect();
    for (sql, lines) in [
        (INSERT_TASKS, new_tasks(&rows)),
        (UPDATE_TASKS, old_tasks(&rows)),
        (INSERT_ITEMS, items(&rows, &state)),
        (INSERT_REQUESTS, asked(&rows)),
        (INSERT_APPROVERS, approvers(&rows)),
        (INSERT_DECISIONS, decisions(&rows)),
        (UPDATE_REQUESTS, touched(&rows)),
        (DELETE_SPENT_KEYS, keys(&rows)),
        (INSERT_KEYS, keys(&rows)),
        (INSERT_CREDENTIALS, credentials(&rows)),
        (DELETE_CREDENTIALS, ended(&rows, &state)),
    ] {
        if lines.is_empty() {
            continue;
        }
        let mut values = vec![Value::Text(list(lines.into_iter()))];
        if sql.contains("$2") {
            values.push(Value::Int(state.at));
        }
        tx.rows(sql, values).await?;
    }
    Ok(taken
        .into_iter()
        .map(|taken| taken.then_some(state.at))
        .collect())
}

async fn read(tx: &mut LiteTx, at: i64, batch: &[&Rows]) -> Result<State, sqlx::Error> {
    let ids =
        |ids: &mut dyn Iterator<Item = Uuid>| vec![Value::Text(list(ids.map(|id| hex(Some(id)))))];
    let tasks = ids(&mut batch
        .iter()
        .flat_map(|rows| rows.tasks.iter().map(|line| line.task_id)));
    let tasks: Vec<TaskState> = tx.all(READ_TASKS, tasks).await?;
    let mut requests: Vec<RequestState> = Vec::new();
    if batch.iter().any(|rows| !rows.touched.is_empty()) {
        let touched = ids(&mut batch
            .iter()
            .flat_map(|rows| rows.touched.iter().map(|line| line.request_id)));
        requests = tx.all(READ_REQUESTS, touched).await?;
    }
    Ok(State {
        at,
        tasks: tasks.into_iter().map(|task| (task.task_id, task)).collect(),
        requests: requests
            .into_iter()
            .map(|request| (request.request_id, request))
            .collect(),
    })
}

impl State {
    fn takes(&self, rows: &Rows) -> bool {
        rows.tasks
            .iter()
            .all(|line| self.matches(line, rows.root.0))
            && rows.touched.iter().all(|line| {
                let request = self.requests.get(&line.request_id);
                let expires_at = request.and_then(|request| request.expires_at);
                (!line.needs.open() || request.is_some_and(|request| request.status == "pending"))
                    && (line.needs != Needs::InTime || expires_at.is_none_or(|end| end > self.at))
                    && (line.needs != Needs::Overdue
                        || expires_at.is_some_and(|end| end <= self.at))
            })
    }

    fn matches(&self, line: &TaskLine, root: Uuid) -> bool {
        let found = self.tasks.get(&line.task_id);
        match line.guard {
            NEW => found.is_none(),
            VERSION => found.is_some_and(|task| {
                task.root_task_id == root
                    && task.version == line.version
                    && task.last_seq == line.last_seq
            }),
            _ => line.guard == ANY && found.is_some_and(|task| task.root_task_id == root),
        }
    }
}

fn new_tasks(batch: &[&Rows]) -> Vec<Json> {
    let lines = batch
        .iter()
        .flat_map(|rows| rows.tasks.iter().map(|line| (rows.root.0, line)));
    lines
        .filter_map(|(root, line)| line.fixed.as_ref().map(|fixed| (root, line, fixed)))
        .map(|(root, line, fixed)| {
            json!([
                hex(Some(line.task_id)),
                hex(Some(root)),
                hex(fixed.parent_task_id),
                hex(fixed.parent_call_id),
                fixed.tenant,
                fixed.user_id,
                fixed.session_id,
                fixed.agent,
                fixed.agent_version,
                fixed.agent_path,
                fixed.metadata,
                line.status,
                line.status_seq,
                line.last_seq + line.facts,
                line.events,
                line.busy,
                line.open_requests,
                line.prompt_tokens,
                line.completion_tokens,
                line.total_tokens,
                line.model_calls,
                line.lease,
                line.lease_owner,
                line.lease_time
            ])
        })
        .collect()
}

fn old_tasks(batch: &[&Rows]) -> Vec<Json> {
    let lines = batch
        .iter()
        .flat_map(|rows| &rows.tasks)
        .filter(|line| line.guard != NEW);
    lines
        .map(|line| {
            json!([
                hex(Some(line.task_id)),
                line.guard,
                line.facts,
                line.events,
                line.busy,
                line.open_requests,
                line.prompt_tokens,
                line.completion_tokens,
                line.total_tokens,
                line.model_calls,
                line.status,
                line.status_seq,
                line.lease,
                line.lease_owner,
                line.lease_time,
                line.agent_version
            ])
        })
        .collect()
}

fn items(batch: &[&Rows], state: &State) -> Vec<Json> {
    let mut lines = Vec::new();
    for rows in batch {
        let base = state
            .tasks
            .get(&rows.root.0)
            .map_or(0, |root| root.next_event);
        lines.extend(rows.items.iter().map(|line| {
            json!([
                hex(Some(line.task_id)),
                line.seq,
                hex(Some(rows.root.0)),
                base + line.ordinal,
                hex(Some(rows.change)),
                line.kind,
                line.role,
                hex(line.request_id),
                line.body
            ])
        }));
    }
    lines
}

fn asked(batch: &[&Rows]) -> Vec<Json> {
    let lines = batch.iter().flat_map(|rows| &rows.asked);
    lines
        .map(|line| {
            json!([
                hex(Some(line.request_id)),
                hex(Some(line.task_id)),
                line.seq,
                line.kind,
                line.status.as_str(),
                line.required,
                hex(line.call_id),
                line.expires_in
            ])
        })
        .collect()
}

fn approvers(batch: &[&Rows]) -> Vec<Json> {
    let lines = batch.iter().flat_map(|rows| &rows.approvers);
    lines
        .map(|line| {
            json!([
                hex(Some(line.request_id)),
                hex(Some(line.task_id)),
                line.kind,
                line.name
            ])
        })
        .collect()
}

fn decisions(batch: &[&Rows]) -> Vec<Json> {
    let lines = batch.iter().flat_map(|rows| &rows.decisions);
    lines
        .map(|line| {
            json!([
                hex(Some(line.request_id)),
                hex(line.call_id),
                line.user_id,
                line.action,
                line.settles,
                hex(Some(line.task_id)),
                line.seq
            ])
        })
        .collect()
}

fn touched(batch: &[&Rows]) -> Vec<Json> {
    let lines = batch.iter().flat_map(|rows| &rows.touched);
    lines
        .map(|line| {
            json!([
                hex(Some(line.request_id)),
                line.status.map(super::RequestStatus::as_str),
                line.resumed
            ])
        })
        .collect()
}

fn credentials(batch: &[&Rows]) -> Vec<Json> {
    let lines = batch.iter().flat_map(|rows| &rows.credentials);
    lines
        .map(|line| {
            json!([
                hex(Some(line.task_id)),
                line.sealed.name,
                hex(Some(line.sealed.request_id.0)),
                line.sealed.key_id,
                line.sealed.text,
                line.expires_in
            ])
        })
        .collect()
}

/// The ended tasks that have credentials. Most tasks have none, which saves the delete statement.
fn ended(batch: &[&Rows], state: &State) -> Vec<Json> {
    let lines = batch
        .iter()
        .flat_map(|rows| &rows.tasks)
        .filter(|line| line.ends());
    let found = lines.filter_map(|line| state.tasks.get(&line.task_id));
    found
        .filter(|task| task.credentials)
        .map(|task| hex(Some(task.task_id)))
        .collect()
}

fn keys(batch: &[&Rows]) -> Vec<Json> {
    let lines = batch.iter().filter_map(|rows| rows.idempotency.as_ref());
    lines
        .map(|row| {
            json!([
                row.tenant,
                row.user_id,
                row.path,
                row.key,
                row.body_digest,
                hex(Some(row.task_id.0)),
                hex(row.request_id.map(|id| id.0)),
                row.person.as_ref().map(UserKey::as_str)
            ])
        })
        .collect()
}
