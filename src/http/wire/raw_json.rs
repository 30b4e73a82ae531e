//! JSON that keeps its original text, so that numbers keep every digit.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

#[derive(Clone, Debug)]
pub(crate) struct RawJson(Box<RawValue>);

impl RawJson {
    /// Keeps the text of a JSON value. A text that is not JSON becomes null.
    #[must_use]
    pub(crate) fn value(text: &str) -> Self {
        let null = || RawValue::NULL.to_owned();
        Self(RawValue::from_string(text.to_owned()).unwrap_or_else(|_| null()))
    }

    /// Keeps the text of a JSON object. A text that does not begin with `{` becomes `{}`. A text
    /// that begins with `{` but is not JSON becomes null.
    #[must_use]
    pub(crate) fn object(text: &str) -> Self {
        let text = if text.starts_with('{') { text } else { "{}" };
        Self(RawValue::from_string(text.to_owned()).unwrap_or_default())
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}
