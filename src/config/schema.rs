//! Generates the JSON Schema of the file, for editors and the reference page, from the types that
//! read the file.

use std::collections::{BTreeMap, BTreeSet};

use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::http::server::settings::ServerSettings;
use crate::policy::Rule;
use crate::task::text::visit_values;
use crate::tool::{catalog, credential};
use crate::{agent, mcp, model, notify, people, secret, store};

/// The configuration of Holdpoint.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "holdpoint.yaml", extend("anyOf" = [{"required": ["models", "agents"]}, {"required": ["gates"]}]))]
#[derive(Default)]
struct File {
    /// The addresses and the capacity of the service.
    server: ServerSettings,
    /// The database in which tasks, requests and messages are stored.
    database: store::Settings,
    /// The accounts. Default: no accounts; the service listens on loopback only, and every caller
    /// is the user `local`.
    #[schemars(with = "people::settings::Settings")]
    auth: Option<people::settings::Settings>,
    /// The keys with which stored credentials and links in messages are sealed.
    secrets: secret::settings::Settings,
    /// The credentials that `request_credentials` may ask for, by name.
    credentials: BTreeMap<String, credential::settings::Settings>,
    /// The models that agents may use, by name.
    models: BTreeMap<String, model::Settings>,
    /// The MCP servers whose tools agents may call, by name.
    mcp: BTreeMap<String, mcp::Settings>,
    /// The file with the reviewed definitions of the servers' tools, written by
    /// `holdpoint mcp lock`. Default: `holdpoint.mcp.json`. A relative path is relative to the
    /// configuration file.
    mcp_lock: Option<String>,
    /// The tools that agents and gates may offer, by name.
    tools: BTreeMap<String, catalog::Settings>,
    /// The agents to which callers give tasks, by name.
    agents: BTreeMap<String, agent::Settings>,
    /// The gates at which agents that run elsewhere propose calls, by name.
    gates: BTreeMap<String, agent::Gate>,
    /// The agent of a task whose creator names no agent. Required if there are several agents.
    default_agent: Option<String>,
    /// The rules, in the order in which they are tried.
    policy: Vec<Rule>,
    /// The messages about tasks and requests, and their receivers.
    notify: notify::Settings,
}

/// Returns the schema. It has no default `null`: an editor would fill it in, and some keys refuse
/// `null`.
#[must_use]
pub(crate) fn schema() -> Value {
    let mut schema = schemars::schema_for!(File);
    let remove_null_default = |schema: &mut Schema| {
        if schema.get("default").is_some_and(Value::is_null) {
            schema.remove("default");
        }
    };
    RecursiveTransform(remove_null_default).transform(&mut schema);
    schema.to_value()
}

/// Returns every key that the file may have, at any level.
#[must_use]
pub(crate) fn keys() -> Vec<String> {
    let mut keys = BTreeSet::new();
    visit_values(&schema(), "", &mut |_, part| {
        let properties = part.get("properties").and_then(Value::as_object);
        keys.extend(properties.into_iter().flat_map(Map::keys).cloned());
    });
    keys.into_iter().collect()
}

/// Follows the `$ref` of a property, or the first `$ref` in its `anyOf`. Returns the property
/// itself if there is no `$ref`.
#[must_use]
pub(super) fn resolved<'s>(property: &'s Value, schema: &'s Value) -> &'s Value {
    if let Some(name) = property.get("$ref").and_then(Value::as_str) {
        let name = name.trim_start_matches('#');
        return schema
            .pointer(name)
            .map_or(property, |next| resolved(next, schema));
    }
    let alternatives = property.get("anyOf").and_then(Value::as_array);
    alternatives
        .into_iter()
        .flatten()
        .find(|one| one.get("$ref").is_some())
        .map_or(property, |one| resolved(one, schema))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::HumanKind;
    use crate::config::environment::Environment;
    use crate::config::layers::Flags;
    use crate::config::{Source, load, tree};
    use crate::world::Mistakes;

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
        assert_eq!(
            schema["anyOf"],
            serde_json::json!([{"required": ["models", "agents"]}, {"required": ["gates"]}])
        );
        let server = &schema["$defs"]["Server"]["properties"];
        assert_eq!(server["wait"]["default"], "10s", "{server}");
        assert_eq!(server["listen"]["default"], "127.0.0.1:8080");
        assert_eq!(
            schema["$defs"]["Limits"]["properties"]["max_duration"]["default"],
            "1h"
        );
        assert_eq!(
            schema["$defs"]["Rule"]["properties"]["expires_in"]["default"],
            "24h"
        );
        assert_eq!(
            schema["$defs"]["ShellTool"]["properties"]["max_output"]["default"],
            "64KiB"
        );
        described("", &schema);
        for (name, part) in schema["$defs"].as_object().unwrap() {
            described(name, part);
        }
    }

    #[test]
    fn description_of_human_names_the_tool_of_every_kind_of_question() {
        let schema = schema();
        let human = &schema["$defs"]["Agent"]["properties"]["human"];
        let about = human["description"].as_str().unwrap();
        for kind in HumanKind::ALL {
            assert!(about.contains(&format!("`{}`", kind.tool())), "{about}");
        }
    }

    #[test]
    fn schema_accepts_null_exactly_where_the_file_may_have_it() {
        let validator = jsonschema::validator_for(&schema()).unwrap();
        for (lines, is_accepted) in [
            ("tools: { t: { http: null } }", false),
            ("tools: { t: { shell: null } }", false),
            ("tools: { t: { mcp: null } }", false),
            ("tools: { t: { external: null } }", false),
            ("tools: { t: { external: { result: null } } }", true),
            ("tools: { t: { parameters: null, shell: {} } }", true),
            ("notify: { to: [ { name: n, webhook: null } ] }", false),
            ("notify: { to: [ { name: n, mail: null } ] }", false),
            ("notify: { to: [ { name: n, slack: null } ] }", false),
            ("notify: { to: [ { name: n, teams: null } ] }", false),
            ("auth: null", false),
        ] {
            let text = format!(
                "models: {{ m: {{ provider: openai, model: x }} }}\nagents: {{ a: {{ model: m }} }}\n{lines}\n"
            );
            let json = tree::parse(&text, None, &mut Mistakes::default())
                .unwrap()
                .to_json();
            assert_eq!(validator.is_valid(&json), is_accepted, "{lines}");
            let (none, flags) = (Environment::default(), Flags::default());
            let file = Source::File("h.yaml".into(), text);
            let loaded = load(file, &none, &flags, |_, _| {});
            assert_eq!(loaded.is_ok(), is_accepted, "{lines}");
        }
    }

    #[test]
    fn schema_accepts_the_built_in_files() {
        let validator = jsonschema::validator_for(&schema()).unwrap();
        for text in [crate::config::DEMO, crate::config::SMALLEST] {
            let mut mistakes = Mistakes::default();
            let json = tree::parse(text, None, &mut mistakes).unwrap().to_json();
            let errors: Vec<_> = validator
                .iter_errors(&json)
                .map(|error| error.to_string())
                .collect();
            assert_eq!(errors, Vec::<String>::new());
        }
    }
}
