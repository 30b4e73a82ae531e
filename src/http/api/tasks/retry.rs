//! `POST /v1/tasks/{task_id}/retry`: continues a failed task from its last durable step.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use crate::http::Http;
use crate::http::api::respond::{SuccessStatus, respond};
use crate::http::api::submit::{may_command, no_members, submit};
use crate::http::events::opening;
use crate::http::server::body::PostRequest;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::params::{KeyHeader, PreferHeader};
use crate::http::wire::task::AgentTask;
use crate::people::authorization::Command;
use crate::task::id::TaskId;

pub(crate) const OP: Op = Op::command(
    "retry_task",
    &[
        Code::NotFound,
        Code::TaskNotFailed,
        Code::NotARootTask,
        Code::NotAConversation,
    ],
);

/// Retry a failed task
///
/// Continues from the last durable step; no finished tool call runs again.
#[utoipa::path(
    post, path = "/v1/tasks/{task_id}/retry", operation_id = "retry_task", tag = "tasks",
    params(("task_id" = String, Path, format = Uuid, description = "The failed root task"), PreferHeader, KeyHeader),
    responses(
        (status = 200, body = AgentTask, description = "Retried, and the task no longer runs"),
        (status = 202, body = AgentTask, description = "Retried, and the task still runs"),
    )
)]
pub(crate) async fn retry_task(
    State(http): State<Arc<Http>>,
    PathId(id): PathId<TaskId>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    let permit = opening::take_permit(&http, &posted)?;
    let accepted = submit(
        &http,
        &posted,
        may_command(&http, &posted.caller, id, Command::Retry),
        |()| posted.json(&http.body_parser, no_members),
        move |engine, caller, (), key| async move { engine.retry(&caller, id, key).await },
    )
    .await?;
    respond(&http, posted, accepted, SuccessStatus::Ok, permit).await
}
