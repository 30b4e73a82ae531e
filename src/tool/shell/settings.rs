//! The settings of a shell tool.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::super::credential::{self, Credentials};
use super::super::output;
use super::super::template::Template;
use crate::secret::Secret;
use crate::task::units::{duration_text, size_text};
use crate::world::Mistakes;

const MAX_TIMEOUT: Duration = Duration::from_mins(10);
/// The number of bytes reserved for the labels and notes around the output.
pub(super) const NOTES_BYTES: usize = 256;

/// A tool that runs a command on this host with `/bin/sh -c`. Its one argument is `command`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "ShellTool")]
pub struct Settings {
    /// The directory in which commands run. A relative path is relative to the configuration file.
    pub working_dir: String,
    /// How long one command may take; at most `10m`.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub timeout: Duration,
    /// The whole environment of a command: a list of variables that the service passes on, or a map
    /// of names and values. Default: no variable.
    pub env: Env,
    /// How much of a command's output is kept; at most `1MiB`, with the labels and notes of the
    /// result.
    #[serde(with = "size_text")]
    #[schemars(with = "size_text::Text")]
    pub max_output: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            working_dir: ".".to_owned(),
            timeout: Duration::from_secs(30),
            env: Env::default(),
            max_output: 64 * 1024,
        }
    }
}

/// The variables of a command's environment, by name. A variable that the configuration only names
/// gets its value from the service's own environment. If the service lacks the variable, the value
/// stays `None`, and the command does not get the variable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Env(pub BTreeMap<String, Option<Secret<String>>>);

impl<'de> Deserialize<'de> for Env {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ListOrMap;
        impl<'de> Visitor<'de> for ListOrMap {
            type Value = Env;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of names, or a map of names and values")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Env, A::Error> {
                let mut env = BTreeMap::new();
                while let Some(name) = names.next_element::<String>()? {
                    env.insert(name, None);
                }
                Ok(Env(env))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut values: A) -> Result<Env, A::Error> {
                let mut env = BTreeMap::new();
                while let Some((name, value)) = values.next_entry::<String, Secret<String>>()? {
                    env.insert(name, Some(value));
                }
                Ok(Env(env))
            }
        }
        from.deserialize_any(ListOrMap)
    }
}

impl Env {
    /// Whether a variable can have this name.
    pub(crate) fn is_name(name: &str) -> bool {
        !name.is_empty() && !name.contains(['=', '\0'])
    }

    /// Adds the mistakes in the names and values to `mistakes`, each with the path of its key. No
    /// text of a mistake quotes a value.
    pub(crate) fn check(&self, mistakes: &mut Mistakes) {
        for (name, value) in &self.0 {
            // By mistake, `name` may be `NAME=VALUE`. The value must not be shown.
            let shown = name.split_inclusive('=').next().unwrap_or_default();
            let (keys, subject) = if value.is_some() {
                (vec!["env", shown], String::new())
            } else {
                let subject = format!("has `{}`, which ", shown.escape_debug());
                (vec!["env"], subject)
            };
            let mut add = |detail: &str| mistakes.add(&keys, format!("{subject}{detail}"));
            if !Self::is_name(name) {
                add("cannot be the name of a variable: a name is not empty and has no `=`");
            } else if name.contains(credential::REFERENCE_START) {
                add(
                    "is a credential as the name of a variable, not as its value: `{ NAME: \"{{credential:…}}\" }`",
                );
            }
            let value = value.as_ref().map_or("", |value| value.reveal().as_str());
            if value.contains('\0') {
                add("has a value that no variable can have");
            }
            if let Err(detail) = credential::references(value) {
                add(&detail);
            }
        }
    }
}

impl JsonSchema for Env {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ShellEnv".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"type": "array", "items": {"type": "string"}, "default": []},
            {"type": "object", "additionalProperties": {"type": "string"}}
        ]})
    }
}

impl Settings {
    pub(in crate::tool) fn mistakes(&self) -> Mistakes {
        let mut mistakes = Mistakes::default();
        if self.working_dir.is_empty() || self.working_dir.contains('\0') {
            mistakes.add(&["working_dir"], "must be a directory");
        }
        if self.timeout.is_zero() || self.timeout > MAX_TIMEOUT {
            mistakes.add(&["timeout"], "must be more than 0 and at most 10m");
        }
        if self.max_output == 0 || self.max_output > output::MAX_RESULT_BYTES {
            mistakes.add(&["max_output"], "must be more than 0 and at most 1MiB");
        }
        self.env.check(&mut mistakes);
        mistakes
    }

    pub(in crate::tool) fn credential_names(&self) -> BTreeSet<String> {
        let values = self.env.0.values().flatten();
        let references = values.filter_map(|value| credential::references(value.reveal()).ok());
        let names = references.flatten().map(|(name, _)| name.to_owned());
        names.collect()
    }

    /// Returns the environment of one command, with credentials filled in. Fails if a credential is
    /// missing or cannot be sent.
    pub(super) fn fill_environment(
        &self,
        credentials: &Credentials,
    ) -> Result<BTreeMap<String, String>, String> {
        let known = self.env.0.iter();
        let known = known.filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let filled = known.map(|(name, value)| {
            Ok((
                name.clone(),
                Template::read(value.reveal())?
                    .fill(credentials)?
                    .reveal()
                    .clone(),
            ))
        });
        filled.collect()
    }
}
