//! The gRPC operations for gateways: Envoy's `ext_authz`, and agentgateway's guardrails for MCP. A
//! gateway asks this service whether a call may pass. A call that passes runs behind the gateway,
//! not in this service. Invariant: the service permits a request only by an explicit answer. So if
//! the service fails, a gateway that fails closed (`failure_mode_allow: false`, `failClosed`) lets
//! no request pass.

mod envoy;
mod ext_mcp;
mod frames;
mod json_rpc;
mod proposal;
mod protobuf;
mod results;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Version};
use tokio::time::Instant;

use self::frames::{
    GrpcAnswer, GrpcCode, GrpcStatus, MAX_MESSAGE_BYTES, MAX_REPORT_BYTES, PREFIX_BYTES,
};
use self::json_rpc::ToolCallParams;
use super::Http;
use super::api::gate::{GateSurface, timed_ask};
use super::api::tasks::message_body::{SESSION_ID_FORM, is_session_id};
use super::server::body::read_body;
use super::server::guard::{caller_of_key, protect_connection};
use super::server::operation::{AuthClass, Op};
use super::server::path_id::PathId;
use super::server::problem::{Code, Problem};
use crate::agent::gate::ExtAuthz;
use crate::agent::{Agents, Gate};
use crate::engine::Refusal;
use crate::engine::gate::{ClaimLimit, GateAnswer, GateRefusal, OutcomeReport, ReportedOutcome};
use crate::people::Caller;
use crate::people::authenticator::AuthError;
use crate::people::authorization::may_ask_at_gate;
use crate::task::id::TaskId;

/// The maximum wait for a verdict if the client sets no deadline. It is shorter than the 10 s after
/// which agentgateway gives up.
const DEFAULT_WAIT: Duration = Duration::from_secs(8);
/// The part of the client's timeout that is reserved for sending the answer.
const ANSWER_MARGIN: Duration = Duration::from_millis(500);
/// The key that names the gate, in gRPC metadata and in Envoy's `context_extensions`.
const GATE_KEY: &str = "holdpoint-gate";
/// The header that this service adds to a call that passes. The value is the call's id, which
/// equals the id of the call's task and is the same for all attempts at the call. So the tool
/// behind the gateway can use the value as an idempotency key.
const CALL_HEADER: &str = "holdpoint-call";
/// The method of `ExtMcp` that reports the result of a call.
const CHECK_RESPONSE: &str = "CheckResponse";

pub(crate) const OP: Op = Op {
    auth: AuthClass::Gateway,
    max_body_bytes: MAX_MESSAGE_BYTES + PREFIX_BYTES,
    ..Op::public("grpc", &[])
};

/// The operation [`CHECK_RESPONSE`].
const REPORT_OP: Op = Op {
    max_body_bytes: MAX_REPORT_BYTES + PREFIX_BYTES,
    ..OP
};

/// Returns whether some gate is open to gateways (has `ext_authz`).
#[must_use]
pub(crate) fn is_open(agents: &Agents) -> bool {
    agents.gates().any(|(_, gate)| gate.ext_authz.is_some())
}

