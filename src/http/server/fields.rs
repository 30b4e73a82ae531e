//! Reads the members of a body one by one, and collects every mistake with its JSON pointer. An
//! unknown member is also a mistake.

use serde::de::DeserializeOwned;
use serde::de::value::{Error as WordError, StrDeserializer};
use serde_json::{Map, Value};

use super::problem::Problem;
use crate::engine::{Detail, DetailCode, FieldError};
use crate::task::text;

const MAX_ERRORS: usize = 50;

/// The maximum length of a mistake's JSON pointer, in bytes. Without the limit, a long member name
/// could make the response very long, because the pointer of every mistake below the member repeats
/// the name.
const MAX_POINTER_BYTES: usize = 1024;

/// Returns the JSON pointer of a member: `at` is the pointer of the object or list, and `name` the
/// name or index of the member. If the result would be longer than `MAX_POINTER_BYTES`, returns
/// `at` instead.
#[must_use]
pub(crate) fn pointer(at: &str, name: &str) -> String {
    let place = text::pointer(at, name);
    if place.len() > MAX_POINTER_BYTES {
        at.to_owned()
    } else {
        place
    }
}

/// Returns the variant of the API's enum `T` whose name in JSON is `word`; `None` if `T` has no
/// such variant.
#[must_use]
pub(crate) fn variant<T: DeserializeOwned>(word: &str) -> Option<T> {
    T::deserialize(StrDeserializer::<WordError>::new(word)).ok()
}

#[derive(Debug, Default)]
pub(crate) struct Errors(pub Vec<FieldError>);

impl Errors {
    /// Adds a mistake. A mistake beyond `MAX_ERRORS` is dropped.
    pub(crate) fn add(&mut self, pointer: &str, detail: impl Into<Detail>) {
        if self.0.len() < MAX_ERRORS {
            self.0.push(FieldError {
                pointer: pointer.to_owned(),
                detail: detail.into(),
            });
        }
    }
}

/// The members of a JSON object. An operation takes them out one by one.
#[derive(Debug)]
pub(crate) struct Fields<'e> {
    at: String,
    members: Map<String, Value>,
    /// The mistakes in the body so far.
    pub errors: &'e mut Errors,
}

impl<'e> Fields<'e> {
    /// Reads a body with `read`, which takes the members out and adds a mistake to `errors` for
    /// each member that does not fit. A member that `read` does not take out is also a mistake.
    ///
    /// # Errors
    /// Fails with `invalid` if the body is not an object, if it has a mistake, or if `read` returns
    /// `None`. The problem lists every mistake.
    pub(crate) fn read<T>(
        body: Value,
        read: impl FnOnce(&mut Fields<'_>) -> Option<T>,
    ) -> Result<T, Problem> {
        let mut errors = Errors::default();
        let found = Fields::from_value(body, "", &mut errors).and_then(|mut fields| {
            let found = read(&mut fields);
            fields.finish();
            found
        });
        found
            .filter(|_| errors.0.is_empty())
            .ok_or_else(|| Problem::invalid(&errors.0))
    }

    /// Takes the members from the object `value`, whose JSON pointer is `at`. If `value` is not an
    /// object, adds a mistake and returns `None`.
    pub(crate) fn from_value(value: Value, at: &str, errors: &'e mut Errors) -> Option<Self> {
        if let Value::Object(members) = value {
            return Some(Self {
                at: at.to_owned(),
                members,
                errors,
            });
        }
        errors.add(at, DetailCode::Object);
        None
    }

    #[must_use]
    pub(crate) fn pointer(&self, name: &str) -> String {
        pointer(&self.at, name)
    }

    /// Adds a mistake about the member `name`.
    pub(crate) fn refuse(&mut self, name: &str, detail: impl Into<Detail>) {
        let place = self.pointer(name);
        self.errors.add(&place, detail);
    }

    /// Takes a member out and returns its value, even if the value is `null`.
    pub(crate) fn raw(&mut self, name: &str) -> Option<Value> {
        self.members.remove(name)
    }

    /// Takes a member out and returns its value; `None` if the member is absent or `null`.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.raw(name).filter(|value| !value.is_null())
    }

