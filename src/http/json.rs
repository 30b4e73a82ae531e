//! JSON read so that nobody reads it differently: a repeated member is an error, and so is deep nesting.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// How deep a body may be nested.
const DEPTH: usize = 64;

/// Reads one JSON value and nothing after it. The error says where, never what.
///
/// # Errors
/// A sentence for a person.
pub fn parse(bytes: &[u8]) -> Result<Value, String> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Strict(DEPTH).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| {
        let (line, column) = (error.line(), error.column());
        match error.classify() {
            serde_json::error::Category::Data => {
                let text = error.to_string();
                let what = if text.starts_with(REPEATED) { REPEATED } else { TOO_DEEP };
                format!("{what}: line {line}, column {column}.")
            }
            serde_json::error::Category::Eof => "The JSON ends too early.".to_owned(),
            serde_json::error::Category::Io | serde_json::error::Category::Syntax => {
                format!("The body is not JSON: line {line}, column {column}.")
            }
        }
    })
}

/// The text of a member of an object, exactly as it was written but for the blanks between its parts: where numbers have
/// to stay what they were, a value that went through a double will not do. For what [`parse`] has accepted.
#[must_use]
pub fn member(bytes: &[u8], name: &str) -> Option<String> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_slice(bytes).ok()?;
    members.get(name).map(|value| compact(value.get()))
}

/// The same of all members, read once however many there are.
#[must_use]
pub fn members(bytes: &[u8]) -> BTreeMap<String, String> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_slice(bytes).unwrap_or_default();
    members.into_iter().map(|(name, value)| (name, compact(value.get()))).collect()
}

/// JSON without the blanks that say nothing.
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

const REPEATED: &str = "A member is repeated";
const TOO_DEEP: &str = "The JSON is nested too deeply";

struct Strict(usize);

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl Strict {
    fn deeper<E: serde::de::Error>(&self) -> Result<usize, E> {
        self.0.checked_sub(1).ok_or_else(|| E::custom(TOO_DEEP))
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut list = Vec::new();
        while let Some(value) = members.next_element_seed(Strict(depth))? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut map = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let value = members.next_value_seed(Strict(depth))?;
            if map.insert(name, value).is_some() {
                return Err(A::Error::custom(REPEATED));
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_was_written() {
        let text = r#"{"a":[1,-2,2.5,true,null,"x"],"b":{"c":18446744073709551615}}"#;
        assert_eq!(parse(text.as_bytes()).unwrap().to_string(), text);
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
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
        assert!(parse(r#"{"a":1,"a":2}"#.as_bytes()).unwrap_err().starts_with(REPEATED));
    }

    #[test]
    fn a_member_is_given_as_it_was_written() {
        let body = br#"{"a": 1, "m\u0065ta": { "z" : [1.10, 12345678901234567890123, 1E2], "t": " \" \\ \u00e9" }}"#;
        let expected = r#"{"z":[1.10,12345678901234567890123,1E2],"t":" \" \\ \u00e9"}"#;
        assert_eq!(member(body, "meta").as_deref(), Some(expected));
        assert_eq!(member(body, "none"), None);
    }

    #[test]
    fn nesting_has_an_end() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(64).as_bytes()).is_ok());
        assert!(parse(nested(65).as_bytes()).unwrap_err().starts_with(TOO_DEEP));
        assert!(parse(nested(100_000).as_bytes()).is_err());
    }
}
