//! The settings of mail.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// Mails about questions, one to each person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "MailTo")]
pub struct Mail {
    /// The people: `approvers` (default), or a map with `groups` and `users`. Of these, the ones who
    /// may decide the question get the mail.
    pub to: Recipients,
    /// Whether a mail has the tools' summaries, which show arguments.
    pub summaries: bool,
}

/// The people who get the mails of an entry, as far as they may decide the question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Recipients {
    /// Everyone who may decide the question.
    #[default]
    Approvers,
    /// The members of these groups, and these users.
    Named(Named),
}

/// The members of these groups, and these users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "MailRecipients")]
pub struct Named {
    /// The names of groups.
    pub groups: Vec<String>,
    /// The ids of users.
    pub users: Vec<String>,
}

const APPROVERS: &str = "approvers";

impl<'de> Deserialize<'de> for Recipients {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct WordOrMap;
        impl<'de> Visitor<'de> for WordOrMap {
            type Value = Recipients;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`approvers`, or a map with `groups` or `users`")
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Recipients, E> {
                if word == APPROVERS {
                    return Ok(Recipients::Approvers);
                }
                Err(E::invalid_value(Unexpected::Other("text"), &self))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Recipients, A::Error> {
                Named::deserialize(MapAccessDeserializer::new(map)).map(Recipients::Named)
            }
        }
        from.deserialize_any(WordOrMap)
    }
}

impl JsonSchema for Recipients {
    fn schema_name() -> Cow<'static, str> {
        "Recipients".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let map = generator.subschema_for::<Named>();
        json_schema!({"anyOf": [{"const": APPROVERS}, map]})
    }
}
