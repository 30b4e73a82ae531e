//! Reads JSON strictly: repeated members and deep nesting are errors, because parsers differ in how
//! they treat them. The values in a client's JSON are counted before the first value is built,
//! because a megabyte of `[[],[],…` would take a hundred megabytes of memory.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::problem::{Code, Problem};
use crate::task::json_members::{
    Members, REPEATED_MEMBER, StrictValue, TOO_DEEP, TOO_MANY_MEMBERS,
};

const MAX_DEPTH: usize = 64;

/// The maximum number of values in a text, including nested values.
pub(crate) const MAX_VALUES: usize = 100_000;

/// The beginning of `serde_json`'s error about a number such as `1e999`. The error has no kind of
/// its own.
const NUMBER_OUT_OF_RANGE: &str = "number out of range";

/// The reason why a text was refused. The reason may give the position of the mistake, but never
/// repeats the content of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JsonError {
    /// The text is not JSON, is nested too deeply, repeats a member, or has more members than
    /// [`parse_except`] allows. The string describes the mistake for people.
    Invalid(String),
    TooManyValues,
}

impl From<JsonError> for Problem {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Invalid(detail) => Self::new(Code::BadJson, detail),
            JsonError::TooManyValues => {
                Self::invalid_at("", format!("at most {MAX_VALUES} JSON values"))
            }
        }
    }
}

/// Parses a text from outside the service, which must be exactly one JSON value.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    check(bytes)?;
    parse_stored(bytes)
}

/// Checks the syntax, the depth and the number of values of a text, without building a value. Does
/// not check for repeated members.
pub(crate) fn check(bytes: &[u8]) -> Result<(), JsonError> {
    check_within(&mut { MAX_VALUES }, bytes)
}

/// Like [`check`], but the text may have at most `remaining` values. Subtracts the number of the
/// text's values from `remaining`.
fn check_within(remaining: &mut usize, bytes: &[u8]) -> Result<(), JsonError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let counted = ValueCounter {
        remaining,
        depth: MAX_DEPTH,
    }
    .deserialize(&mut reader)
    .and_then(|()| reader.end());
    counted.map_err(|error| json_error(&error))
}

/// Checks the number of values of a text, which may be nested to any depth. The function does not
/// recurse. By contrast, [`check`] recurses, and therefore refuses deep nesting. `text` must be
/// valid JSON.
///
/// # Errors
/// `TooManyValues` if the text has more than [`MAX_VALUES`] values.
pub(crate) fn check_count(text: &[u8]) -> Result<(), JsonError> {
    let (mut values, mut is_container_new) = (1_usize, false);
    let (mut inside, mut escaped) = (false, false);
    for &byte in text {
        if inside {
            (inside, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
            continue;
        }
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            continue;
        }
        // Inside a list or an object, a value follows a comma or an opening bracket. So every comma
        // counts as one value, and so does every opening bracket of a container that is not empty.
        let is_first = is_container_new && !matches!(byte, b']' | b'}');
        values += usize::from(is_first || byte == b',');
        is_container_new = matches!(byte, b'[' | b'{');
        inside = byte == b'"';
    }
    if values > MAX_VALUES {
        Err(JsonError::TooManyValues)
    } else {
        Ok(())
    }
}

/// Like [`parse`], but without the limit [`MAX_VALUES`], for texts that the service has stored.
pub(crate) fn parse_stored(bytes: &[u8]) -> Result<Value, JsonError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = StrictValue(MAX_DEPTH)
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| json_error(&error))
}

fn json_error(error: &serde_json::Error) -> JsonError {
    let (line, column) = (error.line(), error.column());
    JsonError::Invalid(match error.classify() {
        serde_json::error::Category::Data => {
            let text = error.to_string();
            if text.starts_with(TOO_MANY) {
                return JsonError::TooManyValues;
            }
            let mistakes = [REPEATED_MEMBER, TOO_MANY_MEMBERS];
            let mistake = mistakes.iter().find(|known| text.starts_with(**known));
            let what = mistake.unwrap_or(&TOO_DEEP);
            format!("{what}: line {line}, column {column}.")
        }
        serde_json::error::Category::Eof => "The JSON ends too early.".to_owned(),
        serde_json::error::Category::Io | serde_json::error::Category::Syntax => {
            let is_number = error.to_string().starts_with(NUMBER_OUT_OF_RANGE);
            let what = if is_number {
                "A number is too large for a double"
            } else {
                "The body is not JSON"
            };
            format!("{what}: line {line}, column {column}.")
        }
    })
}

