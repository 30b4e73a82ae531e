//! Functions for text and JSON. They replace lone surrogates, which a Rust string cannot hold, and
//! U+0000, which Postgres refuses. They cut text at character boundaries, build JSON pointers and
//! canonical JSON, and map each text of a JSON value.

use std::borrow::Cow;

use serde_json::Value;

/// Returns the JSON of `value` with sorted keys and without blanks between tokens. Values that
/// differ only in the order of members give the same text. The digests of agents and of tools are
/// computed over this text.
#[must_use]
pub(crate) fn canonical_json(value: &Value) -> String {
    let mut sorted = value.clone();
    sorted.sort_all_objects();
    sorted.to_string()
}

/// Replaces each U+0000 in a text of a model or a tool by U+FFFD, because Postgres refuses U+0000.
/// Texts of clients have no U+0000, because the HTTP API refuses such texts.
#[must_use]
pub(crate) fn without_nul(text: String) -> String {
    if text.contains('\0') {
        text.replace('\0', "\u{FFFD}")
    } else {
        text
    }
}

/// Decodes bytes to text that both databases can store: invalid UTF-8 and U+0000 become U+FFFD.
#[must_use]
pub(crate) fn from_bytes(bytes: &[u8]) -> String {
    without_nul(String::from_utf8_lossy(bytes).into_owned())
}

/// The kind of escape in a JSON text that [`replace_escapes`] replaces by the escape of U+FFFD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidEscape {
    /// U+0000.
    Nul,
    /// Lone surrogates, which a Rust string cannot hold.
    LoneSurrogates,
}

/// Returns the text with each escape of the kind `invalid` replaced by the escape of U+FFFD. The
/// text may be invalid JSON.
#[must_use]
pub(crate) fn replace_escapes(text: &str, invalid: InvalidEscape) -> Cow<'_, str> {
    let suspicious = match invalid {
        InvalidEscape::Nul => text.contains("\\u0000"),
        InvalidEscape::LoneSurrogates => text.contains("\\ud") || text.contains("\\uD"),
    };
    if !suspicious {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let (length, replaced) = match (utf16_unit(escape), invalid) {
            (Some(0), InvalidEscape::Nul)
            | (Some(0xDC00..=0xDFFF), InvalidEscape::LoneSurrogates) => (6, true),
            (Some(0xD800..=0xDBFF), InvalidEscape::LoneSurrogates) => {
                match escape.get(6..).and_then(utf16_unit) {
                    Some(0xDC00..=0xDFFF) => (12, false),
                    _ => (6, true),
                }
            }
            (Some(_) | None, _) => (escape_length(escape), false),
        };
        let (escape, after) = escape.split_at_checked(length).unwrap_or((escape, ""));
        if replaced {
            out.push_str("\\ufffd");
        } else {
            out.push_str(escape);
        }
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Returns the UTF-16 unit of the escape `\uXXXX` at the start of the text. `None` if the text does
/// not begin with such an escape.
pub(super) fn utf16_unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        u16::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

/// Returns the length in bytes of the escape at the start of the text.
#[must_use]
pub(crate) fn escape_length(escape: &str) -> usize {
    if utf16_unit(escape).is_some() {
        6
    } else {
        1 + escape.chars().nth(1).map_or(0, char::len_utf8)
    }
}

/// Returns the longest prefix of `text` that has at most `bytes` bytes and ends at a character
/// boundary.
#[must_use]
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or("")
}

