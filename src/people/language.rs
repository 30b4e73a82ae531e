//! The languages of pages and messages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The language of pages and messages for a person.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Language {
    /// English.
    #[default]
    #[serde(rename = "en")]
    English,
    /// Chinese, in simplified characters.
    #[serde(rename = "zh")]
    Chinese,
}

impl Language {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 2] = [Self::English, Self::Chinese];

    /// Returns the value of the `lang` attribute of a page.
    #[must_use]
    pub fn tag(self) -> &'static str {
        match self {
            Self::English => "en",
            Self::Chinese => "zh-Hans",
        }
    }
}
