//! `tools/call`: proposes the call at the gate and waits for its result. A quick answer is JSON; a
//! call that waits is answered as an event stream. If the client leaves, the wait is dropped, and
//! with it the presence of the call's asker.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use futures_util::FutureExt as _;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::answer::{Failure, json_response, message};
use super::envelope::Params;
use super::result::Teller;
use super::stream::{Reply, Waited, last_frame};
use super::{Asked, request_name};
use crate::agent::gate::OtherTools;
use crate::engine::gate::{Identity, Progress, Proposal};
use crate::http::Http;
use crate::http::api::gate::waiting::Place;
use crate::http::api::gate::{Door, gate_problem, timed_ask};
use crate::http::events::opening::streamed;
use crate::http::server::delivered_body::delivered_body;
use crate::http::server::prefer::Prefer;
use crate::people::Caller;

/// The time after which a call that still waits is answered as an event stream.
const QUICK: Duration = Duration::from_secs(1);
/// The maximum number of repetitions ("legs") of a request. A client of 2026-07-28 that gets a
/// `requestState` repeats its request with that state by itself, until the call is decided. The
/// client gives up after ten rounds.
pub(super) const LEGS: u32 = 9;
/// The time within which a client of 2026-07-28 begins the next repetition.
const RETURNS_WITHIN: Duration = Duration::from_secs(5);
/// The maximum length of a tool's name, in bytes.
const NAME: usize = 256;

/// A `tools/call` request, ready to ask the gate.
struct Ask {
    http: Arc<Http>,
    caller: Caller,
    proposal: Proposal,
    id: Value,
    teller: Teller,
    canceled: CancellationToken,
    _place: Option<Place>,
}

impl Asked<'_> {
    /// Answers `tools/call`: in JSON if the answer comes within [`QUICK`], else as an event stream.
    pub(super) async fn called(&self, params: Params) -> Response {
        let token = params.meta("progressToken").cloned();
        let ask = match self.ask(params) {
            Ok(ask) => ask,
            Err(failure) => return failure.response(&self.id),
        };
        let progress = ask.proposal.progress.clone();
        let mut reply = ask.reply().boxed();
        let clock = Arc::clone(&self.http.clock);
        tokio::select! {
            biased;
            reply = &mut reply => {
                if reply.text.is_empty() {
                    return streamed(Body::from(last_frame(&reply.text)));
                }
                let mut response = json_response(delivered_body(reply.text.into(), reply.delivery));
                *response.status_mut() = reply.status;
                response
            }
            () = clock.sleep(QUICK) => {
                let token = token.filter(|token| token.is_string() || token.is_number());
                let waited = Waited::new(reply, clock, token.map(|token| (token, progress)));
                streamed(Body::from_stream(waited.frames()))
            }
        }
    }

    /// Checks the parameters and takes a place in `Http::waiting`. If no place is free, the request
    /// does not wait.
    fn ask(&self, params: Params) -> Result<Ask, Failure> {
        let name = params.text("name").unwrap_or_default().to_owned();
        if name.is_empty() || name.len() > NAME || name.contains('\0') {
            return Err(Failure::params("`name` must be the name of a tool"));
        }
        let tool = self.tool(&name);
        let runs_elsewhere = tool.is_none()
            && (self.agent.offer(&name).is_some() || self.gate.other_tools == OtherTools::Judge);
        if runs_elsewhere {
            return Err(Failure::params("There is no such tool"));
        }
        if self.http.shutdown.is_cancelled() {
            return Err(Failure::unavailable());
        }
        let (identity, leg) = self.identity(&params)?;
        let canceled = CancellationToken::new();
        let request = (request_name(&self.agent.name, &self.id), canceled.clone());
        let wait = Prefer::read(self.headers).time(self.gate.hold);
        let waiting = &self.http.waiting;
        let place = waiting.enter(self.caller, &self.http.settings, Some(request));
        let wait = place.as_ref().map_or(Duration::ZERO, |_| wait);
        let returns = self.revision.is_stateless() && leg < LEGS && !wait.is_zero();
        Ok(Ask {
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
                returns_within: if returns {
                    RETURNS_WITHIN
                } else {
                    Duration::ZERO
                },
                progress: Progress::default(),
            },
            id: self.id.clone(),
            teller: Teller {
                revision: self.revision,
                next_leg: returns.then_some(leg + 1),
                output: tool.and_then(|tool| tool.output.clone()),
            },
            canceled,
            _place: place,
        })
    }

    /// Returns how the gate recognizes the call, and the number of the repetition: 0 for the first
    /// request.
    fn identity(&self, params: &Params) -> Result<(Identity, u32), Failure> {
        if self.revision.is_stateless()
            && let Some(found) = params.text("requestState").and_then(leg)
        {
            return Ok(found);
        }
        let Some(key) = params.meta("holdpoint/key") else {
            return Ok((Identity::Value, 0));
        };
        match key.as_str() {
            Some(key)
                if (1..=255).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic()) =>
            {
                let (key, attach) = (key.to_owned(), false);
                Ok((Identity::Key { key, attach }, 0))
            }
            Some(_) | None => Err(Failure::params(
                "`_meta[\"holdpoint/key\"]` must be 1 to 255 visible ASCII characters",
            )),
        }
    }

    /// Returns the session of the call, from `_meta` or else from the header `Holdpoint-Session`.
    fn session(&self, params: &Params) -> Result<Option<String>, Failure> {
        let header = || {
            self.headers
                .get("holdpoint-session")
                .map(|value| value.to_str().ok())
        };
        let found = match params.meta("holdpoint/session") {
            Some(session) => Some(session.as_str()),
            None => header(),
        };
        let Some(session) = found else {
            return Ok(None);
        };
        let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-');
        let session = session
            .filter(|session| (1..=128).contains(&session.len()) && session.bytes().all(letter));
        let refused = || Failure::params("The session must be 1 to 128 of A-Z a-z 0-9 . _ : -");
        session
            .map(|session| Some(session.to_owned()))
            .ok_or_else(refused)
    }
}

/// Parses a `requestState`: the call and the number of the repetition. The state need not be
/// sealed: if a client sends the state of another call, the arguments do not fit that call, so the
/// request is a new call.
fn leg(state: &str) -> Option<(Identity, u32)> {
    let (task, leg) = state.strip_prefix("hp1.")?.split_once('.')?;
    let leg: u32 = leg.parse().ok()?;
    Some((Identity::Call(task.parse().ok()?), leg.min(LEGS)))
}

/// Returns the text of the arguments; `{}` if there are none.
fn arguments(text: Option<String>) -> Result<String, Failure> {
    let text = text.filter(|text| text != "null");
    match text {
        None => Ok("{}".to_owned()),
        Some(text) if text.starts_with('{') => Ok(text),
        Some(_) => Err(Failure::params("`arguments` must be an object")),
    }
}

impl Ask {
    /// Waits for the answer, or until the client cancels the request.
    async fn reply(self) -> Reply {
        let asked = tokio::select! {
            biased;
            () = self.canceled.cancelled() => return Reply::canceled(),
            asked = timed_ask(&self.http, &self.caller, &self.proposal, Door::Mcp, None) => asked,
        };
        match asked {
            Ok(answer) => {
                let result = self
                    .teller
                    .result(&answer, &self.caller, &self.http.settings);
                Reply::of(message(&self.id, &result), answer.delivery)
            }
            Err(refusal) => {
                let problem = gate_problem(&self.http, &self.caller, refusal).await;
                Reply::failed(&Failure::refused(&problem), &self.id)
            }
        }
    }
}
