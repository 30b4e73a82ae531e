//! `GET /v1/tasks/{task_id}`: returns a task, at once or as soon as the task no longer runs.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;

use crate::http::Http;
use crate::http::access;
use crate::http::api::respond::mark_applied;
use crate::http::api::wait;
use crate::http::server::caller::CurrentCaller;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::prefer::Prefer;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::params::WaitHeader;
use crate::http::wire::task::AgentTask;
use crate::task::id::TaskId;

pub(crate) const OP: Op = Op::api("get_task", &[Code::NotFound]);

/// Get a task
///
/// Responds at once; with `Prefer: wait=N`, responds when the task no longer runs. A sub-agent's
/// task is read like any other.
#[utoipa::path(
    get, path = "/v1/tasks/{task_id}", operation_id = "get_task", tag = "tasks",
    params(("task_id" = String, Path, format = Uuid, description = "The task"), WaitHeader),
    responses((status = 200, body = AgentTask, description = "The task"))
)]
pub(crate) async fn get_task(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    PathId(id): PathId<TaskId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let row = access::readable_task(&http, &caller, id).await?;
    let prefer = Prefer::read(&headers);
    let time = prefer.wait_or(Duration::ZERO);
    let task = if time.is_zero() {
        access::task_with_requests(&http, &caller, row).await?
    } else {
        wait::task_when_stopped(&http, &caller, row.root_task_id, id, time, None).await?
    };
    let mut response = Json(task).into_response();
    mark_applied(response.headers_mut(), prefer.applied());
    Ok(response)
}
