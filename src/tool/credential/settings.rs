//! The settings of the credentials that `request_credentials` may ask for.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::task::units::{duration_text, optional_duration};

/// A credential that `request_credentials` may ask for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Credential", extend("required" = ["fields"]))]
pub struct Settings {
    /// The purpose of the credential, shown to the person who enters it.
    pub description: String,
    /// The fields that the person fills in, by name.
    pub fields: BTreeMap<String, Field>,
    /// How long the credential is kept at most. Default: until the task ends.
    #[serde(with = "optional_duration")]
    #[schemars(with = "duration_text::Text")]
    pub expires_in: Option<Duration>,
}

/// A text that a person enters as part of a credential, such as an email address or a token.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "CredentialField")]
pub struct Field {
    /// The JSON Schema `format` of the text.
    pub format: Option<TextFormat>,
    /// The description of the field, shown to the person who enters it.
    pub description: Option<String>,
    /// Whether the value is secret. A secret value of 12 or more characters without white space
    /// inside is redacted from every text that comes back from a tool, and no call may contain it.
    /// Default: `true` unless `format` is `email`.
    pub secret: Option<bool>,
}

impl Field {
    /// Whether the value is secret, with the default applied.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.secret
            .unwrap_or(self.format != Some(TextFormat::Email))
    }
}

/// A JSON Schema `format` that a form can check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TextFormat {
    Email,
    Uri,
    Date,
}

impl TextFormat {
    /// Returns the name of the format in JSON Schema.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Uri => "uri",
            Self::Date => "date",
        }
    }
}
