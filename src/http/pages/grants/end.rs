//! `POST /grants/{grant_id}`: ends a standing decision, for the form on the page `/grants`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;

use crate::http::Http;
use crate::http::api::grants::end;
use crate::http::server::body::check_key;
use crate::http::server::caller::CurrentCaller;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::session::redirect;
use crate::http::wire::params::CheckedKeyHeader;
use crate::task::id::GrantId;

pub(crate) const OP: Op = Op::page("end_grant_here", &[Code::NotFound]);

/// End a standing decision from its page
///
/// As `DELETE /v1/grants/{grant_id}`, for the form of the page. The body is ignored.
#[utoipa::path(
    post, path = "/grants/{grant_id}", operation_id = "end_grant_here", tag = "pages",
    params(("grant_id" = String, Path, format = Uuid, description = "The standing decision"), CheckedKeyHeader),
    responses((status = 303, description = "The standing decision has ended: back to the page",
        headers(("Location" = String, description = "`/grants`"))))
)]
pub(crate) async fn end_grant_here(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    PathId(id): PathId<GrantId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    // An ended standing decision stays ended, so a repeated POST gets the same response. The
    // operation therefore checks the form of the `Idempotency-Key`, but does not store the key.
    if let Err(malformed) = check_key(&headers) {
        end::check_right(&http, &caller, id).await?;
        return Err(malformed);
    }
    end::end(&http, &caller, id).await?;
    Ok(redirect(&http, "/grants"))
}
