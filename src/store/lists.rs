//! Declares the lists in which a commit passes its values to the database. A list has lines with
//! named columns. The statements of both engines take the names of columns and the parameters
//! from these declarations. The list of tasks is in `task_columns.rs`.

use rusqlite::ToSql;

use super::change_rows::micros;
use super::db::Value;
use super::rows::{ChangeRows, RequiredState};
use crate::task::change::IdempotencyRow;
use crate::task::decision::Door;
use crate::task::status::RequestStatus;
use crate::task::user::UserKey;

/// The declaration of a list: the columns, and two functions that read the values of the list's
/// lines from a batch of changes.
pub(super) struct List {
    /// The name by which the statements' texts refer to the list.
    pub(super) name: &'static str,
    /// The name and the Postgres type of each column.
    pub(super) columns: &'static [(&'static str, &'static str)],
    /// For Postgres: returns one array for each column, with the values of all lines of a batch.
    pub(super) arrays: fn(&[&ChangeRows]) -> Vec<Value>,
    /// For `SQLite`: calls a function once for each line of a batch, with the values of the line.
    pub(super) each: fn(&[&ChangeRows], WithLine<'_>) -> rusqlite::Result<()>,
}

/// A function that takes the values of a line, in the order of the columns.
pub(super) type WithLine<'f> = &'f mut dyn FnMut(&[&dyn ToSql]) -> rusqlite::Result<()>;

/// A line of a list, with the change that the line belongs to.
pub(super) struct BatchLine<'b, T> {
    /// The position of the change in the batch.
    pub(super) number: i64,
    pub(super) rows: &'b ChangeRows,
    pub(super) line: &'b T,
}

/// Returns the lines of all changes of a batch, in order.
pub(super) fn all<'b, T: 'b>(
    batch: &[&'b ChangeRows],
    lines: impl Fn(&'b ChangeRows) -> &'b [T],
) -> Vec<BatchLine<'b, T>> {
    let numbered = (0_i64..).zip(batch);
    numbered
        .flat_map(|(number, rows)| {
            lines(rows)
                .iter()
                .map(move |line| BatchLine { number, rows, line })
        })
        .collect()
}

fn changes<'b>(batch: &[&'b ChangeRows]) -> Vec<BatchLine<'b, ()>> {
    all(batch, |_| &[()])
}

fn changes_with_notice<'b>(batch: &[&'b ChangeRows]) -> Vec<BatchLine<'b, ()>> {
    let mut changes = changes(batch);
    changes.retain(|entry| entry.rows.gets_notice);
    changes
}

fn keys<'b>(batch: &[&'b ChangeRows]) -> Vec<BatchLine<'b, IdempotencyRow>> {
    all(batch, |rows| rows.idempotency.as_slice())
}

/// A line of the list [`LINE_RANGES`], for one change. Each range (first line, last line) says
/// which lines of another list belong to the change. Lines are numbered from 1. In an empty range,
/// the first number is greater than the last.
struct LineRanges<'b> {
    rows: &'b ChangeRows,
    items: (i64, i64),
    requests: (i64, i64),
    approvers: (i64, i64),
    decisions: (i64, i64),
    keys: (i64, i64),
}

fn line_ranges<'b>(batch: &[&'b ChangeRows]) -> Vec<LineRanges<'b>> {
    let [
        mut items,
        mut requests,
        mut approvers,
        mut decisions,
        mut keys,
    ] = [0_i64; 5];
    let range = |end: &mut i64, length: usize| {
        let from = *end + 1;
        *end += i64::try_from(length).unwrap_or(0);
        (from, *end)
    };
    let ranges_of = |rows: &&'b ChangeRows| LineRanges {
        rows,
        items: range(&mut items, rows.items.len()),
        requests: range(&mut requests, rows.requests.len()),
        approvers: range(&mut approvers, rows.approvers.len()),
        decisions: range(&mut decisions, rows.decisions.len()),
        keys: range(&mut keys, usize::from(rows.idempotency.is_some())),
    };
    batch.iter().map(ranges_of).collect()
}

impl LineRanges<'_> {
    fn required_state(&self) -> RequiredState {
        let update = self.rows.request_updates.first();
        update.map_or(RequiredState::Any, |line| line.required_state)
    }
}

