//! Declares the columns of `agent_task`: how they are read, inserted and changed, and the values of
//! a commit from which they are computed. A new column needs no other file of the store, except for
//! `stopped.rs` if it holds the time of a commit, and `sql.rs` (`(fitting_tasks)`) if it holds a
//! long text.
//!
//! Each column is named in these places:
//! - if the column is read: in `read_columns!` and in [`TaskRecord`],
//! - if a commit inserts the column: in [`AGENT_TASK`],
//! - if a commit changes the column: in [`TASK_CHANGES`],
//! - if no statement can compute the column's value: in [`TASKS`].
//!
//! `tables.rs` explains the names in the values.

use uuid::Uuid;

use super::ReadError;
use super::change_rows::micros;
use super::lists::{List, all, list};
use super::record::record;
use super::rows::TaskLine;
use super::tables::{Table, columns};
use super::tasks::{corrupt, fact, names};
use crate::task::change::{
    ASKER_UNTIL_DELIVERED, AskerPresence, ClientColumns, Guard, LeaseChange, NewTask, TaskChange,
    TaskRow,
};
use crate::task::id::{CallId, TaskId};
use crate::task::item::{Fact, Usage};
use crate::task::status::TaskStatus;
use crate::task::time::Time;
use crate::task::user::UserId;

/// The columns of [`TaskRecord`] that a statement reads from `agent_task`, under the alias `t`. The
/// placeholder `(task)` in `sql.rs` reads these columns, and adds the body of the status item and
/// `asker_until`.
macro_rules! read_columns {
    () => {
        "t.task_id, t.root_task_id, t.parent_task_id, t.parent_call_id, t.tenant, t.user_id, t.session_id, t.agent,
            t.agent_version, t.agent_path, t.metadata, t.status, t.version, t.last_seq, t.busy, t.open_requests,
            t.prompt_tokens, t.completion_tokens, t.total_tokens, t.model_calls, t.lease_owner, t.lease_until,
            (t.phase = 'parked' and t.wake_at is null) as parked, t.takeovers, t.fruitless, t.next_event,
            t.created_at, t.updated_at"
    };
}
pub(super) use read_columns;

record! {
    /// A row of `agent_task` with the item that set its current status.
    pub(super) struct TaskRecord {
        task_id: Uuid,
        root_task_id: Uuid,
        parent_task_id: Option<Uuid>,
        parent_call_id: Option<Uuid>,
        tenant: String,
        user_id: String,
        session_id: String,
        agent: String,
        agent_version: String,
        agent_path: String,
        metadata: String,
        status: String,
        version: i64,
        last_seq: i64,
        busy: i64,
        open_requests: i64,
        prompt_tokens: i64,
        completion_tokens: i64,
        total_tokens: i64,
        model_calls: i64,
        lease_owner: Option<String>,
        lease_until: Option<i64>,
        parked: bool,
        asker_until: Option<i64>,
        takeovers: i64,
        fruitless: i64,
        next_event: i64,
        created_at: i64,
        updated_at: i64,
        status_body: Option<String>,
    }
}

/// The new value of the column `asker_until`; null if a change does not set the column. `n.asker`
/// is a number from [`asker`]: the time in microseconds that the asker waits from `{at}` on, -1 if
/// the asker has left, or the maximum of `bigint` if the result or a permit was delivered.
macro_rules! asker_until {
    () => {
        "case n.asker when -1 then 0 when 9223372036854775807 then n.asker else {at} + n.asker end"
    };
}

/// The new value of the column `asker_owner`, as the end of a `case` expression. If the asker
/// waits, the value is the number of the process that stores the presence (see `asker_lock.rs`).
/// Otherwise, the value is null. On `SQLite`, the value is always null.
macro_rules! asker_owner {
    () => {
        "when n.asker not in (-1, 9223372036854775807) then {owner} end"
    };
}