/// Returns the lines of a text, joined by spaces, without the empty ones.
#[must_use]
pub(crate) fn one_line(text: &str) -> String {
    let is_break = |c| {
        matches!(
            c,
            '\n' | '\u{b}'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let lines = text.split(is_break).map(str::trim);
    lines
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the text with a full stop, unless it is empty or ends with a punctuation mark.
#[must_use]
pub(crate) fn as_sentence(text: &str) -> String {
    let text = text.trim_end();
    let is_ended = text.is_empty() || text.ends_with(['.', '!', '?', '。', '！', '？', ':', ';']);
    format!("{text}{}", if is_ended { "" } else { "." })
}

/// Returns the JSON pointer (RFC 6901) of the member `member` of the value at the pointer `at`.
#[must_use]
pub(crate) fn pointer(at: &str, member: &str) -> String {
    format!("{at}/{}", member.replace('~', "~0").replace('/', "~1"))
}

/// Splits a JSON pointer (RFC 6901) into its unescaped member names and indexes.
#[must_use]
pub(crate) fn pointer_steps(pointer: &str) -> Vec<String> {
    let steps = pointer.split('/').skip(1);
    steps
        .map(|step| step.replace("~1", "/").replace("~0", "~"))
        .collect()
}

/// Calls `visit` for `value` and for each value inside it, with the JSON pointer of that value. A
/// value comes before the values inside it. `at` is the pointer of `value` itself.
pub(crate) fn visit_values<'v>(
    value: &'v Value,
    at: &str,
    visit: &mut impl FnMut(&str, &'v Value),
) {
    visit(at, value);
    match value {
        Value::Object(members) => {
            for (name, inner) in members {
                visit_values(inner, &pointer(at, name), visit);
            }
        }
        Value::Array(elements) => {
            for (index, inner) in elements.iter().enumerate() {
                visit_values(inner, &pointer(at, &index.to_string()), visit);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns the number of nested objects and lists, the outermost included; 0 for any other value.
#[must_use]
pub(crate) fn nesting_depth(value: &Value) -> usize {
    match value {
        Value::Object(members) => 1 + members.values().map(nesting_depth).max().unwrap_or(0),
        Value::Array(elements) => 1 + elements.iter().map(nesting_depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Replaces each string, member name and number of `value` by the text that `map` returns for it.
/// The result is JSON whatever `map` returns. A number that `map` changes becomes a string.
#[must_use]
pub(crate) fn map_texts(value: Value, map: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(map(&text)),
        Value::Array(all) => all.into_iter().map(|one| map_texts(one, map)).collect(),
        Value::Object(members) => members
            .into_iter()
            .map(|(name, one)| (map(&name), map_texts(one, map)))
            .collect(),
        Value::Number(number) => {
            let written = number.to_string();
            let mapped = map(&written);
            if mapped == written {
                Value::Number(number)
            } else {
                Value::String(mapped)
            }
        }
        Value::Null | Value::Bool(_) => value,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_of_every_kind_are_joined_to_one() {
        assert_eq!(
            one_line(" a\r\nb\u{2028}\u{85} c  d\n\n\u{b}e\u{c}"),
            "a b c  d e"
        );
        assert_eq!(one_line("\n"), "");
    }

    #[test]
    fn json_stays_json_whatever_its_texts_become() {
        let said = map_texts(json!({"a": [1, 23, true, null, "x1"], "1": {}}), &|text| {
            text.replace('1', "\"}")
        });
        assert_eq!(
            said,
            json!({"a": ["\"}", 23, true, null, "x\"}"], "\"}": {}})
        );
    }

    #[test]
    fn pointer_segment_is_escaped() {
        assert_eq!(pointer("/a", "b/~"), "/a/b~1~0");
    }

    #[test]
    fn unstorable_bytes_become_the_replacement_character() {
        assert_eq!(from_bytes(b"a\0b\xff"), "a\u{FFFD}b\u{FFFD}");
    }

    #[test]
    fn escapes_that_no_text_can_hold_are_replaced_and_others_stay() {
        let nul = |text| replace_escapes(text, InvalidEscape::Nul).into_owned();
        assert_eq!(nul(r#"{"a":"x\u0000y"}"#), r#"{"a":"x\ufffdy"}"#);
        assert_eq!(nul(r#"{"a":"\\u0000"}"#), r#"{"a":"\\u0000"}"#);
        assert_eq!(nul(r#"{"a":"\\\u0000"}"#), r#"{"a":"\\\ufffd"}"#);
        let lone = |text| replace_escapes(text, InvalidEscape::LoneSurrogates).into_owned();
        assert_eq!(
            lone(r#""\ud83d\ude00 \uD83D \ude00\ud83d""#),
            r#""\ud83d\ude00 \ufffd \ufffd\ufffd""#
        );
        for odd in [
            "\\u0000\\",
            "\\u0000\\u00",
            "\\u0000\\é",
            "\\ud800\\",
            "\\ud8é0\\ud",
        ] {
            let _ = (nul(odd), lone(odd));
        }
    }

    #[test]
    fn cut_never_splits_a_character() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 3), "aé");
        assert_eq!(cut("aé", 99), "aé");
    }
}
