//! `POST /v1/tasks`: creates a task.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::message_body;
use crate::engine::TaskInput;
use crate::http::Http;
use crate::http::api::respond::{SuccessStatus, respond};
use crate::http::api::submit::submit;
use crate::http::events::opening;
use crate::http::server::body::PostRequest;
use crate::http::server::caller::must_create;
use crate::http::server::fields::Fields;
use crate::http::server::operation::{LARGE_BODY, Op};
use crate::http::server::problem::Problem;
use crate::http::wire::body::CreateTask;
use crate::http::wire::params::{KeyHeader, PreferHeader};
use crate::http::wire::task::AgentTask;
use crate::task::change::ClientColumns;

pub(crate) const OP: Op = Op {
    max_body_bytes: LARGE_BODY,
    ..Op::command("create_task", &[])
};

/// Create a task
///
/// Starts an agent on a user's message, and waits until the task no longer runs (10 s; `Prefer`
/// changes that).
#[utoipa::path(
    post, path = "/v1/tasks", operation_id = "create_task", tag = "tasks", params(PreferHeader, KeyHeader), request_body = CreateTask,
    responses(
        (status = 201, body = AgentTask, description = "Created, and no longer running",
            headers(("Location" = String, description = "The task"))),
        (status = 202, body = AgentTask, description = "Created, and still running",
            headers(("Location" = String, description = "The task"))),
    )
)]
pub(crate) async fn create_task(
    State(http): State<Arc<Http>>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    let permit = opening::take_permit(&http, &posted)?;
    let accepted = submit(
        &http,
        &posted,
        async { must_create(&posted.caller) },
        |()| {
            posted.json(&http.body_parser, |body, text| {
                Fields::read(body, |fields| Some(CreateTask::read(text, fields)))
                    .map(TaskInput::from)
            })
        },
        |engine, caller, task, key| async move { engine.create(&caller, task, key).await },
    )
    .await?;
    respond(&http, posted, accepted, SuccessStatus::Created, permit).await
}

impl CreateTask {
    /// Reads the members of the body. `text` is the unparsed body, from which `metadata` is copied
    /// unchanged.
    fn read(text: &[u8], fields: &mut Fields<'_>) -> Self {
        let agent = fields.text("agent");
        let (input, items) = message_body::message(fields);
        Self {
            agent,
            input,
            items,
            session_id: message_body::session_id(fields),
            user_context: message_body::user_context(fields),
            metadata: message_body::metadata(text, fields),
        }
    }
}

impl From<CreateTask> for TaskInput {
    fn from(body: CreateTask) -> Self {
        Self {
            agent: body.agent,
            items: message_body::into_parts(body.input, body.items),
            session_id: body.session_id,
            user_context: body.user_context,
            client: ClientColumns {
                metadata: body.metadata.unwrap_or_else(message_body::no_metadata),
            },
        }
    }
}
