//! `GET /resume/{request_id}`: returns a request as JSON, or as the page on which a person decides.
//! The operation changes nothing.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;

use crate::http::Http;
use crate::http::access;
use crate::http::pages::follow;
use crate::http::pages::request::{self, View};
use crate::http::server::accept::wants_html;
use crate::http::server::caller::CurrentCaller;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::request::InterventionRequest;
use crate::task::id::RequestId;

pub(crate) const OP: Op = Op::page("get_request", &[Code::NotFound]);

/// Get a request
///
/// Returns JSON, or the page for a person where `Accept` prefers `text/html`. Never changes
/// anything.
#[utoipa::path(
    get, path = "/resume/{request_id}", operation_id = "get_request", tag = "requests",
    params(("request_id" = String, Path, format = Uuid, description = "The request")),
    responses((status = 200, body = InterventionRequest, description = "The request"))
)]
pub(crate) async fn get_request(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    PathId(id): PathId<RequestId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let row = access::readable_request(&http, &caller, id).await?;
    if wants_html(&headers) {
        let view = View::load(&http, &row, &caller, &headers, None).await?;
        return Ok(follow::page_with_script(request::request_page(&view)));
    }
    let request = InterventionRequest::for_caller(&row, &caller, &http.settings);
    Ok(Json(request).into_response())
}