/// Adds the routes of both gRPC services, if some gate is open to gateways.
pub(super) fn add_routes(
    router: Router<Arc<Http>>,
    guarded: impl Fn(&'static Op, MethodRouter<Arc<Http>>) -> MethodRouter<Arc<Http>>,
    http: &Http,
) -> Router<Arc<Http>> {
    if !is_open(http.engine.agents()) {
        return router;
    }
    let envoy = async |http, PathId(method): PathId<String>, request| {
        serve(http, GateSurface::ExtAuthz, method, request).await
    };
    let ext_mcp = async |http, PathId(method): PathId<String>, request| {
        serve(http, GateSurface::ExtMcp, method, request).await
    };
    let report = async |http, request| {
        let method = CHECK_RESPONSE.to_owned();
        serve(http, GateSurface::ExtMcp, method, request).await
    };
    router
        .route(
            "/envoy.service.auth.v3.Authorization/{method}",
            guarded(&OP, post(envoy)),
        )
        .route(
            "/agentgateway.dev.ext_mcp.ExtMcp/{method}",
            guarded(&OP, post(ext_mcp)),
        )
        .route(
            "/agentgateway.dev.ext_mcp.ExtMcp/CheckResponse",
            guarded(&REPORT_OP, post(report)),
        )
}

/// Answers a call of a gRPC service. Refuses HTTP/1.1, because HTTP/1.1 clients do not read the
/// trailers that gRPC needs.
async fn serve(
    State(http): State<Arc<Http>>,
    surface: GateSurface,
    method: String,
    request: Request,
) -> Response {
    if request.version() != Version::HTTP_2 {
        return Problem::not_found().into_response();
    }
    let kind = request.headers().get(CONTENT_TYPE);
    let is_grpc = kind
        .and_then(|kind| kind.to_str().ok())
        .is_some_and(|kind| matches!(kind, "application/grpc" | "application/grpc+proto"));
    if !is_grpc {
        let detail = "The content type must be application/grpc.";
        return Problem::new(Code::UnsupportedMediaType, detail).into_response();
    }
    frames::respond(call(&http, surface, &method, request).await)
}

async fn call(
    http: &Arc<Http>,
    surface: GateSurface,
    method: &str,
    request: Request,
) -> Result<GrpcAnswer, GrpcStatus> {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let (key, key_caller) = gateway_key(http, &parts)?;
    protect_connection(&parts.extensions);
    let is_report = matches!((surface, method), (GateSurface::ExtMcp, CHECK_RESPONSE));
    let timeout = frames::call_timeout(&parts.headers);
    let gateway = Gateway {
        http: Arc::clone(http),
        key,
        key_caller,
        gates: parts.headers.get_all(GATE_KEY).iter().cloned().collect(),
        surface,
        started,
        timeout: if is_report {
            timeout.unwrap_or_default()
        } else {
            timeout?
        },
    };
    // A call that has run is reported also during the shutdown.
    if is_report {
        return Ok(ext_mcp::check_response(gateway, &parts, body).await);
    }
    let message = read_message(&gateway, &parts, body, MAX_MESSAGE_BYTES).await?;
    if http.shutdown.is_cancelled() {
        return Err(Problem::unavailable().into());
    }
    match (surface, method) {
        (GateSurface::ExtAuthz, "Check") => envoy::check(&gateway, message).await,
        (GateSurface::ExtMcp, "CheckRequest") => ext_mcp::check_request(&gateway, message).await,
        (_, _) => Err(GrpcStatus::new(
            GrpcCode::Unimplemented,
            "The method is unknown.",
        )),
    }
}

/// Reads the only message of a gRPC call.
///
/// # Errors
/// Fails as [`frames::check_encoding`] and [`frames::single_message`] do. If [`read_body`] fails,
/// returns the status of its problem.
async fn read_message(
    gateway: &Gateway,
    parts: &http::request::Parts,
    body: Body,
    max_bytes: usize,
) -> Result<Bytes, GrpcStatus> {
    frames::check_encoding(&parts.headers)?;
    let caller = Some(&gateway.key_caller);
    let body = read_body(&gateway.http, parts, body, caller, frames::size_by_prefix).await?;
    // The message shares the buffer of `body`. `body` is dropped here, so the buffer is freed as
    // soon as the message is dropped.
    Ok(body.slice_ref(frames::single_message(&body, max_bytes)?))
}

/// Checks the gateway's key. Returns the `Authorization` headers with the key, and the caller whom
/// the key alone identifies. Ignores headers of the gateway that name a user: the user comes from
/// the request that the gateway asks about.
///
/// # Errors
/// `Unauthenticated` for a missing or wrong key, `PermissionDenied` for a key that may not propose
/// calls, `ResourceExhausted` after too many wrong keys.
fn gateway_key(
    http: &Http,
    parts: &http::request::Parts,
) -> Result<(HeaderMap, Caller), GrpcStatus> {
    let mut key = HeaderMap::new();
    for value in parts.headers.get_all(AUTHORIZATION) {
        key.append(AUTHORIZATION, value.clone());
    }
    let found = caller_of_key(http, &key, &parts.extensions)?;
    let key_caller = found.map_err(auth_status)?;
    may_ask_at_gate(&key_caller).map_err(GrpcStatus::denied)?;
    Ok((key, key_caller))
}

fn auth_status(error: AuthError) -> GrpcStatus {
    match error {
        AuthError::Missing => {
            GrpcStatus::new(GrpcCode::Unauthenticated, "Send a key in the metadata.")
        }
        AuthError::UnknownKey => GrpcStatus::new(GrpcCode::Unauthenticated, "The key is unknown."),
        AuthError::Forbidden(why) | AuthError::BadHeader(why) => GrpcStatus::denied(why),
    }
}

struct Gateway {
    http: Arc<Http>,
    /// The `Authorization` headers with the gateway's key.
    key: HeaderMap,
    /// The caller whom the key alone identifies: the key's own user.
    key_caller: Caller,
    /// The names of gates in the gRPC metadata. `gate` refuses more than one name.
    gates: Vec<HeaderValue>,
    surface: GateSurface,
    started: Instant,
    timeout: Option<Duration>,
}

/// A gate that is open to gateways: its configuration has `ext_authz`.
struct OpenGate {
    name: String,
    gate: Gate,
    ext_authz: ExtAuthz,
}

/// The headers of the request that the gateway asks about, each as a lower-case name and a value.
type CheckedHeaders = [(String, Vec<u8>)];

impl Gateway {
    /// Returns the gate whose name is in the gRPC metadata or in `named`. If neither has a name,
    /// returns the only gate that has `ext_authz`. If several gates have `ext_authz`, returns the
    /// only one of them that the key's own user may use.
    ///
    /// # Errors
    /// `PermissionDenied` if no gate or more than one gate fits. Also `PermissionDenied` if the
    /// metadata has two names, or another name than `named`.
    fn gate(&self, named: Option<&str>) -> Result<OpenGate, GrpcStatus> {
        let refusal = || GrpcStatus::denied("Name a gate that has `ext_authz`.");
        if self.gates.len() > 1 {
            return Err(refusal());
        }
        let fits = |name: &str| {
            self.gates.iter().all(|value| value == name) && named.is_none_or(|named| named == name)
        };
        let agents = self.http.engine.agents();
        let all: Vec<_> = agents
            .gates()
            .filter(|(agent, gate)| gate.ext_authz.is_some() && fits(&agent.name))
            .collect();
        let own = &self.key_caller;
        let to_key = all.iter().filter(|(agent, _)| {
            all.len() == 1 || agent.is_open_to(&own.tenant, &own.user_id, &own.groups)
        });
        let mut to_key = to_key.copied();
        match (to_key.next(), to_key.next()) {
            (Some((agent, gate)), None) => Ok(OpenGate {
                name: agent.name.clone(),
                gate: gate.clone(),
                ext_authz: gate.ext_authz.clone().ok_or_else(refusal)?,
            }),
            _ => Err(refusal()),
        }
    }

    /// Returns the caller on whose behalf the gateway asks. The gate's settings `user_header` and
    /// `groups_header` name the request headers with the user and the groups. If the gate has no
    /// `user_header`, or if the request lacks that header, returns the key's own user.
    ///
    /// # Errors
    /// `PermissionDenied` if the request repeats one of these headers or names groups without a
    /// user, if the key may not act for the user, or if a header is malformed. Envoy joins repeated
    /// headers by commas. Two headers with users are then one malformed header, but two headers
    /// with groups are one valid list of groups.
    fn caller(&self, gate: &OpenGate, headers: &CheckedHeaders) -> Result<Caller, GrpcStatus> {
        let Some(user_header) = &gate.ext_authz.user_header else {
            return Ok(self.key_caller.clone());
        };
        let user = single_header(headers, user_header)?;
        let groups = match &gate.ext_authz.groups_header {
            Some(name) => single_header(headers, name)?,
            None => None,
        };
        self.caller_for_user(user, groups)
    }

    /// Authenticates the gateway's key as acting for the user `user` with the groups `groups`, and
    /// returns this user as the caller. Without `user`, returns the key's own user.
    ///
    /// # Errors
    /// `PermissionDenied` if the key may not act for this user, if there are groups without a user,
    /// or if a value is malformed.
    fn caller_for_user(
        &self,
        user: Option<&[u8]>,
        groups: Option<&[u8]>,
    ) -> Result<Caller, GrpcStatus> {
        let bad = || GrpcStatus::denied("The header of the user is malformed.");
        let mut headers = self.key.clone();
        let named = [("holdpoint-user", user), ("holdpoint-groups", groups)];
        for (name, value) in named {
            if let Some(value) = value {
                let value = HeaderValue::from_bytes(value).map_err(|_| bad())?;
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        let caller = self.http.authenticator.authenticate(&headers);
        let caller = caller.map_err(auth_status)?;
        may_ask_at_gate(&caller).map_err(GrpcStatus::denied)?;
        Ok(caller)
    }

    /// Returns the session id in the request header that the gate's setting `session_header` names.
    /// `None` if the gate has no such setting, or if the request lacks the header.
    ///
    /// # Errors
    /// `PermissionDenied` for a repeated or malformed header.
    fn session(gate: &OpenGate, headers: &CheckedHeaders) -> Result<Option<String>, GrpcStatus> {
        let Some(name) = &gate.ext_authz.session_header else {
            return Ok(None);
        };
        let Some(value) = single_header(headers, name)? else {
            return Ok(None);
        };
        let session = String::from_utf8(value.to_vec()).ok();
        let session = session.filter(|session| is_session_id(session));
        session
            .map(Some)
            .ok_or_else(|| GrpcStatus::denied(format!("{name} must be {SESSION_ID_FORM}")))
    }

    /// Proposes a call, and waits for the verdict as long as the gate's `hold` and the client's
    /// deadline permit. Drops `headers`, those of the checked request, before the wait. `place` has
    /// the names and the values that say where the gateway forwards the call. Returns the answer
    /// and the caller on whose behalf the call was proposed.
    ///
    /// # Errors
    /// Fails with a gRPC status if the call could not be proposed. The status gives the reason.
    async fn ask(
        &self,
        gate: &OpenGate,
        headers: Vec<(String, Vec<u8>)>,
        call: ToolCallParams,
        place: &[(&str, &str)],
    ) -> Result<(GateAnswer, Caller), GrpcStatus> {
        let caller = self.caller(gate, &headers)?;
        let session_id = Self::session(gate, &headers)?;
        drop(headers);
        let mut proposal = proposal::proposal(&gate.name, session_id, call, place);
        let claim_until = self.answer_by();
        let http = &self.http;
        let slot = http.waiting_asks.take_slot(&caller, &http.settings, None);
        let wait = claim_until
            .saturating_duration_since(Instant::now())
            .min(gate.gate.hold);
        proposal.wait = slot.as_ref().map_or(Duration::ZERO, |_| wait);
        let limit = ClaimLimit::Until(claim_until);
        match timed_ask(http, &caller, &proposal, self.surface, Some(&limit)).await {
            Ok(answer) => Ok((answer, caller)),
            Err(GateRefusal::InHand(call)) => {
                let answer = GateAnswer {
                    call: *call,
                    replayed: false,
                    delivery: None,
                    raw: None,
                };
                Ok((answer, caller))
            }
            Err(refusal) => Err(refusal_status(&refusal)),
        }
    }

    /// Returns the time at which this service must have the answer, so that the answer reaches the
    /// gateway before its deadline.
    fn answer_by(&self) -> Instant {
        let margin = |time: Duration| time.saturating_sub(ANSWER_MARGIN);
        self.started + self.timeout.map_or(DEFAULT_WAIT, margin)
    }

    /// Returns the time at which this service must have the answer to a report. It is
    /// [`Gateway::answer_by`], unless the client's timeout is under 1 s. It is then half of the
    /// timeout, which leaves time to read the report.
    fn answer_report_by(&self) -> Instant {
        let half = self.timeout.unwrap_or_default() / 2;
        self.answer_by().max(self.started + half)
    }

    /// Stores the outcome of an attempt at the call of `task`. If `attempt` is `None`, the report
    /// is about the last attempt. If the engine does not store the report, this function only logs
    /// a warning. The call then keeps its state, as if the gateway had sent no report.
    async fn report(
        &self,
        caller: Caller,
        (task, attempt): (TaskId, Option<u32>),
        outcome: ReportedOutcome,
        content: String,
    ) {
        let report = OutcomeReport {
            call: Ok(task),
            attempt,
            outcome,
            content,
        };
        let engine = Arc::clone(&self.http.engine);
        let reported = self
            .http
            .tracker
            .spawn(async move { engine.gates().report(&caller, &report, None).await.is_ok() });
        if !reported.await.unwrap_or(false) {
            tracing::warn!(%task, "the outcome that a gateway reported was not stored");
        }
    }
}

fn refusal_status(refusal: &GateRefusal) -> GrpcStatus {
    let code = match refusal {
        GateRefusal::TooManyOpen => GrpcCode::ResourceExhausted,
        GateRefusal::Command(Refusal::Unavailable) => GrpcCode::Unavailable,
        GateRefusal::Command(Refusal::Internal(_))
        | GateRefusal::InHand(_)
        | GateRefusal::Settled(_) => GrpcCode::Internal,
        GateRefusal::Command(_) => GrpcCode::PermissionDenied,
    };
    let text = if let GateRefusal::Command(Refusal::Invalid(errors)) = refusal {
        Problem::invalid(errors).detail.to_string()
    } else {
        refusal.to_string()
    };
    GrpcStatus::new(code, text)
}

/// Returns the value of a header; `None` without the header. Refuses a repeated header, because the
/// client may have sent one of the values in addition to the value that the gateway has set. Does
/// not notice this behind Envoy, which joins the values of a repeated header by commas.
///
/// # Errors
/// `PermissionDenied` for a repeated header.
fn single_header<'h>(
    headers: &'h CheckedHeaders,
    name: &str,
) -> Result<Option<&'h [u8]>, GrpcStatus> {
    let mut values = headers
        .iter()
        .filter(|(known, _)| known.eq_ignore_ascii_case(name));
    let found = values.next();
    if values.next().is_some() {
        let detail = format!("The checked request has more than one {name}.");
        return Err(GrpcStatus::denied(detail));
    }
    Ok(found.map(|(_, value)| value.as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::FieldError;

    #[test]
    fn status_of_an_invalid_proposal_names_the_place_and_the_expected_value() {
        let error = FieldError {
            pointer: "/gate".to_owned(),
            detail: "the name of a gate that is open to you".into(),
        };
        let status = refusal_status(&Refusal::Invalid(vec![error]).into());
        let text = "The request is not valid at `/gate`: the name of a gate that is open to you.";
        assert_eq!(status, GrpcStatus::new(GrpcCode::PermissionDenied, text));
    }
}
