//! `DELETE /v1/grants/{grant_id}`: ends a standing decision.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;

use crate::http::Http;
use crate::http::api::refusal::refusal_problem;
use crate::http::server::caller::CurrentCaller;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::people::Caller;
use crate::task::id::GrantId;

pub(crate) const OP: Op = Op::api("end_grant", &[Code::NotFound]);

/// End a standing decision
///
/// After the response no call starts with the standing decision. Its giver, people who may decide a
/// request of its rule, and an admin may end it, each with a key that has `decide`. Ending it again
/// changes nothing.
#[utoipa::path(
    delete, path = "/v1/grants/{grant_id}", operation_id = "end_grant", tag = "grants",
    params(("grant_id" = String, Path, format = Uuid, description = "The standing decision")),
    responses((status = 204, description = "The standing decision has ended"))
)]
pub(crate) async fn end_grant(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    PathId(id): PathId<GrantId>,
) -> Result<StatusCode, Problem> {
    end(&http, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Checks that a caller may end a standing decision.
///
/// # Errors
/// As [`end`].
pub(crate) async fn check_right(http: &Http, caller: &Caller, id: GrantId) -> Result<(), Problem> {
    match http.engine.grants().endable(caller, id).await {
        Ok(_) => Ok(()),
        Err(refusal) => Err(refusal_problem(http, caller, refusal).await),
    }
}

/// Ends a standing decision for a caller.
///
/// # Errors
/// `not_found` if the tenant has no such standing decision; `forbidden` if the caller may not end
/// it; `unavailable` if the database does not answer.
pub(crate) async fn end(http: &Http, caller: &Caller, id: GrantId) -> Result<(), Problem> {
    match http.engine.grants().end(caller, id).await {
        Ok(()) => Ok(()),
        Err(refusal) => Err(refusal_problem(http, caller, refusal).await),
    }
}