pub(super) const AGENT_TASK: Table = Table {
    name: "agent_task",
    columns: columns!(n:
        task_id, root_task_id, parent_task_id, parent_call_id, tenant, user_id, session_id, agent,
        agent_version, agent_path, metadata, status, status_seq,
        version = "1",
        last_seq = "n.last_seq + n.facts",
        next_event = "n.events",
        busy, open_requests, prompt_tokens, completion_tokens, total_tokens, model_calls,
        phase = "case n.lease when 1 then 'leased' when 3 then 'parked' else 'queued' end",
        lease_owner = "case n.lease when 1 then n.lease_owner end",
        lease_until = "case n.lease when 1 then {at} + n.lease_time end",
        wake_at = "case n.lease when 3 then {at} + n.lease_time end",
        asker_until = asker_until!(),
        asker_owner = concat!("case ", asker_owner!()),
        call_tool, call_key,
        in_quarantine = "n.in_quarantine = 1",
        quarantine_at = "case when n.in_quarantine is not null then {at} end",
        takeovers = "0",
        begun = "n.lease = 1",
        created_at = "{at}",
        updated_at = "{at}",
    ),
};

/// The columns that a commit changes in a stored row of `agent_task`, with their new values. `t` is
/// the row before the change.
pub(super) const TASK_CHANGES: &[(&str, &str)] = columns!(t:
    version = "t.version + case n.guard when 1 then 1 else 0 end",
    last_seq = "t.last_seq + n.facts",
    next_event = "t.next_event + n.events",
    busy = "t.busy + n.busy",
    open_requests = "t.open_requests + n.open_requests",
    prompt_tokens = "t.prompt_tokens + n.prompt_tokens",
    completion_tokens = "t.completion_tokens + n.completion_tokens",
    total_tokens = "t.total_tokens + n.total_tokens",
    model_calls = "t.model_calls + n.model_calls",
    status = "coalesce(n.status, t.status)",
    status_seq = "case when n.status is null then t.status_seq else n.status_seq end",
    agent_version = "coalesce(n.agent_version, t.agent_version)",
    phase = "case n.lease when 1 then 'leased' when 2 then 'queued' when 3 then 'parked' else t.phase end",
    lease_owner = "case n.lease when 0 then t.lease_owner when 1 then n.lease_owner end",
    lease_until = "case n.lease when 0 then t.lease_until when 1 then {at} + n.lease_time end",
    wake_at = "case n.lease when 0 then t.wake_at when 3 then {at} + n.lease_time end",
    asker_until = concat!("coalesce(", asker_until!(), ", t.asker_until)"),
    asker_owner = concat!("case when n.asker is null then t.asker_owner ", asker_owner!()),
    call_tool = "coalesce(t.call_tool, n.call_tool)",
    call_key = "coalesce(t.call_key, n.call_key)",
    in_quarantine = "coalesce(n.in_quarantine = 1, t.in_quarantine)",
    quarantine_at = "case when n.in_quarantine is null then t.quarantine_at else {at} end",
    takeovers = "case when n.facts > 0 then 0 else t.takeovers end",
    fruitless = "case when n.facts > 0 then 0 else t.fruitless end",
    begun = "case n.lease when 0 then t.begun when 1 then true else false end",
    updated_at = "case when n.facts > 0 then {at} else t.updated_at end",
);

