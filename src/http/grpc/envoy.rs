//! `envoy.service.auth.v3.Authorization/Check`: answers whether an HTTP request may pass. Envoy
//! then forwards the bytes that it sent for the check. It cannot change them, and it reports no
//! outcome.

use super::checked::{Message, Refused, message};
use super::frames::{Answer, Code, Status};
use super::wire::{
    FieldValue, Malformed, WireFields, bytes_fields, entry, pair, put_bytes, put_number, text,
};
use super::{CALL, GATE, Gateway, results};
use crate::agent::gate::Report;
use crate::engine::gate::Decision;

/// The field numbers of the Protocol Buffers messages, grouped by message.
mod field {
    // CheckRequest
    pub(super) const ATTRIBUTES: u64 = 1;
    // AttributeContext
    pub(super) const REQUEST: u64 = 4;
    pub(super) const CONTEXT_EXTENSIONS: u64 = 10;
    // AttributeContext.Request
    pub(super) const HTTP: u64 = 2;
    // AttributeContext.HttpRequest
    pub(super) const METHOD: u64 = 2;
    pub(super) const HEADERS: u64 = 3;
    pub(super) const BODY: u64 = 11;
    pub(super) const RAW_BODY: u64 = 12;
    // CheckResponse
    pub(super) const STATUS: u64 = 1;
    pub(super) const DENIED: u64 = 2;
    pub(super) const OK: u64 = 3;
    // google.rpc.Status, HttpStatus
    pub(super) const CODE: u64 = 1;
    // DeniedHttpResponse
    pub(super) const DENIED_STATUS: u64 = 1;
    pub(super) const DENIED_HEADERS: u64 = 2;
    pub(super) const DENIED_BODY: u64 = 3;
    // OkHttpResponse
    pub(super) const OK_HEADERS: u64 = 2;
    pub(super) const HEADERS_TO_REMOVE: u64 = 5;
    // HeaderValueOption
    pub(super) const HEADER: u64 = 1;
    pub(super) const APPEND_ACTION: u64 = 3;
}

/// The append action `OVERWRITE_IF_EXISTS_OR_ADD` of a `HeaderValueOption`.
const OVERWRITE: u64 = 2;

/// The HTTP request that Envoy asks about.
#[derive(Debug, Default)]
struct Checked {
    method: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    /// The name of the gate in the route's `context_extensions`; `None` if the route names no gate.
    gate: Option<String>,
}

/// Answers `Check`.
///
/// # Errors
/// The gRPC status with which Envoy denies the request.
pub(super) async fn check(gateway: &Gateway, bytes: &[u8]) -> Result<Answer, Status> {
    let checked = read(bytes).map_err(|Malformed| Status::malformed())?;
    let gate = gateway.gate(checked.gate.as_deref())?;
    let reports = gate.gate.report == Report::Required;
    let others = |passes: bool| {
        if passes {
            ok(None)
        } else {
            let why = "Only tools/call passes this gate.";
            denied(403, &results::error(-32601, why))
        }
    };
    if matches!(
        checked.method.as_str(),
        "GET" | "HEAD" | "DELETE" | "OPTIONS"
    ) {
        gateway.caller(&gate, &checked.headers)?;
        return Ok(others(gate.ext_authz.pass_others).into());
    }
    let (id, call) = match call_of(&checked) {
        Ok(Message::Call { id, call }) => (id, call),
        Ok(Message::Other) => {
            gateway.caller(&gate, &checked.headers)?;
            return Ok(others(gate.ext_authz.pass_others).into());
        }
        Err(Refused(why)) => return Ok(denied(400, &results::error(-32600, &why)).into()),
    };
    if reports {
        let detail = "Envoy reports no outcome: the gate needs `report: optional`.";
        return Err(Status::new(Code::PermissionDenied, detail));
    }
    if gateway.http.engine.runs_here(&gate.name, &call.name) {
        let why = "This tool is run by Holdpoint, not behind this gateway. It has not run.";
        return Ok(denied(200, &results::refusal(&id, why)).into());
    }
    let asked = (call.name, call.arguments);
    let (answer, caller) = gateway.ask(&gate, &checked.headers, asked).await?;
    let call = &answer.call;
    if call.decision == Decision::Allow && call.permit.is_some() && !call.edited {
        return Ok(ok(Some(&call.tool_call_id.to_string())).into());
    }
    Ok(Answer {
        message: denied(200, &results::result(&id, gateway, call, &caller)),
        delivery: answer.delivery,
    })
}

