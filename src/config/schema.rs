//! The file's JSON Schema for editors, generated from the types that read the file.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::parts::{AgentSettings, ToolSettings};
use super::rules::RuleSettings;
use super::settings::{
    AuthSettings, CredentialSettings, DatabaseSettings, ModelSettings, SecretsSettings,
    ServerSettings,
};

/// The configuration of Holdpoint.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "holdpoint.yaml", extend("required" = ["models", "agents"]))]
#[derive(Default)]
struct File {
    /// Where and how the service listens.
    server: ServerSettings,
    /// The database.
    database: DatabaseSettings,
    /// Who may come in. Without it: loopback only, everybody is `local`.
    auth: Option<AuthSettings>,
    /// What seals credentials at rest.
    secrets: SecretsSettings,
    /// What `request_credentials` may ask for, by name.
    credentials: BTreeMap<String, CredentialSettings>,
    /// The models, by name.
    models: BTreeMap<String, ModelSettings>,
    /// The tools, by name.
    tools: BTreeMap<String, ToolSettings>,
    /// The agents, by name.
    agents: BTreeMap<String, AgentSettings>,
    /// The agent of a task that names none; needed when there are several.
    default_agent: Option<String>,
    /// The rules; the first one that matches decides, what no rule matches is held.
    policy: Vec<RuleSettings>,
}

#[must_use]
pub fn schema() -> Value {
    schemars::schema_for!(File).to_value()
}

/// Every key that the file may have, at any level.
#[must_use]
pub fn keys() -> Vec<String> {
    let mut keys = BTreeSet::new();
    collect(&schema(), &mut keys);
    keys.into_iter().collect()
}

fn collect(schema: &Value, keys: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::Object(properties)) = members.get("properties") {
                keys.extend(properties.keys().cloned());
            }
            members.values().for_each(|below| collect(below, keys));
        }
        Value::Array(elements) => elements.iter().for_each(|below| collect(below, keys)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(name: &str, schema: &Value) {
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            assert!(
                property["description"].is_string(),
                "{name}.{key}: {property}"
            );
        }
    }

    #[test]
    fn schema_describes_every_key_and_has_the_defaults() {
        let schema = schema();
        assert_eq!(schema["required"], serde_json::json!(["models", "agents"]));
        let server = &schema["$defs"]["ServerSettings"]["properties"];
        assert_eq!(server["wait"]["default"], "10s", "{server}");
        assert_eq!(server["listen"]["default"], "127.0.0.1:8080");
        assert_eq!(
            schema["$defs"]["LimitsSettings"]["properties"]["max_duration"]["default"],
            "1h"
        );
        assert_eq!(
            schema["$defs"]["RuleSettings"]["properties"]["expires_in"]["default"],
            "24h"
        );
        assert_eq!(
            schema["$defs"]["ShellToolSettings"]["properties"]["max_output"]["default"],
            "64KiB"
        );
        described("", &schema);
        for (name, part) in schema["$defs"].as_object().unwrap() {
            described(name, part);
        }
    }

    #[test]
    fn schema_accepts_the_built_in_files() {
        let validator = jsonschema::validator_for(&schema()).unwrap();
        for text in [crate::config::DEMO, crate::config::SMALLEST] {
            let mut mistakes = crate::world::Mistakes::default();
            let json = crate::config::tree::parse(text, None, &mut mistakes)
                .unwrap()
                .to_json();
            let errors: Vec<_> = validator
                .iter_errors(&json)
                .map(|error| error.to_string())
                .collect();
            assert_eq!(errors, Vec::<String>::new());
        }
    }
}
