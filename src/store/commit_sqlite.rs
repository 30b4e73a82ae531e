//! Writes a batch of changes on `SQLite`, as one `BEGIN IMMEDIATE` transaction. No other writer
//! runs during the transaction, so the rows that the transaction reads do not change until the
//! commit. The effect equals that of the single statement in `commit_postgres.rs`, except that
//! `ChangeRows::history_fence` is not compared: on `SQLite`, the history becomes uncertain only
//! when the file is opened.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use rusqlite::Transaction;
use uuid::Uuid;

use super::db::{Db, DbFailure, Value};
use super::lists::{
    APPROVERS, CREDENTIALS, DECISIONS, GRANTS, ITEMS, KEYS, List, NOTICES, REQUEST_UPDATES,
    REQUESTS, USES,
};
use super::record::record;
use super::rows::{ChangeRows, RequiredState, TaskLine};
use super::sqlite::{count_written, execute_each, records};
use super::statement;
use super::task_columns::TASKS;
use crate::task::change::Guard;

const READ_TASK: &str = "select root_task_id, version, last_seq,
    exists (select 1 from credential c where c.task_id = agent_task.task_id) as credentials from agent_task
    where task_id = $1";

const READ_REQUEST: &str =
    "select status, expires_at from intervention_request where request_id = $1";

/// Inserts items. Runs before `UPDATE_TASKS`, so `{base}` is still the number of the tree's last
/// event before this batch.
const INSERT_ITEMS: &str = "insert into agent_task_item ({agent_task_item.columns})
select {agent_task_item.values} from {items i}";

/// Inserts notices (see `notices.rs`). Runs before `UPDATE_TASKS`, so `{base}` is still the number
/// of the tree's last event before this batch.
const INSERT_NOTICES: &str = "insert into notice ({notice.columns})
select {notice.values} from {notices o}";

/// Selects the remaining uses of a standing decision. Selects no row if the standing decision is
/// revoked or expired.
const READ_GRANT: &str = "select uses - used as uses from standing_grant
    where grant_id = $1 and revoked_at is null and expires_at > $2";

const INSERT_TASKS: &str = "insert into agent_task ({agent_task.columns})
select {agent_task.values} from {tasks n} where n.guard = 0";

const UPDATE_TASKS: &str = "update agent_task as t set {agent_task.sets}
  from {tasks n} where n.guard <> 0 and t.task_id = n.task_id";

const INSERT_REQUESTS: &str = "insert into intervention_request ({intervention_request.columns})
select {intervention_request.values} from {requests a} join agent_task k on k.task_id = a.task_id";

const INSERT_APPROVERS: &str = "insert into request_approver ({request_approver.columns})
select {request_approver.values} from {approvers p} join agent_task k on k.task_id = p.task_id";

const INSERT_INBOX: &str = "insert into inbox ({inbox.columns})
select {inbox.values} from {approvers p} join agent_task k on k.task_id = p.task_id where p.open";

const DELETE_INBOX: &str = "
delete from inbox where request_id = (select u.request_id from {request_updates u} where u.status is not null)";

const INSERT_DECISIONS: &str = "insert into decision ({decision.columns})
select {decision.values} from {decisions d} join intervention_request r on r.request_id = d.request_id";

const UPDATE_REQUESTS: &str = "
update intervention_request as r
   set status = case when u.resumed and coalesce(u.status, r.status) = 'responded' then 'resumed'
        else coalesce(u.status, r.status) end,
        closed_seq = coalesce(u.closed_seq, r.closed_seq)
  from {request_updates u}
 where r.request_id = u.request_id and (u.status is not null or (u.resumed and r.status = 'responded'))";

/// Deletes the expired row of a key that the batch stores again. `INSERT_KEYS` replaces this row
/// only if the row has the same spelling of the person's user id. For another spelling,
/// `INSERT_KEYS` alone would fail, because the index `idempotency_person` allows only one row for
/// each key of a person.
const DELETE_SPENT_KEYS: &str = "
delete from idempotency where rowid in (
    select i.rowid from {keys y} cross join idempotency i
     where i.tenant = y.tenant and i.person = y.person and i.path = y.path and i.key = y.key
       and i.request_id is null and i.created_at <= {at} - 86400000000)";