/// Returns the JSON-RPC message in the body of a POST. Refuses other methods and truncated bodies.
fn call_of(checked: &Checked) -> Result<Message, Refused> {
    let header = |name: &str| checked.headers.iter().find(|(known, _)| known == name);
    if checked.method != "POST" {
        return Err(Refused("Only a POST calls a tool.".to_owned()));
    }
    let cut = header("x-envoy-auth-partial-body").is_some_and(|(_, value)| value != b"false");
    let length = header("content-length").map(|(_, value)| value.as_slice());
    let whole = length.is_none_or(|length| length == checked.body.len().to_string().as_bytes());
    if !checked.body.is_empty() && (cut || !whole) {
        return Err(Refused(
            "The gateway has sent a part of the body.".to_owned(),
        ));
    }
    message(&checked.body)
}

fn read(bytes: &[u8]) -> Result<Checked, Malformed> {
    let mut checked = Checked::default();
    for (number, attributes) in bytes_fields(bytes)? {
        if number == field::ATTRIBUTES {
            read_attributes(attributes, &mut checked)?;
        }
    }
    Ok(checked)
}

fn read_attributes(attributes: &[u8], checked: &mut Checked) -> Result<(), Malformed> {
    for (number, bytes) in bytes_fields(attributes)? {
        match number {
            field::REQUEST => {
                for (number, bytes) in bytes_fields(bytes)? {
                    if number == field::HTTP {
                        read_http(bytes, checked)?;
                    }
                }
            }
            field::CONTEXT_EXTENSIONS => {
                let (key, value) = entry(bytes)?;
                if key == GATE && checked.gate.replace(text(&value)?).is_some() {
                    return Err(Malformed);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Reads the HTTP request. Refuses a repeated header: the headers are a Protocol Buffers map, and
/// another parser takes the last value of a repeated key.
fn read_http(request: &[u8], checked: &mut Checked) -> Result<(), Malformed> {
    for field in WireFields::of(request) {
        let (number, FieldValue::Bytes(bytes)) = field? else {
            continue;
        };
        match number {
            field::METHOD => checked.method = text(bytes)?,
            field::HEADERS => {
                let (name, value) = entry(bytes)?;
                let name = name.to_ascii_lowercase();
                if checked.headers.iter().any(|(known, _)| *known == name) {
                    return Err(Malformed);
                }
                checked.headers.push((name, value));
            }
            field::BODY | field::RAW_BODY if !bytes.is_empty() => {
                if !checked.body.is_empty() {
                    return Err(Malformed);
                }
                checked.body = bytes.to_vec();
            }
            _ => {}
        }
    }
    Ok(())
}

fn header(key: &str, value: &str) -> Vec<u8> {
    let mut option = Vec::new();
    put_bytes(&mut option, field::HEADER, &pair(key, value.as_bytes()));
    put_number(&mut option, field::APPEND_ACTION, OVERWRITE);
    option
}

/// Returns the `CheckResponse` that lets a request pass. For a call, the header [`CALL`] is set to
/// the call's id; for another request, the header is removed. The client can therefore not set it.
fn ok(call: Option<&str>) -> Vec<u8> {
    let mut allowed = Vec::new();
    if let Some(call) = call {
        put_bytes(&mut allowed, field::OK_HEADERS, &header(CALL, call));
    } else {
        put_bytes(&mut allowed, field::HEADERS_TO_REMOVE, CALL.as_bytes());
    }
    put_bytes(&mut allowed, field::HEADERS_TO_REMOVE, b"holdpoint-key");
    let mut response = Vec::new();
    put_bytes(&mut response, field::STATUS, &[]);
    put_bytes(&mut response, field::OK, &allowed);
    response
}

/// Returns the `CheckResponse` that denies a request. Envoy answers the client with the HTTP status
/// `status` and the JSON `body`.
fn denied(status: u64, body: &str) -> Vec<u8> {
    let (mut code, mut http_status) = (Vec::new(), Vec::new());
    put_number(&mut code, field::CODE, Code::PermissionDenied as u64);
    put_number(&mut http_status, field::CODE, status);
    let mut denied = Vec::new();
    put_bytes(&mut denied, field::DENIED_STATUS, &http_status);
    let kind = header("content-type", "application/json");
    put_bytes(&mut denied, field::DENIED_HEADERS, &kind);
    put_bytes(&mut denied, field::DENIED_BODY, body.as_bytes());
    let mut response = Vec::new();
    put_bytes(&mut response, field::STATUS, &code);
    put_bytes(&mut response, field::DENIED, &denied);
    response
}
