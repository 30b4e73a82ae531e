//! A gate call on the wire, and the bodies of its operations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::item::WireOutcome;
use super::request::InterventionRequest;
use super::wire_enum;
use crate::engine::gate;
use crate::http::Settings;
use crate::people::Caller;
use crate::task::item::ToolResult;

wire_enum! {
    /// The verdict for the asker: `allow` runs or has run, `deny` never ran and will not, `pending`
    /// waits for a person or for an attempt under way.
    WireGateDecision as GateDecision from gate::Decision, "snake_case" { Allow, Deny, Pending }
}
wire_enum! {
    /// The state of a gate call: `pending` asks a person, `approved` waits for its asker, `started`
    /// runs, `doubtful` asks a person about the outcome, `settled` has ended.
    WireGateState as GateState from gate::CallState, "snake_case" { Pending, Approved, Started, Doubtful, Settled }
}

/// A call at a gate.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct GateCall {
    /// The task of the call.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The id of the call.
    #[schema(format = Uuid)]
    pub tool_call_id: String,
    /// The name of the gate.
    pub gate: String,
    /// The name of the tool.
    pub tool: String,
    /// The session of the call.
    pub session_id: String,
    /// The arguments that run, to the byte; after an edit the edited text.
    pub arguments_text: String,
    /// Whether a person replaced the arguments.
    pub edited: bool,
    /// The digest of the call; null for a call that can never run, and for one that is only
    /// counted.
    pub digest: Option<String>,
    /// The verdict for this asker.
    pub decision: WireGateDecision,
    /// The state of the call.
    pub state: WireGateState,
    /// The outcome of a settled call.
    pub outcome: Option<WireOutcome>,
    /// The rule that judged the call.
    pub rule: Option<String>,
    /// The reason of the rule, or of a person's rejection.
    pub reason: Option<String>,
    /// One line for a model or a person.
    pub message: String,
    /// The people who approved the call; empty where a rule did.
    pub by: Vec<String>,
    /// The permit to run the call, for its runner alone.
    pub permit: Option<Permit>,
    /// The result of a call that the service ran, or that a person supplied.
    pub result: Option<GateResult>,
    /// The open request, else the last one.
    pub request: Option<Box<InterventionRequest>>,
    /// When the call was proposed.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When the present state ends by itself: the request's deadline, the end of the wait for the
    /// asker, or the end of the permit.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

/// The one leave to run a call. It is given to one runner, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Permit {
    /// The number of the attempt.
    pub attempt: u32,
    /// The time after which the call must not be begun.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// The same as a duration from now, in milliseconds, so that no clocks need to agree.
    pub expires_in_ms: u64,
    /// The key to pass on to the tool.
    #[schema(format = Uuid)]
    pub idempotency_key: String,
}

/// The result of a gate call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct GateResult {
    /// The outcome of the call.
    pub outcome: WireOutcome,
    /// The text of the result.
    pub content: String,
    /// The status of an HTTP tool's answer.
    pub http_status: Option<u16>,
}

impl GateResult {
    fn of(result: &ToolResult) -> Self {
        Self {
            outcome: result.outcome.into(),
            content: result.content.clone(),
            http_status: result.http_status,
        }
    }
}

impl GateCall {
    /// The call as `caller` sees it.
    #[must_use]
    pub(crate) fn of(call: &gate::GateCall, caller: &Caller, settings: &Settings) -> Self {
        let request = call.request.as_ref().map(|row| {
            let mut row = (**row).clone();
            row.expired = row.expires_at.is_some_and(|end| end <= call.now);
            Box::new(InterventionRequest::of(&row, caller, settings))
        });
        let permit = call.permit.map(|permit| Permit {
            attempt: permit.attempt,
            expires_at: permit.expires_at.to_string(),
            expires_in_ms: u64::try_from(permit.expires_in.as_millis()).unwrap_or(u64::MAX),
            idempotency_key: call.tool_call_id.to_string(),
        });
        Self {
            task_id: call.task_id.to_string(),
            tool_call_id: call.tool_call_id.to_string(),
            gate: call.gate.clone(),
            tool: call.tool.clone(),
            session_id: call.session_id.clone(),
            arguments_text: call.arguments_text.clone(),
            edited: call.edited,
            digest: call.digest.clone(),
            decision: call.decision.into(),
            state: call.state.into(),
            outcome: call.outcome.map(Into::into),
            rule: call.rule.clone(),
            reason: call.reason.clone(),
            message: call.message(),
            by: call.by.clone(),
            permit,
            result: call.result.as_ref().map(GateResult::of),
            request,
            created_at: call.created_at.to_string(),
            expires_at: call.expires_at.map(|end| end.to_string()),
        }
    }
}

/// A call to propose: exactly one of `arguments` and `arguments_text`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewGateCall {
    /// The gate. It may be left out if only one is open to the caller.
    #[schema(min_length = 1)]
    pub gate: Option<String>,
    /// The name of the tool.
    #[schema(min_length = 1, max_length = 256)]
    pub tool: String,
    /// The arguments, kept to the byte as they stand in the body: these bytes are judged, shown and
    /// run.
    pub arguments: Option<BTreeMap<String, Value>>,
    /// The arguments as JSON text.
    pub arguments_text: Option<String>,
    /// A name that the caller chooses: 1 to 128 of `A-Z a-z 0-9 . _ : -`. Default: `gate`.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._:-]+$")]
    pub session_id: Option<String>,
    /// The agent's own words about the call, shown to people as unverified; at most 16 KiB.
    pub context: Option<String>,
    /// Data for rules and for the caller; at most 16 KiB.
    pub metadata: Option<BTreeMap<String, Value>>,
    /// Whether an equal call of before is continued. Default: true without an `Idempotency-Key`,
    /// false with one.
    pub attach: Option<bool>,
}

/// The outcome of a call that its caller ran: exactly one of `task_id` and `key`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReportGateOutcome {
    /// The task of the call.
    #[schema(format = Uuid)]
    pub task_id: Option<String>,
    /// The `Idempotency-Key` that the call was proposed with.
    #[schema(min_length = 1, max_length = 255, pattern = "^[!-~]+$")]
    pub key: Option<String>,
    /// The number of the attempt; default: the last one.
    #[schema(minimum = 1)]
    pub attempt: Option<u32>,
    /// The outcome.
    pub outcome: GateOutcome,
    /// The result: text, or any JSON; at most 1 MiB.
    pub content: Option<Value>,
}

/// The outcome of a call, as its caller reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GateOutcome {
    /// It ran and answered.
    Succeeded,
    /// It failed, or was not made.
    Failed,
    /// It may have run.
    Unknown,
}
