//! `POST /grants/{grant_id}`: ends a standing decision, for the form on the page `/grants`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use crate::http::Http;
use crate::http::api::grants::end;
use crate::http::pages::shown_to;
use crate::http::server::body::{PostRequest, check_key};
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::session::redirect;
use crate::http::wire::params::CheckedKeyHeader;
use crate::task::id::GrantId;

pub(crate) const OP: Op = Op::page("end_grant_here", &[Code::NotFound]);

/// End a standing decision from its page
///
/// As `DELETE /v1/grants/{grant_id}`, for the form of the page. The body is ignored, except that a
/// form whose field `shown_to` names another user is refused.
#[utoipa::path(
    post, path = "/grants/{grant_id}", operation_id = "end_grant_here", tag = "pages",
    params(("grant_id" = String, Path, format = Uuid, description = "The standing decision"), CheckedKeyHeader),
    responses((status = 303, description = "The standing decision has ended: back to the page",
        headers(("Location" = String, description = "`/grants`"))))
)]
pub(crate) async fn end_grant_here(
    State(http): State<Arc<Http>>,
    PathId(id): PathId<GrantId>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    end::check_right(&http, &posted.caller, id).await?;
    // An ended standing decision stays ended, so a repeated POST gets the same response. The
    // operation therefore checks the form of the `Idempotency-Key`, but does not store the key.
    check_key(&posted.headers)?;
    shown_to::check_post(&http, &posted).await?;
    end::end(&http, &posted.caller, id).await?;
    Ok(redirect(&http, "/grants"))
}
