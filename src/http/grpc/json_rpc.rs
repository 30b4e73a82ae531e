//! Reads the JSON-RPC request that a gateway asks about. Refuses messages that two parsers could
//! read differently: repeated members, member names that differ from a known name only in case,
//! batches, and truncated bodies. This module does not look into the arguments of a tool call. If a
//! member is repeated there, the gate judges the call as invalid.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::http::api::gate::MAX_TOOL_NAME_BYTES;
use crate::http::server::json::{self, JsonError};

/// The JSON-RPC method of a tool call. A request with any other method is `JsonRpcMessage::Other`.
pub(super) const TOOLS_CALL: &str = "tools/call";
/// The members of a tool call's parameters that do not count as [`ToolCallParams::others`]. The
/// member `_meta` differs in each repetition of a call (`progressToken`).
const OWN_MEMBERS: [&str; 3] = ["name", "arguments", "_meta"];
/// The member by which an upstream recognizes a request that continues an earlier one. Its text is
/// for the upstream alone.
pub(super) const REQUEST_STATE: &str = "requestState";
/// The member with the client's answers to questions that the upstream asked about an earlier
/// request.
const INPUT_RESPONSES: &str = "inputResponses";

/// A JSON-RPC message that a gateway asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JsonRpcMessage {
    Call {
        /// The JSON text of the request's id, as the client wrote it.
        id: String,
        call: ToolCallParams,
    },
    /// Any other message: a request with another method, a notification, or a response.
    Other {
        /// The JSON text of the request's id; `None` for a notification or a response.
        id: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolCallParams {
    pub name: String,
    /// The JSON text of the arguments, byte for byte; `{}` if the request has none.
    pub arguments: String,
    /// The JSON texts of all other members except `_meta`, by name, without white space between
    /// tokens.
    pub others: BTreeMap<String, String>,
}

impl ToolCallParams {
    /// Whether the call continues an earlier request. Once such a call is answered, neither the
    /// model nor its client can make the call again.
    pub(super) fn is_continuation(&self) -> bool {
        let mut members = [REQUEST_STATE, INPUT_RESPONSES].into_iter();
        members.any(|member| self.others.contains_key(member))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RefusalReason(pub String);

impl From<JsonError> for RefusalReason {
    fn from(error: JsonError) -> Self {
        Self(match error {
            JsonError::Invalid(detail) => detail,
            JsonError::TooManyValues => "The JSON has too many values.".to_owned(),
        })
    }
}

fn refuse<T>(why: &str) -> Result<T, RefusalReason> {
    Err(RefusalReason(why.to_owned()))
}

/// Reads the JSON-RPC message in the body of a POST.
///
/// # Errors
/// Fails if the body is not a JSON-RPC message, or if the tool call in the body is not valid. The
/// error gives the reason.
pub(super) fn read_message(body: &[u8]) -> Result<JsonRpcMessage, RefusalReason> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return refuse("The body is missing.");
    }
    let (rest, params) = json::parse_except(body, "params")?;
    let rest = members(&rest, &["jsonrpc", "id", "method", "params"])?;
    if rest.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return refuse("`jsonrpc` must be \"2.0\".");
    }
    let method = match rest.get("method") {
        Some(Value::String(method)) => Some(method.as_str()),
        Some(_) => return refuse("`method` must be a string."),
        None => None,
    };
    let id = match rest.get("id") {
        Some(Value::String(_) | Value::Number(_)) => json::member(body, "id"),
        Some(_) | None => None,
    };
    if method != Some(TOOLS_CALL) {
        if let Some(params) = params {
            json::parse(params.as_bytes())?;
        }
        return Ok(JsonRpcMessage::Other { id: method.and(id) });
    }
    let Some(id) = id else {
        return refuse("A call needs an `id`: a string or a number.");
    };
    match params {
        Some(params) => Ok(JsonRpcMessage::Call {
            id,
            call: read_tool_call(params.as_bytes())?,
        }),
        None => refuse("A call needs `params`."),
    }
}

/// Reads the parameters of a tool call.
///
/// # Errors
/// Fails if `params` cannot be the parameters of a tool call. The error gives the reason.
pub(super) fn read_tool_call(params: &[u8]) -> Result<ToolCallParams, RefusalReason> {
    let (rest, arguments) = json::parse_except(params, "arguments")?;
    let rest = members(&rest, &OWN_MEMBERS)?;
    let is_other = |name: &String| !OWN_MEMBERS.contains(&name.as_str());
    let mut others = BTreeMap::new();
    if rest.keys().any(is_other) {
        others = json::members(params);
        others.retain(|name, _| is_other(name));
    }
    let is_name =
        |name: &str| (1..=MAX_TOOL_NAME_BYTES).contains(&name.len()) && !name.contains('\0');
    match rest.get("name") {
        Some(Value::String(name)) if is_name(name) => Ok(ToolCallParams {
            name: name.clone(),
            arguments: arguments.unwrap_or_else(|| "{}".to_owned()),
            others,
        }),
        Some(_) | None => refuse("`name` must be the name of a tool."),
    }
}

/// Returns `params` with the arguments replaced by `arguments`. The text of every other member is
/// unchanged. Returns `None` if `params` or `arguments` is malformed.
pub(super) fn with_arguments(params: &[u8], arguments: &str) -> Option<Vec<u8>> {
    let arguments: Box<RawValue> = serde_json::from_str(arguments).ok()?;
    let mut members: BTreeMap<String, &RawValue> = serde_json::from_slice(params).ok()?;
    members.insert("arguments".to_owned(), &arguments);
    serde_json::to_vec(&members).ok()
}

