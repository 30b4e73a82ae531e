//! `POST /v1/tasks`: a new task.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::Value;

use crate::engine::NewTask;
use crate::http::Http;
use crate::http::body::Posted;
use crate::http::caller::must_create;
use crate::http::events::opening;
use crate::http::fields::{Errors, Fields};
use crate::http::message;
use crate::http::moved::{Done, answer, perform};
use crate::http::operation::{Door, LARGE, Op};
use crate::http::params::MoveHeaders;
use crate::http::problem::{Code, Problem};
use crate::http::wire::{body::CreateTask, task::AgentTask};

/// The operation.
pub const OP: Op = Op {
    id: "create_task",
    door: Door::Key,
    body: LARGE,
    problems: &[
        Code::BadJson,
        Code::BadRequest,
        Code::TooLarge,
        Code::UnsupportedMediaType,
        Code::Invalid,
        Code::IdempotencyKeyReused,
        Code::TooMany,
    ],
};

/// Create a task
///
/// Starts an agent on a user's message, and waits (10 s unless the client prefers otherwise) until it no longer runs.
#[utoipa::path(
    post, path = "/v1/tasks", operation_id = "create_task", tag = "tasks", params(MoveHeaders), request_body = CreateTask,
    responses(
        (status = 201, body = AgentTask, description = "Created, and no longer running",
            headers(("Location" = String, description = "The task"),
                ("Preference-Applied" = String, description = "What of `Prefer` was done"),
                ("Idempotency-Replayed" = String, description = "`true` when an earlier POST with the same key did it"))),
        (status = 202, body = AgentTask, description = "Created, and still running",
            headers(("Location" = String, description = "The task"),
                ("Preference-Applied" = String, description = "What of `Prefer` was done"),
                ("Idempotency-Replayed" = String, description = "`true` when an earlier POST with the same key did it"))),
    )
)]
pub(crate) async fn create_task(State(http): State<Arc<Http>>, posted: Posted) -> Result<Response, Problem> {
    let caller = &posted.caller;
    let seat = opening::seat(&http, &posted)?;
    let accepted = if let Some(accepted) = posted.replay(&http).await? {
        accepted
    } else {
        must_create(caller)?;
        let key = posted.key()?;
        let task = posted.json(&http.parsing, read).await?;
        let (engine, caller) = (http.engine.clone(), caller.clone());
        perform(&http, &posted.caller, async move { engine.create(&caller, task, key).await }).await?
    };
    answer(&http, posted, accepted, Done::Created, seat).await
}

/// Reads a body; `text` is what it was written as.
fn read(body: Value, text: &[u8]) -> Result<NewTask, Problem> {
    let mut errors = Errors::default();
    let task = Fields::of(body, "", &mut errors).map(|mut fields| {
        let task = NewTask {
            agent: fields.text("agent", &mut errors),
            items: message::message(&mut fields, &mut errors),
            session_id: message::session_id(&mut fields, &mut errors),
            user_context: message::user_context(&mut fields, &mut errors),
            metadata: message::metadata(text, &mut fields, &mut errors),
        };
        fields.finish(&mut errors);
        task
    });
    task.filter(|_| errors.0.is_empty()).ok_or_else(|| Problem::invalid(&errors.0))
}
