//! A request as the API shows it to one caller.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::decision::{DecisionAction, WireApproval, WireDecision, WireGrantScope, approvals};
use super::wire_enum;
use crate::http::Settings;
use crate::http::server::json;
use crate::people::Caller;
use crate::people::authorization::{can_decide, permitted_actions};
use crate::store::RequestRow;
use crate::task::grant::Offer;
use crate::task::id::RequestId;
use crate::task::request::{CallSpec, RequestKind, Warning};
use crate::task::units::format_duration;
use crate::task::user::UserIds;
use crate::task::{status, tool_spec, verdict};

wire_enum! {
    /// The status of a request: `pending` (waits for a decision), `responded` (decided), `resumed`
    /// (the effects of the decision are committed), `expired` (the deadline passed without a
    /// decision) or `withdrawn` (closed without a decision, because the request no longer applies).
    WireRequestStatus as RequestStatus from status::RequestStatus, "snake_case" { Pending, Responded, Resumed, Expired, Withdrawn }
}
wire_enum! {
    /// The effect of repeating a call: `read_only` (the call changes nothing), `idempotent` (safe
    /// to repeat with the same idempotency key) or `once` (must not happen twice).
    WireEffect as Effect from tool_spec::Effect, "snake_case" { ReadOnly, Idempotent, Once }
}
wire_enum! {
    /// The verdict of the policy on a call: `allow` (runs without a request), `hold` (a person has
    /// to approve the call first), `deny` (a rule refuses the call), `invalid` (the tool is not
    /// offered or the arguments do not fit) or `human` (the call is itself a request to a person).
    WireVerdict as Verdict from verdict::Verdict, "snake_case" { Allow, Hold, Deny, Invalid, Human }
}

/// The maximum length of a call's `arguments_text` in lists and in the `pending` of a task, in
/// bytes.
pub(crate) const MAX_LISTED_ARGUMENT_BYTES: usize = 16 * 1024;

/// Whether arguments are shown whole, or cut at [`MAX_LISTED_ARGUMENT_BYTES`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    Whole,
    Listed,
}

/// A question to a human. Its id is never reused.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct InterventionRequest {
    /// The id of the request, as `GET /resume/{request_id}` takes it.
    #[schema(format = Uuid)]
    pub request_id: String,
    /// The task that asked; it may be a sub-agent's task.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The id of the root task of the request's tree.
    #[schema(format = Uuid)]
    pub root_task_id: String,
    /// The caller's name for the conversation, as in the task.
    pub session_id: String,
    /// The names of the agents from the root to the task that asked.
    pub agent_path: Vec<String>,
    /// The kind of question. The kind determines the actions that an answer may take.
    pub kind: RequestKind,
    /// `pending` while the request waits for a decision; any other status says how the request
    /// ended.
    pub status: WireRequestStatus,
    /// The rule's own message, or "Human intervention required." For an elicitation, the server's
    /// name and the beginning of its question.
    pub message: String,
    /// The calls that the request shows: for an approval, all calls of the turn; for any other
    /// kind, the one call that the request is about.
    pub tool_calls: Vec<RequestedCall>,
    /// The people who may decide, and how many of them have to approve.
    pub approvers: WireApprovers,
    /// The actions that this caller may take; empty if the caller may not decide.
    pub allowed_actions: Vec<DecisionAction>,
    /// Whether this caller may answer now.
    pub can_decide: bool,
    /// The question in the words of the agent or of an MCP server; unverified. Null without a
    /// question.
    pub question: Option<String>,
    /// Data that belongs to the question; null without any.
    pub details: Option<Value>,
    /// The JSON Schema of the values to fill in; null if the answer has no form.
    pub form: Option<Value>,
    /// The address of the page on which a person decides the request.
    #[schema(format = "uri")]
    pub url: String,
    /// The address of the page with the button that approves; null if a request of this kind cannot
    /// be approved.
    pub approval_url: Option<String>,
    /// The address of the page with the button that rejects.
    pub rejection_url: Option<String>,
    /// An opaque digest of the request. A decision sends this value back in its member `digest`.
    pub digest: String,
    /// The time at which the request was opened.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The deadline, after which answers are refused; null if there is no deadline.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    /// The decision; null if the request is not decided.
    pub decision: Option<WireDecision>,
}

