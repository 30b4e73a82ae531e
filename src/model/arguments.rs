//! Decides which arguments of an earlier call are sent to an endpoint. Some endpoints parse the
//! arguments of every call in a conversation, and refuse the conversation for good if one text is
//! not a JSON object.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::task::text::{InvalidEscape, replace_escapes};

/// Returns the arguments if they are a JSON object, otherwise `None`. The text stays byte for byte,
/// except that escapes of lone surrogates, which many parsers refuse, are replaced.
pub(super) fn object_text(arguments: &str) -> Option<Cow<'_, str>> {
    let text = replace_escapes(arguments, InvalidEscape::LoneSurrogates);
    let is_object = serde_json::from_str::<Map<String, Value>>(&text).is_ok();
    is_object.then_some(text)
}

/// Returns the arguments for a protocol that sends them as text. Arguments that are not a JSON
/// object are replaced by `{}`. The stored result of the call tells the model the mistake.
pub(super) fn sendable_arguments(arguments: &str) -> Cow<'_, str> {
    object_text(arguments).unwrap_or(Cow::Borrowed("{}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_is_sent_byte_for_byte_and_anything_else_as_an_empty_object() {
        for exact in [
            "{}",
            " { \"b\": 20.000000000000000001,\n \"a\": 1, \"a\": 2.50 } ",
            r#"{"a":"\ud83d\ude00\u0041"}"#,
        ] {
            assert_eq!(sendable_arguments(exact), exact);
        }
        for text in [
            "",
            " ",
            "[1]",
            "\"x\"",
            "null",
            "oops",
            r#"{"x":"1"#,
            "{} {}",
        ] {
            assert_eq!(sendable_arguments(text), "{}", "{text}");
        }
        assert_eq!(sendable_arguments(r#"{"a":"\ud800"}"#), r#"{"a":"\ufffd"}"#);
    }
}
