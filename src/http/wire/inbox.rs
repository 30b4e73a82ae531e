//! The events of `GET /v1/events`: the requests that wait for a caller, and their changes.

use serde::Serialize;
use utoipa::ToSchema;

use super::brief::{BriefDecision, RequestBrief};

/// The names of the events. `CREATED` and `CHANGED` have the same data: [`InboxRequestEvent`].
pub(crate) const INBOX: &str = "inbox";
pub(crate) const CREATED: &str = "request.created";
pub(crate) const CHANGED: &str = "request.changed";
pub(crate) const GONE: &str = "request.gone";

/// The requests that wait for the caller now. This event replaces the data of all earlier events of
/// the stream.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InboxEvent {
    /// Always `inbox`.
    pub event: &'static str,
    /// The number of requests that wait for the caller, counted up to 1,000. The service looks at
    /// no more than 2,000 open requests, oldest first.
    pub open: usize,
    /// Whether more requests than `open` may wait for the caller. This stream may not show them;
    /// `GET /v1/requests` lists them, page by page.
    pub more: bool,
    /// The oldest 200 of the counted requests, in brief.
    pub requests: Vec<RequestBrief>,
}

/// `request.created`: a request now waits for the caller. `request.changed`: another person has
/// answered a request that still waits for the caller.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InboxRequestEvent {
    /// `request.created` or `request.changed`.
    pub event: &'static str,
    /// The request in brief, as it is now.
    pub request: RequestBrief,
    /// The number of requests that wait for the caller, counted up to 1,000.
    pub open: usize,
}

/// A request that no longer waits for the caller.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InboxGoneEvent {
    /// Always `request.gone`.
    pub event: &'static str,
    /// The id of the request.
    #[schema(format = Uuid)]
    pub request_id: String,
    /// Why the request no longer waits for the caller.
    pub reason: GoneReason,
    /// If the reason is `decided`, the answer to the request; else null.
    pub decision: Option<BriefDecision>,
    /// The number of requests that wait for the caller, counted up to 1,000.
    pub open: usize,
}

/// The reason why a request no longer waits for a caller: `decided` (people have decided the
/// request), `answered` (the caller has answered, and the request waits for other people),
/// `expired` (its deadline has passed) or `withdrawn` (it no longer applies and was closed without
/// a decision).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GoneReason {
    Decided,
    Answered,
    Expired,
    Withdrawn,
}