/// A call that a request shows.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct RequestedCall {
    /// The id of the call: assigned by the service, unique, independent of the id that the model
    /// used.
    #[schema(format = Uuid)]
    pub tool_call_id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments as JSON; null if their text does not parse or was cut.
    pub arguments: Option<Value>,
    /// The exact text of the arguments: the model wrote this text, and this text runs. If
    /// `truncated` is true, only the beginning of that text.
    pub arguments_text: String,
    /// The effect of repeating the call.
    pub effect: WireEffect,
    /// The destination: the whole address with the arguments filled in, without credentials and
    /// query.
    pub target: String,
    /// The call in one line: the tool's `summary` template with the arguments filled in. Without a
    /// template, the tool's name.
    pub summary: String,
    /// Warnings to the approver about the call.
    pub warnings: Vec<CallWarning>,
    /// Whether this request decides the call. The other calls of the turn are shown for context.
    pub needs_decision: bool,
    /// The policy's verdict on the call.
    pub verdict: WireVerdict,
    /// The name of the rule that gave the verdict; null if no rule did.
    pub rule: Option<String>,
    /// The reason for the verdict; null without a reason.
    pub reason: Option<String>,
    /// The JSON Schema of the tool's arguments.
    pub parameters: Value,
    /// The approvals so far, if several people have to approve; else empty.
    pub approvals: Vec<WireApproval>,
    /// The standing decision that the rule offers with an approval of the call; null without an
    /// offer. An answer accepts the offer with its member `remember`.
    pub remember: Option<WireOffer>,
    /// An opaque digest of the call. Null if the call can never run, because its tool is not
    /// offered or its arguments do not fit.
    pub digest: Option<String>,
    /// The decision of the call; null while the call is undecided.
    pub decision: Option<WireDecision>,
    /// Whether `arguments_text` was cut. Lists of requests and the `pending` of a task cut the text
    /// at 16 KiB; `GET /resume/{request_id}`, items and events have the whole text.
    pub truncated: bool,
}

/// The standing decision that a rule offers with the approval of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RememberOffer)]
pub(crate) struct WireOffer {
    /// The rule's condition (CEL) on the calls that the standing decision covers. Null: the
    /// standing decision covers calls of the same tool with the same arguments.
    pub when: Option<String>,
    /// The scopes that the approver may choose from.
    pub r#for: Vec<WireGrantScope>,
    /// The maximum `expires_in` that the approver may choose, such as `4h`.
    pub most: String,
    /// The maximum number of calls that the standing decision lets through.
    pub uses: u32,
}

/// A warning to an approver about a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct CallWarning {
    /// The stable code of the warning, for programs.
    pub code: String,
    /// JSON pointer to the argument that the warning is about; empty for the call as a whole.
    pub pointer: String,
    /// The warning in one sentence.
    pub detail: String,
}

/// The people who may decide a request, and how many of them have to approve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Approvers)]
pub(crate) struct WireApprovers {
    /// Whether the task's owner may decide. If false, the owner may not decide even if `users` or
    /// `groups` include the owner.
    pub owner: bool,
    /// The ids of users who may decide.
    pub users: Vec<String>,
    /// The names of groups whose members may decide.
    pub groups: Vec<String>,
    /// The number of different people who have to approve.
    pub required: u32,
}

/// Returns a call as it was when its request was opened: with its whole arguments, without
/// approvals and without a decision.
#[must_use]
pub(crate) fn call_as_opened(call: &CallSpec) -> RequestedCall {
    requested_call(call, Extent::Whole)
}

fn requested_call(call: &CallSpec, extent: Extent) -> RequestedCall {
    let text = &call.arguments_text;
    let truncated = extent == Extent::Listed && text.len() > MAX_LISTED_ARGUMENT_BYTES;
    let shown = if truncated {
        &text[..text.floor_char_boundary(MAX_LISTED_ARGUMENT_BYTES)]
    } else {
        text
    };
    RequestedCall {
        tool_call_id: call.tool_call_id.to_string(),
        name: call.name.clone(),
        arguments: if truncated { None } else { arguments(text) },
        arguments_text: shown.to_owned(),
        effect: call.effect.into(),
        target: call.shown_target().to_owned(),
        summary: call.summary.clone(),
        warnings: call.warnings.iter().map(call_warning).collect(),
        needs_decision: call.needs_decision,
        verdict: call.verdict.into(),
        rule: call.rule.clone(),
        reason: call.reason.clone(),
        parameters: call.parameters.clone(),
        approvals: Vec::new(),
        remember: call.offer.as_deref().map(wire_offer),
        digest: Some(call.digest.clone())
            .filter(|digest| !digest.is_empty() && call.verdict != verdict::Verdict::Invalid),
        decision: None,
        truncated,
    }
}

fn wire_offer(offer: &Offer) -> WireOffer {
    WireOffer {
        when: offer.when.clone(),
        r#for: offer.scopes.iter().map(|scope| (*scope).into()).collect(),
        most: format_duration(offer.most),
        uses: offer.uses,
    }
}

