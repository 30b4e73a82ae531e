//! Rejected calls. A later call is refused without a new request if it equals a rejected call (same
//! tool, arguments equal as JSON values). The refusal names the person's reason. A rejection
//! applies until the user sends the next message, or until a person approves an equal call. The
//! expiry of a request does not count as a rejection.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use super::decimal::decimal;
use super::id::CallId;

/// The beginning of every text about a call that equals a rejected call.
pub(crate) const REPEATED_TEXT: &str = "A human has rejected this same call";

/// The rejected calls whose rejections still apply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RejectedCalls(Vec<RejectedCall>);

/// A rejected call, with the tool and the arguments by which an equal call is recognized.
#[derive(Clone, Debug, PartialEq)]
pub struct RejectedCall {
    pub call: CallId,
    /// Reason that the person gave for the rejection, if any. The model reads the reason when an
    /// equal call is refused.
    pub reason: Option<String>,
    tool: String,
    /// The arguments, as [`json_equality_key`] writes them.
    arguments_key: String,
}

impl RejectedCalls {
    /// Returns the last rejection of a call of `tool` with equal `arguments`, if any.
    #[must_use]
    pub fn find(&self, tool: &str, arguments: &Value) -> Option<&RejectedCall> {
        let key = json_equality_key(arguments);
        let mut newest = self.0.iter().rev();
        newest.find(|rejected| rejected.tool == tool && rejected.arguments_key == key)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn of_call(&self, call: CallId) -> Option<&RejectedCall> {
        self.0.iter().find(|rejected| rejected.call == call)
    }

    pub(super) fn add(
        &mut self,
        call: CallId,
        tool: &str,
        arguments_text: &str,
        reason: Option<String>,
    ) {
        // A rejected call with malformed arguments needs no entry. A later call with the same
        // arguments is invalid, and every invalid call is refused without a request.
        if let Ok(arguments) = parse_arguments(arguments_text) {
            self.0.push(RejectedCall {
                call,
                reason,
                tool: tool.to_owned(),
                arguments_key: json_equality_key(&arguments),
            });
        }
    }

    pub(super) fn remove_equal(&mut self, tool: &str, arguments_text: &str) {
        if let Ok(arguments) = parse_arguments(arguments_text) {
            let key = json_equality_key(&arguments);
            self.0
                .retain(|rejected| rejected.tool != tool || rejected.arguments_key != key);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Parses arguments. Empty text counts as an empty object, as in every call of a tool.
fn parse_arguments(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(without_blanks(text))
}

fn without_blanks(text: &str) -> &str {
    let text = text.trim_matches([' ', '\t', '\n', '\r']);
    if text.is_empty() { "{}" } else { text }
}

/// Whether two argument texts have equal values. Numbers are compared by all of their digits,
/// because the texts may be unchecked, so that a double may not hold their numbers.
pub(crate) fn are_equal_arguments(one: &str, other: &str) -> bool {
    let key = |text| {
        // Bounds the depth to which the key is built.
        parse_arguments(text).ok()?;
        exact_key(serde_json::from_str(without_blanks(text)).ok()?)
    };
    one == other || matches!((key(one), key(other)), (Some(one), Some(other)) if one == other)
}

/// Like [`json_equality_key`], but with all digits of each number. Returns `None` if the JSON
/// cannot be read.
fn exact_key(json: &RawValue) -> Option<String> {
    let text = json.get();
    Some(match text.bytes().next()? {
        b'{' => {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
            let members = members.into_iter().map(|(name, value)| {
                let name = Value::from(name);
                Some(format!("{name}:{}", exact_key(value)?))
            });
            format!("{{{}}}", members.collect::<Option<Vec<_>>>()?.join(","))
        }
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            let items = items.into_iter().map(exact_key);
            format!("[{}]", items.collect::<Option<Vec<_>>>()?.join(","))
        }
        b'-' | b'0'..=b'9' => format!("{:?}", decimal(text)?),
        _ => serde_json::from_str::<Value>(text).ok()?.to_string(),
    })
}

/// Returns a text by which JSON values are compared. Two values have the same text if and only if
/// the values are equal as JSON. The order of an object's members does not matter. Numbers are
/// compared as doubles, so 1 equals 1.0. No two different numbers of accepted arguments become the
/// same double, because `tool/arguments.rs` refuses numbers that lose digits as a double.
#[must_use]
pub(crate) fn json_equality_key(value: &Value) -> String {
    match value {
        Value::Number(number) => match number.as_f64() {
            // `-0.0` and `0.0` are equal as JSON. Adding `0.0` turns `-0.0` into `0.0`.
            Some(float) => format!("{:?}", float + 0.0),
            None => number.to_string(),
        },
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(json_equality_key).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members
                .iter()
                .map(|(name, value)| {
                    format!(
                        "{}:{}",
                        Value::from(name.as_str()),
                        json_equality_key(value)
                    )
                })
                .collect();
            members.sort_unstable();
            format!("{{{}}}", members.join(","))
        }
        Value::Null | Value::Bool(_) | Value::String(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn equal_arguments_match_a_rejected_call_however_they_are_written() {
        let mut rejections = RejectedCalls::default();
        let call = CallId(Uuid::from_u128(1));
        rejections.add(
            call,
            "pay",
            r#"{"amount": 1, "to": {"b": [1, 2.50], "a": null}}"#,
            None,
        );
        for (arguments, found) in [
            (
                json!({"to": {"a": null, "b": [1.0, 2.5]}, "amount": 1.0}),
                true,
            ),
            (
                json!({"to": {"a": null, "b": [2.5, 1]}, "amount": 1}),
                false,
            ),
            (
                json!({"to": {"a": null, "b": [1, 2.5]}, "amount": "1"}),
                false,
            ),
            (json!({"to": {"a": null, "b": [1, 2.5]}}), false),
            (json!({"to": {"b": [1, 2.5]}, "amount": 1}), false),
        ] {
            assert_eq!(
                rejections.find("pay", &arguments).is_some(),
                found,
                "{arguments}"
            );
        }
        assert!(
            rejections
                .find(
                    "Pay",
                    &json!({"to": {"a": null, "b": [1, 2.5]}, "amount": 1})
                )
                .is_none()
        );
        rejections.remove_equal("pay", r#"{"to":{"a":null,"b":[1,2.5]},"amount":1e0}"#);
        assert_eq!(rejections, RejectedCalls::default());
    }

    #[test]
    fn canonical_text_is_equal_for_equal_values_and_for_no_others() {
        let values = [
            json!({"a": 1, "b": [1, 2.50]}),
            json!({"b": [1.0, 2.5], "a": 1.0}),
            json!({"a": 1, "b": [2.5, 1]}),
            json!({"a": "1", "b": [1, 2.5]}),
            json!({"a": 1, "b": [1, 2.5], "c": null}),
            json!({"a": 1, "b": "[1.0,2.5]"}),
            json!({"a\":1.0,\"b": 1}),
            json!({"a": 0}),
            json!({"a": -0.0}),
            json!({"a": false}),
            json!([]),
            json!({}),
        ];
        let equal = [(0, 1), (7, 8)];
        for (index, one) in values.iter().enumerate() {
            for (later, other) in values.iter().enumerate().skip(index + 1) {
                assert_eq!(
                    json_equality_key(one) == json_equality_key(other),
                    equal.contains(&(index, later)),
                    "{one} {other}"
                );
            }
        }
    }

    #[test]
    fn argument_texts_are_compared_by_all_digits_of_their_numbers() {
        for (one, other, equal) in [
            (r#"{"a":1,"b":[2.50]}"#, r#" {"b":[25e-1],"a":1.0} "#, true),
            (r#"{"a":"\u0041"}"#, r#"{"a":"A"}"#, true),
            ("[1e3,0,-0]", "[1000,-0.0,0e9]", true),
            (
                r#"{"a":9007199254740993}"#,
                r#"{"a":9007199254740992}"#,
                false,
            ),
            ("[18446744073709551617]", "[18446744073709551616]", false),
            ("[0.1]", "[0.10000000000000000001]", false),
            ("[1e-400]", "[2e-400]", false),
            ("[1]", "[-1]", false),
            ("[1]", r#"["1"]"#, false),
            ("[", "[ ", false),
        ] {
            assert_eq!(are_equal_arguments(one, other), equal, "{one} {other}");
        }
    }

    #[test]
    fn call_without_arguments_equals_a_call_with_an_empty_object() {
        assert!(are_equal_arguments(" \n", "{ }") && !are_equal_arguments("", "{\"a\":1}"));
        let mut rejections = RejectedCalls::default();
        rejections.add(
            CallId(Uuid::from_u128(1)),
            "stop",
            " \n",
            Some("not now".to_owned()),
        );
        assert_eq!(
            rejections
                .find("stop", &json!({}))
                .unwrap()
                .reason
                .as_deref(),
            Some("not now")
        );
    }
}