    /// Takes a member that must be a string. Adds a mistake for a value of another type.
    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        if let Value::String(text) = self.take(name)? {
            return Some(text);
        }
        self.refuse(name, DetailCode::Text);
        None
    }

    /// Takes a member that must be a string of at most `bytes` bytes. Adds a mistake for a longer
    /// string, but still returns the string.
    pub(crate) fn text_within(&mut self, name: &str, bytes: usize) -> Option<String> {
        let text = self.text(name)?;
        if text.len() > bytes {
            self.refuse(name, DetailCode::AtMostBytes(bytes));
        }
        Some(text)
    }

    /// Takes a member that must be a boolean. Adds a mistake for a value of another type.
    pub(crate) fn flag(&mut self, name: &str) -> Option<bool> {
        let value = self.take(name)?;
        if value.as_bool().is_none() {
            self.refuse(name, DetailCode::Boolean);
        }
        value.as_bool()
    }

    pub(crate) fn object(&mut self, name: &str) -> Option<Map<String, Value>> {
        if let Value::Object(members) = self.take(name)? {
            return Some(members);
        }
        self.refuse(name, DetailCode::Object);
        None
    }

    /// Adds a mistake for every member that was not taken.
    pub(crate) fn finish(self) {
        for name in self.members.keys() {
            self.errors
                .add(&pointer(&self.at, name), DetailCode::UnknownMember);
        }
    }
}

/// The detail of the mistake in a form or a query that is not UTF-8. It names the expected
/// encoding.
pub(crate) const NOT_UTF8: &str = "percent-encoded UTF-8";

/// Returns whether the text of a form or a query is UTF-8. The parser `url::form_urlencoded` would
/// silently replace invalid bytes.
pub(crate) fn is_encoded_utf8(encoded: &[u8]) -> bool {
    percent_encoding::percent_decode(encoded)
        .decode_utf8()
        .is_ok()
}

/// Adds a mistake for every text and every member name that contains a U+0000.
pub(crate) fn refuse_nul(value: &Value, at: &str, errors: &mut Errors) {
    match value {
        Value::String(text) if text.contains('\0') => errors.add(at, "text without U+0000"),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                refuse_nul(value, &pointer(at, &index.to_string()), errors);
            }
        }
        Value::Object(members) => {
            for (name, value) in members {
                if name.contains('\0') {
                    errors.add(at, "member names without U+0000");
                } else {
                    refuse_nul(value, &pointer(at, name), errors);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_mistake_is_reported_with_its_place() {
        let mut errors = Errors::default();
        let body = json!({"a": 1, "b": "four", "c": "yes", "d": [], "e/f~": 0});
        let mut fields = Fields::from_value(body, "", &mut errors).unwrap();
        assert_eq!(fields.text("a"), None);
        fields.text_within("b", 3);
        assert_eq!(fields.flag("c"), None);
        assert_eq!(fields.object("d"), None);
        fields.finish();
        let places: Vec<&str> = errors
            .0
            .iter()
            .map(|error| error.pointer.as_str())
            .collect();
        assert_eq!(places, ["/a", "/b", "/c", "/d", "/e~1f~0"]);
        assert!(Fields::from_value(json!([]), "", &mut errors).is_none());
    }

    #[test]
    fn place_of_a_mistake_ends_above_a_long_name() {
        let long = "n".repeat(1024 * 1024);
        let body = json!({ long.as_str(): vec!["\0"; 20], "short": ["\0"] });
        let mut errors = Errors::default();
        refuse_nul(&body, "", &mut errors);
        assert!(
            errors
                .0
                .iter()
                .all(|error| error.pointer.len() <= MAX_POINTER_BYTES)
        );
        assert!(errors.0.iter().any(|error| error.pointer == "/short/0"));
        let mut errors = Errors::default();
        Fields::from_value(body, "", &mut errors).unwrap().finish();
        let places: Vec<&str> = errors
            .0
            .iter()
            .map(|error| error.pointer.as_str())
            .collect();
        assert_eq!(places, ["", "/short"]);
        assert_eq!(pointer("/a", &"~".repeat(1000)), "/a", "escapes count");
    }

    #[test]
    fn nul_is_found_at_every_depth() {
        let mut errors = Errors::default();
        refuse_nul(
            &json!({"a": ["x", {"b": "\0"}], "c\0": 1, "d": "fine"}),
            "",
            &mut errors,
        );
        let places: Vec<&str> = errors
            .0
            .iter()
            .map(|error| error.pointer.as_str())
            .collect();
        assert_eq!(places, ["/a/1/b", ""]);
    }
}
