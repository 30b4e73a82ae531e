//! `GET /resume/{request_id}/reject`: a page with one button that POSTs. Following the link changes nothing.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;

use super::page::{self, View};
use crate::http::caller::Who;
use crate::http::language::Language;
use crate::http::operation::{Door, Id, Op, SMALL};
use crate::http::problem::{Code, Problem};
use crate::http::{Http, follow, read};
use crate::task::decision::Action;
use crate::task::id::RequestId;

/// The operation.
pub const OP: Op = Op { id: "get_reject_page", door: Door::Key, body: SMALL, problems: &[Code::NotFound] };

/// The page that rejects
///
/// One button that POSTs; without it, saying why, where that POST would be refused. Never changes anything.
#[utoipa::path(
    get, path = "/resume/{request_id}/reject", operation_id = "get_reject_page", tag = "requests",
    params(("request_id" = String, Path, format = Uuid, description = "The request")),
    responses((status = 200, body = String, content_type = "text/html", description = "The page"))
)]
pub(crate) async fn get_reject_page(
    State(http): State<Arc<Http>>,
    Who(caller): Who,
    Id(id): Id<RequestId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let row = read::readable_request(&http, &caller, id).await?;
    let mut view = View::now(&http, &row, &caller, Language::of(&headers)).await?;
    view.path.push_str("/reject");
    Ok(follow::page(page::one_button(&view, Action::Reject)))
}
