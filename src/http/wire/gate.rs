//! A gate call as the API shows it, and the bodies of the gate operations.

use serde::Serialize;
use utoipa::ToSchema;

use super::item::WireOutcome;
use super::request::InterventionRequest;
use super::wire_enum;
use crate::engine::gate;
use crate::http::Settings;
use crate::people::Caller;
use crate::task::id::TaskId;
use crate::task::item::Outcome;
use crate::task::text::one_line;

wire_enum! {
    /// The verdict for the client that proposed the call (the asker): `allow` (this client may run
    /// the call now, or the call was started and has ended), `deny` (the call was never started and
    /// never will be) or `pending` (a person must answer a request about the call, the approved
    /// call waits until its asker proposes it again, or the call runs and this client has no
    /// permit).
    WireGateDecision as GateDecision from gate::GateDecision, "snake_case" { Allow, Deny, Pending }
}
wire_enum! {
    /// The state of a gate call: `pending` (the call is not judged yet, or waits for a person),
    /// `approved` (the call was allowed or approved; it waits for a free slot of the service, or
    /// until the client that proposed it asks again), `started` (the call runs), `doubtful` (a
    /// person is asked about the outcome) or `settled` (the call has ended).
    WireGateState as GateState from gate::GateState, "snake_case" {
        Pending, Approved, Started, OutcomeUnknown = "doubtful", Settled
    }
}
wire_enum! {
    /// The outcome of a call as its caller reports it: `succeeded` (the call ran and answered),
    /// `failed` (the call failed, or was not made) or `unknown` (the call may have run).
    GateOutcome as GateOutcome from gate::ReportedOutcome, "snake_case" { Succeeded, Failed, Unknown }
}

/// A call at a gate, as the client that proposed the call (its asker) sees it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = GateCall)]
pub(crate) struct WireGateCall {
    /// The id of the call's task, as `GET /v1/gate/calls/{task_id}` takes it. For an allowed call
    /// that the gate does not store (`record: held`), that GET responds with 404.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The id of the call, which is also the `idempotency_key` of a permit.
    #[schema(format = Uuid)]
    pub tool_call_id: String,
    /// The name of the gate at which the call was proposed.
    pub gate: String,
    /// The name of the tool, as proposed.
    pub tool: String,
    /// The session id that the client chose; `gate` by default.
    pub session_id: String,
    /// The exact text of the arguments with which the call runs; after an edit, the edited text.
    pub arguments_text: String,
    /// Whether a person replaced the arguments.
    pub edited: bool,
    /// The digest of the call. Null if the call can never run (its tool is not offered, or its
    /// arguments do not fit). Also null for an allowed call that the gate does not store
    /// (`record: held`): the client does not report the outcome of such a call.
    pub digest: Option<String>,
    /// The verdict for this client. To run the call, the client also needs a `permit`.
    pub decision: WireGateDecision,
    /// The state of the call. Unlike `decision`, it is the same for every client.
    pub state: WireGateState,
    /// The outcome of a settled call; null in any other state.
    pub outcome: Option<WireOutcome>,
    /// The rule that judged the call; null if no rule matched.
    pub rule: Option<String>,
    /// The reason of a person's rejection, else the reason of the rule; null without a reason.
    pub reason: Option<String>,
    /// One line for a model or a person.
    pub message: String,
    /// The ids of the users who approved the call; empty if none did.
    pub by: Vec<String>,
    /// The permit to run the call, shown to the client that holds it; null for any other client.
    pub permit: Option<WirePermit>,
    /// The result, if the service ran the call or a person supplied the result.
    pub result: Option<GateResult>,
    /// The open request about the call, or the last request if none is open; null if no person was
    /// asked.
    pub request: Option<Box<InterventionRequest>>,
    /// The time of the proposal.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The deadline of the present state. In `pending` and `doubtful`, it is the deadline of the
    /// request; in `approved`, the time until which the asker may propose the call again; in
    /// `started`, the end of the permit. Null if the state has no deadline.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

/// The permission to run a call, given to one runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Permit)]
pub(crate) struct WirePermit {
    /// The number of the attempt at the call: 1, 2, 3 …
    pub attempt: u32,
    /// The time after which the runner must not start the call.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// The time from now to `expires_at`, in milliseconds. It does not depend on the client's
    /// clock.
    pub expires_in_ms: u64,
    /// The idempotency key that the runner passes on to the tool: the id of the call.
    #[schema(format = Uuid)]
    pub idempotency_key: String,
}

/// The result of a gate call, for a client that did not run the call itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct GateResult {
    /// How the call ended.
    pub outcome: WireOutcome,
    /// The result as text.
    pub content: String,
    /// The HTTP status with which an HTTP tool answered; null without an HTTP answer.
    pub http_status: Option<u16>,
}

