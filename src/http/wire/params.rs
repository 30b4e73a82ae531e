//! The headers and query parameters that operations read, for the OpenAPI document.

#![expect(
    dead_code,
    reason = "operations read the request itself; the members are for the document"
)]

use utoipa::IntoParams;
use uuid::Uuid;

use super::delivery::WireDeliveryState;
use super::request::WireRequestStatus;
use super::task::WireTaskStatus;
use crate::task::request::RequestKind;

/// Declares the struct of a header whose value is a text, with the header's name and description. A
/// header with a maximum length is not empty, and consists of visible ASCII characters.
macro_rules! header {
    (
        $(#[$about:meta])*
        $name:ident($header:tt $(, $max_length:tt)?):
        $(#[$description:meta])*
    ) => {
        $(#[$about])*
        #[derive(Debug, IntoParams)]
        #[into_params(parameter_in = Header)]
        pub(crate) struct $name {
            $(#[$description])*
            #[param(rename = $header $(, min_length = 1, max_length = $max_length, pattern = "^[!-~]+$")?)]
            value: Option<String>,
        }
    };
}

header! {
    /// The header of a POST that may wait for the task.
    PreferHeader("Prefer"):
    /// `wait=N` waits up to N seconds (300 at most) until the root task no longer runs;
    /// `respond-async` does not wait.
}
header! {
    /// The header of a proposal at a gate, which waits for the verdict.
    VerdictWaitHeader("Prefer"):
    /// `wait=N` waits up to N seconds for the verdict (300 at most; in a browser's session, 60 at
    /// most); `respond-async` does not wait.
}
header! {
    /// The header of a POST that changes a task.
    KeyHeader("Idempotency-Key", 255):
    /// 1 to 255 visible ASCII characters. A repetition with the same key, path and body has no
    /// further effect, and waits like the first POST. A task or a call in its response is shown as
    /// it is now.
}
header! {
    /// The `Idempotency-Key` of a proposal at a gate, which names the proposed call.
    ProposalKeyHeader("Idempotency-Key", 255):
    /// 1 to 255 visible ASCII characters that name the call. A repetition with the same key and
    /// call continues the call: it waits for the verdict, and starts the call as soon as the call
    /// may run. An allowed call that the gate does not store (`record: held`) is not continued; its
    /// repetition is a new call.
}
header! {
    /// The `Idempotency-Key` of a POST that checks the form of the key and does not store the key.
    CheckedKeyHeader("Idempotency-Key", 255):
    /// 1 to 255 visible ASCII characters. The service refuses a key of another form. It does not
    /// store the key, so the key does not identify a repetition.
}
header! {
    /// The header that names the process that runs a gate call.
    RunnerHeader("Holdpoint-Runner", 128):
    /// 1 to 128 visible ASCII characters that name the client's process. If the same runner repeats
    /// the POST, it gets the same permit again.
}
header! {
    /// The header of a GET that may wait.
    WaitHeader("Prefer"):
    /// `wait=N` waits up to N seconds (300 at most) until this task no longer runs.
}
header! {
    /// The header of a GET that may wait for a change of a gate call.
    CallWaitHeader("Prefer"):
    /// `wait=N` waits up to N seconds (300 at most; in a browser's session, 60 at most) until the
    /// decision changes or the call is settled.
}

/// The headers of a message of the Model Context Protocol.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
pub(crate) struct McpHeaders {
    /// The revision of the protocol. Without this header, the revision in `_meta` applies; without
    /// both, 2025-06-18. A message of the revision 2026-07-28 must have this header.
    #[param(rename = "MCP-Protocol-Version")]
    protocol_version: Option<String>,
    /// The method of the message. Only the revision 2026-07-28 reads and needs this header.
    #[param(rename = "Mcp-Method")]
    method: Option<String>,
    /// The name of the tool in `tools/call`, as text or as `=?base64?…?=`. Only the revision
    /// 2026-07-28 reads and needs this header.
    #[param(rename = "Mcp-Name")]
    name: Option<String>,
    /// The session id of the call; `holdpoint/session` in `_meta` takes precedence.
    #[param(
        rename = "Holdpoint-Session",
        min_length = 1,
        max_length = 128,
        pattern = "^[A-Za-z0-9._:-]+$"
    )]
    session: Option<String>,
    /// `wait=N` lets a held call wait up to N seconds for its decision (300 at most; in a browser's
    /// session, 60 at most); `respond-async` does not wait.
    #[param(rename = "Prefer")]
    prefer: Option<String>,
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ItemQuery {
    /// Only items after this `seq`.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// The number of entries in a page; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<i64>,
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventQuery {
    /// Only events after this number.
    #[param(minimum = 0)]
    after: Option<i64>,
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
pub(crate) struct LastEventIdHeader {
    /// Only events after this number; takes precedence over `after`. An `EventSource` sends this
    /// header when it reconnects.
    #[param(rename = "Last-Event-ID", minimum = 0)]
    last_event_id: Option<i64>,
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TaskQuery {
    /// Only tasks with one of these statuses.
    status: Option<Vec<WireTaskStatus>>,
    /// Only tasks of these agents.
    agent: Option<Vec<String>>,
    /// Only tasks of these sessions.
    session_id: Option<Vec<String>>,
    /// All tasks of the trees with these root tasks. Without this parameter, only root tasks are
    /// listed.
    #[param(max_items = 200)]
    root_task_id: Option<Vec<Uuid>>,
    /// Only tasks of these users. Only an admin may name other users.
    user_id: Option<Vec<String>>,
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct InboxQuery {
    /// Only requests of these kinds.
    kind: Option<Vec<RequestKind>>,
    /// Only requests of these agents.
    agent: Option<Vec<String>>,
    /// Only requests of these sessions.
    session_id: Option<Vec<String>>,
}

/// The parameter of `get_decided` that [`InboxQuery`] and [`CursorQuery`] do not have.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DecidedQuery {
    /// With `1`, the page also shows the requests that other people decided and that the caller
    /// could have decided.
    #[param(pattern = "^1?$")]
    all: Option<String>,
}

/// The filters of `get_tasks_page`.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TasksPageQuery {
    /// Only tasks with one of these statuses.
    status: Option<Vec<WireTaskStatus>>,
    /// The names of agents and gates. The page shows only the tasks of these agents and the calls
    /// at these gates.
    agent: Option<Vec<String>>,
}

/// The query of `get_task_page`.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TimelineQuery {
    /// Only events after this number.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Only events before this number.
    #[param(minimum = 0)]
    before: Option<i64>,
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RequestQuery {
    /// Only requests with one of these statuses; default `pending` (with `task_id`: any).
    status: Option<Vec<WireRequestStatus>>,
    /// Only requests of these kinds.
    kind: Option<Vec<RequestKind>>,
    /// Only requests of these agents.
    agent: Option<Vec<String>>,
    /// Only requests of these sessions.
    session_id: Option<Vec<String>>,
    /// Only requests in the trees of these tasks. The list then also has the requests that the
    /// caller may not decide.
    #[param(max_items = 200)]
    task_id: Option<Vec<Uuid>>,
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeliveryQuery {
    /// Only deliveries to these receivers.
    target: Option<Vec<String>>,
    /// Only deliveries in one of these states.
    state: Option<Vec<WireDeliveryState>>,
    /// Only deliveries about these requests.
    request_id: Option<Vec<Uuid>>,
    /// Only deliveries about these trees.
    root_task_id: Option<Vec<Uuid>>,
}

/// The parameters that select a page of a list of the API.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// The number of entries in a page; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<i64>,
    /// `next_cursor` of the previous page.
    #[param(min_length = 1)]
    cursor: Option<String>,
}

/// The parameter that selects a page of a list for the browser. Without a value, it selects the
/// first page.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CursorQuery {
    /// The cursor in the link to the next page.
    cursor: Option<String>,
}
