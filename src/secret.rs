//! Values that nobody may see, and the search for them in what comes back from outside.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Deserializer};

/// A value that is never shown: its `Debug` is a placeholder and it does not serialize.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Hides a value.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// The value; the caller sends it where it belongs and nowhere else.
    pub fn reveal(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Secret<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::deserialize(from).map(Self)
    }
}

impl schemars::JsonSchema for Secret<String> {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

/// Finds known secrets in text that came from outside.
#[derive(Clone, Default)]
pub struct Redactor {
    /// (what to look for, what to show instead), longest first.
    needles: Vec<(String, String)>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({} needles)", self.needles.len())
    }
}

impl Redactor {
    /// Looks for the exact text of each value of 8 characters or more, and for its percent- and base64-encodings.
    /// Takes (name, value) pairs; a find shows `[secret NAME]` instead.
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a Secret<String>)>) -> Self {
        let mut needles = Vec::new();
        for (name, secret) in secrets {
            let value = secret.reveal();
            if value.chars().count() < 8 {
                continue;
            }
            let shown = format!("[secret {name}]");
            let mut forms = vec![value.clone(), utf8_percent_encode(value, NON_ALPHANUMERIC).to_string()];
            forms.push(utf8_percent_encode(value, QUERY).to_string());
            for engine in [&base64::prelude::BASE64_STANDARD_NO_PAD, &base64::prelude::BASE64_URL_SAFE_NO_PAD] {
                forms.push(engine.encode(value));
            }
            if let Ok(json) = serde_json::to_string(value) {
                forms.push(json.trim_matches('"').to_owned());
            }
            forms.sort_unstable();
            forms.dedup();
            needles.extend(forms.into_iter().map(|form| (form, shown.clone())));
        }
        needles.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
        needles.dedup_by(|a, b| a.0 == b.0);
        Self { needles }
    }

    /// The text without any known secret.
    #[must_use]
    pub fn clean<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut cleaned = Cow::Borrowed(text);
        for (needle, shown) in &self.needles {
            if cleaned.contains(needle.as_str()) {
                cleaned = Cow::Owned(cleaned.replace(needle.as_str(), shown));
            }
        }
        cleaned
    }

    /// The length in bytes of the longest text it looks for: how much may not be cut off before looking.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.needles.first().map_or(0, |(needle, _)| needle.len())
    }
}

/// What a form or a query leaves unencoded.
const QUERY: &percent_encoding::AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_plain_percent_encoded_and_in_base64() {
        let secret = Secret::new("s3cr3t/value+1".to_owned());
        let redactor = Redactor::new([("KEY", &secret)]);
        let base64 = base64::prelude::BASE64_STANDARD.encode("s3cr3t/value+1");
        for text in ["x s3cr3t/value+1 y", "x s3cr3t%2Fvalue%2B1 y", &format!("x {base64} y")] {
            let clean = redactor.clean(text);
            assert!(clean.contains("[secret KEY]"), "{clean}");
            assert!(!clean.contains("s3cr3t"), "{clean}");
        }
        assert_eq!(format!("{secret:?}"), "[secret]");
    }

    #[test]
    fn short_values_are_not_looked_for() {
        let secret = Secret::new("none".to_owned());
        assert_eq!(Redactor::new([("KEY", &secret)]).clean("none of it"), "none of it");
    }
}
