//! Request bodies, as components of the OpenAPI document. The bodies themselves are read member by
//! member (`server/fields.rs`), so that every mistake is reported with its place; these types
//! describe the same bodies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A new task: exactly one of `input` and `items`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateTask {
    /// The agent; default: the default agent.
    #[schema(min_length = 1)]
    pub agent: Option<String>,
    /// The user's message, as text.
    pub input: Option<String>,
    /// The user's message, in parts.
    #[schema(min_items = 1, max_items = 32)]
    pub items: Option<Vec<NewMessageItem>>,
    /// A name that the caller chooses: 1 to 128 of `A-Z a-z 0-9 . _ : -`. Default: a fresh id.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._:-]+$")]
    pub session_id: Option<String>,
    /// Data about the user, shown to the model before the message; at most 16 KiB.
    pub user_context: Option<BTreeMap<String, String>>,
    /// Data for the caller and for rules, never shown to the model; at most 16 KiB.
    pub metadata: Option<BTreeMap<String, Value>>,
}

/// The user's next message: exactly one of `input` and `items`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendMessage {
    /// The message, as text.
    pub input: Option<String>,
    /// The message, in parts.
    #[schema(min_items = 1, max_items = 32)]
    pub items: Option<Vec<NewMessageItem>>,
    /// Data about the user, shown to the model before the message; at most 16 KiB.
    pub user_context: Option<BTreeMap<String, String>>,
    /// Whether to withdraw the open requests of a paused task.
    pub supersede: Option<bool>,
}

/// The deliveries that are to be sent again.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResendDeliveries {
    /// The name of the receiver in the configuration.
    pub target: String,
    /// Only messages about events from this time on.
    #[schema(format = DateTime)]
    pub since: Option<String>,
    /// Their state; default: `dead`.
    pub state: Option<ResentState>,
}

/// The state of deliveries that can be sent again.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResentState {
    /// The last attempt failed, or the receiver wanted the message no more.
    Dead,
    /// No entry of the configuration sent it any more.
    Dropped,
    /// It was taken.
    Sent,
}

/// A part of a message.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewMessageItem {
    /// The kind of `content`.
    pub content_type: super::item::ContentType,
    /// The text; or the image as a `data:` URI (png, jpeg, gif, webp) or an `https:` URL.
    pub content: String,
}

/// A decision: one answer for the whole request, or one for each call.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(
    dead_code,
    reason = "only documents the body, which is read member by member"
)]
pub(crate) enum DecisionBody {
    /// For the whole request.
    Whole(WholeDecision),
    /// For each call.
    PerCall(PerCallDecision),
}

/// One answer for the whole request; `action` says which.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(discriminator(property_name = "action", mapping(
    ("approve" = "#/components/schemas/ApproveDecision"),
    ("reject" = "#/components/schemas/RejectDecision"),
    ("respond" = "#/components/schemas/RespondDecision"),
    ("retry" = "#/components/schemas/RetryDecision"),
)))]
#[expect(
    dead_code,
    reason = "only documents the body, which is read member by member"
)]
pub(crate) enum WholeDecision {
    /// Approve.
    Approve(ApproveDecision),
    /// Reject.
    Reject(RejectDecision),
    /// Respond.
    Respond(RespondDecision),
    /// Retry.
    Retry(RetryDecision),
}

/// Every undecided call runs as shown.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApproveDecision {
    /// `approve`.
    pub action: String,
    /// The reason; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The digest that the approver saw; a different digest is refused and changes nothing.
    pub digest: Option<String>,
    /// Lets later calls that the rule's offer covers run without a request.
    pub remember: Option<NewRemember>,
}

/// No undecided call runs.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RejectDecision {
    /// `reject`.
    pub action: String,
    /// The task to cancel, if any; default: `on_reject` of the rule.
    pub then: Option<super::decision::ThenAction>,
    /// The reason; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The digest that the approver saw; a different digest is refused and changes nothing.
    pub digest: Option<String>,
}

/// The answer to a question (`response`), or the result of a call (`result`): exactly one of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RespondDecision {
    /// `respond`.
    pub action: String,
    /// The answer, as the request's `form` describes it.
    pub response: Option<BTreeMap<String, Value>>,
    /// The result; a string is passed on as text.
    pub result: Option<Value>,
    /// The reason; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The digest that the approver saw; a different digest is refused and changes nothing.
    pub digest: Option<String>,
}

/// A call whose outcome is unknown runs again.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryDecision {
    /// `retry`.
    pub action: String,
    /// The reason; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The digest that the approver saw; a different digest is refused and changes nothing.
    pub digest: Option<String>,
}

/// One answer for each call, by `tool_call_id`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PerCallDecision {
    /// The answers.
    pub decisions: BTreeMap<String, NewCallDecision>,
    /// The digest that the approver saw; a different digest is refused and changes nothing.
    pub digest: Option<String>,
}

/// The answer to one call; `action` says which.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(discriminator(property_name = "action", mapping(
    ("approve" = "#/components/schemas/ApproveCall"),
    ("reject" = "#/components/schemas/RejectCall"),
    ("edit" = "#/components/schemas/EditCall"),
    ("respond" = "#/components/schemas/RespondCall"),
)))]
pub(crate) enum NewCallDecision {
    /// Approve.
    Approve(ApproveCall),
    /// Reject.
    Reject(RejectCall),
    /// Edit.
    Edit(EditCall),
    /// Respond.
    Respond(RespondCall),
}

/// The call runs as shown.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApproveCall {
    /// `approve`.
    pub action: String,
    /// The reason; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// Lets later calls that the rule's offer covers run without a request.
    pub remember: Option<NewRemember>,
}

/// A standing decision to give with an approval.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewRemember {
    /// The tasks in which it counts.
    pub r#for: super::decision::WireGrantScope,
    /// How long it counts: `30m`, `4h` or `1d`; at most what the rule offers.
    #[schema(pattern = "^[0-9]+(ms|s|m|h|d)$")]
    pub expires_in: String,
}

/// The call does not run.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RejectCall {
    /// `reject`.
    pub action: String,
    /// The task to cancel, or `continue`; default: `on_reject` of the rule once every call of the
    /// request is rejected.
    pub then: Option<super::decision::ThenAction>,
    /// The reason; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
}

/// The call runs with other arguments.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EditCall {
    /// `edit`.
    pub action: String,
    /// The full replacement.
    pub arguments: BTreeMap<String, Value>,
    /// The reason; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
}

/// The tool does not run; this is its result.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RespondCall {
    /// `respond`.
    pub action: String,
    /// The result; a string is passed on as text.
    pub result: Value,
    /// The reason; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
}

/// An approval whose action is in the path; the body may be empty.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApproveBody {
    /// The reason; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The digest that the approver saw; a different digest is refused and changes nothing.
    pub digest: Option<String>,
    /// Lets later calls that the rule's offer covers run without a request.
    pub remember: Option<NewRemember>,
}

/// A rejection whose action is in the path; the body may be empty.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RejectBody {
    /// The task to cancel, if any; default: `on_reject` of the rule.
    pub then: Option<super::decision::ThenAction>,
    /// The reason; at most 4 KiB.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The digest that the approver saw; a different digest is refused and changes nothing.
    pub digest: Option<String>,
}
