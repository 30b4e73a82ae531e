//! The types of request bodies, which are also components of the OpenAPI document. An operation
//! reads the members of its body one by one (`server/fields.rs`), so that it can report the place
//! of every mistake. A JSON value is kept as text if the digits of its numbers or the order of its
//! members must not change.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::secret::Secret;
use crate::task::decision::Action;
use crate::task::time::Time;

/// A new task. Exactly one of `input` and `items` is set.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateTask {
    /// The name of the agent (`GET /v1/agents`). Default: the agent with `default: true`.
    #[schema(min_length = 1)]
    pub agent: Option<String>,
    /// The user's message, as text.
    pub input: Option<String>,
    /// The user's message, as a list of texts and images.
    #[schema(min_items = 1, max_items = 32)]
    pub items: Option<Vec<NewMessageItem>>,
    /// The caller's name for the conversation: 1 to 128 of `A-Z a-z 0-9 . _ : -`. Default: a fresh
    /// id.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._:-]+$")]
    pub session_id: Option<String>,
    /// Data about the user, shown to the model before the message; at most 16 KiB.
    pub user_context: Option<BTreeMap<String, String>>,
    /// Data for the caller and for rules, never shown to the model; at most 16 KiB.
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    pub metadata: Option<String>,
}

/// The user's next message. Exactly one of `input` and `items` is set.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendMessage {
    /// The message, as text.
    pub input: Option<String>,
    /// The message, as a list of texts and images.
    #[schema(min_items = 1, max_items = 32)]
    pub items: Option<Vec<NewMessageItem>>,
    /// Data about the user, shown to the model before the message; at most 16 KiB.
    pub user_context: Option<BTreeMap<String, String>>,
    /// If true, the message withdraws the open requests of a paused task. If false (the default), a
    /// paused task refuses the message (409).
    pub supersede: Option<bool>,
}

/// Selects the deliveries of one receiver that are to be sent again.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResendDeliveries {
    /// The name of the receiver in the configuration.
    pub target: String,
    /// Only deliveries that were created at this time or later. A reminder counts as created when
    /// it is due. A delivery that was made due again counts as created at that moment. Default:
    /// all.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub since: Option<Time>,
    /// Only deliveries in this state. Default: `dead`.
    pub state: Option<ResentState>,
}

/// A state in which a delivery has ended. A delivery in any of these states can be sent again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResentState {
    /// The last attempt failed, the receiver wants no more attempts, or no message could be made.
    Dead,
    /// The message was not sent, because it was no longer needed.
    Dropped,
    /// The receiver took the message.
    Sent,
}

/// A part of a user's message: a text or an image.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewMessageItem {
    /// Whether `content` is text or an image.
    pub content_type: super::item::ContentType,
    /// The text; or the image as a `data:` URI (png, jpeg, gif, webp) or an `https:` URL.
    pub content: String,
}

/// A decision: one answer for the whole request, or answers for single calls.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[schema(as = DecisionBody)]
pub(crate) enum WireDecisionBody {
    /// One answer for the whole request.
    Whole(WholeDecision),
    /// Answers for single calls.
    PerCall(PerCallDecision),
}

/// One answer for the whole request; `action` tells the variants apart.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[schema(discriminator(property_name = "action", mapping(
    ("approve" = "#/components/schemas/ApproveDecision"),
    ("reject" = "#/components/schemas/RejectDecision"),
    ("respond" = "#/components/schemas/RespondDecision"),
    ("retry" = "#/components/schemas/RetryDecision"),
)))]
pub(crate) enum WholeDecision {
    /// Every undecided call runs as shown.
    Approve(ApproveDecision),
    /// No undecided call runs.
    Reject(RejectDecision),
    /// The answer to a question, or the result of a call.
    Respond(RespondDecision),
    /// A call whose outcome is unknown runs again.
    Retry(RetryDecision),
}

/// The approval of a request: every undecided call runs as shown.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApproveDecision {
    /// Always `approve`.
    #[schema(value_type = String)]
    pub action: Action,
    /// The reason for the approval, kept with the decision; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The `digest` of the request as the approver saw it. If the request has another digest, the
    /// answer is refused (412) and changes nothing.
    pub digest: Option<String>,
    /// The standing decision to give with the approval. Later calls then run without a request, if
    /// the rule's setting `remember` covers them. Default: none.
    pub remember: Option<NewRemember>,
}

/// The rejection of a request: no undecided call runs.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RejectDecision {
    /// Always `reject`.
    #[schema(value_type = String)]
    pub action: Action,
    /// The consequence for the task. Default: `continue` if an earlier answer to the request said
    /// so. Otherwise, if all calls of an approval request are rejected, the rule's `on_reject`.
    /// Otherwise `continue`.
    pub then: Option<super::decision::ThenAction>,
    /// The reason for the rejection, shown to the model; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The `digest` of the request as the approver saw it. If the request has another digest, the
    /// answer is refused (412) and changes nothing.
    pub digest: Option<String>,
}

