//! `envoy.service.auth.v3.Authorization/Check`: answers whether an HTTP request may pass. Envoy
//! forwards the body of a permitted request unchanged, so the answer cannot edit a call. Envoy does
//! not report the outcome of the request.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::frames::{GrpcAnswer, GrpcCode, GrpcStatus};
use super::json_rpc::{JsonRpcMessage, RefusalReason, read_message};
use super::protobuf::{Malformed, bytes_fields, entry, message, pair, put_number, text};
use super::{CALL_HEADER, GATE_KEY, Gateway, results};
use crate::engine::gate::{GateDecision, ReportedOutcome};
use crate::task::mcp_revision::Revision;

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
    pub(super) const PATH: u64 = 4;
    pub(super) const HOST: u64 = 5;
    pub(super) const BODY: u64 = 11;
    pub(super) const RAW_BODY: u64 = 12;
    pub(super) const HEADER_MAP: u64 = 13;
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
const OVERWRITE_ACTION: u64 = 2;
/// The maximum number of headers of a checked request, because each kept header takes memory beyond
/// its bytes. Envoy's default limit is 100.
const MAX_HEADERS: usize = 1_000;

/// The HTTP request that Envoy asks about.
#[derive(Debug, Default)]
struct CheckedHttpRequest {
    method: String,
    /// The path to which Envoy routes the request, without the query. The query may hold a
    /// credential or the id of a connection, which change while the client waits for an approval.
    path: String,
    host: String,
    headers: BTreeMap<String, Vec<u8>>,
    body: Vec<u8>,
    /// Whether the body came as text. See [`may_be_altered`].
    is_body_text: bool,
    /// The name of the gate in the route's `context_extensions`; `None` if the route names no gate.
    gate: Option<String>,
}

/// Answers the gRPC call `Check`: whether the HTTP request in `message` may pass. Drops `message`,
/// and the body and the headers of the HTTP request, before the wait for a verdict, because the
/// wait may take minutes.
///
/// # Errors
/// Fails with a gRPC status if the request cannot be checked. Envoy then denies the request, if it
/// is configured with `failure_mode_allow: false`.
pub(super) async fn check(gateway: &Gateway, message: Bytes) -> Result<GrpcAnswer, GrpcStatus> {
    let mut checked = read(&message).map_err(|Malformed| GrpcStatus::malformed())?;
    drop(message);
    let gate = gateway.gate(checked.gate.as_deref())?;
    let other_response = |id: Option<&str>| {
        if gate.ext_authz.pass_others {
            allowed_response(None)
        } else {
            let why = "Only tools/call passes this gate.";
            denied_response(403, &results::error(id, -32601, why))
        }
    };
    let read = read_call(&checked);
    let revision = protocol_revision(&checked);
    let headers: Vec<_> = std::mem::take(&mut checked.headers).into_iter().collect();
    let (id, call) = match read {
        Ok(JsonRpcMessage::Call { id, call }) => (id, call),
        Ok(JsonRpcMessage::Other { id }) => {
            gateway.caller(&gate, &headers)?;
            return Ok(other_response(id.as_deref()).into());
        }
        Err(RefusalReason(why)) => {
            return Ok(denied_response(400, &results::error(None, -32600, &why)).into());
        }
    };
    let refused = |why: &str| denied_response(200, &results::refusal(&id, revision, why));
    let gates = gateway.http.engine.gates();
    if gates.runs_here(&gate.name, &call.name) {
        let why = "This tool is run by Holdpoint, not behind this gateway. It has not run.";
        return Ok(refused(why).into());
    }
    checked.body = Vec::new();
    let is_continuation = call.is_continuation();
    let (host, path) = (checked.host.as_str(), checked.path.as_str());
    let place = [("Host", host), ("Path", path)];
    let (answer, caller) = gateway.ask(&gate, headers, call, &place).await?;
    let call = &answer.call;
    if call.decision == GateDecision::Allow
        && let Some(permit) = call.permit
    {
        if !call.edited {
            return Ok(allowed_response(Some(&call.tool_call_id.to_string())).into());
        }
        let why = "A person changed this call, and this gateway cannot change it. It has not run.";
        let attempt = (call.task_id, Some(permit.attempt));
        gateway
            .report(caller, attempt, ReportedOutcome::Failed, why.to_owned())
            .await;
        return Ok(refused(why).into());
    }
    let result = results::result(&id, revision, gateway, call, &caller, is_continuation);
    Ok(GrpcAnswer {
        message: denied_response(200, &result),
        delivery: answer.delivery,
    })
}

/// Returns the revision of MCP that the request's header names. Without the header, and for a
/// revision that this service does not speak, returns the oldest revision, because every client can
/// read results of the oldest revision.
fn protocol_revision(checked: &CheckedHttpRequest) -> Revision {
    let header = checked.headers.get("mcp-protocol-version");
    let version = header.and_then(|value| str::from_utf8(value.trim_ascii()).ok());
    let revision = version.and_then(Revision::parse);
    revision.unwrap_or(Revision::June2025)
}

