//! `POST /resume/{request_id}/approve`: approves a request. The path names the action, so the body
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
use crate::http::wire::body::ApproveBody;
use crate::http::wire::params::{KeyHeader, PreferHeader};
use crate::task::decision::Action;
use crate::task::id::RequestId;

pub(crate) const OP: Op = Op::page("approve_request", PROBLEMS);

/// Approve a request
///
/// Every undecided call runs as shown.
///
/// Also takes the form of the request's page (`application/x-www-form-urlencoded`), and responds to
/// it with 303.
#[utoipa::path(
    post, path = "/resume/{request_id}/approve", operation_id = "approve_request", tag = "requests",
    params(("request_id" = String, Path, format = Uuid, description = "The request"), PreferHeader, KeyHeader),
    request_body = Option<ApproveBody>,
    responses(DecisionResponses)
)]
pub(crate) async fn approve_request(
    State(http): State<Arc<Http>>,
    PathId(id): PathId<RequestId>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    decide(&http, id, posted, Some(Action::Approve)).await
}
