//! Declares the tables that a commit writes: each column, with the value that is inserted into it.
//! The columns of `agent_task` are in `task_columns.rs`. The templates of both engines' statements
//! name these columns and values (see `statement.rs`).
//!
//! `{at}` is the time of the commit. `{base}` is the number of the tree's last event before the
//! commit. In a value, an alias names the list that the value comes from: `n` for tasks, `i` for
//! items, `a` for requests, `p` for approvers, `d` for decisions, `y` for keys, `s` for
//! credentials, `g` for grants, `o` for notices. Two more aliases name rows: `k` is the stored or
//! inserted task of a line, and `r` is the request that a decision answers.

use super::task_columns::AGENT_TASK;

pub(super) struct Table {
    pub(super) name: &'static str,
    pub(super) columns: &'static [(&'static str, &'static str)],
}

/// Lists columns with their values. The value of a column without `=` is the column of the same
/// name of the alias `$from`.
macro_rules! columns {
    ($from:ident: $($column:ident $(= $value:expr)?),* $(,)?) => {
        &[$((stringify!($column), columns!(@value $from $column $($value)?))),*]
    };
    (@value $from:ident $column:ident) => { concat!(stringify!($from), ".", stringify!($column)) };
    (@value $from:ident $column:ident $value:expr) => { $value };
}
pub(super) use columns;

pub(super) const TABLES: &[Table] = &[
    AGENT_TASK,
    CLAIMABLE_TASK,
    AGENT_TASK_ITEM,
    INTERVENTION_REQUEST,
    REQUEST_APPROVER,
    INBOX,
    DECISION,
    IDEMPOTENCY,
    CREDENTIAL,
    NOTICE,
    STANDING_GRANT,
];

/// The table of the tasks that may be claimed, now or later. It exists on Postgres only. In the
/// values, `c` stands for a stored or inserted task, with two more columns that [`CLAIMABLE`]
/// computes: `due_at` and `alone`.
const CLAIMABLE_TASK: Table = Table {
    name: "claimable_task",
    columns: columns!(c: task_id, tenant, user_id, due_at, alone),
};

/// Computes two columns of `claimable_task` from `t`, the task's row after the commit. `due_at` is
/// null if the task is not to be claimed. `alone` says whether a process must drive the task alone.
pub(super) const CLAIMABLE: &str =
    "case t.phase when 'leased' then t.lease_until when 'parked' then t.wake_at else 0 end as due_at,
        t.fruitless >= 2 as alone";

const AGENT_TASK_ITEM: Table = Table {
    name: "agent_task_item",
    columns: columns!(i:
        task_id, seq, root_task_id,
        event_number = "{base} + i.ordinal",
        change_id,
        type = "i.kind",
        role,
        at = "{at}",
        request_id, body,
    ),
};

const INTERVENTION_REQUEST: Table = Table {
    name: "intervention_request",
    columns: columns!(a:
        request_id, task_id, seq, root_task_id,
        tenant = "k.tenant",
        kind, status, required, one_answer, call_id, closed_seq,
        gate = "case when k.call_key is not null then k.agent end",
        gate_user = "case when k.call_key is not null then k.user_id end",
        created_at = "{at}",
        expires_at = "{at} + a.expires_in",
    ),
};

/// The table of the approvers of requests. The column `name` has the user or group that may
/// approve. If the task's owner is the approver, the column has the owner's user id.
const REQUEST_APPROVER: Table = Table {
    name: "request_approver",
    columns: columns!(p:
        tenant = "k.tenant",
        kind,
        name = "coalesce(p.name, k.user_id)",
        request_id,
    ),
};

/// The table of the approvers of open requests. It has a copy of each row of `request_approver`
/// whose request is open. The copy also has the task's owner, the request's deadline, and whether
/// one answer closes the request.
const INBOX: Table = Table {
    name: "inbox",
    columns: columns!(p:
        tenant = "k.tenant",
        kind,
        name = "coalesce(p.name, k.user_id)",
        request_id,
        owner = "k.user_id",
        expires_at = "{at} + p.expires_in",
        one_answer,
    ),
};

/// The table of people's decisions. A row has an answer about one call or about the whole request.
/// The column `final` is true if the answer decides the call or closes the request. It is also true
/// if the request requires no more than one approval.
const DECISION: Table = Table {
    name: "decision",
    columns: columns!(d:
        tenant = "r.tenant",
        user_id, request_id,
        tool_call_id = "coalesce(d.call_id, r.call_id, d.request_id)",
        action,
        final = "d.settles or r.required <= 1",
        task_id, seq,
        at = "{at}",
    ),
};

const IDEMPOTENCY: Table = Table {
    name: "idempotency",
    columns: columns!(y:
        tenant, user_id, path, key, body_digest, task_id, request_id, person,
        created_at = "{at}",
    ),
};

const CREDENTIAL: Table = Table {
    name: "credential",
    columns: columns!(s:
        task_id, name,
        tenant = "k.tenant",
        root_task_id, request_id, key_id, sealed,
        created_at = "{at}",
        expires_at = "{at} + s.expires_in",
    ),
};

/// A notice is the outbox entry of a change (see `notices.rs`). A change has at most one notice,
/// which has the id of the change.
const NOTICE: Table = Table {
    name: "notice",
    columns: columns!(o:
        notice_id = "o.change_id",
        root_task_id, change_id,
        event_number = "{base} + 1",
    ),
};

const STANDING_GRANT: Table = Table {
    name: "standing_grant",
    columns: columns!(g:
        grant_id,
        tenant = "k.tenant",
        owner = "k.user_id",
        root_task_id, scope, agent, tool, rule, basis, given_by, via, given_groups, door, task_id, seq,
        request_id,
        created_at = "{at}",
        expires_at = "{at} + g.expires_in",
        uses,
        used = "0",
    ),
};
