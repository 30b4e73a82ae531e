//! The schema of error responses (problem documents) in the OpenAPI document. `server/problem.rs`
//! writes the responses, and gives each response the members that belong to its error code.

use serde::Serialize;
use utoipa::ToSchema;

use super::decision::WireDecision;
use super::gate::WireGateCall;
use super::request::InterventionRequest;
use super::task::WireTaskStatus;
use crate::http::server::problem::Code;

/// An error (RFC 9457).
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemDocument {
    /// The address of a page that explains the code.
    #[schema(format = "uri")]
    pub r#type: String,
    /// A short title, the same for every problem with this code.
    pub title: String,
    /// The HTTP status of the response.
    pub status: u16,
    /// One sentence for a person. For a mistake in the request, the sentence gives the place and
    /// the expected value, but never the value that was sent.
    pub detail: String,
    /// The HTTP request's id, also in `X-Request-Id`.
    #[schema(format = Uuid)]
    pub instance: String,
    /// The stable code of the error, for programs.
    pub code: Code,
    /// For `invalid`: every place that is not valid.
    #[schema(required = false, nullable = false)]
    pub errors: Option<Vec<FieldProblem>>,
    /// For `digest_mismatch`, `request_expired`, `request_withdrawn` and `already_decided`: the
    /// request in its current state.
    #[schema(required = false)]
    pub request: Option<InterventionRequest>,
    /// For `already_decided`: the earlier decision.
    #[schema(required = false)]
    pub decision: Option<WireDecision>,
    /// For `request_withdrawn` and `task_paused`: the open requests.
    #[schema(required = false, nullable = false)]
    pub pending: Option<Vec<InterventionRequest>>,
    /// For a command that the task's status does not permit: the status.
    #[schema(required = false)]
    pub task_status: Option<WireTaskStatus>,
    /// For `not_a_root_task`: the id of the root task.
    #[schema(required = false, nullable = false, format = Uuid)]
    pub root_task_id: Option<String>,
    /// For `call_in_hand` and `call_settled`: the call, as this client sees it.
    #[schema(required = false)]
    pub call: Option<WireGateCall>,
}

/// One place of the HTTP request that is not valid.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct FieldProblem {
    /// JSON pointer into the body; for a query or path, a slash and the name of the parameter.
    pub pointer: String,
    /// The expected value; never the value that was sent.
    pub detail: String,
}
