//! Reads and writes the envelope of MCP messages: JSON-RPC 2.0, in the three supported revisions of
//! MCP. Invariant: a message that repeats a member, at any depth, is rejected, because another
//! parser may read it differently.

use std::fmt::Write as _;

use serde::Deserialize;
use serde::de::{DeserializeSeed as _, IgnoredAny};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::task::json_members::StrictValue;
pub(crate) use crate::task::mcp_revision::Revision;
use crate::task::text::{InvalidEscape, from_bytes, replace_escapes};

/// The maximum nesting depth of a message.
const MAX_DEPTH: usize = 128;

fn client_info() -> Value {
    json!({"name": "holdpoint", "version": env!("CARGO_PKG_VERSION")})
}

/// A request or, without an id, a notification. The texts in `params` and `meta` must be JSON. They
/// are written unchanged.
pub(super) struct RpcRequest<'r> {
    pub(super) id: Option<&'r str>,
    pub(super) method: &'r str,
    pub(super) params: Vec<(&'static str, String)>,
    pub(super) meta: Vec<(&'static str, String)>,
}

impl<'r> RpcRequest<'r> {
    pub(super) fn new(id: &'r str, method: &'r str) -> Self {
        Self {
            id: Some(id),
            method,
            params: Vec::new(),
            meta: Vec::new(),
        }
    }

    /// Builds the request that begins a conversation in the older revisions.
    pub(super) fn initialize(id: &'r str) -> Self {
        let revision = json!(Revision::November2025.as_str());
        Self {
            params: vec![
                ("protocolVersion", revision.to_string()),
                ("capabilities", "{}".to_owned()),
                ("clientInfo", client_info().to_string()),
            ],
            ..Self::new(id, "initialize")
        }
    }

    pub(super) fn notification(method: &'r str) -> Self {
        Self {
            id: None,
            ..Self::new("", method)
        }
    }

    /// Returns the message as JSON. The texts in `params` and `meta` may contain line breaks, so
    /// the message may have several lines.
    pub(super) fn text(&self, revision: Revision) -> String {
        let mut text = String::from("{\"jsonrpc\":\"2.0\"");
        if let Some(id) = self.id {
            let _ = write!(text, ",\"id\":{}", json!(id));
        }
        let _ = write!(text, ",\"method\":{},\"params\":{{", json!(self.method));
        for (name, value) in &self.params {
            let _ = write!(text, "\"{name}\":{value},");
        }
        text.push_str("\"_meta\":{");
        let mut meta = self.meta.clone();
        if revision.is_stateless() && self.id.is_some() {
            let capabilities = json!({"elicitation": {"form": {}, "url": {}}});
            meta.push((
                "io.modelcontextprotocol/protocolVersion",
                json!(revision.as_str()).to_string(),
            ));
            meta.push((
                "io.modelcontextprotocol/clientInfo",
                client_info().to_string(),
            ));
            meta.push((
                "io.modelcontextprotocol/clientCapabilities",
                capabilities.to_string(),
            ));
        }
        for (index, (name, value)) in meta.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(text, "{comma}\"{name}\":{value}");
        }
        text.push_str("}}}");
        text
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ServerMessage {
    /// The answer to the request with this id.
    Answer(Value, RpcAnswer),
    /// A request of the server, with its id and method.
    Request(Value, String),
    /// A notification, with its method.
    Notification(String),
}

/// The answer to a request: a result or a JSON-RPC error.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RpcAnswer {
    Result(Value),
    Error { code: i64, message: String },
}

#[derive(Deserialize)]
struct Envelope {
    jsonrpc: String,
    id: Option<Value>,
    method: Option<String>,
    #[serde(default, deserialize_with = "present")]
    result: Option<Value>,
    error: Option<ErrorObject>,
}

#[derive(Deserialize)]
struct ErrorObject {
    code: i64,
    #[serde(default)]
    message: String,
}

/// Deserializes an explicit `null` as `Some(Null)`. A missing member becomes `None`.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

impl RpcAnswer {
    /// Whether the answer is a complete result: neither an error, nor an MCP task, nor a request
    /// for input.
    pub(super) fn is_complete(&self) -> bool {
        let Self::Result(result) = self else {
            return false;
        };
        let kind = result.get("resultType").and_then(Value::as_str);
        result.is_object() && kind.is_none_or(|kind| kind == "complete")
    }

    /// Whether the answer proves that the request was not executed: by its error code, or because
    /// the session is unknown. For an unknown session, the official servers answer -32001 with
    /// status 404.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Error { code, .. } if NOT_EXECUTED.contains(code) || *code == -32001)
    }
}

