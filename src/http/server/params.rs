//! The headers and queries an operation reads, as the API's document shows them.

use utoipa::IntoParams;
use uuid::Uuid;

use crate::http::wire;
use crate::task::request::RequestKind;

/// Of a POST that moves a task.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(
    dead_code,
    reason = "read from the headers themselves; this is what the document says of them"
)]
pub(crate) struct MoveHeaders {
    /// `wait=N` waits up to N seconds (300 at most) until the root task no longer runs,
    /// `respond-async` not at all.
    #[param(rename = "Prefer")]
    prefer: Option<String>,
    /// 1 to 255 visible ASCII characters: the same key, path and body does nothing more and answers
    /// alike.
    #[param(
        rename = "Idempotency-Key",
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]+$"
    )]
    idempotency_key: Option<String>,
}

/// Of a POST that does not wait.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(
    dead_code,
    reason = "read from the headers themselves; this is what the document says of them"
)]
pub(crate) struct KeyHeader {
    /// 1 to 255 visible ASCII characters: the same key, path and body does nothing more and answers
    /// alike.
    #[param(
        rename = "Idempotency-Key",
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]+$"
    )]
    idempotency_key: Option<String>,
}

/// Of a GET that may wait.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(
    dead_code,
    reason = "read from the headers themselves; this is what the document says of them"
)]
pub(crate) struct WaitHeader {
    /// `wait=N` waits up to N seconds (300 at most) until this task no longer runs.
    #[param(rename = "Prefer")]
    prefer: Option<String>,
}

/// Of `list_task_items`.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "read from the query itself; this is what the document says of it"
)]
pub(crate) struct ItemQuery {
    /// Only items after this `seq`.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// How many, 50 unless given.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<i64>,
}

/// Of `stream_task_events`.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "read from the query itself; this is what the document says of it"
)]
pub(crate) struct EventQuery {
    /// Only events after this number.
    #[param(minimum = 0)]
    after: Option<i64>,
}

/// Of `stream_task_events`.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(
    dead_code,
    reason = "read from the headers themselves; this is what the document says of them"
)]
pub(crate) struct EventHeader {
    /// Only events after this number, as an `EventSource` says it when it connects again; it beats
    /// `after`.
    #[param(rename = "Last-Event-ID", minimum = 0)]
    last_event_id: Option<i64>,
}

/// Of `list_tasks`.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "read from the query itself; this is what the document says of it"
)]
pub(crate) struct TaskQuery {
    /// Only those that stand so.
    status: Option<Vec<wire::task::WireTaskStatus>>,
    /// Only those of these agents.
    agent: Option<Vec<String>>,
    /// Only those of these sessions.
    session_id: Option<Vec<String>>,
    /// The tasks of these trees, instead of root tasks.
    root_task_id: Option<Vec<Uuid>>,
    /// Only those of these users; for an admin.
    user_id: Option<Vec<String>>,
    /// How many, 50 unless given.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<i64>,
    /// `next_cursor` of the answer before.
    #[param(min_length = 1)]
    cursor: Option<String>,
}

/// Of `list_requests`.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "read from the query itself; this is what the document says of it"
)]
pub(crate) struct RequestQuery {
    /// Only those that stand so; `pending` unless given (with `task_id`: any).
    status: Option<Vec<wire::request::WireRequestStatus>>,
    /// Only those of these kinds.
    kind: Option<Vec<RequestKind>>,
    /// Only those that these agents asked.
    agent: Option<Vec<String>>,
    /// Only those of these sessions.
    session_id: Option<Vec<String>>,
    /// Every request of these tasks' trees, whoever may decide it.
    task_id: Option<Vec<Uuid>>,
    /// How many, 50 unless given.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<i64>,
    /// `next_cursor` of the answer before.
    #[param(min_length = 1)]
    cursor: Option<String>,
}