const INSERT_KEYS: &str = "
insert into idempotency ({idempotency.columns}) select {idempotency.values} from {keys y} where true
    on conflict (tenant, user_id, path, key) do update set body_digest = excluded.body_digest,
        created_at = excluded.created_at, request_id = excluded.request_id, person = excluded.person,
        task_id = case when idempotency.request_id is null
            and idempotency.created_at <= excluded.created_at - 86400000000 then excluded.task_id end";

const INSERT_CREDENTIALS: &str = "
insert into credential ({credential.columns})
select {credential.values} from {credentials s} join agent_task k on k.task_id = s.task_id where true
    on conflict (task_id, name) do update set request_id = excluded.request_id, key_id = excluded.key_id,
        sealed = excluded.sealed, created_at = excluded.created_at, expires_at = excluded.expires_at";

const INSERT_GRANTS: &str = "insert into standing_grant ({standing_grant.columns})
select {standing_grant.values} from {grants g} join agent_task k on k.task_id = g.task_id";

const UPDATE_GRANTS: &str = "update standing_grant as s set used = s.used + w.calls
  from {uses w} where s.grant_id = w.grant_id";

const DELETE_CREDENTIALS: &str = "delete from credential where task_id = $1";

/// The statements that write the lists of a change (see `lists.rs`), in the order in which they
/// run. Each runs once for each line of its list.
static WRITES: LazyLock<Vec<(&List, String)>> = LazyLock::new(|| {
    let base = "coalesce((select next_event from agent_task t where t.task_id = {root}), 0)";
    let words = |list: &List| {
        let root = if list.name == NOTICES.name {
            "o.root_task_id"
        } else {
            "i.root_task_id"
        };
        [("at", "{now}"), ("base", base), ("root", root)]
    };
    let templates: [(&'static List, &str); 15] = [
        (&ITEMS, INSERT_ITEMS),
        (&NOTICES, INSERT_NOTICES),
        (&TASKS, INSERT_TASKS),
        (&TASKS, UPDATE_TASKS),
        (&REQUESTS, INSERT_REQUESTS),
        (&APPROVERS, INSERT_APPROVERS),
        (&APPROVERS, INSERT_INBOX),
        (&DECISIONS, INSERT_DECISIONS),
        (&REQUEST_UPDATES, UPDATE_REQUESTS),
        (&REQUEST_UPDATES, DELETE_INBOX),
        (&KEYS, DELETE_SPENT_KEYS),
        (&KEYS, INSERT_KEYS),
        (&CREDENTIALS, INSERT_CREDENTIALS),
        (&GRANTS, INSERT_GRANTS),
        (&USES, UPDATE_GRANTS),
    ];
    let filled =
        templates.map(|(list, template)| (list, statement::sqlite(template, list, &words(list))));
    filled.into_iter().collect()
});

pub(super) fn statements() -> impl Iterator<Item = &'static str> {
    let writes = WRITES.iter().map(|(_, text)| text.as_str());
    [READ_TASK, READ_REQUEST, READ_GRANT, DELETE_CREDENTIALS]
        .into_iter()
        .chain(writes)
}

record! {
    struct TaskState {
        root_task_id: Uuid,
        version: i64,
        last_seq: i64,
        credentials: bool,
    }
}

record! {
    struct StoredRequestState {
        status: String,
        expires_at: Option<i64>,
    }
}

/// The stored rows that the batch may change, as of the beginning of the transaction. Only the
/// field `grants` is updated: each accepted change reduces the remaining uses.
struct StoredState {
    at: i64,
    /// The remaining uses of each standing decision that is neither revoked nor expired.
    grants: HashMap<Uuid, i64>,
    tasks: HashMap<Uuid, TaskState>,
    requests: HashMap<Uuid, StoredRequestState>,
}