impl ServerMessage {
    /// Parses one message. `text` must have been returned by [`readable`]. Returns `None` if the
    /// text is not a valid message.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let value = StrictValue(MAX_DEPTH).deserialize(&mut reader).ok()?;
        reader.end().ok()?;
        let envelope = Envelope::deserialize(value).ok()?;
        if envelope.jsonrpc != "2.0" {
            return None;
        }
        let id = envelope.id.unwrap_or(Value::Null);
        match (envelope.method, envelope.result, envelope.error) {
            (Some(method), None, None) if id.is_null() => Some(Self::Notification(method)),
            (Some(method), None, None) if is_short(&id) => Some(Self::Request(id, method)),
            (None, Some(result), None) => Some(Self::Answer(id, RpcAnswer::Result(result))),
            (None, None, Some(ErrorObject { code, message })) => {
                Some(Self::Answer(id, RpcAnswer::Error { code, message }))
            }
            _ => None,
        }
    }
}

/// Returns the text of a message. Invalid UTF-8, unescaped U+0000 and lone surrogates become
/// U+FFFD, because a single such character would make the whole message unreadable.
pub(super) fn readable(message: &[u8]) -> String {
    replace_escapes(&from_bytes(message), InvalidEscape::LoneSurrogates).into_owned()
}

/// Returns the id of an answer that [`ServerMessage::read`] cannot read. Returns `None` if the
/// message is a request. Also returns `None` if the id is missing, repeated, or not a text.
pub(super) fn unreadable_answer_id(message: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Unreadable {
        id: String,
        method: Option<IgnoredAny>,
    }
    let answer: Unreadable = serde_json::from_str(message).ok()?;
    answer.method.is_none().then_some(answer.id)
}

/// Returns the text of the result in `message`, byte for byte. `message` must have been returned by
/// [`readable`]. Returns `None` if the message is an error.
pub(super) fn raw_result(message: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Raw<'m> {
        #[serde(borrow)]
        result: Option<&'m RawValue>,
    }
    let raw: Raw<'_> = serde_json::from_str(message).ok()?;
    raw.result.map(|result| result.get().to_owned())
}

/// Returns the reply to a server's request. Only the older revisions allow a server to send
/// requests. In these revisions, the client declares no capability, so it answers `ping`, cancels
/// an elicitation, and refuses every other request.
pub(super) fn reply(id: &Value, method: &str) -> String {
    let reply = match method {
        "ping" => json!({"jsonrpc": "2.0", "id": id, "result": {}}),
        "elicitation/create" => json!({"jsonrpc": "2.0", "id": id, "result": {"action": "cancel"}}),
        _ => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "Method not found"}})
        }
    };
    reply.to_string()
}

fn is_short(id: &Value) -> bool {
    id.is_number() || id.as_str().is_some_and(|id| id.len() <= 256)
}

pub(super) fn is_list_change(method: &str) -> bool {
    method == "notifications/tools/list_changed"
}

/// The error codes that prove that a call was not executed: a malformed request, an unknown method
/// and invalid parameters (JSON-RPC 2.0, section 5.1), and the errors of MCP revision 2026-07-28
/// about a request's headers, capabilities and revision.
pub(super) const NOT_EXECUTED: [i64; 7] = [-32700, -32600, -32601, -32602, -32020, -32021, -32022];

/// Whether the answer is the error of a server that does not support the revision of the request.
pub(super) fn is_unsupported(answer: &RpcAnswer) -> bool {
    matches!(answer, RpcAnswer::Error { code: -32022, .. })
}

/// Whether the answer to `server/discover` says that the server speaks the stateless revision
/// (2026-07-28).
pub(super) fn is_stateless(answer: &RpcAnswer) -> bool {
    let RpcAnswer::Result(result) = answer else {
        return false;
    };
    let versions = result.get("supportedVersions").and_then(Value::as_array);
    let newest = json!(Revision::July2026.as_str());
    versions.is_some_and(|versions| versions.contains(&newest))
}

/// Returns the server's `serverInfo` in the answer to `server/discover`; `Null` if there is none.
pub(super) fn server_info(answer: &RpcAnswer) -> Value {
    let RpcAnswer::Result(result) = answer else {
        return Value::Null;
    };
    let meta = result.get("_meta");
    let info = meta.and_then(|meta| meta.get("io.modelcontextprotocol/serverInfo"));
    info.cloned().unwrap_or_default()
}

