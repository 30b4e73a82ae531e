//! `POST /resume/{request_id}/approve`: a decision whose action is in the path; the body may be empty.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::decide::{PROBLEMS, decide};
use crate::http::Http;
use crate::http::server::body::Posted;
use crate::http::server::operation::{AuthClass, Op, SMALL};
use crate::http::server::params::MoveHeaders;
use crate::http::server::path_id::Id;
use crate::http::server::problem::Problem;
use crate::http::wire::body::ApproveBody;
use crate::http::wire::task::AgentTask;
use crate::task::decision::Action;
use crate::task::id::RequestId;

/// The operation.
pub(crate) const OP: Op = Op { id: "approve_request", auth: AuthClass::Key, body: SMALL, problems: PROBLEMS };

/// Approve a request
///
/// Every undecided call runs as shown.
#[utoipa::path(
    post, path = "/resume/{request_id}/approve", operation_id = "approve_request", tag = "requests",
    params(("request_id" = String, Path, format = Uuid, description = "The request"), MoveHeaders),
    request_body = Option<ApproveBody>,
    responses(
        (status = 200, body = AgentTask, description = "Stored, and the root task no longer runs",
            headers(("Preference-Applied" = String, description = "What of `Prefer` was done"),
                ("Idempotency-Replayed" = String, description = "`true` when an earlier POST with the same key did it"))),
        (status = 202, body = AgentTask, description = "Stored, and the root task still runs",
            headers(("Preference-Applied" = String, description = "What of `Prefer` was done"),
                ("Idempotency-Replayed" = String, description = "`true` when an earlier POST with the same key did it"))),
        (status = 303, description = "Stored, and a page's form posted it: the request's page",
            headers(("Location" = String, description = "The request's page"))),
    )
)]
pub(crate) async fn approve_request(
    State(http): State<Arc<Http>>,
    Id(id): Id<RequestId>,
    posted: Posted,
) -> Result<Response, Problem> {
    decide(&http, id, posted, Some(Action::Approve)).await
}
