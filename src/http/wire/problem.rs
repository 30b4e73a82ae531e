//! The problem document, as a component. It is written by `server/problem.rs`, which adds only the
//! members a code has.

use serde::Serialize;
use utoipa::ToSchema;

use super::decision::WireDecision;
use super::request::InterventionRequest;
use super::task::WireTaskStatus;
use crate::http::server::problem::Code;

/// An error (RFC 9457).
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemDocument {
    /// The page that explains it.
    #[schema(format = "uri")]
    pub r#type: String,
    /// Its name.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// One sentence: the place and what was expected, never a value.
    pub detail: String,
    /// The HTTP request's id, also in `X-Request-Id`.
    #[schema(format = Uuid)]
    pub instance: String,
    /// What went wrong, in one word.
    pub code: Code,
    /// Of `invalid`: every place that does not fit.
    #[schema(required = false, nullable = false)]
    pub errors: Option<Vec<FieldProblem>>,
    /// Of `digest_mismatch`, `request_expired`, `request_withdrawn`, `already_decided`: the request
    /// as it stands.
    #[schema(required = false)]
    pub request: Option<InterventionRequest>,
    /// Of `already_decided`: what was decided, by whom and when.
    #[schema(required = false)]
    pub decision: Option<WireDecision>,
    /// Of `request_withdrawn` and `task_paused`: the open requests.
    #[schema(required = false, nullable = false)]
    pub pending: Option<Vec<InterventionRequest>>,
    /// Of a conflict with a task: where it stands.
    #[schema(required = false)]
    pub task_status: Option<WireTaskStatus>,
    /// Of `not_a_root_task`: the root.
    #[schema(required = false, nullable = false, format = Uuid)]
    pub root_task_id: Option<String>,
}

/// One place that does not fit.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct FieldProblem {
    /// JSON pointer of the place in the body; of a query or path, the parameter's name after a
    /// slash.
    pub pointer: String,
    /// What was expected; never the value.
    pub detail: String,
}
