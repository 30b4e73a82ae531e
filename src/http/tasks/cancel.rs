//! `POST /v1/tasks/{task_id}/cancel`: ends a task and everything below it. Does not wait.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::nothing;
use crate::http::body::Posted;
use crate::http::moved::{perform, replayed};
use crate::http::operation::{Door, Id, Op, SMALL};
use crate::http::params::KeyHeader;
use crate::http::problem::{Code, Problem};
use crate::http::wire::task::AgentTask;
use crate::http::{Http, read};
use crate::people::may::Command;
use crate::task::id::TaskId;

/// The operation.
pub const OP: Op = Op {
    id: "cancel_task",
    door: Door::Key,
    body: SMALL,
    problems: &[
        Code::BadJson,
        Code::BadRequest,
        Code::NotFound,
        Code::TaskFinal,
        Code::TooLarge,
        Code::UnsupportedMediaType,
        Code::Invalid,
        Code::IdempotencyKeyReused,
    ],
};

/// Cancel a task
///
/// Once it has answered, no call of the tree starts. Doing it again changes nothing. A sub-agent's task may be canceled
/// alone: its parent is told and goes on.
#[utoipa::path(
    post, path = "/v1/tasks/{task_id}/cancel", operation_id = "cancel_task", tag = "tasks",
    params(("task_id" = String, Path, format = Uuid, description = "The task"), KeyHeader),
    responses((status = 200, body = AgentTask, description = "The task",
        headers(("Idempotency-Replayed" = String, description = "`true` when an earlier POST with the same key did it"))))
)]
pub(crate) async fn cancel_task(
    State(http): State<Arc<Http>>,
    Id(id): Id<TaskId>,
    posted: Posted,
) -> Result<Response, Problem> {
    let caller = &posted.caller;
    let accepted = if let Some(accepted) = posted.replay(&http).await? {
        accepted
    } else {
        let row = read::task(&http, caller, id).await?;
        http.engine.may_command(caller, Command::Cancel, &row).map_err(Problem::forbidden)?;
        let key = posted.key()?;
        posted.json(&http.parsing, |body, _| nothing(body)).await?;
        let (engine, caller) = (http.engine.clone(), caller.clone());
        perform(&http, &posted.caller, async move { engine.cancel(&caller, id, key).await }).await?
    };
    let mut response = Json(read::shown(&http, caller, accepted.task_id).await?).into_response();
    replayed(response.headers_mut(), &accepted);
    Ok(response)
}