/// Returns the JSON-RPC message in the body of a POST. A GET, HEAD, DELETE or OPTIONS request calls
/// no tool, so its body is not read ([`JsonRpcMessage::Other`]). Refuses upgrades, other HTTP
/// methods, texts of a body that may be altered, truncated bodies, and bodies that the headers
/// declare as anything but plain UTF-8.
fn read_call(checked: &CheckedHttpRequest) -> Result<JsonRpcMessage, RefusalReason> {
    let header = |name: &str| checked.headers.get(name);
    // Envoy asks about no message that is sent after an upgrade, for example over a WebSocket.
    if header("upgrade").is_some() {
        return Err(RefusalReason(
            "A connection that is upgraded cannot be checked.".to_owned(),
        ));
    }
    match checked.method.as_str() {
        "POST" => {}
        "GET" | "HEAD" | "DELETE" | "OPTIONS" => return Ok(JsonRpcMessage::Other { id: None }),
        _ => return Err(RefusalReason("Only a POST calls a tool.".to_owned())),
    }
    if checked.is_body_text && may_be_altered(&checked.body) {
        return Err(RefusalReason(
            "The gateway must send a body with `!` or U+FFFD as bytes (`pack_as_bytes`)."
                .to_owned(),
        ));
    }
    let is_partial = header("x-envoy-auth-partial-body").is_some_and(|value| value != b"false");
    let length = header("content-length").map(Vec::as_slice);
    let is_complete =
        length.is_none_or(|length| length == checked.body.len().to_string().as_bytes());
    if !checked.body.is_empty() && (is_partial || !is_complete) {
        return Err(RefusalReason(
            "The gateway has sent a part of the body.".to_owned(),
        ));
    }
    // `Content-Encoding` and the charset in `Content-Type` tell the upstream how to decode the
    // body. Decoding could turn the body into another call than the call that is judged here.
    let encoding = header("content-encoding").map(|value| value.trim_ascii());
    if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"identity")) {
        return Err(RefusalReason(
            "The body must not have a Content-Encoding.".to_owned(),
        ));
    }
    if header("content-type").is_some_and(|value| !is_utf_8(value)) {
        return Err(RefusalReason("The body must be UTF-8.".to_owned()));
    }
    read_message(&checked.body)
}

/// Returns whether a body with this `Content-Type` is UTF-8. A body without a charset counts as
/// UTF-8. Two parsers could read a comma, or an unusual spelling of the charset, differently. For a
/// `Content-Type` with either, the function returns false. It takes every semicolon for the start
/// of a parameter, even a semicolon inside of quotes.
fn is_utf_8(content_type: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(content_type) else {
        return false;
    };
    let text = text.to_ascii_lowercase();
    !text.contains(',')
        && text.split(';').skip(1).map(str::trim).all(|parameter| {
            !parameter.starts_with("charset")
                || matches!(parameter, "charset=utf-8" | "charset=\"utf-8\"")
        })
}

fn read(bytes: &[u8]) -> Result<CheckedHttpRequest, Malformed> {
    let mut checked = CheckedHttpRequest::default();
    for field in bytes_fields(bytes) {
        let (number, attributes) = field?;
        if number == field::ATTRIBUTES {
            read_attributes(attributes, &mut checked)?;
        }
    }
    Ok(checked)
}

