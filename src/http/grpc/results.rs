//! The JSON-RPC bodies with which a call is answered that a gateway does not let through.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::engine::gate::{CallState, Decision, GateCall};
use crate::http::wire::gate::GateCall as WireCall;
use crate::task::item::Outcome;

/// The time after which a pending call is asked about again.
const RETRY_AFTER_MS: u64 = 30_000;

/// The members that tell a client about a call at a gate.
pub(super) fn gate_members(wire: &WireCall) -> Value {
    let request = wire.request.as_ref();
    json!({
        "state": wire.state,
        "task_id": wire.task_id,
        "request_id": request.map(|request| &request.request_id),
        "url": request.map(|request| &request.url),
        "expires_at": wire.expires_at,
        "retry_after_ms": RETRY_AFTER_MS,
    })
}

/// One paragraph about a call, for the model that proposed it.
pub(super) fn sentence(call: &GateCall, wire: &WireCall) -> String {
    let url = wire.request.as_ref().map(|request| request.url.as_str());
    let at = url.map(|url| format!(" at {url}")).unwrap_or_default();
    match (call.state, call.decision) {
        (CallState::Doubtful, _) => {
            format!("It may have run. Do not repeat it. A person is asked{at} .")
        }
        (_, Decision::Pending) => {
            let rule = match (&call.rule, &call.reason) {
                (Some(rule), Some(reason)) => format!(" (rule {rule}: {reason})"),
                (Some(rule), None) => format!(" (rule {rule})"),
                (None, Some(reason)) => format!(" ({reason})"),
                (None, None) => String::new(),
            };
            format!(
                "HELD. A person must approve this call of {}{rule}. It has NOT run. Approve it{at} . To get its result, \
                 make exactly the same call again later; do not change its arguments, and do not try another way.",
                call.tool
            )
        }
        (_, Decision::Deny) => match (call.outcome, &call.result) {
            (Some(Outcome::Responded), Some(result)) => result.content.clone(),
            (Some(Outcome::Rejected), _) => {
                format!("{} It has not run. Do not try again.", call.message())
            }
            _ => format!("{} It has not run.", call.message()),
        },
        (_, Decision::Allow) => call.message(),
    }
}

/// The result of a call that is not let through.
pub(super) fn result(id: &str, call: &GateCall, wire: &WireCall) -> String {
    let responded = call.outcome == Some(Outcome::Responded) && call.result.is_some();
    let text = sentence(call, wire);
    with_id(
        id,
        "result",
        &json!({
            "isError": !responded,
            "content": [{"type": "text", "text": text}],
            "_meta": {"holdpoint/gate": gate_members(wire)},
        }),
    )
}

/// The result that says why a call can never pass here.
pub(super) fn refusal(id: &str, text: &str) -> String {
    with_id(
        id,
        "result",
        &json!({"isError": true, "content": [{"type": "text", "text": text}]}),
    )
}

/// A JSON-RPC error.
pub(super) fn error(code: i32, message: &str) -> String {
    with_id("null", "error", &json!({"code": code, "message": message}))
}

/// A response with the request's id as it was written.
fn with_id(id: &str, member: &str, value: &Value) -> String {
    let id: Option<Box<RawValue>> = serde_json::from_str(id).ok();
    json!({"jsonrpc": "2.0"})
        .to_string()
        .strip_suffix('}')
        .map(|start| {
            let id = id.as_ref().map_or("null", |id| id.get());
            format!(r#"{start},"id":{id},"{member}":{value}}}"#)
        })
        .unwrap_or_default()
}