impl WireGateCall {
    #[must_use]
    pub(crate) fn from_call(call: &gate::GateCall, caller: &Caller, settings: &Settings) -> Self {
        let request = call.request.as_ref().map(|row| {
            let mut row = (**row).clone();
            row.expired = row.expires_at.is_some_and(|end| end <= call.now);
            Box::new(InterventionRequest::for_caller(&row, caller, settings))
        });
        let permit = call.permit.map(|permit| WirePermit {
            attempt: permit.attempt,
            expires_at: permit.expires_at.to_string(),
            expires_in_ms: u64::try_from(permit.expires_in.as_millis()).unwrap_or(u64::MAX),
            idempotency_key: call.tool_call_id.to_string(),
        });
        // A call that was never started has a result only if a person supplied the result
        // (`Responded`). For any other such call, the stored text only says how the call ended.
        // `message` says the same, so `result` is null.
        let has_result = |outcome| call.attempts > 0 || outcome == Outcome::Responded;
        let result = call.result.as_ref();
        let result = result.filter(|result| has_result(result.outcome));
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
            message: one_line(&call.message()),
            by: call.by.clone(),
            permit,
            result: result.map(|result| GateResult {
                outcome: result.outcome.into(),
                content: result.content.clone(),
                http_status: result.http_status,
            }),
            request,
            created_at: call.created_at.to_string(),
            expires_at: call.expires_at.map(|end| end.to_string()),
        }
    }
}

/// A proposed call. Exactly one of `arguments` and `arguments_text` is set.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewGateCall {
    /// The name of the gate. It may be left out if only one gate is open to the caller.
    #[schema(min_length = 1)]
    pub gate: Option<String>,
    /// The name of the tool that the agent calls.
    #[schema(min_length = 1, max_length = 256)]
    pub tool: String,
    /// The arguments, as a JSON object. The service judges, shows and runs exactly the bytes that
    /// the body has for this member.
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    pub arguments: Option<String>,
    /// The arguments as JSON text, in place of `arguments`.
    pub arguments_text: Option<String>,
    /// The caller's name for the conversation: 1 to 128 of `A-Z a-z 0-9 . _ : -`. Default: `gate`.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._:-]+$")]
    pub session_id: Option<String>,
    /// The agent's own words about the call, shown to people as unverified; at most 16 KiB.
    pub context: Option<String>,
    /// Data for rules and for the caller; at most 16 KiB.
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    pub metadata: Option<String>,
    /// Whether the proposal may continue an earlier call instead of making a new call. The earlier
    /// call has the same session, tool and arguments, and no client waits for it. Default: false
    /// with an `Idempotency-Key`, else true.
    pub attach: Option<bool>,
}

/// A report of the outcome of a call that the caller ran. Exactly one of `task_id` and `key` is
/// set.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReportGateOutcome {
    /// The id of the call's task.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub task_id: Option<TaskId>,
    /// The `Idempotency-Key` with which the call was proposed.
    #[schema(min_length = 1, max_length = 255, pattern = "^[!-~]+$")]
    pub key: Option<String>,
    /// The number of the attempt that the report is about. Default: the last attempt. A report
    /// about any other attempt is refused.
    #[schema(minimum = 1)]
    pub attempt: Option<u32>,
    /// The outcome of the attempt.
    pub outcome: GateOutcome,
    /// The result: a text, or any other JSON value. At most 1 MiB; a text is measured without its
    /// JSON escapes.
    #[schema(value_type = Option<Value>)]
    pub content: Option<String>,
}
