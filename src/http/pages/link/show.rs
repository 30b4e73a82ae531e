//! `GET /l/{token}`: the request as the person to whom the link was sent sees it. A GET changes
//! nothing and does not use up the link, so programs that scan or preview messages may follow it.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;

use super::linked_request;
use crate::http::Http;
use crate::http::pages::layout::HtmlPage;
use crate::http::pages::request::{View, request_page};
use crate::http::server::caller::CurrentCaller;
use crate::http::server::link::CurrentLink;
use crate::http::server::operation::{AuthClass, Op};
use crate::http::server::problem::Problem;

pub(crate) const OP: Op = Op {
    auth: AuthClass::Link,
    ..Op::page("get_link_page", &[])
};

/// Get the page of a link
///
/// Shows the request that the message with this link is about, as the receiver of the message sees
/// it. Needs no key. Reads and sets no cookie. Never changes anything.
#[utoipa::path(
    get, path = "/l/{token}", operation_id = "get_link_page", tag = "requests",
    params(("token" = String, Path, description = "The sealed link of a message")),
    responses(HtmlPage)
)]
pub(crate) async fn get_link_page(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    Extension(link): Extension<CurrentLink>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let row = linked_request(&http, &caller, &link).await?;
    let view = View::load(&http, &row, &caller, &headers, Some(&link)).await?;
    Ok(request_page(&view).into_response())
}