/// Writes a batch. Returns for each change, in the order of the batch, the time of the commit, or
/// `None` if the change is stale.
pub(super) async fn write(
    db: &Db,
    batch: Vec<Arc<ChangeRows>>,
) -> Result<Vec<Option<i64>>, DbFailure> {
    db.write_transaction(move |transaction, at| {
        let mut state = read_state(transaction, at, &batch)?;
        let accepted = batch.iter();
        let accepted: Vec<bool> = accepted
            .map(|rows| state.accepts(rows) && state.reserve_grant_uses(rows))
            .collect();
        let rows: Vec<&ChangeRows> = batch
            .iter()
            .zip(&accepted)
            .filter_map(|(rows, accepted)| accepted.then_some(&**rows))
            .collect();
        for (list, sql) in WRITES.iter() {
            execute_each(transaction, sql, list, &rows, at)?;
        }
        for task in ended_tasks(&rows, &state) {
            count_written(transaction, DELETE_CREDENTIALS, &[Value::Id(task)])?;
        }
        Ok(accepted
            .into_iter()
            .map(|accepted| accepted.then_some(at))
            .collect())
    })
    .await
}

fn read_state(
    transaction: &Transaction<'_>,
    at: i64,
    batch: &[Arc<ChangeRows>],
) -> rusqlite::Result<StoredState> {
    let (mut tasks, mut requests) = (HashMap::new(), HashMap::new());
    let mut grants = HashMap::new();
    for rows in batch {
        for line in &rows.uses {
            let values = [Value::Id(line.grant_id), Value::Int(at)];
            let found: Vec<i64> = records(transaction, READ_GRANT, &values)?;
            grants.extend(found.into_iter().map(|uses| (line.grant_id, uses)));
        }
        for line in &rows.tasks {
            let id = line.task.task_id.0;
            let found: Vec<TaskState> = records(transaction, READ_TASK, &[Value::Id(id)])?;
            tasks.extend(found.into_iter().map(|task| (id, task)));
        }
        for line in &rows.request_updates {
            let id = Value::Id(line.request_id);
            let found: Vec<StoredRequestState> = records(transaction, READ_REQUEST, &[id])?;
            requests.extend(found.into_iter().map(|request| (line.request_id, request)));
        }
    }
    Ok(StoredState {
        at,
        grants,
        tasks,
        requests,
    })
}

impl StoredState {
    fn accepts(&self, rows: &ChangeRows) -> bool {
        rows.tasks
            .iter()
            .all(|line| self.matches(line, rows.root.0))
            && rows.request_updates.iter().all(|line| {
                let request = self.requests.get(&line.request_id);
                let expires_at = request.and_then(|request| request.expires_at);
                (!line.required_state.requires_pending()
                    || request.is_some_and(|request| request.status == "pending"))
                    && (line.required_state != RequiredState::InTime
                        || expires_at.is_none_or(|end| end > self.at))
                    && (line.required_state != RequiredState::Overdue
                        || expires_at.is_some_and(|end| end <= self.at))
            })
    }

    /// Reserves uses of standing decisions for the calls that this change starts under them. If one
    /// of the standing decisions is revoked or expired, or has too few uses left, returns `false`
    /// and reserves nothing.
    fn reserve_grant_uses(&mut self, rows: &ChangeRows) -> bool {
        let mut remaining = self.grants.clone();
        for line in &rows.uses {
            match remaining.get_mut(&line.grant_id) {
                Some(uses) if *uses >= line.calls => *uses -= line.calls,
                Some(_) | None => return false,
            }
        }
        self.grants = remaining;
        true
    }

    fn matches(&self, line: &TaskLine, root: Uuid) -> bool {
        let found = self.tasks.get(&line.task.task_id.0);
        match line.task.guard {
            Guard::New(_) => found.is_none(),
            Guard::Version(version) => found.is_some_and(|task| {
                task.root_task_id == root
                    && task.version == version
                    && task.last_seq == line.task.last_seq
            }),
            Guard::Any => found.is_some_and(|task| task.root_task_id == root),
        }
    }
}

/// Returns the tasks that end with this batch and have credentials. Most tasks have no credentials,
/// so most batches need no delete statement.
fn ended_tasks<'b>(
    batch: &'b [&ChangeRows],
    state: &'b StoredState,
) -> impl Iterator<Item = Uuid> + 'b {
    let lines = batch.iter().flat_map(|rows| &rows.tasks);
    let ended = lines.filter(|line| line.ends());
    let ids = ended.map(|line| line.task.task_id.0);
    ids.filter(|id| state.tasks.get(id).is_some_and(|task| task.credentials))
}
