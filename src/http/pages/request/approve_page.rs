//! `GET /resume/{request_id}/approve`: a page with one button, which sends the approval as a POST.
//! The GET itself changes nothing.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;

use crate::http::Http;
use crate::http::pages::layout::HtmlPage;
use crate::http::server::caller::CurrentCaller;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::task::decision::Action;
use crate::task::id::RequestId;

pub(crate) const OP: Op = Op::page("get_approve_page", &[Code::NotFound]);

/// Get the page that approves
///
/// The page has one button, which sends the approval as a POST. If the approval would be refused,
/// the page says why instead. This GET never changes anything.
#[utoipa::path(
    get, path = "/resume/{request_id}/approve", operation_id = "get_approve_page", tag = "requests",
    params(("request_id" = String, Path, format = Uuid, description = "The request")),
    responses(HtmlPage)
)]
pub(crate) async fn get_approve_page(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    PathId(id): PathId<RequestId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    super::get_single_action_page(&http, &caller, id, &headers, Action::Approve).await
}
