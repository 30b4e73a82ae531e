//! Reads a client's JSON-RPC 2.0 message. A body contains exactly one message. Invariant: a message
//! that repeats a member outside of `arguments` is refused here. This module does not look into
//! `arguments`. If a member is repeated there, the gate judges the call as invalid.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderMap;
use serde_json::{Map, Value};

use super::json_rpc::RpcError;
use crate::http::server::json::{JsonError, check_count, is_json, parse_except};
use crate::task::mcp_revision::Revision;

const MAX_ID_BYTES: usize = 256;
/// The member of `_meta` that names the protocol revision of a request.
const VERSION_MEMBER: &str = "io.modelcontextprotocol/protocolVersion";
/// The member of `_meta` with the capabilities of the client.
const CAPABILITIES_MEMBER: &str = "io.modelcontextprotocol/clientCapabilities";

#[derive(Debug)]
pub(super) struct Incoming {
    /// The id of a request; `None` for a notification.
    pub(super) id: Option<Value>,
    pub(super) method: String,
    pub(super) params: Result<Params, RpcError>,
}

/// A method of an MCP request that this server answers.
#[derive(Clone, Copy, Debug)]
pub(super) enum RpcMethod {
    Initialize,
    Ping,
    Discover,
    ListTools,
    CallTool,
}

impl RpcMethod {
    /// Returns the method with this name.
    ///
    /// # Errors
    /// [`RpcError::unknown_method`] if the revision has no such method.
    pub(super) fn parse(name: &str, revision: Revision) -> Result<Self, RpcError> {
        match (name, revision.is_stateless()) {
            ("initialize", false) => Ok(Self::Initialize),
            ("ping", false) => Ok(Self::Ping),
            ("server/discover", true) => Ok(Self::Discover),
            ("tools/list", _) => Ok(Self::ListTools),
            ("tools/call", _) => Ok(Self::CallTool),
            (_, _) => Err(RpcError::unknown_method(revision)),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Params {
    /// All members but `arguments`.
    pub(super) members: Map<String, Value>,
    /// The JSON text of `arguments`, byte for byte; `None` without this member.
    pub(super) arguments: Option<String>,
}

impl Params {
    pub(super) fn meta(&self, name: &str) -> Option<&Value> {
        self.members.get("_meta")?.get(name)
    }

    /// Fails if `_meta` is present and is not an object.
    pub(super) fn check_meta(&self) -> Result<(), RpcError> {
        match self.members.get("_meta") {
            Some(meta) if !meta.is_object() => {
                Err(RpcError::invalid_params("`_meta` must be an object"))
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.members.get(name).and_then(Value::as_str)
    }
}

/// Reads the message in a body. A body with more than one message is refused.
pub(super) fn read(bytes: &[u8]) -> Result<Incoming, RpcError> {
    if !is_json(bytes) {
        return Err(RpcError::parse_error());
    }
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(RpcError::invalid_request(
            "A body must be one message; batches are not supported",
        ));
    }
    check_count(bytes)?;
    let (rest, params) = parse_except(bytes, "params")?;
    let text = |name: &str| rest.get(name).and_then(Value::as_str);
    if text("jsonrpc") != Some("2.0") {
        return Err(RpcError::invalid_request("`jsonrpc` must be \"2.0\""));
    }
    let Some(method) = text("method") else {
        return Err(RpcError::invalid_request("`method` must be a string"));
    };
    let id = rest.get("id").cloned();
    if id.as_ref().is_some_and(|id| !is_id(id)) {
        return Err(RpcError::invalid_request(format!(
            "`id` must be a string of at most {MAX_ID_BYTES} bytes or a whole number"
        )));
    }
    Ok(Incoming {
        method: method.to_owned(),
        params: params.map_or_else(|| Ok(Params::default()), |text| read_params(&text)),
        id,
    })
}

fn is_id(id: &Value) -> bool {
    id.is_i64() || id.is_u64() || id.as_str().is_some_and(|id| id.len() <= MAX_ID_BYTES)
}

fn read_params(text: &str) -> Result<Params, RpcError> {
    if !text.starts_with('{') {
        return Err(RpcError::invalid_params("`params` must be an object"));
    }
    let (rest, arguments) = parse_except(text.as_bytes(), "arguments")?;
    let Value::Object(members) = rest else {
        return Err(RpcError::invalid_params("`params` must be an object"));
    };
    Ok(Params { members, arguments })
}

impl From<JsonError> for RpcError {
    fn from(error: JsonError) -> Self {
        Self::invalid_request(match error {
            JsonError::Invalid(detail) => detail,
            JsonError::TooManyValues => "The JSON has too many values".to_owned(),
        })
    }
}

/// Returns the protocol revision of a message. Refuses a message whose headers contradict its body.
/// In the revision 2026-07-28, headers repeat the revision, the method and the called tool, because
/// proxies do not read the body. A message of this revision without these headers is refused. A
/// request of this revision must also name the revision and the client's capabilities in `_meta`.
pub(super) fn check_headers(
    incoming: &Incoming,
    headers: &HeaderMap,
) -> Result<Revision, RpcError> {
    let header = single_header(headers, "mcp-protocol-version")?;
    let params = incoming.params.as_ref().ok();
    let body = params.and_then(|params| params.meta(VERSION_MEMBER)?.as_str());
    let Some(named) = header.or(body) else {
        return Ok(Revision::June2025);
    };
    if body.is_some_and(|body| body != named) {
        return Err(RpcError::invalid_headers(
            "MCP-Protocol-Version is not the revision in `_meta`",
        ));
    }
    let revision = Revision::parse(named).ok_or_else(|| RpcError::unsupported_version(named))?;
    if !revision.is_stateless() {
        return Ok(revision);
    }
    if header.is_none() {
        return Err(RpcError::invalid_headers("MCP-Protocol-Version is missing"));
    }
    if single_header(headers, "mcp-method")? != Some(incoming.method.as_str()) {
        return Err(RpcError::invalid_headers(
            "Mcp-Method is not the method in the body",
        ));
    }
    if incoming.id.is_some() {
        // A message `initialize` follows an older revision, so its `_meta` names no revision. The
        // method is checked before `_meta`, so that the client gets the error of an unknown method,
        // not the error of a missing member of `_meta`.
        RpcMethod::parse(&incoming.method, revision)?;
    }
    if incoming.method == "tools/call" {
        let name = single_header(headers, "mcp-name")?.and_then(decode_header);
        let same = params.is_none_or(|params| {
            params.text("name").is_some() && params.text("name") == name.as_deref()
        });
        if !same {
            return Err(RpcError::invalid_headers(
                "Mcp-Name is not the name in the body",
            ));
        }
    }
    if let Some(params) = params.filter(|_| incoming.id.is_some()) {
        if body.is_none() {
            return Err(RpcError::missing_meta(VERSION_MEMBER));
        }
        if !params
            .meta(CAPABILITIES_MEMBER)
            .is_some_and(Value::is_object)
        {
            return Err(RpcError::missing_meta(CAPABILITIES_MEMBER));
        }
    }
    Ok(revision)
}

/// Returns the session id in the header `Holdpoint-Session`; `None` without the header. This
/// function does not check the form of the id.
pub(super) fn session_header(headers: &HeaderMap) -> Result<Option<&str>, RpcError> {
    single_header(headers, "holdpoint-session")
}

/// Returns the value of a header; `None` without the header. Fails if the header is sent twice or
/// its value is not visible ASCII.
fn single_header<'h>(
    headers: &'h HeaderMap,
    name: &'static str,
) -> Result<Option<&'h str>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(RpcError::invalid_headers(format!("{name} is sent twice")));
    }
    let Some(value) = value else {
        return Ok(None);
    };
    let text = value.to_str().map(str::trim);
    text.map(Some)
        .map_err(|_| RpcError::invalid_headers(format!("{name} is not visible ASCII")))
}

/// Decodes a header value, which the client may have encoded in Base64. Returns `None` if the
/// Base64 or the decoded text is invalid.
fn decode_header(value: &str) -> Option<String> {
    let inside = value.strip_prefix("=?base64?");
    let Some(inside) = inside.and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(value.to_owned());
    };
    String::from_utf8(BASE64_STANDARD.decode(inside).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::sample::select;

    use super::*;

    /// Names of members as a client may write them: five different names, and `method` once more
    /// with an escape.
    const NAMES: [&str; 6] = ["jsonrpc", "id", "method", "params", "meth\\u006fd", "x"];
    const VALUES: [&str; 13] = [
        "\"2.0\"",
        "7",
        "1e0",
        "null",
        "\"tools/call\"",
        "\"tools\\/call\"",
        "{}",
        "[1]",
        "{\"name\":\"pay\",\"arguments\":{\"a\" : 1.0,\"a\":2}}",
        "{\"name\":\"a\",\"name\":\"b\"}",
        "{\"arguments\":[]}",
        "01",
        "{",
    ];

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }

