//! `POST /v1/tasks/{task_id}/messages`: the user's next message.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::Value;

use crate::engine::NewMessage;
use crate::http::body::Posted;
use crate::http::events::opening;
use crate::http::fields::{Errors, Fields};
use crate::http::moved::{Done, answer, perform};
use crate::http::operation::{Door, Id, LARGE, Op};
use crate::http::params::MoveHeaders;
use crate::http::problem::{Code, Problem};
use crate::http::wire::{body::SendMessage, task::AgentTask};
use crate::http::{Http, message, read};
use crate::people::may::Move;
use crate::task::id::TaskId;

/// The operation.
pub const OP: Op = Op {
    id: "send_message",
    door: Door::Key,
    body: LARGE,
    problems: &[
        Code::BadJson,
        Code::BadRequest,
        Code::NotFound,
        Code::TaskRunning,
        Code::TaskPaused,
        Code::NotARootTask,
        Code::TooLarge,
        Code::UnsupportedMediaType,
        Code::Invalid,
        Code::IdempotencyKeyReused,
        Code::TooMany,
    ],
};

/// Send the next message
///
/// Goes on with a root task. A paused one refuses it (409) unless `supersede` withdraws its open requests.
#[utoipa::path(
    post, path = "/v1/tasks/{task_id}/messages", operation_id = "send_message", tag = "tasks",
    params(("task_id" = String, Path, format = Uuid, description = "The root task"), MoveHeaders),
    request_body = SendMessage,
    responses(
        (status = 200, body = AgentTask, description = "Taken, and the task no longer runs",
            headers(("Preference-Applied" = String, description = "What of `Prefer` was done"),
                ("Idempotency-Replayed" = String, description = "`true` when an earlier POST with the same key did it"))),
        (status = 202, body = AgentTask, description = "Taken, and the task still runs",
            headers(("Preference-Applied" = String, description = "What of `Prefer` was done"),
                ("Idempotency-Replayed" = String, description = "`true` when an earlier POST with the same key did it"))),
    )
)]
pub(crate) async fn send_message(
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
        http.engine.may_move(caller, Move::Message, &row).map_err(Problem::forbidden)?;
        let key = posted.key()?;
        let message = posted.json(&http.parsing, |body, _| parse(body)).await?;
        let (engine, caller) = (http.engine.clone(), caller.clone());
        perform(&http, &posted.caller, async move { engine.message(&caller, id, message, key).await }).await?
    };
    answer(&http, posted, accepted, Done::Moved, seat).await
}

fn parse(body: Value) -> Result<NewMessage, Problem> {
    let mut errors = Errors::default();
    let message = Fields::of(body, "", &mut errors).map(|mut fields| {
        let message = NewMessage {
            items: message::message(&mut fields, &mut errors),
            user_context: message::user_context(&mut fields, &mut errors),
            supersede: fields.flag("supersede", &mut errors).unwrap_or(false),
        };
        fields.finish(&mut errors);
        message
    });
    message.filter(|_| errors.0.is_empty()).ok_or_else(|| Problem::invalid(&errors.0))
}
