//! `GET /`: redirects a browser to the inbox.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;

use crate::http::Http;
use crate::http::server::accept::wants_html;
use crate::http::server::operation::Op;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::session::redirect;

pub(crate) const OP: Op = Op::public("get_home", &[Code::NotFound]);

/// Redirect to the inbox
///
/// Redirects a browser (`Accept: text/html`) to the inbox. Responds to any other client with
/// `not_found`.
#[utoipa::path(
    get, path = "/", operation_id = "get_home", tag = "pages", security(()),
    responses((status = 303, description = "On to the inbox",
        headers(("Location" = String, description = "`/inbox`"))))
)]
pub(crate) async fn get_home(
    State(http): State<Arc<Http>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if wants_html(&headers) {
        return Ok(redirect(&http, "/inbox"));
    }
    Err(Problem::not_found())
}