/// The values from which a commit's statements compute the columns, one line for each task.
/// - `version` is the version that the stored row must have; 0 if the guard requires no version.
/// - `last_seq` is the number of the task's last item before the change.
/// - The values from `busy` to `model_calls` are the differences to add to the row's counters.
/// - The values from `parent_task_id` to `metadata` are null for a task that already has a row.
pub(super) const TASKS: List = list!("tasks", all(tasks), |entry|
    change: bigint = entry.number,
    task_id: uuid = entry.line.task.task_id.0,
    root_task_id: uuid = entry.rows.root.0,
    guard: bigint = guard(&entry.line.task.guard),
    version: bigint = required_version(&entry.line.task.guard),
    last_seq: bigint = entry.line.task.last_seq,
    facts: bigint = entry.line.facts,
    events: bigint = entry.line.events,
    busy: bigint = i64::from(entry.line.task.counters.busy),
    open_requests: bigint = i64::from(entry.line.task.counters.open_requests),
    prompt_tokens: bigint = entry.line.task.counters.usage.prompt_tokens,
    completion_tokens: bigint = entry.line.task.counters.usage.completion_tokens,
    total_tokens: bigint = entry.line.task.counters.usage.total_tokens,
    model_calls: bigint = i64::from(entry.line.task.counters.model_calls),
    status: text = entry.line.status.map(TaskStatus::as_str),
    status_seq: bigint = entry.line.status_seq,
    lease: bigint = lease(&entry.line.task.lease),
    lease_owner: text = lease_owner(&entry.line.task.lease).map(String::as_str),
    lease_time: bigint = lease_time(&entry.line.task.lease),
    asker: bigint = entry.line.task.asker.map(asker),
    agent_version: text = agent_version(&entry.line.task),
    parent_task_id: uuid = entry.line.new_task().and_then(|new| new.parent).map(|(task, _)| task.0),
    parent_call_id: uuid = entry.line.new_task().and_then(|new| new.parent).map(|(_, call)| call.0),
    tenant: text = entry.line.new_task().map(|new| new.tenant.as_str()),
    user_id: text = entry.line.new_task().map(|new| new.user_id.as_str()),
    session_id: text = entry.line.new_task().map(|new| new.session_id.as_str()),
    agent: text = entry.line.new_task().map(|new| new.agent.as_str()),
    agent_path: text = entry.line.agent_path.as_deref(),
    metadata: text = entry.line.new_task().map(|new| new.client.metadata.as_str()),
    call_tool: text = entry.line.task.call.as_ref().map(|call| call.tool.as_str()),
    call_key: text = entry.line.task.call.as_ref().map(|call| call.key.as_str()),
    in_quarantine: bigint = entry.line.task.in_quarantine.map(i64::from),
);

/// Returns the texts of a line that may contain a NUL character. The agent path is not among them,
/// because the line has the path as JSON, which escapes a NUL.
///
/// The patterns name every field, so that the compiler rejects a new field until it is added here.
pub(super) fn texts(line: &TaskLine) -> impl Iterator<Item = &String> {
    let TaskChange {
        task_id: _,
        guard: _,
        facts: _,
        last_seq: _,
        agent_version,
        counters: _,
        lease,
        asker: _,
        call,
        in_quarantine: _,
        credentials: _,
    } = &line.task;
    let new = line.new_task().into_iter().flat_map(new_texts);
    let call = call.iter().flat_map(|call| [&call.tool, &call.key]);
    new.chain(agent_version)
        .chain(lease_owner(lease))
        .chain(call)
}

fn new_texts(new: &NewTask) -> impl Iterator<Item = &String> {
    let NewTask {
        tenant,
        user_id,
        session_id,
        agent,
        agent_version,
        parent: _,
        agent_path: _,
        client: ClientColumns { metadata },
    } = new;
    [tenant, user_id, session_id, agent, agent_version, metadata].into_iter()
}

/// Converts the kind of a guard to a number for SQL.
fn guard(guard: &Guard) -> i64 {
    match guard {
        Guard::New(_) => 0,
        Guard::Version(_) => 1,
        Guard::Any => 2,
    }
}

fn required_version(guard: &Guard) -> i64 {
    match guard {
        Guard::Version(version) => *version,
        Guard::New(_) | Guard::Any => 0,
    }
}

/// Converts the kind of a lease change to a number for SQL.
fn lease(lease: &LeaseChange) -> i64 {
    match lease {
        LeaseChange::Keep => 0,
        LeaseChange::Take { .. } => 1,
        LeaseChange::Queue => 2,
        LeaseChange::Park { .. } => 3,
    }
}

fn lease_owner(lease: &LeaseChange) -> Option<&String> {
    match lease {
        LeaseChange::Take { owner, time: _ } => Some(owner),
        LeaseChange::Keep | LeaseChange::Queue | LeaseChange::Park { wake_in: _ } => None,
    }
}

