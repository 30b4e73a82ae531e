//! Values that nobody may see, and the search for them in what comes back from outside.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, Deserializer};

mod redacting;
pub mod seal;

pub use self::redacting::Redacting;

/// A value that is never shown: its `Debug` is a placeholder and it does not serialize.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Hides a value.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// The value itself, for whoever wipes it after its last use.
    pub fn into_inner(self) -> T {
        self.0
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
    /// (a value that may be spelled with escapes, what to show instead), longest first.
    values: Vec<(String, String)>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({} values)", self.values.len())
    }
}

impl Redactor {
    /// Looks for the exact text of each value of 8 characters or more, for its base64, and for the text with any of its
    /// characters percent-encoded or escaped as in JSON. Takes (name, value) pairs; a find shows `[secret NAME]` instead.
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a Secret<String>)>) -> Self {
        let (mut needles, mut values) = (Vec::new(), Vec::new());
        for (name, secret) in secrets {
            let value = secret.reveal();
            if value.chars().count() < 8 {
                continue;
            }
            let shown = format!("[secret {name}]");
            let base64 = [BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD];
            needles.push((value.clone(), shown.clone()));
            needles.extend(base64.iter().map(|engine| (engine.encode(value), shown.clone())));
            values.push((value.clone(), shown));
        }
        Self { needles: in_order(needles), values: in_order(values) }
    }

    /// One that looks for what both look for.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let both = |ours: &[(String, String)], others: &[(String, String)]| in_order([ours, others].concat());
        Self { needles: both(&self.needles, &other.needles), values: both(&self.values, &other.values) }
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
        for (value, shown) in &self.values {
            if !cleaned.contains(['%', '\\', '+']) {
                break;
            }
            if let Some(without) = without_spellings(&cleaned, value, shown) {
                cleaned = Cow::Owned(without);
            }
        }
        cleaned
    }

    /// The length in bytes of the longest text it looks for: how much may not be cut off before looking.
    #[must_use]
    pub fn longest(&self) -> usize {
        // No spelling of a byte is longer than `\u0000`.
        self.values.first().map_or(0, |(value, _)| value.len() * 6)
    }
}

/// Longest first, each once.
fn in_order(mut list: Vec<(String, String)>) -> Vec<(String, String)> {
    list.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
    list.dedup_by(|a, b| a.0 == b.0);
    list
}

/// The text with every escaped spelling of a value replaced; `None` when there is none.
fn without_spellings(text: &str, value: &str, shown: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    let mut from = 0;
    while let Some(at) = rest.get(from..)?.find(|c| value.starts_with(c) || matches!(c, '%' | '\\' | '+')) {
        let (before, here) = rest.split_at_checked(from + at)?;
        if let Some(after) = value.chars().try_fold(here, after_spelling) {
            out.push_str(before);
            out.push_str(shown);
            (rest, from) = (after, 0);
        } else {
            from += at + here.chars().next().map_or(1, char::len_utf8);
        }
    }
    (rest.len() < text.len()).then(|| out + rest)
}

/// What follows a character, however it is spelled: percent-encoded, escaped as in JSON, or as it is.
fn after_spelling(text: &str, wanted: char) -> Option<&str> {
    let percent =
        || wanted.encode_utf8(&mut [0; 4]).bytes().try_fold(text, |rest, byte| hex(rest, "%", 2, byte.into()));
    let unicode = || wanted.encode_utf16(&mut [0; 2]).iter().try_fold(text, |rest, unit| hex(rest, "\\u", 4, *unit));
    let short = || {
        let letter = match wanted {
            '"' | '/' | '\\' => wanted,
            '\n' => 'n',
            '\r' => 'r',
            '\t' => 't',
            _ => return None,
        };
        text.strip_prefix('\\')?.strip_prefix(letter)
    };
    let plus = || text.strip_prefix('+').filter(|_| wanted == ' ');
    percent().or_else(unicode).or_else(short).or_else(plus).or_else(|| text.strip_prefix(wanted))
}

/// What follows a number that is written in so many hex digits after a mark.
fn hex<'t>(text: &'t str, mark: &str, digits: usize, wanted: u16) -> Option<&'t str> {
    let (number, rest) = text.strip_prefix(mark)?.split_at_checked(digits)?;
    (u16::from_str_radix(number, 16) == Ok(wanted) && !number.starts_with('+')).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_plain_percent_encoded_and_in_base64() {
        let secret = Secret::new("s3cr3t/value+1".to_owned());
        let redactor = Redactor::new([("KEY", &secret)]);
        let base64 = BASE64_STANDARD.encode("s3cr3t/value+1");
        for text in ["x s3cr3t/value+1 y", "x s3cr3t%2Fvalue%2B1 y", &format!("x {base64} y")] {
            let clean = redactor.clean(text);
            assert!(clean.contains("[secret KEY]"), "{clean}");
            assert!(!clean.contains("s3cr3t"), "{clean}");
        }
        assert_eq!(format!("{secret:?}"), "[secret]");
    }

    #[test]
    fn a_secret_is_found_however_its_characters_are_escaped() {
        let secret = Secret::new("a%b/\"c\" dü😀\n-+1".to_owned());
        let redactor = Redactor::new([("KEY", &secret)]);
        for spelled in [
            "a%25b%2F%22c%22%20d%C3%BC%F0%9F%98%80%0A-%2B1",
            "a%25b/%22c%22+d%c3%bc%f0%9f%98%80%0a-%2b1",
            r#"a%b/\"c\" dü😀\n-+1"#,
            r#"a%b\/\"c\" d\u00fc\ud83d\uDE00\n-+1"#,
            r"\u0061%b\u002f\u0022c\u0022 dü😀\u000a-+1",
        ] {
            let text = format!("%2 \\u00 {spelled}{spelled}+ a%25b a");
            assert_eq!(redactor.clean(&text), "%2 \\u00 [secret KEY][secret KEY]+ a%25b a", "{spelled}");
            assert!(spelled.len() <= redactor.longest());
        }
        for other in ["a%25b/%22c%22+d%c3%bc%f0%9f%98%80%0a-%2b2", "%", "\\", "\\u", "%é", "a%25b", ""] {
            assert_eq!(redactor.clean(other), other);
        }
    }

    #[test]
    fn short_values_are_not_looked_for() {
        let secret = Secret::new("none".to_owned());
        assert_eq!(Redactor::new([("KEY", &secret)]).clean("none of it"), "none of it");
    }
}
