//! `POST /v1/tasks/{task_id}/retry`: goes on with a failed task from its last durable step.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::nothing;
use crate::http::body::Posted;
use crate::http::events::opening;
use crate::http::moved::{Done, answer, perform};
use crate::http::operation::{Door, Id, Op, SMALL};
use crate::http::params::MoveHeaders;
use crate::http::problem::{Code, Problem};
use crate::http::wire::task::AgentTask;
use crate::http::{Http, read};
use crate::people::may::Move;
use crate::task::id::TaskId;

/// The operation.
pub const OP: Op = Op {
    id: "retry_task",
    door: Door::Key,
    body: SMALL,
    problems: &[
        Code::BadJson,
        Code::BadRequest,
        Code::NotFound,
        Code::TaskNotFailed,
        Code::NotARootTask,
        Code::TooLarge,
        Code::UnsupportedMediaType,
        Code::Invalid,
        Code::IdempotencyKeyReused,
        Code::TooMany,
    ],
};

/// Retry a failed task
///
/// Goes on from the last durable step; no finished tool call runs again.
#[utoipa::path(
    post, path = "/v1/tasks/{task_id}/retry", operation_id = "retry_task", tag = "tasks",
    params(("task_id" = String, Path, format = Uuid, description = "The failed root task"), MoveHeaders),
    responses(
        (status = 200, body = AgentTask, description = "It went on, and no longer runs",
            headers(("Preference-Applied" = String, description = "What of `Prefer` was done"),
                ("Idempotency-Replayed" = String, description = "`true` when an earlier POST with the same key did it"))),
        (status = 202, body = AgentTask, description = "It went on, and still runs",
            headers(("Preference-Applied" = String, description = "What of `Prefer` was done"),
                ("Idempotency-Replayed" = String, description = "`true` when an earlier POST with the same key did it"))),
    )
)]
pub(crate) async fn retry_task(
    State(http): State<Arc<Http>>,
    Id(id): Id<TaskId>,
    posted: Posted,
) -> Result<Response, Problem> {
    let caller = &posted.caller;
    let seat = opening::seat(&http, &posted)?;
    let accepted = if let Some(accepted) = posted.replay(&http).await? {
        accepted
    } else {
        let row = read::task(&http, caller, id).await?;
        http.engine.may_move(caller, Move::Retry, &row).map_err(Problem::forbidden)?;
        let key = posted.key()?;
        posted.json(&http.parsing, |body, _| nothing(body)).await?;
        let (engine, caller) = (http.engine.clone(), caller.clone());
        perform(&http, &posted.caller, async move { engine.retry(&caller, id, key).await }).await?
    };
    answer(&http, posted, accepted, Done::Moved, seat).await
}
