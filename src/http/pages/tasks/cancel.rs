//! `POST /tasks/{task_id}/cancel`: cancels a task, for the form on the task's page.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use crate::http::Http;
use crate::http::api::respond::mark_replayed;
use crate::http::api::tasks::cancel::cancel;
use crate::http::pages::shown_to;
use crate::http::pages::site::Site;
use crate::http::server::body::PostRequest;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::session::redirect;
use crate::http::wire::params::KeyHeader;
use crate::people::authorization::Command;
use crate::task::change::TaskRow;
use crate::task::id::TaskId;

pub(crate) const OP: Op = Op::page(
    "cancel_task_here",
    &[
        Code::NotFound,
        Code::TaskFinal,
        Code::Invalid,
        Code::IdempotencyKeyReused,
    ],
);

/// Cancel a task from its page
///
/// As `POST /v1/tasks/{task_id}/cancel`, for the form of the page. The body is ignored, except that
/// a form whose field `shown_to` names another user is refused.
#[utoipa::path(
    post, path = "/tasks/{task_id}/cancel", operation_id = "cancel_task_here", tag = "pages",
    params(("task_id" = String, Path, format = Uuid, description = "The task"), KeyHeader),
    responses((status = 303, description = "No call of the tree starts any more: back to the page",
        headers(("Location" = String, description = "The task's page"))))
)]
pub(crate) async fn cancel_task_here(
    State(http): State<Arc<Http>>,
    PathId(id): PathId<TaskId>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    let form = shown_to::check_post(&http, &posted);
    let accepted = cancel(&http, &posted, id, form).await?;
    let mut response = redirect(&http, &format!("/tasks/{id}"));
    mark_replayed(response.headers_mut(), accepted.replayed);
    Ok(response)
}

/// Renders the form that cancels a task; `None` if the task has ended or the caller may not cancel
/// it. A folded section protects the button from accidental clicks, because a canceled task cannot
/// be resumed.
pub(super) fn form(site: &Site<'_>, http: &Http, row: &TaskRow) -> Option<Markup> {
    let may = http.engine.may_command(site.caller, Command::Cancel, row);
    if row.status.is_terminal() || may.is_err() {
        return None;
    }
    let texts = site.texts();
    Some(html! {
        details #task-cancel {
            summary { (texts.cancel_task) "…" }
            p { (texts.cancel_effect) }
            form method="post" action=(format!("{}/tasks/{}/cancel", site.prefix, row.task_id)) {
                (shown_to::field(site.caller))
                button.no type="submit" { (texts.cancel_task) }
            }
        }
    })
}