/// Parses a JSON object like [`parse`], but leaves the member `name` unparsed. Returns the other
/// members, and the unchanged JSON text of `name`. This text is not checked for depth, number of
/// values or repeated members. The object may have at most 64 members. If the value is not an
/// object, the whole value is parsed.
pub(crate) fn parse_except(bytes: &[u8], name: &str) -> Result<(Value, Option<String>), JsonError> {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Ok((parse(bytes)?, None));
    }
    let Members(members) = serde_json::from_slice(bytes).map_err(|error| json_error(&error))?;
    let (mut rest, mut aside, mut remaining) = (Map::new(), None, MAX_VALUES);
    for (member, text) in members {
        if member == name {
            aside = Some(text.get().to_owned());
        } else {
            let text = text.get().as_bytes();
            check_within(&mut remaining, text)?;
            rest.insert(member, parse_stored(text)?);
        }
    }
    Ok((Value::Object(rest), aside))
}

/// Returns whether the bytes are one JSON value. Does not check for repeated members or the number
/// of values.
pub(crate) fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}

/// Returns the JSON text of the member `name` of the object in `bytes`, without white space between
/// tokens. `None` if the object has no such member. The text keeps every digit of a number, unlike
/// a parsed `f64`. `bytes` must be a text that [`parse`] or [`parse_except`] accepts.
#[must_use]
pub(crate) fn member(bytes: &[u8], name: &str) -> Option<String> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_slice(bytes).ok()?;
    members.get(name).map(|value| compact(value.get()))
}

/// Returns the JSON texts of all members by name. Each text has the form that [`member`] returns.
#[must_use]
pub(crate) fn members(bytes: &[u8]) -> BTreeMap<String, String> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_slice(bytes).unwrap_or_default();
    members
        .into_iter()
        .map(|(name, value)| (name, compact(value.get())))
        .collect()
}

fn compact(text: &str) -> String {
    let (mut inside, mut escaped) = (false, false);
    text.chars()
        .filter(|&c| {
            let kept = inside || !matches!(c, ' ' | '\t' | '\n' | '\r');
            if escaped {
                escaped = false;
            } else if inside && c == '\\' {
                escaped = true;
            } else if c == '"' {
                inside = !inside;
            }
            kept
        })
        .collect()
}

const TOO_MANY: &str = "The JSON has too many values";

/// Checks the number of values and the depth of a text, without building a value.
struct ValueCounter<'c> {
    remaining: &'c mut usize,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for ValueCounter<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        *self.remaining = self
            .remaining
            .checked_sub(1)
            .ok_or_else(|| D::Error::custom(TOO_MANY))?;
        reader.deserialize_any(self)
    }
}

impl ValueCounter<'_> {
    fn below<E: serde::de::Error>(&mut self) -> Result<ValueCounter<'_>, E> {
        let depth = self
            .depth
            .checked_sub(1)
            .ok_or_else(|| E::custom(TOO_DEEP))?;
        Ok(ValueCounter {
            remaining: self.remaining,
            depth,
        })
    }
}

