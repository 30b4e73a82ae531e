//! `POST /v1/tasks/{task_id}/messages`: sends the user's next message.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::message_body;
use crate::engine::MessageInput;
use crate::http::Http;
use crate::http::api::respond::{SuccessStatus, respond};
use crate::http::api::submit::{may_command, submit};
use crate::http::events::opening;
use crate::http::server::body::PostRequest;
use crate::http::server::fields::Fields;
use crate::http::server::operation::{LARGE_BODY, Op};
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::body::SendMessage;
use crate::http::wire::params::{KeyHeader, PreferHeader};
use crate::http::wire::task::AgentTask;
use crate::people::authorization::Command;
use crate::task::id::TaskId;

pub(crate) const OP: Op = Op {
    max_body_bytes: LARGE_BODY,
    ..Op::command(
        "send_message",
        &[
            Code::NotFound,
            Code::TaskRunning,
            Code::TaskPaused,
            Code::NotARootTask,
            Code::NotAConversation,
        ],
    )
};

/// Send the next message
///
/// Continues a root task. A paused task refuses the message (409) unless `supersede` withdraws its
/// open requests.
#[utoipa::path(
    post, path = "/v1/tasks/{task_id}/messages", operation_id = "send_message", tag = "tasks",
    params(("task_id" = String, Path, format = Uuid, description = "The root task"), PreferHeader, KeyHeader),
    request_body = SendMessage,
    responses(
        (status = 200, body = AgentTask, description = "Stored, and the task no longer runs"),
        (status = 202, body = AgentTask, description = "Stored, and the task still runs"),
    )
)]
pub(crate) async fn send_message(
    State(http): State<Arc<Http>>,
    PathId(id): PathId<TaskId>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    let permit = opening::take_permit(&http, &posted)?;
    let accepted = submit(
        &http,
        &posted,
        may_command(&http, &posted.caller, id, Command::Message),
        |()| {
            posted.json(&http.body_parser, |body, _| {
                Fields::read(body, |fields| Some(SendMessage::read(fields))).map(MessageInput::from)
            })
        },
        move |engine, caller, message, key| async move {
            engine.message(&caller, id, message, key).await
        },
    )
    .await?;
    respond(&http, posted, accepted, SuccessStatus::Ok, permit).await
}

impl SendMessage {
    fn read(fields: &mut Fields<'_>) -> Self {
        let (input, items) = message_body::message(fields);
        Self {
            input,
            items,
            user_context: message_body::user_context(fields),
            supersede: fields.flag("supersede"),
        }
    }
}

impl From<SendMessage> for MessageInput {
    fn from(body: SendMessage) -> Self {
        Self {
            items: message_body::into_parts(body.input, body.items),
            user_context: body.user_context,
            supersede: body.supersede.unwrap_or(false),
        }
    }
}
