//! Reads JSON with its members in order and with every digit of its numbers: a parsed
//! [`serde_json::Value`] keeps neither.

use std::fmt;

use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The maximum length of a text that is read for display, in bytes. A longer text is shown as it
/// was written.
const LONGEST: usize = 4 * 1024;

/// The maximum nesting depth of a text that is read for display.
const DEEPEST: usize = 4;

/// A JSON value for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// The text of a string, without quotation marks and escapes.
    Text(String),
    /// A number, `true`, `false` or `null`, as written.
    Literal(String),
    /// The values of an array.
    List(Vec<Self>),
    /// The members of an object, in the order in which they were written.
    Object(Vec<(String, Self)>),
}

impl Node {
    /// Parses a text; an empty text counts as `{}`. `None` if the text is not JSON, is long or is
    /// deeply nested.
    #[must_use]
    pub(super) fn read(text: &str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let text = match text.trim_matches([' ', '\t', '\n', '\r']) {
            "" => "{}",
            text => text,
        };
        Self::within(text, DEEPEST)
    }

    fn within(text: &str, depth: usize) -> Option<Self> {
        let depth = depth.checked_sub(1)?;
        Some(match text.as_bytes().first()? {
            b'{' => Self::Object(
                members(text)?
                    .into_iter()
                    .map(|(name, value)| Some((name, Self::within(value.get(), depth)?)))
                    .collect::<Option<_>>()?,
            ),
            b'[' => {
                let values: Vec<&RawValue> = serde_json::from_str(text).ok()?;
                Self::List(
                    values
                        .into_iter()
                        .map(|value| Self::within(value.get(), depth))
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

    /// Returns whether the value is neither a list nor an object.
    #[must_use]
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Text(_) | Self::Literal(_))
    }
}

/// Returns the members of a JSON object in the order of its text, each value as unparsed text.
/// `None` if `text` is no object.
#[must_use]
pub(super) fn members(text: &str) -> Option<Vec<(String, &RawValue)>> {
    struct Written;

    impl<'de> Visitor<'de> for Written {
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
    reader.deserialize_map(Written).ok()
}

/// Returns the names of the members of the object at `path` in a JSON text, in the order of the
/// text. Empty if there is no such object.
#[must_use]
pub(super) fn names_at(text: &str, path: &[&str]) -> Vec<String> {
    let Some(members) = members(text) else {
        return Vec::new();
    };
    let Some((first, rest)) = path.split_first() else {
        return members.into_iter().map(|(name, _)| name).collect();
    };
    members
        .into_iter()
        .find(|(name, _)| name == first)
        .map(|(_, value)| names_at(value.get(), rest))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(text: &str) -> Node {
        Node::Literal(text.into())
    }

    #[test]
    fn members_keep_their_order_and_numbers_their_digits() {
        assert_eq!(
            Node::read(r#" {"z": 20.10, "a": [1E2, "x"], "m": {"c": null, "b": true}} "#),
            Some(Node::Object(vec![
                ("z".into(), literal("20.10")),
                (
                    "a".into(),
                    Node::List(vec![literal("1E2"), Node::Text("x".into())])
                ),
                (
                    "m".into(),
                    Node::Object(vec![
                        ("c".into(), literal("null")),
                        ("b".into(), literal("true"))
                    ])
                ),
            ]))
        );
        assert_eq!(Node::read(""), Some(Node::Object(Vec::new())));
    }

    #[test]
    fn long_deep_or_broken_text_is_not_read() {
        for text in ["{", "nope", "[[[[1]]]]"] {
            assert_eq!(Node::read(text), None, "{text}");
        }
        assert!(Node::read("[[[1]]]").is_some());
        assert_eq!(Node::read(&format!("\"{}\"", "x".repeat(5000))), None);
    }

    #[test]
    fn names_of_a_nested_object_keep_their_order() {
        let text = r#"{"form": {"properties": {"z": {}, "a": {}}}}"#;
        assert_eq!(names_at(text, &["form", "properties"]), ["z", "a"]);
        assert!(names_at(text, &["form", "none"]).is_empty());
        assert!(names_at("nope", &[]).is_empty());
    }
}