fn read_attributes(attributes: &[u8], checked: &mut CheckedHttpRequest) -> Result<(), Malformed> {
    for field in bytes_fields(attributes) {
        let (number, bytes) = field?;
        match number {
            field::REQUEST => {
                for field in bytes_fields(bytes) {
                    let (number, bytes) = field?;
                    if number == field::HTTP {
                        read_http(bytes, checked)?;
                    }
                }
            }
            field::CONTEXT_EXTENSIONS => {
                let (key, value) = entry(bytes)?;
                if key == GATE_KEY && checked.gate.replace(text(&value)?).is_some() {
                    return Err(Malformed);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether the gateway may forward other bytes than this text of a body. Without `pack_as_bytes`,
/// the text has another character for each byte that is not UTF-8: `!` of Envoy, and U+FFFD of
/// agentgateway. Both forward the original bytes.
fn may_be_altered(text: &[u8]) -> bool {
    str::from_utf8(text).is_ok_and(|text| text.contains(['!', '\u{FFFD}']))
}

/// Reads the HTTP request. Refuses a repeated header: the headers are a Protocol Buffers map, and
/// another parser would silently take the last value of a repeated key.
fn read_http(request: &[u8], checked: &mut CheckedHttpRequest) -> Result<(), Malformed> {
    for field in bytes_fields(request) {
        let (number, bytes) = field?;
        match number {
            field::METHOD => checked.method = text(bytes)?,
            field::PATH => {
                let mut path = printable(bytes)?;
                path.truncate(path.find('?').unwrap_or(path.len()));
                checked.path = path;
            }
            field::HOST => checked.host = printable(bytes)?,
            field::HEADERS => {
                let (name, value) = entry(bytes)?;
                let name = name.to_ascii_lowercase();
                let is_repeated = checked.headers.insert(name, value).is_some();
                if is_repeated || checked.headers.len() > MAX_HEADERS {
                    return Err(Malformed);
                }
            }
            field::BODY | field::RAW_BODY if !bytes.is_empty() => {
                if !checked.body.is_empty() {
                    return Err(Malformed);
                }
                checked.body = bytes.to_vec();
                checked.is_body_text = number == field::BODY;
            }
            // If Envoy's setting `encode_raw_headers` is on, Envoy sends the headers in this field
            // instead of in `HEADERS`. This service reads the user from `HEADERS` alone. So without
            // this refusal, it would judge every call as a call of the key's own user.
            field::HEADER_MAP if !bytes.is_empty() => return Err(Malformed),
            _ => {}
        }
    }
    Ok(())
}

/// Decodes a text that people see. Refuses control characters, which no host and no path has.
fn printable(bytes: &[u8]) -> Result<String, Malformed> {
    let text = text(bytes)?;
    if text.contains(char::is_control) {
        return Err(Malformed);
    }
    Ok(text)
}

fn header(key: &str, value: &str) -> Vec<u8> {
    let mut option = message(&[(field::HEADER, &pair(key, value.as_bytes()))]);
    put_number(&mut option, field::APPEND_ACTION, OVERWRITE_ACTION);
    option
}

/// Returns the `CheckResponse` that lets a request pass. For a tool call, Envoy sets
/// [`CALL_HEADER`] to the call's id. For any other request, Envoy removes this header, so that no
/// client can set it. Envoy always removes the header `holdpoint-key`.
fn allowed_response(call: Option<&str>) -> Vec<u8> {
    let (number, value) = match call {
        Some(call) => (field::OK_HEADERS, header(CALL_HEADER, call)),
        None => (field::HEADERS_TO_REMOVE, CALL_HEADER.into()),
    };
    let allowed = message(&[
        (number, &value),
        (field::HEADERS_TO_REMOVE, b"holdpoint-key"),
    ]);
    message(&[(field::STATUS, &[]), (field::OK, &allowed)])
}

/// Returns the `CheckResponse` that denies a request. Envoy answers the client with the HTTP status
/// `status` and the JSON `body`.
fn denied_response(status: u64, body: &str) -> Vec<u8> {
    let (mut code, mut http_status) = (Vec::new(), Vec::new());
    put_number(&mut code, field::CODE, GrpcCode::PermissionDenied as u64);
    put_number(&mut http_status, field::CODE, status);
    let kind = header("content-type", "application/json");
    let denied = message(&[
        (field::DENIED_STATUS, &http_status),
        (field::DENIED_HEADERS, &kind),
        (field::DENIED_BODY, body.as_bytes()),
    ]);
    message(&[(field::STATUS, &code), (field::DENIED, &denied)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_type_is_utf_8_only_without_another_charset() {
        for plain in [
            "",
            "application/json",
            "application/json; charset=utf-8",
            "application/json;CHARSET=\"UTF-8\" ; profile=x",
        ] {
            assert!(is_utf_8(plain.as_bytes()), "{plain}");
        }
        for other in [
            "application/json; charset=utf-16",
            "application/json;Charset=UTF-16LE",
            "application/json; charset=utf-8; charset=utf-16",
            "application/json; charset=utf-8,application/json; charset=utf-16",
            "application/json, text/plain",
            "application/json; charset = utf-16",
            "application/json; charset*=utf-16''x",
            "application/json; charset=\"utf-8;x\"",
            "application/json; charset=\"utf\\-16\"",
            "application/json; charset",
        ] {
            assert!(!is_utf_8(other.as_bytes()), "{other}");
        }
        assert!(!is_utf_8(b"application/json; charset=utf-8\xff"));
    }

    #[test]
    fn request_with_a_repeated_header_or_with_over_a_thousand_headers_is_refused() {
        let header = |name: &str| message(&[(field::HEADERS, &pair(name, b""))]);
        let mut http = Vec::new();
        for number in 0..1_000 {
            http.extend(header(&format!("{number:x}")));
        }
        let request = |http: &[u8]| {
            let request = message(&[(field::HTTP, http)]);
            message(&[(field::ATTRIBUTES, &message(&[(field::REQUEST, &request)]))])
        };
        assert_eq!(read(&request(&http)).unwrap().headers.len(), 1_000);
        for refused in ["FF", "other"] {
            let http = [http.clone(), header(refused)].concat();
            assert_eq!(read(&request(&http)).err(), Some(Malformed), "{refused}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_at_any_depth_are_read_or_refused(bytes: Vec<u8>) {
            let mut message = bytes.clone();
            for number in [field::HTTP, field::REQUEST, field::ATTRIBUTES] {
                message = super::message(&[(number, &message)]);
                if let Ok(checked) = read(&message) {
                    proptest::prop_assert!(checked.body.len() <= bytes.len());
                }
            }
        }
    }
}
