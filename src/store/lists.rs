//! The values that a commit writes, as lists of lines with named columns. Each list is declared
//! once, for the text and the parameters of the statements of both engines.

use rusqlite::ToSql;
use uuid::Uuid;

use super::batch::micros;
use super::db::Value;
use super::rows::{Needs, Rows};
use crate::task::change::{Asker, DELIVERED, IdempotencyRow};
use crate::task::decision::Door;
use crate::task::status::RequestStatus;
use crate::task::user::UserKey;

/// A list: its columns with their SQL types, and the values of a batch.
pub(super) struct List {
    /// The name by which the statements' texts refer to the list.
    pub(super) name: &'static str,
    /// Name and Postgres type of each column.
    pub(super) columns: &'static [(&'static str, &'static str)],
    /// Turns a batch into one array for each column.
    pub(super) arrays: fn(&[&Rows]) -> Vec<Value>,
    /// Calls a function with the values of each line.
    pub(super) each: fn(&[&Rows], WithLine<'_>) -> rusqlite::Result<()>,
}

/// A function that takes the values of a line, in the order of the columns.
pub(super) type WithLine<'f> = &'f mut dyn FnMut(&[&dyn ToSql]) -> rusqlite::Result<()>;

/// A line with the change it belongs to.
struct Of<'b, T> {
    /// The position of the change in the batch.
    number: i64,
    rows: &'b Rows,
    line: T,
}

/// Returns the lines of all changes, in the order of the batch.
fn all<'b, T: 'b>(batch: &[&'b Rows], of: impl Fn(&'b Rows) -> &'b [T]) -> Vec<Of<'b, &'b T>> {
    let numbered = (0_i64..).zip(batch);
    numbered
        .flat_map(|(number, rows)| of(rows).iter().map(move |line| Of { number, rows, line }))
        .collect()
}

fn changes<'b>(batch: &[&'b Rows]) -> Vec<Of<'b, ()>> {
    let numbered = (0_i64..).zip(batch);
    numbered
        .map(|(number, rows)| Of {
            number,
            rows,
            line: (),
        })
        .collect()
}

/// Returns the changes that get a notice.
fn noticed<'b>(batch: &[&'b Rows]) -> Vec<Of<'b, ()>> {
    let mut changes = changes(batch);
    changes.retain(|of| of.rows.noticed);
    changes
}

fn keys<'b>(batch: &[&'b Rows]) -> Vec<Of<'b, &'b IdempotencyRow>> {
    all(batch, |rows| rows.idempotency.as_slice())
}

/// A line of the list `places`: one change that [`super::commit_single`] writes, with the ranges
/// (from, to) of its lines in the lists of items, requests, approvers, decisions and keys. Lines
/// are numbered from 1; a range is empty if `from` is greater than `to`.
struct Place<'b> {
    rows: &'b Rows,
    items: (i64, i64),
    asked: (i64, i64),
    approvers: (i64, i64),
    decisions: (i64, i64),
    keys: (i64, i64),
}

fn places<'b>(batch: &[&'b Rows]) -> Vec<Place<'b>> {
    let mut ends = [0_i64; 5];
    let place = |rows: &&'b Rows| {
        let lengths = [
            rows.items.len(),
            rows.asked.len(),
            rows.approvers.len(),
            rows.decisions.len(),
            usize::from(rows.idempotency.is_some()),
        ];
        let mut ranges = [(1, 0); 5];
        for ((end, length), range) in ends.iter_mut().zip(lengths).zip(&mut ranges) {
            let from = *end + 1;
            *end += i64::try_from(length).unwrap_or(0);
            *range = (from, *end);
        }
        let [items, asked, approvers, decisions, keys] = ranges;
        Place {
            rows,
            items,
            asked,
            approvers,
            decisions,
            keys,
        }
    };
    batch.iter().map(place).collect()
}

impl Place<'_> {
    fn needs(&self) -> Needs {
        let touched = self.rows.touched.first();
        touched.map_or(Needs::Nothing, |line| line.needs)
    }
}

/// Converts the change of an asker's presence to a number for SQL: how long the asker waits, in
/// microseconds; -1 if the asker has left; the number of `DELIVERED` if the result was delivered.
fn asker(asker: Asker) -> i64 {
    match asker {
        Asker::For(time) => micros(time),
        Asker::Gone => -1,
        Asker::Delivered => DELIVERED.0,
    }
}

