//! The events of `GET /v1/events`: the requests that wait for a caller, and what changes.

use serde::Serialize;
use utoipa::ToSchema;

use super::brief::{BriefDecision, RequestBrief};

/// The names of the events.
pub(crate) const INBOX: &str = "inbox";
pub(crate) const CREATED: &str = "request.created";
pub(crate) const CHANGED: &str = "request.changed";
pub(crate) const GONE: &str = "request.gone";

/// The requests that wait for the caller now. Replaces everything that the stream has said before.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InboxEvent {
    /// The name of the event.
    pub event: &'static str,
    /// How many requests wait: 1,000 at most.
    pub open: usize,
    /// Whether more than `open` wait.
    pub more: bool,
    /// The oldest 200 of them.
    pub requests: Vec<RequestBrief>,
}

/// A request that waits for the caller from now on (`request.created`), or that somebody else has
/// answered and that still waits (`request.changed`).
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InboxRequestEvent {
    /// The name of the event.
    pub event: &'static str,
    /// The request.
    pub request: RequestBrief,
    /// How many requests wait: 1,000 at most.
    pub open: usize,
}

/// A request that no longer waits for the caller.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InboxGoneEvent {
    /// The name of the event.
    pub event: &'static str,
    /// The request.
    #[schema(format = Uuid)]
    pub request_id: String,
    /// Why it no longer waits.
    pub reason: GoneReason,
    /// The answer to the request; null unless the reason is `decided`.
    pub decision: Option<BriefDecision>,
    /// How many requests wait: 1,000 at most.
    pub open: usize,
}

/// Why a request no longer waits for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GoneReason {
    /// Its last call is decided.
    Decided,
    /// The caller has answered it; it waits for other people.
    Answered,
    /// Its deadline has passed.
    Expired,
    /// It was withdrawn.
    Withdrawn,
}
