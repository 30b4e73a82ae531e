//! `tools/call`: proposes the call at the gate and waits for the result of the call. An answer that
//! comes within [`JSON_ANSWER_TIMEOUT`] is sent as JSON; a later answer is sent as an event stream.
//! If the client disconnects, the wait ends, and the client no longer counts as an asker of the
//! call.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::envelope::Params;
use super::json_rpc::{RpcError, json_response, result_message};
use super::result::ResultWriter;
use super::stream::{CallStream, RpcReply, last_frame};
use super::{McpRequest, request_name};
use crate::agent::gate::OtherTools;
use crate::engine::gate::{AskProgress, ClaimLimit, Identity, Proposal};
use crate::http::Http;
use crate::http::api::gate::waiting::{WaitSlot, longest_wait, session_limit};
use crate::http::api::gate::{GateSurface, MAX_TOOL_NAME_BYTES, gate_problem, timed_ask};
use crate::http::api::tasks::message_body::{SESSION_ID_FORM, is_session_id};
use crate::http::events::opening::stream_response;
use crate::http::server::delivered_body::delivered_body;
use crate::http::server::prefer::Prefer;
use crate::people::Caller;
use crate::task::id::TaskId;

/// The time for which the server waits for an answer before it begins an event stream. The gate's
/// `hold` and the client's `Prefer` limit only the wait for people. Even if they are shorter, the
/// proposal waits this long for the tool of a call that it has started.
const JSON_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum number of repetitions of one request by its client. A client of the revision
/// 2026-07-28 repeats the request by itself if the response has a `requestState`, and gives up
/// after ten rounds: the first request and nine repetitions.
pub(super) const MAX_REPETITIONS: u32 = 9;
/// The time after a response in which a client of the revision 2026-07-28 is assumed to repeat the
/// request. During this time, the client still counts as waiting.
const RETURNS_WITHIN: Duration = Duration::from_secs(5);

struct PreparedCall {
    http: Arc<Http>,
    caller: Caller,
    proposal: Proposal,
    claim_limit: Option<ClaimLimit>,
    id: Value,
    writer: ResultWriter,
    canceled: CancellationToken,
    _slot: Option<WaitSlot>,
}

impl McpRequest<'_> {
    pub(super) fn call_tool(
        &self,
        params: Params,
    ) -> Result<BoxFuture<'static, Response>, RpcError> {
        let token = params.meta("progressToken").cloned();
        let token = token.filter(|token| token.is_string() || token.is_number());
        Ok(self.prepare_call(params)?.respond(token).boxed())
    }

    /// Checks the parameters and takes a slot of `Http::waiting_asks`. If no slot is free, the
    /// request does not wait for a person: the prepared call has a wait of 0.
    fn prepare_call(&self, params: Params) -> Result<PreparedCall, RpcError> {
        let name = tool_name(&params)?;
        let tool = self.tool(&name);
        let runs_elsewhere = tool.is_none()
            && (self.agent.offered_tool(&name).is_some()
                || self.gate.other_tools == OtherTools::Judge);
        if runs_elsewhere {
            return Err(RpcError::invalid_params("There is no such tool"));
        }
        if self.http.shutdown.is_cancelled() {
            return Err(RpcError::unavailable());
        }
        let (identity, repetition) = self.identity(&params)?;
        let is_named = matches!(identity, Identity::Key { .. } | Identity::CallOrKey { .. });
        let canceled = CancellationToken::new();
        let request = request_name(&self.agent.name, self.session, &self.id);
        let request = (request, canceled.clone());
        let preferred = Prefer::read(self.headers).wait_or(self.gate.hold);
        let wait_with_slot = preferred.min(longest_wait(self.caller));
        let waiting = &self.http.waiting_asks;
        let slot = waiting.take_slot(self.caller, &self.http.settings, Some(request));
        let wait = slot.as_ref().map_or(Duration::ZERO, |_| wait_with_slot);
        // If there is no slot, too many proposals already wait. The client is then not asked to
        // repeat the request, because repetitions would add to the load.
        let client_repeats =
            self.revision.is_stateless() && repetition < MAX_REPETITIONS && slot.is_some();
        Ok(PreparedCall {
            http: Arc::clone(self.http),
            caller: self.caller.clone(),
            proposal: Proposal {
                gate: Some(self.agent.name.clone()),
                tool: name,
                session_id: self.session(&params)?,
                arguments_text: arguments(params.arguments)?,
                context: String::new(),
                metadata: "{}".to_owned(),
                identity,
                runner: None,
                wait,
                run_wait: JSON_ANSWER_TIMEOUT,
                returns_within: if client_repeats {
                    RETURNS_WITHIN
                } else {
                    Duration::ZERO
                },
                progress: AskProgress::default(),
            },
            claim_limit: session_limit(self.http, self.caller, self.headers),
            id: self.id.clone(),
            writer: ResultWriter {
                revision: self.revision,
                next_repetition: client_repeats.then_some(repetition + 1),
                is_named,
                is_continuation: false,
                output: tool.and_then(|tool| tool.output.clone()),
            },
            canceled,
            _slot: slot,
        })
    }

    /// Returns the identity by which the gate recognizes the call, and how often the client has
    /// repeated the request.
    fn identity(&self, params: &Params) -> Result<(Identity, u32), RpcError> {
        let state = params
            .text("requestState")
            .filter(|_| self.revision.is_stateless());
        let known = state.and_then(parse_request_state);
        let repetition = known.map_or(0, |(_, repetition)| repetition);
        let identity = match (known, key(params)?) {
            (Some((task, _)), Some(key)) => Identity::CallOrKey { task, key },
            (Some((task, _)), None) => Identity::Call(task),
            (None, Some(key)) => Identity::Key { key, attach: false },
            (None, None) => Identity::Value,
        };
        Ok((identity, repetition))
    }

    /// Returns the session id of the call: from `_meta`, or else from the header
    /// `Holdpoint-Session`.
    fn session(&self, params: &Params) -> Result<Option<String>, RpcError> {
        let found = match params.meta("holdpoint/session") {
            Some(session) => Some(session.as_str()),
            None => self.session.map(Some),
        };
        let Some(session) = found else {
            return Ok(None);
        };
        match session.filter(|session| is_session_id(session)) {
            Some(session) => Ok(Some(session.to_owned())),
            None => Err(RpcError::invalid_params(format!(
                "The session must be {SESSION_ID_FORM}"
            ))),
        }
    }
}