/// Returns the time that belongs to a lease change, in microseconds. For `Take`, it is the duration
/// of the lease. For `Park`, it is the time until the task wakes.
fn lease_time(lease: &LeaseChange) -> Option<i64> {
    match lease {
        LeaseChange::Take { owner: _, time } => Some(micros(*time)),
        LeaseChange::Park { wake_in } => wake_in.map(micros),
        LeaseChange::Keep | LeaseChange::Queue => None,
    }
}

/// Returns the new version of the agent's definition; `None` if a stored task keeps its version.
fn agent_version(change: &TaskChange) -> Option<&str> {
    match &change.guard {
        Guard::New(new) => Some(new.agent_version.as_str()),
        Guard::Version(_) | Guard::Any => change.agent_version.as_deref(),
    }
}

/// Converts the new presence of an asker (the client that proposed a gate call) to a number for
/// SQL: the waiting time in microseconds if the asker waits, -1 if the asker has left, or
/// `ASKER_UNTIL_DELIVERED` if the result or a permit was delivered.
fn asker(asker: AskerPresence) -> i64 {
    match asker {
        AskerPresence::PresentFor(time) => micros(time),
        AskerPresence::Absent => -1,
        AskerPresence::Delivered => ASKER_UNTIL_DELIVERED.0,
    }
}

impl TaskRecord {
    /// Returns the task's id, which can be read even if the rest of the row cannot be decoded.
    pub(super) fn id(&self) -> TaskId {
        TaskId(self.task_id)
    }

    /// Whether the task belongs to this user of this tenant.
    pub(super) fn belongs_to(&self, tenant: &str, user: &UserId) -> bool {
        self.tenant == tenant && user.is_same_person(&self.user_id)
    }

    /// Returns the row, and whether all of it could be decoded. If the task's last `task_status`
    /// item cannot be decoded, the row has no output and no error. If the agent path cannot be
    /// decoded, it consists of the agent's own name.
    pub(super) fn readable_row(mut self) -> Result<(TaskRow, bool), ReadError> {
        let status_readable = self
            .status_body
            .as_deref()
            .is_none_or(|body| fact(body).is_ok());
        if !status_readable {
            self.status_body = None;
        }
        let path_readable = names(&self.agent_path).is_ok();
        if !path_readable {
            self.agent_path = serde_json::json!([self.agent]).to_string();
        }
        Ok((self.row()?, status_readable && path_readable))
    }

    pub(super) fn row(self) -> Result<TaskRow, ReadError> {
        let (output, error) = match self.status_body.as_deref().map(fact).transpose()? {
            Some(Fact::TaskStatus { output, error, .. }) => (output, error),
            Some(_) | None => (None, None),
        };
        Ok(TaskRow {
            task_id: TaskId(self.task_id),
            root_task_id: TaskId(self.root_task_id),
            parent: self
                .parent_task_id
                .zip(self.parent_call_id)
                .map(|(task, call)| (TaskId(task), CallId(call))),
            tenant: self.tenant,
            user_id: self.user_id,
            session_id: self.session_id,
            agent: self.agent,
            agent_version: self.agent_version,
            agent_path: names(&self.agent_path)?,
            status: TaskStatus::parse(&self.status).ok_or_else(|| corrupt("a task's status"))?,
            version: self.version,
            last_seq: self.last_seq,
            client: ClientColumns {
                metadata: self.metadata,
            },
            busy: i32::try_from(self.busy).map_err(|_| corrupt("busy"))?,
            open_requests: i32::try_from(self.open_requests)
                .map_err(|_| corrupt("open_requests"))?,
            usage: Usage {
                prompt_tokens: self.prompt_tokens,
                completion_tokens: self.completion_tokens,
                total_tokens: self.total_tokens,
            },
            model_calls: self.model_calls,
            output,
            error,
            lease_owner: self.lease_owner,
            lease_until: self.lease_until.map(Time),
            parked: self.parked,
            asker_until: self.asker_until.map(Time),
            takeovers: i32::try_from(self.takeovers).map_err(|_| corrupt("takeovers"))?,
            fruitless: i32::try_from(self.fruitless).map_err(|_| corrupt("fruitless"))?,
            next_event: self.next_event,
            created_at: Time(self.created_at),
            updated_at: Time(self.updated_at),
        })
    }
}