macro_rules! array {
    (uuid, $lines:ident, $of:ident => $value:expr) => {
        Value::MaybeIds(
            $lines
                .iter()
                .map(|$of| -> Option<Uuid> { $value.into() })
                .collect(),
        )
    };
    (bigint, $lines:ident, $of:ident => $value:expr) => {
        Value::MaybeInts(
            $lines
                .iter()
                .map(|$of| -> Option<i64> { $value.into() })
                .collect(),
        )
    };
    (boolean, $lines:ident, $of:ident => $value:expr) => {
        Value::Bools($lines.iter().map(|$of| $value).collect())
    };
    (text, $lines:ident, $of:ident => $value:expr) => {
        Value::MaybeTexts(
            $lines
                .iter()
                .map(|$of| Option::<&str>::from($value).map(str::to_owned))
                .collect(),
        )
    };
}

macro_rules! cell {
    (uuid, $value:expr) => {
        Option::<Uuid>::from($value)
    };
    (bigint, $value:expr) => {
        Option::<i64>::from($value)
    };
    (boolean, $value:expr) => {
        $value
    };
    (text, $value:expr) => {
        Option::<&str>::from($value)
    };
}

/// Declares a list: its name, the function that takes its lines from a batch, and its columns, each
/// with its type and its value in a line.
macro_rules! list {
    ($name:literal, $lines:ident($($from:ident)?), |$of:ident| $($column:ident: $kind:ident = $value:expr),* $(,)?) => {
        List {
            name: $name,
            columns: &[$((stringify!($column), stringify!($kind))),*],
            arrays: |batch| {
                let lines = $lines(batch $(, |rows| rows.$from.as_slice())?);
                vec![$(array!($kind, lines, $of => $value)),*]
            },
            each: |batch, with_line| {
                let lines = $lines(batch $(, |rows| rows.$from.as_slice())?);
                lines.iter().try_for_each(|$of| with_line(&[$(&cell!($kind, $value)),*]))
            },
        }
    };
}

pub(super) const CHANGES: List = list!("changes", changes(), |of|
    change: bigint = of.number,
    change_id: uuid = of.rows.change,
    root_task_id: uuid = of.rows.root.0,
);

/// `lease_time` is the duration of the lease, or the time until a parked task wakes. The columns
/// from `parent_task_id` on are null for a task that already has a row.
pub(super) const TASKS: List = list!("tasks", all(tasks), |of|
    change: bigint = of.number,
    change_id: uuid = of.rows.change,
    task_id: uuid = of.line.task_id,
    root_task_id: uuid = of.rows.root.0,
    guard: bigint = of.line.guard,
    version: bigint = of.line.version,
    last_seq: bigint = of.line.last_seq,
    facts: bigint = of.line.facts,
    events: bigint = of.line.events,
    busy: bigint = of.line.busy,
    open_requests: bigint = of.line.open_requests,
    prompt_tokens: bigint = of.line.prompt_tokens,
    completion_tokens: bigint = of.line.completion_tokens,
    total_tokens: bigint = of.line.total_tokens,
    model_calls: bigint = of.line.model_calls,
    status: text = of.line.status,
    status_seq: bigint = of.line.status_seq,
    lease: bigint = of.line.lease,
    lease_owner: text = of.line.lease_owner.as_deref(),
    lease_time: bigint = of.line.lease_time,
    asker: bigint = of.line.asker.map(asker),
    agent_version: text = of.line.agent_version.as_deref(),
    parent_task_id: uuid = of.line.immutable.as_ref().and_then(|it| it.parent_task_id),
    parent_call_id: uuid = of.line.immutable.as_ref().and_then(|it| it.parent_call_id),
    tenant: text = of.line.immutable.as_ref().map(|it| it.tenant.as_str()),
    user_id: text = of.line.immutable.as_ref().map(|it| it.user_id.as_str()),
    session_id: text = of.line.immutable.as_ref().map(|it| it.session_id.as_str()),
    agent: text = of.line.immutable.as_ref().map(|it| it.agent.as_str()),
    agent_path: text = of.line.immutable.as_ref().map(|it| it.agent_path.as_str()),
    metadata: text = of.line.immutable.as_ref().map(|it| it.metadata.as_str()),
    call_tool: text = of.line.call().map(|call| call.tool.as_str()),
    call_key: text = of.line.call().map(|call| call.key.as_str()),
);

/// One line for each change of a batch of [`super::commit_single`].
pub(super) const PLACES: List = list!("places", places(), |of|
    touched: uuid = of.rows.touched.first().map(|line| line.request_id),
    is_open: boolean = of.needs().open(),
    in_time: boolean = of.needs() == Needs::InTime,
    overdue: boolean = of.needs() == Needs::Overdue,
    becomes: text = of.rows.touched.first().and_then(super::rows::TouchedLine::end).map(RequestStatus::as_str),
    ends: boolean = of.rows.tasks.iter().any(super::rows::TaskLine::ends),
    items_from: bigint = of.items.0,
    items_to: bigint = of.items.1,
    asked_from: bigint = of.asked.0,
    asked_to: bigint = of.asked.1,
    approvers_from: bigint = of.approvers.0,
    approvers_to: bigint = of.approvers.1,
    decisions_from: bigint = of.decisions.0,
    decisions_to: bigint = of.decisions.1,
    keys_from: bigint = of.keys.0,
    keys_to: bigint = of.keys.1,
);