        #[test]
        fn message_is_read_as_another_parser_reads_it_and_refused_if_it_repeats_a_member(
            members in proptest::collection::vec((select(NAMES.to_vec()), select(VALUES.to_vec())), 0..6),
        ) {
            let texts = members.iter().map(|(name, value)| format!(",\"{name}\":{value}"));
            let texts: Vec<String> = texts.collect();
            let body = format!("{{\"jsonrpc\":\"2.0\"{}}}", texts.concat());
            if let Ok(incoming) = read(body.as_bytes()) {
                let names = members.iter().map(|(name, _)| name.replace("\\u006f", "o"));
                let names: BTreeSet<_> = names.chain(["jsonrpc".to_owned()]).collect();
                proptest::prop_assert_eq!(names.len(), members.len() + 1, "{}", body);
                let other: Value = serde_json::from_str(&body).unwrap();
                proptest::prop_assert_eq!(Some(incoming.method.as_str()), other["method"].as_str());
                proptest::prop_assert_eq!(incoming.id.as_ref(), other.get("id"));
                if let Ok(params) = incoming.params {
                    let other = &other["params"];
                    proptest::prop_assert_eq!(params.text("name"), other["name"].as_str());
                    let arguments = params.arguments.as_deref();
                    let arguments = arguments.map(|text| serde_json::from_str::<Value>(text).unwrap());
                    proptest::prop_assert_eq!(arguments.as_ref(), other.get("arguments"));
                }
            }
        }
    }
}