/// Returns the revision and the `serverInfo` in a server's answer to `initialize`. Fails with the
/// reason if the answer is an error, or if its revision is unknown or is the stateless revision.
pub(super) fn initialized(answer: RpcAnswer) -> Result<(Revision, Value), String> {
    let result = match answer {
        RpcAnswer::Result(result) => result,
        RpcAnswer::Error { code, .. } => {
            return Err(format!("it refused to begin, with error {code}"));
        }
    };
    let name = result
        .get("protocolVersion")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let revision = Revision::parse(name).filter(|revision| !revision.is_stateless());
    let revision = revision.ok_or("it uses another revision of the protocol")?;
    Ok((
        revision,
        result.get("serverInfo").cloned().unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_with_a_repeated_member_or_another_version_is_not_read() {
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"id":2,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{},"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"isError":true,"isError":false}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"a":1,"\u0061":2}]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"data":1,"data":2}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{},"x":1,"x":1}"#,
            r#"{"jsonrpc":"1.0","id":1,"result":{}}"#,
            r#"[{"jsonrpc":"2.0","id":1,"result":{}}]"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}} x"#,
        ] {
            assert_eq!(ServerMessage::read(text), None, "{text}");
        }
        let plain = r#"{"jsonrpc":"2.0","id":1,"result":{"a":[{"b":-1.5},{"b":"x"}],"b":null}}"#;
        let result = json!({"a": [{"b": -1.5}, {"b": "x"}], "b": null});
        assert_eq!(
            ServerMessage::read(plain),
            Some(ServerMessage::Answer(json!(1), RpcAnswer::Result(result)))
        );
        let empty = ServerMessage::read(r#"{"jsonrpc":"2.0","id":"a","result":null}"#);
        assert_eq!(
            empty,
            Some(ServerMessage::Answer(
                json!("a"),
                RpcAnswer::Result(Value::Null)
            ))
        );
    }

    #[test]
    fn message_with_characters_that_no_text_can_hold_is_read_with_replacements() {
        let message = &readable(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{ \"a\":\"b\\ud83d\\\\ud83d \\ud83d\\ude00\xff\"}}");
        let result = json!({"a": "b\u{FFFD}\\ud83d \u{1F600}\u{FFFD}"});
        assert_eq!(
            ServerMessage::read(message),
            Some(ServerMessage::Answer(json!(1), RpcAnswer::Result(result)))
        );
        let raw = raw_result(message);
        let kept = "{ \"a\":\"b\\ufffd\\\\ud83d \\ud83d\\ude00\u{FFFD}\"}";
        assert_eq!(raw.as_deref(), Some(kept));
    }

    #[test]
    fn unreadable_answer_is_known_by_its_id_and_a_request_is_not() {
        for (text, id) in [
            (r#"{"id":"a","result":{},"result":{}}"#, Some("a")),
            (r#"{"jsonrpc":"2.0","id":"a"}"#, Some("a")),
            (r#"{"id":"a","id":"b"}"#, None),
            (r#"{"id":"a","method":"x","method":"y"}"#, None),
            (r#"{"id":"a","method":"x"}"#, None),
            (r#"{"id":1}"#, None),
            (r#"{"id":"a""#, None),
        ] {
            let found = unreadable_answer_id(text);
            assert_eq!(found.as_deref(), id, "{text}");
        }
    }

    #[test]
    fn texts_of_a_request_are_written_as_they_are() {
        let request = RpcRequest {
            params: vec![
                ("name", "\"t\"".to_owned()),
                ("arguments", "{ \"a\" : 1.0 }".to_owned()),
            ],
            meta: vec![("holdpoint/call", "\"c\"".to_owned())],
            ..RpcRequest::new("c", "tools/call")
        };
        assert_eq!(
            request.text(Revision::November2025),
            r#"{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"t","arguments":{ "a" : 1.0 },"_meta":{"holdpoint/call":"c"}}}"#
        );
        let newest: Value = serde_json::from_str(&request.text(Revision::July2026)).unwrap();
        let meta = &newest["params"]["_meta"];
        assert_eq!(
            meta["io.modelcontextprotocol/protocolVersion"],
            "2026-07-28"
        );
        assert_eq!(
            meta["io.modelcontextprotocol/clientInfo"]["name"],
            "holdpoint"
        );
    }
}
