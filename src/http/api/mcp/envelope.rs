//! Reads a message of a client: JSON-RPC 2.0, one message in a body. Invariant: a message that
//! repeats a member outside of `arguments` is refused. A member repeated inside `arguments` makes
//! the call invalid.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderMap;
use serde_json::{Map, Value};

use super::answer::Failure;
use crate::http::server::json::{Unread, is_json, set_aside};
use crate::task::mcp_revision::Revision;

/// The maximum length of a text id, in bytes.
const ID: usize = 256;
/// The member of `_meta` with the revision that a request speaks.
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The member of `_meta` with the capabilities of the client.
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// A request or a notification of a client.
#[derive(Debug)]
pub(super) struct Incoming {
    /// The id of a request; `None` for a notification.
    pub(super) id: Option<Value>,
    pub(super) method: String,
    pub(super) params: Result<Params, Failure>,
}

/// The parameters of a message. They are empty if the message has none.
#[derive(Debug, Default)]
pub(super) struct Params {
    /// All members but `arguments`.
    pub(super) members: Map<String, Value>,
    /// The text of `arguments`, to the byte; `None` without this member.
    pub(super) arguments: Option<String>,
}

impl Params {
    /// Returns the member `name` of `_meta`.
    pub(super) fn meta(&self, name: &str) -> Option<&Value> {
        self.members.get("_meta")?.get(name)
    }

    /// Returns the member `name`, if it is a string.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.members.get(name).and_then(Value::as_str)
    }
}

/// Reads the message in a body. A body with more than one message is refused.
pub(super) fn read(bytes: &[u8]) -> Result<Incoming, Failure> {
    if !is_json(bytes) {
        return Err(Failure::unreadable());
    }
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Failure::request(
            "A body is one message; batches are not taken",
        ));
    }
    let (rest, params) = set_aside(bytes, "params").map_err(refused)?;
    let text = |name: &str| rest.get(name).and_then(Value::as_str);
    if text("jsonrpc") != Some("2.0") {
        return Err(Failure::request("`jsonrpc` must be \"2.0\""));
    }
    let Some(method) = text("method") else {
        return Err(Failure::request("`method` must be a string"));
    };
    let id = rest.get("id").cloned();
    if id.as_ref().is_some_and(|id| !is_id(id)) {
        return Err(Failure::request("`id` must be a string or a whole number"));
    }
    Ok(Incoming {
        method: method.to_owned(),
        params: params.map_or_else(|| Ok(Params::default()), |text| read_params(&text)),
        id,
    })
}

fn is_id(id: &Value) -> bool {
    id.is_i64() || id.is_u64() || id.as_str().is_some_and(|id| id.len() <= ID)
}

fn read_params(text: &str) -> Result<Params, Failure> {
    if !text.starts_with('{') {
        return Err(Failure::params("`params` must be an object"));
    }
    let (rest, arguments) = set_aside(text.as_bytes(), "arguments").map_err(refused)?;
    let Value::Object(members) = rest else {
        return Err(Failure::params("`params` must be an object"));
    };
    Ok(Params { members, arguments })
}

fn refused(unread: Unread) -> Failure {
    Failure::request(match unread {
        Unread::Bad(detail) => detail,
        Unread::TooMany => "The JSON has too many values".to_owned(),
    })
}

/// Returns the revision of a message. A message of 2026-07-28 repeats its revision, its method and
/// its tool in headers, for proxies that read no body. If the headers contradict the body, the
/// message is refused.
pub(super) fn check_headers(incoming: &Incoming, headers: &HeaderMap) -> Result<Revision, Failure> {
    let header = single(headers, "mcp-protocol-version")?;
    let params = incoming.params.as_ref().ok();
    let body = params.and_then(|params| params.meta(VERSION)?.as_str());
    let Some(named) = header.or(body) else {
        return Ok(Revision::June2025);
    };
    if body.is_some_and(|body| body != named) {
        return Err(Failure::headers(
            "MCP-Protocol-Version is not the revision in `_meta`",
        ));
    }
    let revision = Revision::named(named).ok_or_else(|| Failure::version(named))?;
    if !revision.is_stateless() {
        return Ok(revision);
    }
    if header.is_none() {
        return Err(Failure::headers("MCP-Protocol-Version is missing"));
    }
    if single(headers, "mcp-method")? != Some(incoming.method.as_str()) {
        return Err(Failure::headers("Mcp-Method is not the method in the body"));
    }
    if let Some(params) = params.filter(|_| incoming.id.is_some()) {
        if body.is_none() {
            return Err(Failure::incomplete(VERSION));
        }
        if !params.meta(CAPABILITIES).is_some_and(Value::is_object) {
            return Err(Failure::incomplete(CAPABILITIES));
        }
    }
    if incoming.method == "tools/call" {
        let name = single(headers, "mcp-name")?.and_then(decoded);
        let same = params.is_none_or(|params| {
            params.text("name").is_some() && params.text("name") == name.as_deref()
        });
        if !same {
            return Err(Failure::headers("Mcp-Name is not the name in the body"));
        }
    }
    Ok(revision)
}

/// Returns the value of a header, which may be sent only once.
fn single<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h str>, Failure> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(Failure::headers(format!("{name} is sent twice")));
    }
    let Some(value) = value else {
        return Ok(None);
    };
    let text = value.to_str().map(str::trim);
    text.map(Some)
        .map_err(|_| Failure::headers(format!("{name} is not visible ASCII")))
}

/// Decodes the text of a header, which may be in Base64.
fn decoded(value: &str) -> Option<String> {
    let inside = value.strip_prefix("=?base64?");
    let Some(inside) = inside.and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(value.to_owned());
    };
    String::from_utf8(BASE64_STANDARD.decode(inside).ok()?).ok()
}
