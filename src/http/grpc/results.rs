//! The JSON-RPC responses to calls that a gateway does not let through.

use serde_json::{Value, json};

use super::Gateway;
use crate::engine::gate::GateCall;
use crate::http::api::mcp::result::{gateway_result, refusal_result};
use crate::people::Caller;
use crate::task::mcp_revision::Revision;

/// Describes the state of a call that the gateway does not let through. Returns a text for the
/// model that proposed the call, and JSON members for the client program.
pub(super) fn refusal_parts(
    gateway: &Gateway,
    call: &GateCall,
    caller: &Caller,
    is_continuation: bool,
) -> (String, Value) {
    let settings = &gateway.http.settings;
    // The text and the members do not depend on the MCP revision, so any revision may stand here.
    let revision = Revision::June2025;
    let mut result = gateway_result(call, caller, settings, revision, is_continuation);
    let text = result.pointer("/content/0/text").and_then(Value::as_str);
    let text = text.unwrap_or_default().to_owned();
    let members = result.pointer_mut("/_meta/holdpoint~1gate");
    (text, members.map(Value::take).unwrap_or_default())
}

/// Returns the JSON-RPC response to a call that the gateway does not let through. `id` is the JSON
/// text of the request's id.
pub(super) fn result(
    id: &str,
    revision: Revision,
    gateway: &Gateway,
    call: &GateCall,
    caller: &Caller,
    is_continuation: bool,
) -> String {
    let settings = &gateway.http.settings;
    let result = gateway_result(call, caller, settings, revision, is_continuation);
    with_id(id, "result", &result)
}

/// Returns the JSON-RPC response to a call that cannot run behind this gateway: this service runs
/// the tool itself, or a person has edited the call. `text` tells the model the reason.
pub(super) fn refusal(id: &str, revision: Revision, text: &str) -> String {
    with_id(id, "result", &refusal_result(revision, text))
}

/// Returns a JSON-RPC error response. `id` is the JSON text of the request's id, if it is known.
pub(super) fn error(id: Option<&str>, code: i32, message: &str) -> String {
    let error = json!({"code": code, "message": message});
    with_id(id.unwrap_or("null"), "error", &error)
}

/// Returns a JSON-RPC response whose member `member` (`result` or `error`) is `value`. `id` is the
/// JSON text of the request's id, and is copied unchanged.
fn with_id(id: &str, member: &str, value: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"{member}":{value}}}"#)
}
