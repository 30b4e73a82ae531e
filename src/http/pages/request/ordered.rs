//! Reads JSON with its members in order and with every digit of its numbers. A
//! [`serde_json::Value`] would lose both.

use std::fmt;

use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The maximum length of a text that [`JsonNode::parse`] accepts, in bytes.
const MAX_TEXT_BYTES: usize = 64 * 1024;

/// The maximum length of short arguments, in bytes. The page puts the arguments of several calls
/// of a tool into one table only if the arguments of each call are short. In the form that edits
/// arguments, only short arguments have a field for each member.
pub(super) const MAX_SHORT_BYTES: usize = 4 * 1024;

/// The maximum nesting depth that [`JsonNode::parse`] accepts; a plain value has the depth 1.
const MAX_DEPTH: usize = 4;

/// A JSON value for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JsonNode {
    /// The text of a string, without quotation marks and escapes.
    Text(String),
    /// A number, `true`, `false` or `null`, as written.
    Literal(String),
    List(Vec<Self>),
    /// The members of an object, in the order in which they were written.
    Object(Vec<(String, Self)>),
}

impl JsonNode {
    /// Parses a text. An empty text counts as `{}`. Returns `None` if the text is not JSON, is too
    /// long, or is too deeply nested.
    #[must_use]
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_TEXT_BYTES {
            return None;
        }
        let text = match text.trim_matches([' ', '\t', '\n', '\r']) {
            "" => "{}",
            text => text,
        };
        Self::parse_nested(text, MAX_DEPTH)
    }

    fn parse_nested(text: &str, depth: usize) -> Option<Self> {
        let depth = depth.checked_sub(1)?;
        Some(match text.as_bytes().first()? {
            b'{' => Self::Object(
                members(text)?
                    .into_iter()
                    .map(|(name, value)| Some((name, Self::parse_nested(value.get(), depth)?)))
                    .collect::<Option<_>>()?,
            ),
            b'[' => {
                let values: Vec<&RawValue> = serde_json::from_str(text).ok()?;
                Self::List(
                    values
                        .into_iter()
                        .map(|value| Self::parse_nested(value.get(), depth))
                        .collect::<Option<_>>()?,
                )
            }
            b'"' => Self::Text(serde_json::from_str(text).ok()?),
            _ => {
                let literal: &RawValue = serde_json::from_str(text).ok()?;
                Self::Literal(literal.get().to_owned())
            }
        })
    }

    /// Returns whether the value is a string, a number, a boolean or null.
    #[must_use]
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Text(_) | Self::Literal(_))
    }
}

/// Returns the members of a JSON object in the order in which they were written, with unparsed
/// values. Returns `None` if `text` is not an object.
#[must_use]
pub(super) fn members(text: &str) -> Option<Vec<(String, &RawValue)>> {
    struct MembersVisitor;

    impl<'de> Visitor<'de> for MembersVisitor {
        type Value = Vec<(String, &'de RawValue)>;

        fn expecting(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
            into.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some(member) = map.next_entry()? {
                members.push(member);
            }
            Ok(members)
        }
    }

    let mut reader = serde_json::Deserializer::from_str(text);
    reader.deserialize_map(MembersVisitor).ok()
}

/// Follows the member names in `path` to an object inside a JSON text. Returns the names of the
/// object's members in the order in which they were written; none if there is no such object.
#[must_use]
pub(super) fn member_names_at(text: &str, path: &[&str]) -> Vec<String> {
    let Some(members) = members(text) else {
        return Vec::new();
    };
    let Some((first, rest)) = path.split_first() else {
        return members.into_iter().map(|(name, _)| name).collect();
    };
    members
        .into_iter()
        .find(|(name, _)| name == first)
        .map(|(_, value)| member_names_at(value.get(), rest))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(text: &str) -> JsonNode {
        JsonNode::Literal(text.into())
    }

    #[test]
    fn members_keep_their_order_and_numbers_their_digits() {
        assert_eq!(
            JsonNode::parse(r#" {"z": 20.10, "a": [1E2, "x"], "m": {"c": null, "b": true}} "#),
            Some(JsonNode::Object(vec![
                ("z".into(), literal("20.10")),
                (
                    "a".into(),
                    JsonNode::List(vec![literal("1E2"), JsonNode::Text("x".into())])
                ),
                (
                    "m".into(),
                    JsonNode::Object(vec![
                        ("c".into(), literal("null")),
                        ("b".into(), literal("true"))
                    ])
                ),
            ]))
        );
        assert_eq!(JsonNode::parse(""), Some(JsonNode::Object(Vec::new())));
    }

    #[test]
    fn long_deep_or_broken_text_is_not_read() {
        for text in ["{", "nope", "[[[[1]]]]"] {
            assert_eq!(JsonNode::parse(text), None, "{text}");
        }
        assert!(JsonNode::parse("[[[1]]]").is_some());
        assert_eq!(
            JsonNode::parse(&format!("\"{}\"", "x".repeat(MAX_TEXT_BYTES))),
            None
        );
    }

    #[test]
    fn names_of_a_nested_object_keep_their_order() {
        let text = r#"{"form": {"properties": {"z": {}, "a": {}}}}"#;
        assert_eq!(member_names_at(text, &["form", "properties"]), ["z", "a"]);
        assert!(member_names_at(text, &["form", "none"]).is_empty());
        assert!(member_names_at("nope", &[]).is_empty());
    }
}