pub(super) const TOUCHED: List = list!("touched", all(touched), |of|
    change: bigint = of.number,
    request_id: uuid = of.line.request_id,
    is_open: boolean = of.line.needs.open(),
    in_time: boolean = of.line.needs == Needs::InTime,
    overdue: boolean = of.line.needs == Needs::Overdue,
    status: text = of.line.status.map(RequestStatus::as_str),
    resumed: boolean = of.line.resumed,
);

/// `ordinal` is the item's position in its change.
pub(super) const ITEMS: List = list!("items", all(items), |of|
    change: bigint = of.number,
    change_id: uuid = of.rows.change,
    task_id: uuid = of.line.task_id,
    root_task_id: uuid = of.rows.root.0,
    seq: bigint = of.line.seq,
    ordinal: bigint = of.line.ordinal,
    kind: text = of.line.kind,
    role: text = of.line.role,
    request_id: uuid = of.line.request_id,
    body: text = of.line.body.as_str(),
);

pub(super) const ASKED: List = list!("asked", all(asked), |of|
    change: bigint = of.number,
    request_id: uuid = of.line.request_id,
    task_id: uuid = of.line.task_id,
    root_task_id: uuid = of.rows.root.0,
    seq: bigint = of.line.seq,
    kind: text = of.line.kind,
    status: text = of.line.status.as_str(),
    required: bigint = of.line.required,
    call_id: uuid = of.line.call_id,
    expires_in: bigint = of.line.expires_in,
);

pub(super) const APPROVERS: List = list!("approvers", all(approvers), |of|
    change: bigint = of.number,
    request_id: uuid = of.line.request_id,
    task_id: uuid = of.line.task_id,
    kind: text = of.line.kind,
    name: text = of.line.name.as_deref(),
    open: boolean = of.rows.leaves_open(of.line.request_id),
);

pub(super) const DECISIONS: List = list!("decisions", all(decisions), |of|
    change: bigint = of.number,
    request_id: uuid = of.line.request_id,
    call_id: uuid = of.line.call_id,
    user_id: text = of.line.user_id.as_str(),
    action: text = of.line.action,
    settles: boolean = of.line.settles,
    task_id: uuid = of.line.task_id,
    seq: bigint = of.line.seq,
);

pub(super) const KEYS: List = list!("keys", keys(), |of|
    change: bigint = of.number,
    tenant: text = of.line.tenant.as_str(),
    user_id: text = of.line.user_id.as_str(),
    path: text = of.line.path.as_str(),
    key: text = of.line.key.as_str(),
    body_digest: text = of.line.body_digest.as_str(),
    task_id: uuid = of.line.task_id.0,
    request_id: uuid = of.line.request_id.map(|id| id.0),
    person: text = of.line.person.as_ref().map(UserKey::as_str),
);

pub(super) const NOTICES: List = list!("notices", noticed(), |of|
    change: bigint = of.number,
    change_id: uuid = of.rows.change,
    root_task_id: uuid = of.rows.root.0,
);

pub(super) const GRANTS: List = list!("grants", all(given), |of|
    change: bigint = of.number,
    grant_id: uuid = of.line.grant.grant_id.0,
    root_task_id: uuid = of.rows.root.0,
    scope: text = of.line.grant.scope.as_str(),
    agent: text = of.line.agent.as_str(),
    tool: text = of.line.grant.tool.as_str(),
    rule: text = of.line.grant.rule.as_str(),
    basis: text = of.line.grant.basis.as_str(),
    given_by: text = of.line.by.as_str(),
    via: text = of.line.via.as_deref(),
    given_groups: text = of.line.groups.as_str(),
    door: text = of.line.door.map(Door::as_str),
    task_id: uuid = of.line.task_id,
    seq: bigint = of.line.seq,
    request_id: uuid = of.line.request_id,
    expires_in: bigint = micros(of.line.grant.expires_in),
    uses: bigint = i64::from(of.line.grant.uses),
);

pub(super) const USES: List = list!("uses", all(uses), |of|
    change: bigint = of.number,
    grant_id: uuid = of.line.grant_id,
    calls: bigint = of.line.calls,
);

pub(super) const CREDENTIALS: List = list!("credentials", all(credentials), |of|
    change: bigint = of.number,
    task_id: uuid = of.line.task_id,
    root_task_id: uuid = of.rows.root.0,
    name: text = of.line.sealed.name.as_str(),
    request_id: uuid = of.line.sealed.request_id.0,
    key_id: text = of.line.sealed.key_id.as_str(),
    sealed: text = of.line.sealed.text.as_str(),
    expires_in: bigint = of.line.expires_in,
);
