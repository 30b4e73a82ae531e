//! `GET /v1/tasks/{task_id}/events`: a stream of the events of a task and its descendants, sent as
//! they are committed.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Uri};

use crate::http::Http;
use crate::http::access;
use crate::http::events::opening::{StreamRequest, open, start_position};
use crate::http::events::stream::Watcher;
use crate::http::server::caller::CurrentCaller;
use crate::http::server::operation::{Op, Surface};
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::params::{EventQuery, LastEventIdHeader};
use crate::task::id::TaskId;

pub(crate) const OP: Op = Op {
    surface: Surface::Stream,
    ..Op::api("stream_task_events", &[Code::NotFound, Code::Invalid])
};

/// Watch a task
///
/// Returns server-sent events: first the stored events after the given number, then `caught_up`,
/// then each event as it is committed, and deltas of the models' answers between them. The stream
/// goes on while the task is paused, and ends with the task. For a sub-agent's task, returns the
/// events of its subtree, numbered as in the root's stream. While the service is unavailable, a GET
/// with `Accept: text/event-stream` gets 200 and a stream that ends at once, in place of 503.
#[utoipa::path(
    get, path = "/v1/tasks/{task_id}/events", operation_id = "stream_task_events", tag = "tasks",
    params(("task_id" = String, Path, format = Uuid, description = "The task"), EventQuery, LastEventIdHeader),
    responses(
        (status = 200, description = "The stream"),
        (status = 204, description = "The task has ended, and no event is left to send: an `EventSource` does not reconnect"),
    )
)]
pub(crate) async fn stream_task_events(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    PathId(id): PathId<TaskId>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let row = access::readable_task(&http, &caller, id).await?;
    let after = start_position(&headers, &uri)?;
    let permit = http.stream_limiter.take(&caller, &http.settings)?;
    let request = StreamRequest {
        task: id,
        root: row.root_task_id,
        after: Some(after),
        listener: None,
    };
    let watcher = Watcher {
        caller,
        headers,
        is_post_response: false,
    };
    open(&http, watcher, request, permit).await
}
