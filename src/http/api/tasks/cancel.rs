//! `POST /v1/tasks/{task_id}/cancel`: cancels a task and all tasks below it. The operation ignores
//! `Prefer`.

use std::future::Future;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::engine::Accepted;
use crate::http::Http;
use crate::http::access;
use crate::http::api::respond::mark_replayed;
use crate::http::api::submit::{may_command, no_members, submit};
use crate::http::server::body::PostRequest;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::params::KeyHeader;
use crate::http::wire::task::AgentTask;
use crate::people::authorization::Command;
use crate::task::id::TaskId;

pub(crate) const OP: Op = Op::command("cancel_task", &[Code::NotFound, Code::TaskFinal]);

/// Cancel a task
///
/// After the response, no call of the task or of its sub-agents starts. Canceling a task again
/// changes nothing. A sub-agent's task may be canceled alone: its parent is told and continues.
#[utoipa::path(
    post, path = "/v1/tasks/{task_id}/cancel", operation_id = "cancel_task", tag = "tasks",
    params(("task_id" = String, Path, format = Uuid, description = "The task"), KeyHeader),
    responses((status = 200, body = AgentTask, description = "The task"))
)]
pub(crate) async fn cancel_task(
    State(http): State<Arc<Http>>,
    PathId(id): PathId<TaskId>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    let body = posted.json(&http.body_parser, no_members);
    let accepted = cancel(&http, &posted, id, body).await?;
    let row = access::task(&http, &posted.caller, accepted.task_id).await?;
    let task = access::task_with_requests(&http, &posted.caller, row).await?;
    let mut response = Json(task).into_response();
    mark_replayed(response.headers_mut(), accepted.replayed);
    Ok(response)
}

/// Cancels a task for the caller of a POST. The future `body` checks the posted body, and is polled
/// only after the check that the caller may cancel the task.
///
/// # Errors
/// Fails with the problem of the first check that fails, or with the engine's refusal.
pub(crate) async fn cancel(
    http: &Arc<Http>,
    posted: &PostRequest,
    id: TaskId,
    body: impl Future<Output = Result<(), Problem>>,
) -> Result<Accepted, Problem> {
    submit(
        http,
        posted,
        may_command(http, &posted.caller, id, Command::Cancel),
        |()| body,
        move |engine, caller, (), key| async move { engine.cancel(&caller, id, key).await },
    )
    .await
}