/// Returns the members of an object. Refuses a member name that differs from a `known` name only in
/// case, because a lenient parser would read such a name as the known name.
fn members<'v>(
    value: &'v Value,
    known: &[&str],
) -> Result<&'v serde_json::Map<String, Value>, RefusalReason> {
    let Value::Object(members) = value else {
        return refuse("The message must be an object.");
    };
    let folded = |name: &str| name.to_uppercase().to_lowercase();
    let differs_in_case =
        |name: &String| !known.contains(&name.as_str()) && known.contains(&folded(name).as_str());
    if members.keys().any(differs_in_case) {
        return refuse("A member's name differs from a known one only in case.");
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use proptest::strategy::Strategy as _;

    use super::*;

    #[test]
    fn call_is_read_to_the_byte() {
        let body = br#" {"params":{"_meta":{"a":1}, "arguments": {"a" : 1.0,"a":2}, "name":"pay"},"method":"tools\/call","id":1e2,"jsonrpc":"2.0"}"#;
        let call = ToolCallParams {
            name: "pay".to_owned(),
            arguments: r#"{"a" : 1.0,"a":2}"#.to_owned(),
            others: BTreeMap::new(),
        };
        let id = "1e2".to_owned();
        assert_eq!(read_message(body), Ok(JsonRpcMessage::Call { id, call }));
        let bare = br#"{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"pay"}}"#;
        assert!(
            matches!(read_message(bare), Ok(JsonRpcMessage::Call { call, .. }) if call.arguments == "{}")
        );
    }

    #[test]
    fn other_members_of_a_call_are_kept_without_white_space() {
        let params =
            br#"{"requestState":"s", "name":"pay","inputResponses": {"q": 1.0}, "X": "a b"}"#;
        let others = [
            ("X", r#""a b""#),
            ("inputResponses", r#"{"q":1.0}"#),
            ("requestState", r#""s""#),
        ];
        let others = others.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let call = read_tool_call(params).unwrap();
        assert_eq!(call.others, BTreeMap::from(others));
    }

    #[test]
    fn other_messages_are_no_calls() {
        for (body, id) in [
            (
                r#"{"jsonrpc":"2.0","id":1e0,"method":"tools/list"}"#,
                Some("1e0"),
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/initialized","params":{}}"#,
                None,
            ),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, None),
            (
                r#"{"jsonrpc":"2.0","id":"1","method":"Tools/Call"}"#,
                Some("\"1\""),
            ),
        ] {
            let id = id.map(str::to_owned);
            assert_eq!(
                read_message(body.as_bytes()),
                Ok(JsonRpcMessage::Other { id }),
                "{body}"
            );
        }
    }

    #[test]
    fn ambiguous_messages_are_refused() {
        for body in [
            "",
            "  ",
            "nothing",
            "[]",
            r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay"}}]"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","paramſ":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1,"a":2}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","Arguments":{}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a\u0000b"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1]}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"a"}}"#,
            r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"a"}}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"} {}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"na"#,
        ] {
            assert!(read_message(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn edited_arguments_leave_the_other_members_as_they_were() {
        let params = br#"{"name":"pay","_meta":{"n": 1.0},"arguments":{"a":1}}"#;
        let edited = with_arguments(params, r#"{"a": 2.0}"#).unwrap();
        let expected = r#"{"_meta":{"n": 1.0},"arguments":{"a": 2.0},"name":"pay"}"#;
        assert_eq!(String::from_utf8(edited).unwrap(), expected);
    }

    /// Generates members of JSON-RPC messages. Some names differ from a known name so little that
    /// lenient parsers confuse the two.
    fn any_member() -> impl proptest::strategy::Strategy<Value = String> {
        let name = proptest::sample::select(vec![
            "jsonrpc",
            "id",
            "method",
            "params",
            "Method",
            "METHOD",
            "paramS",
            "meth\\u006fd",
            "x",
        ]);
        let value = proptest::sample::select(vec![
            "\"2.0\"",
            "7",
            "null",
            "\"tools/call\"",
            "\"tools\\/call\"",
            "\"ping\"",
            "{}",
            "[1]",
            "{\"name\":\"pay\"}",
            "{\"name\":\"a\",\"name\":\"b\"}",
            "{\"Name\":\"pay\"}",
            "01",
            "{",
        ]);
        (name, value).prop_map(|(name, value)| format!("\"{name}\":{value}"))
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = (read_message(&bytes), read_tool_call(&bytes));
        }

        #[test]
        fn message_that_another_parser_takes_for_a_call_is_never_another(
            members in proptest::collection::vec(any_member(), 0..6),
        ) {
            let members: Vec<String> = members.into_iter().chain(["\"end\":0".to_owned()]).collect();
            let body = format!("{{\"jsonrpc\":\"2.0\",{}}}", members.join(","));
            let lenient: Option<Value> = serde_json::from_str(&body).ok();
            let lenient = lenient.as_ref().and_then(Value::as_object);
            let is_call = lenient.is_some_and(|all| all.iter().any(|(name, value)| {
                name.eq_ignore_ascii_case("method") && value == TOOLS_CALL
            }));
            if is_call {
                let read = read_message(body.as_bytes());
                proptest::prop_assert!(!matches!(read, Ok(JsonRpcMessage::Other { .. })), "{}", body);
            }
        }
    }
}