fn call_warning(warning: &Warning) -> CallWarning {
    CallWarning {
        code: warning.code.clone(),
        pointer: warning.pointer.clone(),
        detail: warning.detail.clone(),
    }
}

/// Parses the arguments. Returns `None` for a text that is not JSON, is nested too deeply, or
/// repeats a member. A blank text counts as an empty object, because the tool gets an empty object
/// for a blank text.
fn arguments(text: &str) -> Option<Value> {
    if text.trim_matches([' ', '\t', '\n', '\r']).is_empty() {
        return Some(Value::Object(Map::new()));
    }
    json::parse_stored(text.as_bytes()).ok()
}

#[must_use]
pub(super) fn message(own: Option<&str>) -> String {
    own.unwrap_or("Human intervention required.").to_owned()
}

/// Returns the address of the page on which a person decides the request: the operator's own page
/// (`request_url`) if configured, else the built-in page.
#[must_use]
pub(crate) fn url(request: RequestId, settings: &Settings) -> String {
    match &settings.request_url {
        Some(url) => url.replace("{request_id}", &request.to_string()),
        None => page_url(request, settings),
    }
}

/// Returns the address of the built-in page of the request.
#[must_use]
pub(crate) fn page_url(request: RequestId, settings: &Settings) -> String {
    format!("{}/resume/{request}", settings.public_url)
}

impl From<&verdict::Approvers> for WireApprovers {
    fn from(approvers: &verdict::Approvers) -> Self {
        Self {
            owner: approvers.owner,
            users: approvers.users.clone(),
            groups: approvers.groups.clone(),
            required: approvers.required,
        }
    }
}

impl InterventionRequest {
    #[must_use]
    pub(crate) fn for_caller(row: &RequestRow, caller: &Caller, settings: &Settings) -> Self {
        Self::with_extent(row, Some(caller), settings, Extent::Whole)
    }

    /// Returns the request for an event. An event has no caller, so `allowed_actions` is empty and
    /// `can_decide` is false.
    #[must_use]
    pub(crate) fn at_commit(row: &RequestRow, settings: &Settings) -> Self {
        Self::with_extent(row, None, settings, Extent::Whole)
    }

    /// Returns the request for a list, with long arguments cut.
    #[must_use]
    pub(crate) fn listed(row: &RequestRow, caller: &Caller, settings: &Settings) -> Self {
        Self::with_extent(row, Some(caller), settings, Extent::Listed)
    }

    fn with_extent(
        row: &RequestRow,
        caller: Option<&Caller>,
        settings: &Settings,
        extent: Extent,
    ) -> Self {
        let (asked, ids) = (&row.spec, settings.roster.ids());
        let state = row.state();
        let decider = caller.filter(|who| can_decide(who, &row.tenant, &row.owner, &state));
        let page = page_url(asked.request_id, settings);
        let actions =
            |who| permitted_actions(&settings.roster, who, &row.tenant, &row.owner, asked);
        let allowed = decider.into_iter().flat_map(actions);
        Self {
            request_id: asked.request_id.to_string(),
            task_id: row.task_id.to_string(),
            root_task_id: row.root_task_id.to_string(),
            session_id: row.session_id.clone(),
            agent_path: row.agent_path.clone(),
            kind: asked.kind,
            status: row.status.into(),
            message: message(asked.terms.message.as_deref()),
            tool_calls: asked
                .pending_tool_calls
                .iter()
                .map(|call| answered_call(row, call, extent, ids))
                .collect(),
            approvers: (&asked.terms.approvers).into(),
            allowed_actions: allowed.map(Into::into).collect(),
            can_decide: decider.is_some(),
            question: asked.question.clone(),
            details: asked.details.clone(),
            form: asked.form.clone(),
            url: url(asked.request_id, settings),
            approval_url: asked
                .kind
                .can_be_approved()
                .then(|| format!("{page}/approve")),
            rejection_url: Some(format!("{page}/reject")),
            digest: asked.digest.clone(),
            created_at: row.created_at.to_string(),
            expires_at: row.expires_at.map(|at| at.to_string()),
            decision: WireDecision::of_request(&state),
        }
    }
}

fn answered_call(row: &RequestRow, call: &CallSpec, extent: Extent, ids: UserIds) -> RequestedCall {
    let mut shown = requested_call(call, extent);
    if call.needs_decision {
        let state = row.state();
        let warning = state.restore_warning(call);
        shown.warnings.extend(warning.as_ref().map(call_warning));
        shown.approvals = approvals(&state, call.tool_call_id, ids);
        shown.decision = WireDecision::of_call(&state, call.tool_call_id);
    }
    shown
}

#[cfg(test)]
mod tests;