/// Parses a `requestState` into the task of the call and the number of repetitions so far. A forged
/// state gives no access to another call: the gate ignores the state if the request's caller, gate,
/// session, tool or arguments differ from those of the call that the state names.
fn parse_request_state(state: &str) -> Option<(TaskId, u32)> {
    let (task, repetition) = state.strip_prefix("hp1.")?.split_once('.')?;
    let repetition: u32 = repetition.parse().ok()?;
    Some((task.parse().ok()?, repetition.min(MAX_REPETITIONS)))
}

/// Returns the client's own key for the call, from `_meta`; `None` if the client gives no key.
fn key(params: &Params) -> Result<Option<String>, RpcError> {
    let Some(key) = params.meta("holdpoint/key") else {
        return Ok(None);
    };
    match key.as_str() {
        Some(key)
            if (1..=255).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic()) =>
        {
            Ok(Some(key.to_owned()))
        }
        Some(_) | None => Err(RpcError::invalid_params(
            "`_meta[\"holdpoint/key\"]` must be 1 to 255 visible ASCII characters",
        )),
    }
}

fn tool_name(params: &Params) -> Result<String, RpcError> {
    let name = params.text("name").unwrap_or_default();
    if name.is_empty() || name.len() > MAX_TOOL_NAME_BYTES || name.contains('\0') {
        return Err(RpcError::invalid_params(
            "`name` must be the name of a tool",
        ));
    }
    Ok(name.to_owned())
}

/// Returns the text of the arguments; `{}` if there are none.
fn arguments(text: Option<String>) -> Result<String, RpcError> {
    match text {
        None => Ok("{}".to_owned()),
        Some(text) if text.starts_with('{') => Ok(text),
        Some(_) => Err(RpcError::invalid_params("`arguments` must be an object")),
    }
}

impl PreparedCall {
    /// Returns the answer as JSON if it arrives within [`JSON_ANSWER_TIMEOUT`]. Otherwise returns
    /// an event stream, whose last event is the answer. If the client has canceled the request, the
    /// response is an event stream without the answer. `token` is the client's progress token, if
    /// any.
    async fn respond(self, token: Option<Value>) -> Response {
        let clock = Arc::clone(&self.http.clock);
        let progress = token.map(|token| (token, self.proposal.progress.clone()));
        let mut reply = self.reply().boxed();
        tokio::select! {
            biased;
            reply = &mut reply => {
                if reply.text.is_empty() {
                    return stream_response(Body::from(last_frame("")));
                }
                let mut response = json_response(delivered_body(reply.text.into(), reply.delivery));
                response.headers_mut().extend(reply.headers);
                response
            }
            () = clock.sleep(JSON_ANSWER_TIMEOUT) => {
                let stream = CallStream::new(reply, clock, progress);
                stream_response(Body::from_stream(stream.frames()))
            }
        }
    }

    /// Waits for the gate's answer. Returns an empty reply if the client cancels the request.
    async fn reply(self) -> RpcReply {
        let (caller, limit) = (&self.caller, self.claim_limit.as_ref());
        let answer = tokio::select! {
            biased;
            () = self.canceled.cancelled() => return RpcReply::default(),
            answer = timed_ask(&self.http, caller, &self.proposal, GateSurface::Mcp, limit) => answer,
        };
        match answer {
            Ok(answer) => {
                let result = self
                    .writer
                    .result(&answer, &self.caller, &self.http.settings);
                RpcReply {
                    text: result_message(&self.id, &result),
                    delivery: answer.delivery,
                    ..RpcReply::default()
                }
            }
            Err(refusal) => {
                let problem = gate_problem(&self.http, &self.caller, refusal).await;
                let error = RpcError::from_problem(&problem);
                RpcReply {
                    text: error.text(&self.id),
                    headers: error.headers,
                    ..RpcReply::default()
                }
            }
        }
    }
}