macro_rules! array {
    (uuid, $lines:ident, $of:ident => $value:expr) => {
        $crate::store::db::Value::MaybeIds(
            $lines
                .iter()
                .map(|$of| -> Option<uuid::Uuid> { $value.into() })
                .collect(),
        )
    };
    (bigint, $lines:ident, $of:ident => $value:expr) => {
        $crate::store::db::Value::MaybeInts(
            $lines
                .iter()
                .map(|$of| -> Option<i64> { $value.into() })
                .collect(),
        )
    };
    (boolean, $lines:ident, $of:ident => $value:expr) => {
        $crate::store::db::Value::Bools($lines.iter().map(|$of| $value).collect())
    };
    (text, $lines:ident, $of:ident => $value:expr) => {
        $crate::store::db::Value::MaybeTexts(
            $lines
                .iter()
                .map(|$of| Option::<&str>::from($value).map(str::to_owned))
                .collect(),
        )
    };
}
pub(super) use array;

macro_rules! cell {
    (uuid, $value:expr) => {
        Option::<uuid::Uuid>::from($value)
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
pub(super) use cell;

/// Declares a [`List`]. The arguments are the list's name, the function that returns the lines of a
/// batch, and the columns. Each column has a type, and an expression that computes its value from a
/// line.
macro_rules! list {
    ($name:literal, $lines:ident($($from:ident)?), |$of:ident| $($column:ident: $kind:ident = $value:expr),* $(,)?) => {
        $crate::store::lists::List {
            name: $name,
            columns: &[$((stringify!($column), stringify!($kind))),*],
            arrays: |batch| {
                let lines = $lines(batch $(, |rows| rows.$from.as_slice())?);
                vec![$($crate::store::lists::array!($kind, lines, $of => $value)),*]
            },
            each: |batch, with_line| {
                let lines = $lines(batch $(, |rows| rows.$from.as_slice())?);
                lines.iter().try_for_each(|$of| with_line(&[$(&$crate::store::lists::cell!($kind, $value)),*]))
            },
        }
    };
}
pub(super) use list;

pub(super) const CHANGES: List = list!("changes", changes(), |entry|
    change: bigint = entry.number,
    root_task_id: uuid = entry.rows.root.0,
    history_fence: bigint = entry.rows.history_fence,
);

/// The list has one line for each change of a batch. The line holds the request that the change
/// updates, and the ranges of the change's lines in the other lists. One request is enough, because
/// only [`super::commit_single`] uses this list, for changes that update at most one request.
pub(super) const LINE_RANGES: List = list!("line_ranges", line_ranges(), |entry|
    updated_request: uuid = entry.rows.request_updates.first().map(|line| line.request_id),
    is_open: boolean = entry.required_state().requires_pending(),
    in_time: boolean = entry.required_state() == RequiredState::InTime,
    overdue: boolean = entry.required_state() == RequiredState::Overdue,
    becomes: text = entry.rows.request_updates.first().and_then(super::rows::RequestUpdateLine::end).map(RequestStatus::as_str),
    closed_seq: bigint = entry.rows.request_updates.first().and_then(|line| line.closed_seq),
    ends: boolean = entry.rows.tasks.iter().any(super::rows::TaskLine::ends),
    history_fence: bigint = entry.rows.history_fence,
    items_from: bigint = entry.items.0,
    items_to: bigint = entry.items.1,
    requests_from: bigint = entry.requests.0,
    requests_to: bigint = entry.requests.1,
    approvers_from: bigint = entry.approvers.0,
    approvers_to: bigint = entry.approvers.1,
    decisions_from: bigint = entry.decisions.0,
    decisions_to: bigint = entry.decisions.1,
    keys_from: bigint = entry.keys.0,
    keys_to: bigint = entry.keys.1,
);

pub(super) const REQUEST_UPDATES: List = list!("request_updates", all(request_updates), |entry|
    change: bigint = entry.number,
    request_id: uuid = entry.line.request_id,
    is_open: boolean = entry.line.required_state.requires_pending(),
    in_time: boolean = entry.line.required_state == RequiredState::InTime,
    overdue: boolean = entry.line.required_state == RequiredState::Overdue,
    status: text = entry.line.status.map(RequestStatus::as_str),
    closed_seq: bigint = entry.line.closed_seq,
    resumed: boolean = entry.line.resumed,
);

/// The column `ordinal` holds the item's position in the change, counted from 1.
pub(super) const ITEMS: List = list!("items", all(items), |entry|
    change: bigint = entry.number,
    change_id: uuid = entry.rows.change,
    task_id: uuid = entry.line.task_id,
    root_task_id: uuid = entry.rows.root.0,
    seq: bigint = entry.line.seq,
    ordinal: bigint = entry.line.ordinal,
    kind: text = entry.line.kind,
    role: text = entry.line.role,
    request_id: uuid = entry.line.request_id,
    body: text = entry.line.body.as_str(),
);

pub(super) const REQUESTS: List = list!("requests", all(requests), |entry|
    change: bigint = entry.number,
    request_id: uuid = entry.line.request_id,
    task_id: uuid = entry.line.task_id,
    root_task_id: uuid = entry.rows.root.0,
    seq: bigint = entry.line.seq,
    kind: text = entry.line.kind,
    status: text = entry.line.status.as_str(),
    required: bigint = entry.line.required,
    one_answer: boolean = entry.line.one_answer,
    call_id: uuid = entry.line.call_id,
    closed_seq: bigint = entry.line.closed_seq,
    expires_in: bigint = entry.line.expires_in,
);

pub(super) const APPROVERS: List = list!("approvers", all(approvers), |entry|
    change: bigint = entry.number,
    request_id: uuid = entry.line.request_id,
    task_id: uuid = entry.line.task_id,
    kind: text = entry.line.kind,
    name: text = entry.line.name.as_deref(),
    open: boolean = entry.rows.leaves_open(entry.line.request_id),
    expires_in: bigint = entry.line.expires_in,
    one_answer: boolean = entry.line.one_answer,
);

pub(super) const DECISIONS: List = list!("decisions", all(decisions), |entry|
    change: bigint = entry.number,
    request_id: uuid = entry.line.request_id,
    call_id: uuid = entry.line.call_id,
    user_id: text = entry.line.user_id.as_str(),
    action: text = entry.line.action,
    settles: boolean = entry.line.settles,
    task_id: uuid = entry.line.task_id,
    seq: bigint = entry.line.seq,
);

pub(super) const KEYS: List = list!("keys", keys(), |entry|
    change: bigint = entry.number,
    tenant: text = entry.line.tenant.as_str(),
    user_id: text = entry.line.user_id.as_str(),
    path: text = entry.line.path.as_str(),
    key: text = entry.line.key.as_str(),
    body_digest: text = entry.line.body_digest.as_str(),
    task_id: uuid = entry.line.task_id.0,
    request_id: uuid = entry.line.request_id.map(|id| id.0),
    person: text = entry.line.person.as_ref().map(UserKey::as_str),
);

pub(super) const NOTICES: List = list!("notices", changes_with_notice(), |entry|
    change: bigint = entry.number,
    change_id: uuid = entry.rows.change,
    root_task_id: uuid = entry.rows.root.0,
);

pub(super) const GRANTS: List = list!("grants", all(grants), |entry|
    change: bigint = entry.number,
    grant_id: uuid = entry.line.grant.grant_id.0,
    root_task_id: uuid = entry.rows.root.0,
    scope: text = entry.line.grant.scope.as_str(),
    agent: text = entry.line.agent.as_str(),
    tool: text = entry.line.grant.tool.as_str(),
    rule: text = entry.line.grant.rule.as_str(),
    basis: text = entry.line.grant.basis.as_str(),
    given_by: text = entry.line.by.as_str(),
    via: text = entry.line.via.as_deref(),
    given_groups: text = entry.line.groups.as_str(),
    door: text = entry.line.door.map(Door::as_str),
    task_id: uuid = entry.line.task_id,
    seq: bigint = entry.line.seq,
    request_id: uuid = entry.line.request_id,
    expires_in: bigint = micros(entry.line.grant.expires_in),
    uses: bigint = i64::from(entry.line.grant.uses),
);

pub(super) const USES: List = list!("uses", all(uses), |entry|
    change: bigint = entry.number,
    grant_id: uuid = entry.line.grant_id,
    calls: bigint = entry.line.calls,
);

pub(super) const CREDENTIALS: List = list!("credentials", all(credentials), |entry|
    change: bigint = entry.number,
    task_id: uuid = entry.line.task_id,
    root_task_id: uuid = entry.rows.root.0,
    name: text = entry.line.sealed.name.as_str(),
    request_id: uuid = entry.line.sealed.request_id.0,
    key_id: text = entry.line.sealed.key_id.as_str(),
    sealed: text = entry.line.sealed.text.as_str(),
    expires_in: bigint = entry.line.expires_in,
);
