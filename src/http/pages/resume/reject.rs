//! `POST /resume/{request_id}/reject`: rejects a request. The path names the action, so the body
//! may be empty.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::decide::{DecisionResponses, PROBLEMS, decide};
use crate::http::Http;
use crate::http::server::body::PostRequest;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::Problem;
use crate::http::wire::body::RejectBody;
use crate::http::wire::params::{KeyHeader, PreferHeader};
use crate::task::decision::Action;
use crate::task::id::RequestId;

pub(crate) const OP: Op = Op::page("reject_request", PROBLEMS);

/// Reject a request
///
/// No undecided call runs. `then` is the consequence for the task; default: the rule's `on_reject`
/// if all calls of an approval request are rejected, else `continue`.
///
/// Also takes the form of the request's page (`application/x-www-form-urlencoded`), and responds to
/// it with 303.
#[utoipa::path(
    post, path = "/resume/{request_id}/reject", operation_id = "reject_request", tag = "requests",
    params(("request_id" = String, Path, format = Uuid, description = "The request"), PreferHeader, KeyHeader),
    request_body = Option<RejectBody>,
    responses(DecisionResponses)
)]
pub(crate) async fn reject_request(
    State(http): State<Arc<Http>>,
    PathId(id): PathId<RequestId>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    decide(&http, id, posted, Some(Action::Reject)).await
}