impl<'de> Visitor<'de> for ValueCounter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        // An empty list has no element that would check the depth, so the depth is checked here.
        let _: ValueCounter<'_> = self.below()?;
        while members.next_element_seed(self.below()?)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        let _: ValueCounter<'_> = self.below()?;
        while members.next_key::<IgnoredAny>()?.is_some() {
            members.next_value_seed(self.below()?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal_detail(text: &str) -> String {
        let Err(JsonError::Invalid(detail)) = parse(text.as_bytes()) else {
            panic!("{text}")
        };
        detail
    }

    #[test]
    fn parsed_json_equals_what_was_written() {
        let text = r#"{"a":[1,-2,2.5,true,null,"x"],"b":{"c":18446744073709551615}}"#;
        assert_eq!(parse(text.as_bytes()).unwrap().to_string(), text);
    }

    #[test]
    fn ambiguous_json_is_refused() {
        for text in [
            r#"{"action":"reject","action":"approve"}"#,
            r#"{"a":{"b":1,"b":1}}"#,
            r#"{"a":1,"\u0061":2}"#,
            "",
            "{",
            "{}{}",
            "{} x",
            "nan",
            "NaN",
            "{'a':1}",
            r#"{"a":1,}"#,
            r#""\ud800""#,
            "\u{feff}{}",
            "[1e999]",
            "01",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse(b"\"\xff\"").is_err());
        assert!(refusal_detail(r#"{"a":1,"a":2}"#).starts_with(REPEATED_MEMBER));
        assert_eq!(
            refusal_detail("[1,\n1e999]"),
            "A number is too large for a double: line 2, column 5."
        );
    }

    #[test]
    fn member_is_returned_as_it_was_written() {
        let body = br#"{"a": 1, "m\u0065ta": { "z" : [1.10, 12345678901234567890123, 1E2], "t": " \" \\ \u00e9" }}"#;
        let expected = r#"{"z":[1.10,12345678901234567890123,1E2],"t":" \" \\ \u00e9"}"#;
        assert_eq!(member(body, "meta").as_deref(), Some(expected));
        assert_eq!(member(body, "none"), None);
    }

    #[test]
    fn object_parsed_without_a_member_keeps_that_members_text_and_the_limits_of_the_whole() {
        let (rest, raw) = parse_except(br#"{"a":[1],"raw": {"b" :1.0} }"#, "raw").unwrap();
        assert_eq!(rest.to_string(), r#"{"a":[1]}"#);
        assert_eq!(raw.as_deref(), Some(r#"{"b" :1.0}"#));
        assert_eq!(
            parse_except(b" [] ", "raw"),
            Ok((Value::Array(Vec::new()), None))
        );
        let mistake = |text: &str| match parse_except(text.as_bytes(), "raw").unwrap_err() {
            JsonError::Invalid(detail) => detail,
            JsonError::TooManyValues => "too many values".to_owned(),
        };
        let members = |count: usize, value: &str| {
            let members: Vec<_> = (0..count).map(|n| format!("\"m{n}\":{value}")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert!(mistake(&members(65, "1")).starts_with(TOO_MANY_MEMBERS));
        assert!(mistake(r#"{"raw":1,"raw":2}"#).starts_with(REPEATED_MEMBER));
        let list = format!("[0{}]", ",0".repeat(MAX_VALUES / 2));
        assert_eq!(mistake(&members(2, &list)), "too many values");
        assert!(mistake("[").starts_with("The JSON ends"));
    }

    #[test]
    fn nesting_depth_is_limited() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(64).as_bytes()).is_ok());
        assert!(refusal_detail(&nested(65)).starts_with(TOO_DEEP));
        assert!(refusal_detail(&nested(100_001)).starts_with(TOO_DEEP));
        assert!(
            refusal_detail(&format!("{}0{}", r#"{"a":"#.repeat(65), "}".repeat(65)))
                .starts_with(TOO_DEEP)
        );
    }

    #[test]
    fn text_of_100_000_values_is_read_and_one_more_is_refused_before_anything_is_built() {
        // The list itself and the last `0` are two of the values.
        let flat = |values: usize| format!("[{}0]", "0,".repeat(values - 2));
        // Each element counts as two values: an object and a list.
        let nested = |values: usize| format!("[{}0]", r#"{"a":[]},"#.repeat((values - 2) / 2));
        for list in [flat, nested] {
            assert_eq!(check(list(MAX_VALUES).as_bytes()), Ok(()));
            assert!(parse(list(MAX_VALUES).as_bytes()).is_ok());
            assert_eq!(
                parse(list(MAX_VALUES + 2).as_bytes()),
                Err(JsonError::TooManyValues)
            );
            assert!(
                parse_stored(list(MAX_VALUES + 2).as_bytes()).is_ok(),
                "what is ours is not counted"
            );
        }
        assert_eq!(
            parse(flat(MAX_VALUES + 1).as_bytes()),
            Err(JsonError::TooManyValues)
        );
        // The parser stops at the value that exceeds the limit, and never reaches the missing `]`.
        assert_eq!(
            parse(format!("[{}", "0,".repeat(MAX_VALUES)).as_bytes()),
            Err(JsonError::TooManyValues)
        );
        assert!(
            parse(format!(r#"["{}"]"#, "0,".repeat(MAX_VALUES)).as_bytes()).is_ok(),
            "a text is one value"
        );
    }

    #[test]
    fn count_of_values_holds_at_any_depth_and_ignores_the_content_of_texts() {
        let deep = |values: usize| format!("{}{}", "[".repeat(values), "]".repeat(values));
        // Each element counts as three values: an object, a list and an object.
        let mixed = |count: usize| {
            let elements = r#"{"a":[ ],"b,[\\\",{":{ }}, "#.repeat(count);
            format!("[ {elements}0]")
        };
        let text = format!(r#"{{"a":"{}"}}"#, ",[{".repeat(MAX_VALUES));
        for fits in [deep(MAX_VALUES), mixed(33_332), text, "[ ]".to_owned()] {
            assert_eq!(check_count(fits.as_bytes()), Ok(()));
        }
        assert_eq!(check(mixed(33_332).as_bytes()), Ok(()));
        let too_many = Err(JsonError::TooManyValues);
        assert_eq!(check_count(deep(MAX_VALUES + 1).as_bytes()), too_many);
        assert_eq!(check_count(mixed(33_333).as_bytes()), too_many);
        assert_eq!(check(mixed(33_333).as_bytes()), too_many);
    }
}
