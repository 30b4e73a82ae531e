//! `POST /v1/gate/calls`: proposes a call and waits for the verdict. If the call is allowed and the
//! client runs it, the POST also claims the permit to run the call. A repeated POST with the same
//! `Idempotency-Key` continues the call.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};

use super::waiting::{longest_wait, session_limit};
use super::{GateSurface, MAX_TOOL_NAME_BYTES, gate_problem, timed_ask};
use crate::engine::gate::{AskProgress, GateAnswer, GateDecision, Identity, Proposal};
use crate::http::Http;
use crate::http::api::respond::{mark_applied, mark_replayed};
use crate::http::api::tasks::message_body;
use crate::http::server::body::PostRequest;
use crate::http::server::delivered_body::delivered_body;
use crate::http::server::fields::Fields;
use crate::http::server::headers::{insert_header, visible_header};
use crate::http::server::operation::Op;
use crate::http::server::prefer::Prefer;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::gate::{NewGateCall, WireGateCall};
use crate::http::wire::params::{ProposalKeyHeader, RunnerHeader, VerdictWaitHeader};
use crate::people::Caller;
use crate::people::authorization::may_ask_at_gate;
use crate::task::limits::MAX_CONTEXT_BYTES;

/// The `Retry-After` of a response without a verdict, in seconds.
const RETRY_AFTER_SECONDS: &str = "5";

pub(crate) const OP: Op = Op::command("propose_gate_call", &[Code::CallInHand]);

/// Propose a call
///
/// Asks whether an agent's call may run, and waits for the verdict (10 s; `Prefer` changes that).
/// After `pending`, repeat the POST with the same `Idempotency-Key`. A caller that runs the call
/// itself may do so only with a `permit`.
#[utoipa::path(
    post, path = "/v1/gate/calls", operation_id = "propose_gate_call", tag = "gate",
    params(VerdictWaitHeader, ProposalKeyHeader, RunnerHeader), request_body = NewGateCall,
    responses(
        (status = 200, body = WireGateCall, description = "`allow` or `deny`"),
        (status = 202, body = WireGateCall, description = "`pending`",
            headers(("Location" = String, description = "The call"), ("Retry-After" = String, description = "Seconds"))),
    )
)]
pub(crate) async fn propose_gate_call(
    State(http): State<Arc<Http>>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    may_ask_at_gate(&posted.caller).map_err(Problem::forbidden)?;
    let key = posted.key()?.map(|key| key.key);
    let runner = visible_header(&posted.headers, "Holdpoint-Runner", 128);
    let runner = runner.map_err(Problem::bad_request)?;
    let longest = longest_wait(&posted.caller);
    let prefer = Prefer::read(&posted.headers).at_most(longest);
    let limit = session_limit(&http, &posted.caller, &posted.headers);
    let call = posted
        .json_with_raw_arguments(&http.body_parser, |body, arguments, text| {
            Fields::read(body, |fields| {
                Some(NewGateCall::read(arguments, text, fields))
            })
        })
        .await?;
    let identity = match (key, call.attach) {
        (Some(key), attach) => Identity::Key {
            key,
            attach: attach == Some(true),
        },
        (None, Some(false)) => Identity::New,
        (None, _) => Identity::Value,
    };
    let mut proposal = call.into_proposal(identity, runner);
    let caller = posted.into_caller();
    if http.shutdown.is_cancelled() {
        return Err(Problem::unavailable());
    }
    let slot = http.waiting_asks.take_slot(&caller, &http.settings, None);
    let (wait, applied) = prefer.within_slot(slot.is_some(), http.settings.wait.min(longest));
    proposal.wait = wait;
    match timed_ask(&http, &caller, &proposal, GateSurface::Rest, limit.as_ref()).await {
        Ok(answer) => Ok(respond(&http, &caller, answer, applied)),
        Err(refusal) => Err(gate_problem(&http, &caller, refusal).await),
    }
}

/// Builds the response to a proposal. `applied` is the value of `Preference-Applied`; `None` if the
/// client has no preference, or if its preference was not applied.
fn respond(http: &Http, caller: &Caller, answer: GateAnswer, applied: Option<String>) -> Response {
    let call = WireGateCall::from_call(&answer.call, caller, &http.settings);
    let text = serde_json::to_vec(&call).unwrap_or_default();
    let body = delivered_body(text.into(), answer.delivery);
    let mut response = ([(CONTENT_TYPE, "application/json")], body).into_response();
    if answer.call.decision == GateDecision::Pending {
        *response.status_mut() = StatusCode::ACCEPTED;
        let location = format!(
            "{}/v1/gate/calls/{}",
            http.settings.public_url, call.task_id
        );
        insert_header(response.headers_mut(), LOCATION, &location);
        insert_header(response.headers_mut(), RETRY_AFTER, RETRY_AFTER_SECONDS);
    }
    mark_applied(response.headers_mut(), applied);
    mark_replayed(response.headers_mut(), answer.replayed);
    response
}

impl NewGateCall {
    /// Reads the members of a proposal. `arguments` is the unparsed member `arguments`. `text` is
    /// the unparsed body, from which `metadata` is copied unchanged.
    fn read(arguments: Option<String>, text: &[u8], fields: &mut Fields<'_>) -> Self {
        let tool = fields.text_within("tool", MAX_TOOL_NAME_BYTES);
        if tool.as_ref().is_none_or(String::is_empty) && fields.errors.0.is_empty() {
            fields.refuse("tool", "the name of a tool");
        }
        let (arguments, arguments_text) = read_arguments(arguments, fields);
        let attach = fields.flag("attach");
        Self {
            gate: fields.text("gate"),
            tool: tool.unwrap_or_default(),
            arguments,
            arguments_text,
            session_id: message_body::session_id(fields),
            context: fields.text_within("context", MAX_CONTEXT_BYTES),
            metadata: message_body::metadata(text, fields),
            attach,
        }
    }

    /// Returns the proposal with a `wait` of zero. `propose_gate_call` then sets the real `wait`.
    fn into_proposal(self, identity: Identity, runner: Option<String>) -> Proposal {
        Proposal {
            gate: self.gate,
            tool: self.tool,
            // `read_arguments` made sure that exactly one of these two members is set.
            arguments_text: self.arguments.or(self.arguments_text).unwrap_or_default(),
            session_id: self.session_id,
            context: self.context.unwrap_or_default(),
            metadata: self.metadata.unwrap_or_else(message_body::no_metadata),
            identity,
            runner,
            wait: Duration::ZERO,
            run_wait: Duration::ZERO,
            returns_within: Duration::ZERO,
            progress: AskProgress::default(),
        }
    }
}

/// Returns the texts of the members `arguments` and `arguments_text`. Adds a mistake if both or
/// neither of these members is present, or if `arguments` is not an object.
fn read_arguments(
    arguments: Option<String>,
    fields: &mut Fields<'_>,
) -> (Option<String>, Option<String>) {
    let arguments_text = fields.text("arguments_text");
    let arguments = arguments.filter(|text| text != "null");
    if arguments.is_some() == arguments_text.is_some() {
        fields
            .errors
            .add("", "exactly one of `arguments` and `arguments_text`");
    } else if arguments
        .as_ref()
        .is_some_and(|text| !text.starts_with('{'))
    {
        fields.refuse("arguments", "an object");
    }
    (arguments, arguments_text)
}
