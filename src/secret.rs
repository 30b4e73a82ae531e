//! Values that must never be shown, and the search for such values in texts of other services and
//! people.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer};

mod layer;
mod needle;
mod redactor;
pub mod seal;
pub(crate) mod settings;
mod stream_redactor;

pub(crate) use self::redactor::MIN_SECRET_CHARS;
pub use self::redactor::Redactor;
pub use self::stream_redactor::StreamRedactor;

/// A value that is never shown: its `Debug` output is a placeholder, and the type does not
/// implement `Serialize`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// Unwraps the value, for a caller that wipes it from memory after use.
    pub fn into_inner(self) -> T {
        self.0
    }

    /// Returns the value. The caller may send it only to the service that the secret is meant for.
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

#[cfg(test)]
mod tests;