/// The answer to a question (`response`), or the result of a call (`result`). Exactly one of the
/// two is set.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RespondDecision {
    /// Always `respond`.
    #[schema(value_type = String)]
    pub action: Action,
    /// The values that the request's `form` asks for. A field of a `credentials` request takes at
    /// most 8 KiB.
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    pub response: Option<Secret<String>>,
    /// The result of the call, any JSON. A string is passed on as text.
    #[schema(value_type = Option<Value>)]
    pub result: Option<String>,
    /// The reason for the answer, kept with the decision; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The `digest` of the request as the approver saw it. If the request has another digest, the
    /// answer is refused (412) and changes nothing.
    pub digest: Option<String>,
}

/// An answer to a `reconcile` request: the call, whose outcome is unknown, runs again.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryDecision {
    /// Always `retry`.
    #[schema(value_type = String)]
    pub action: Action,
    /// The reason for the retry, kept with the decision; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The `digest` of the request as the approver saw it. If the request has another digest, the
    /// answer is refused (412) and changes nothing.
    pub digest: Option<String>,
}

/// Answers for some or all calls of the request.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PerCallDecision {
    /// The answers, by `tool_call_id`. Calls without an answer stay open.
    pub decisions: BTreeMap<String, NewCallDecision>,
    /// The `digest` of the request as the approver saw it. If the request has another digest, the
    /// answer is refused (412) and changes nothing.
    pub digest: Option<String>,
}

/// The answer to one call; `action` tells the variants apart.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[schema(discriminator(property_name = "action", mapping(
    ("approve" = "#/components/schemas/ApproveCall"),
    ("reject" = "#/components/schemas/RejectCall"),
    ("edit" = "#/components/schemas/EditCall"),
    ("respond" = "#/components/schemas/RespondCall"),
)))]
pub(crate) enum NewCallDecision {
    /// The call runs as shown.
    Approve(ApproveCall),
    /// The call does not run.
    Reject(RejectCall),
    /// The call runs with other arguments.
    Edit(EditCall),
    /// The tool does not run; the approver supplies the result.
    Respond(RespondCall),
}

/// The approval of one call: the call runs as shown.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApproveCall {
    /// Always `approve`.
    #[schema(value_type = String)]
    pub action: Action,
    /// The reason for the approval, kept with the decision; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The standing decision to give with the approval. Later calls then run without a request, if
    /// the rule's setting `remember` covers them. Default: none.
    pub remember: Option<NewRemember>,
}

/// A standing decision to give with an approval.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewRemember {
    /// The tasks in which the standing decision counts.
    pub r#for: super::decision::WireGrantScope,
    /// How long the standing decision counts, such as `30m`, `4h` or `1d`. The maximum is the value
    /// `remember.most` of the call.
    #[schema(value_type = String, pattern = "^[0-9]+(ms|s|m|h|d)$")]
    pub expires_in: Duration,
}

/// The rejection of one call: the call does not run.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RejectCall {
    /// Always `reject`.
    #[schema(value_type = String)]
    pub action: Action,
    /// The consequence for the task. Default: `continue` if an earlier answer to the request said
    /// so. Otherwise, if every call of the request is rejected, the rule's `on_reject`.
    /// Otherwise `continue`.
    pub then: Option<super::decision::ThenAction>,
    /// The reason for the rejection, shown to the model; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
}

/// The edit of one call: the call runs with other arguments.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EditCall {
    /// Always `edit`.
    #[schema(value_type = String)]
    pub action: Action,
    /// The new arguments, which replace all arguments of the call.
    #[schema(value_type = BTreeMap<String, Value>)]
    pub arguments: String,
    /// The reason for the edit, kept with the decision; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
}

/// A result in place of one call: the tool does not run, and the model gets this result.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RespondCall {
    /// Always `respond`.
    #[schema(value_type = String)]
    pub action: Action,
    /// The result of the call, any JSON. A string is passed on as text.
    #[schema(value_type = Value)]
    pub result: String,
    /// The reason for the answer, kept with the decision; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
}

/// The body of `POST /resume/{request_id}/approve`; it may be empty.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApproveBody {
    /// The reason for the approval, kept with the decision; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The `digest` of the request as the approver saw it. If the request has another digest, the
    /// answer is refused (412) and changes nothing.
    pub digest: Option<String>,
    /// The standing decision to give with the approval. Later calls then run without a request, if
    /// the rule's setting `remember` covers them. Default: none.
    pub remember: Option<NewRemember>,
}

/// The body of `POST /resume/{request_id}/reject`; it may be empty.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RejectBody {
    /// The consequence for the task. Default: `continue` if an earlier answer to the request said
    /// so. Otherwise, if all calls of an approval request are rejected, the rule's `on_reject`.
    /// Otherwise `continue`.
    pub then: Option<super::decision::ThenAction>,
    /// The reason for the rejection, shown to the model; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The `digest` of the request as the approver saw it. If the request has another digest, the
    /// answer is refused (412) and changes nothing.
    pub digest: Option<String>,
}
