//! Writes the definition of an agent, computes the definition's digest (the agent's version), and
//! reads an agent back from its definition.
//!
//! Invariant: no secret enters a definition. A definition is written from unexpanded values, in
//! which `${…}` still stands for a variable or a file. For each tool, the definition has the
//! description and the schema that a model sees, and a digest of all settings of the tool. A stored
//! definition is trusted only if it matches its digest.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::gate::{Gate, PinnedGateSettings};
use super::{Agent, HumanKind, SubAgent, ToolDescription};
use crate::task::request::format_sha256;
use crate::task::text::canonical_json;

/// The keys that a definition leaves out. Limits and `open_to` always come from the current
/// configuration.
const UNPINNED_KEYS: [&str; 2] = ["limits", "open_to"];

/// A tool offered to an agent, with its `${…}` unexpanded.
#[derive(Clone, Debug)]
pub(crate) struct UnexpandedTool {
    pub name: String,
    /// The tool's unexpanded settings. The agent's definition contains the `description` in these
    /// settings, and a digest of all these settings.
    pub definition: Value,
    /// The JSON Schema of the tool's arguments, unexpanded; the default schema if the configuration
    /// sets no schema.
    pub parameters: Value,
}

/// Returns the definition of an agent as canonical JSON. The definition has the agent's name, the
/// unexpanded `settings` (without `UNPINNED_KEYS`), the tools (description, schema and digest of
/// each) and the unexpanded descriptions of the sub-agents. `sub_agents` yields each sub-agent's
/// name and unexpanded settings.
#[must_use]
pub(crate) fn definition<'a>(
    name: &str,
    settings: &Value,
    tools: impl IntoIterator<Item = UnexpandedTool>,
    sub_agents: impl IntoIterator<Item = (&'a str, Value)>,
) -> String {
    let mut settings = settings.as_object().cloned().unwrap_or_default();
    settings.retain(|key, _| !UNPINNED_KEYS.contains(&key.as_str()));
    let described = |value: &Value| {
        value
            .get("description")
            .cloned()
            .unwrap_or_else(|| json!(""))
    };
    let tools = tools.into_iter().map(|tool| {
        let description = json!({
            "description": described(&tool.definition), "parameters": tool.parameters,
            "digest": digest(&canonical_json(&tool.definition)),
        });
        (tool.name, description)
    });
    let tools: Map<String, Value> = tools.collect();
    let sub_agents = sub_agents
        .into_iter()
        .map(|(name, value)| (name.to_owned(), described(&value)));
    let sub_agents: Map<String, Value> = sub_agents.collect();
    canonical_json(
        &json!({"agent": settings, "name": name, "tools": tools, "sub_agents": sub_agents}),
    )
}

/// Whether a definition is of a gate; `false` if it cannot be read.
#[must_use]
pub(crate) fn is_gate(definition: &str) -> bool {
    #[derive(Deserialize)]
    struct Definition {
        agent: Settings,
    }
    #[derive(Deserialize)]
    struct Settings {
        gate: Option<IgnoredAny>,
    }
    serde_json::from_str::<Definition>(definition)
        .is_ok_and(|definition| definition.agent.gate.is_some())
}

/// Returns the digest of a definition, which is the agent's version.
#[must_use]
pub(crate) fn digest(definition: &str) -> String {
    format_sha256(&Sha256::digest(definition.as_bytes()))
}

type ExpandFn = dyn Fn(&str) -> Result<String, String> + Send + Sync;

/// A function that expands the `${…}` in a text.
#[derive(Clone)]
pub struct VariableExpander(Arc<ExpandFn>);

impl VariableExpander {
    /// Wraps `expand`. An error of `expand` must name the missing variable or file, and must not
    /// contain a value.
    pub fn new(expand: impl Fn(&str) -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(expand))
    }

    fn expand_all(&self, value: &mut Value) -> Result<(), DefinitionError> {
        match value {
            Value::String(text) => *text = (self.0)(text).map_err(DefinitionError::Missing)?,
            Value::Array(elements) => elements
                .iter_mut()
                .try_for_each(|below| self.expand_all(below))?,
            Value::Object(members) => members
                .values_mut()
                .try_for_each(|below| self.expand_all(below))?,
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        Ok(())
    }
}

impl Default for VariableExpander {
    fn default() -> Self {
        Self::new(|text| Ok(text.to_owned()))
    }
}

impl fmt::Debug for VariableExpander {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VariableExpander")
    }
}

/// The reason why an agent could not be read from a stored definition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// The stored text does not match its digest, is not a definition, or is of another agent.
    #[error("the definition is damaged")]
    Damaged,
    /// The definition does not fit the present configuration. The string is the message. Causes:
    /// - A `${…}` in the definition can no longer be expanded.
    /// - The name of a tool contains a `${…}` whose value has changed since the definition was
    ///   stored.
    /// - The definition is of an agent whose name a gate has now, or of a gate whose name an agent
    ///   has now.
    #[error("{0}")]
    Missing(String),
}

/// The members of a stored definition that `read` uses. A definition has more members, which are
/// written only so that the definition's digest covers them.
#[derive(Deserialize)]
struct StoredDefinition {
    name: String,
    agent: StoredAgent,
    tools: BTreeMap<String, StoredTool>,
    sub_agents: BTreeMap<String, String>,
}

/// An agent's settings as stored. Unlike `Settings`, this type ignores unknown members, because
/// another version of the service may have written the definition.
#[derive(Deserialize)]
struct StoredAgent {
    #[serde(default)]
    description: String,
    /// The name of the model; `None` for a gate.
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    instructions: String,
    #[serde(default)]
    tools: Vec<String>,
    #[serde(default)]
    sub_agents: Vec<StoredSubAgent>,
    #[serde(default)]
    human: Vec<HumanKind>,
    /// The pinned settings of a gate; `None` for an agent.
    #[serde(default)]
    gate: Option<PinnedGateSettings>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum StoredSubAgent {
    Name(String),
    Whole {
        agent: String,
        #[serde(default)]
        session: bool,
    },
}

#[derive(Deserialize)]
struct StoredTool {
    description: String,
    parameters: Value,
}

/// Reads an agent from its definition, with each `${…}` expanded. The agent has the default limits
/// and admits every caller. The digest of the definition is not checked.
///
/// # Errors
/// Fails if the definition is damaged, or if a `${…}` cannot be expanded. Also fails if the name of
/// a tool contains a `${…}` whose value has changed since the definition was stored.
pub(crate) fn read(
    definition: &str,
    expander: &VariableExpander,
) -> Result<Agent, DefinitionError> {
    let damaged = |_| DefinitionError::Damaged;
    let mut value: Value = serde_json::from_str(definition).map_err(damaged)?;
    expander.expand_all(&mut value)?;
    let StoredDefinition {
        name,
        agent,
        mut tools,
        sub_agents,
    } = serde_json::from_value(value).map_err(damaged)?;
    if agent.gate.is_none() && agent.model.is_none() {
        return Err(DefinitionError::Damaged);
    }
    let offer = |name: String| {
        // `tools` has the tool under the name at the time when the definition was stored. If the
        // name contains a `${…}` whose value has changed since then, `remove` returns `None`.
        let stored_tool = tools.remove(&name).ok_or_else(|| {
            DefinitionError::Missing(format!("the definition has no tool {name:?}"))
        })?;
        Ok(ToolDescription {
            name,
            description: stored_tool.description,
            parameters: stored_tool.parameters,
        })
    };
    let offers = agent
        .tools
        .into_iter()
        .map(offer)
        .collect::<Result<_, _>>()?;
    let described = |sub: StoredSubAgent| {
        let (agent, session) = match sub {
            StoredSubAgent::Name(agent) => (agent, false),
            StoredSubAgent::Whole { agent, session } => (agent, session),
        };
        SubAgent {
            description: sub_agents.get(&agent).cloned().unwrap_or_default(),
            agent,
            session,
        }
    };
    Ok(Agent {
        name,
        description: agent.description,
        model: agent.model.unwrap_or_default(),
        instructions: agent.instructions,
        tools: offers,
        version: digest(definition),
        definition: definition.to_owned(),
        sub_agents: agent.sub_agents.into_iter().map(described).collect(),
        human: agent.human,
        gate: agent
            .gate
            .map(|pinned| Box::new(pinned.apply_to(&Gate::default()))),
        ..Agent::default()
    })
}

#[cfg(test)]
mod tests {
    use super::super::Agents;
    use super::*;
    use crate::task::limits::Limits;

    fn tool(definition: &Value) -> UnexpandedTool {
        let parameters = definition
            .get("parameters")
            .cloned()
            .unwrap_or_else(|| json!({"type": "object"}));
        UnexpandedTool {
            name: "t".to_owned(),
            definition: definition.clone(),
            parameters,
        }
    }

    fn text_of(definition: &Value, told: &Value) -> String {
        super::definition(
            "a",
            definition,
            [tool(told)],
            [("s", json!({"description": "d", "model": "m"}))],
        )
    }

    fn of(definition: &Value, told: &Value) -> String {
        digest(&text_of(definition, told))
    }

    #[test]
    fn version_depends_on_the_content_and_not_on_its_order() {
        let definition = json!({"model": "m", "instructions": "x", "tools": ["t"]});
        let tool = json!({"http": {"url": "http://h/${KEY}"}, "effect": "once"});
        let one = of(&definition, &tool);
        assert!(one.starts_with("sha256:") && one.len() == 71, "{one}");
        let reordered: Value =
            serde_json::from_str(r#"{"tools":["t"],"instructions":"x","model":"m"}"#).unwrap();
        assert_eq!(of(&reordered, &tool), one);
        let current =
            json!({"model": "m", "instructions": "x", "tools": ["t"], "limits": {"max_calls": 2}});
        assert_eq!(
            of(&current, &tool),
            one,
            "limits are always the current ones"
        );
        for (definition, tool) in [
            (
                json!({"model": "n", "instructions": "x", "tools": ["t"]}),
                tool.clone(),
            ),
            (
                json!({"model": "m", "instructions": "y", "tools": ["t"]}),
                tool.clone(),
            ),
            (
                definition.clone(),
                json!({"http": {"url": "http://h/${KEY}"}, "effect": "idempotent"}),
            ),
            (
                definition.clone(),
                json!({"http": {"url": "http://h/${KEY}"}, "effect": "once", "description": "d"}),
            ),
            (
                definition.clone(),
                json!({"http": {"url": "http://h/"}, "effect": "once"}),
            ),
        ] {
            assert_ne!(of(&definition, &tool), one);
        }
        assert_ne!(
            digest(&super::definition("b", &definition, [], [])),
            digest(&super::definition("a", &definition, [], []))
        );
    }

    #[test]
    fn header_values_are_not_kept_in_a_definition() {
        let told = json!({"http": {"headers": {"X-Key": "written-into-the-file"}, "url": "http://h"}, "effect": "once"});
        let text = text_of(&json!({"model": "m", "tools": ["t"]}), &told);
        assert!(
            !text.contains("written-into-the-file") && !text.contains("http://h"),
            "{text}"
        );
    }

    #[test]
    fn member_of_another_version_in_a_stored_definition_is_ignored() {
        let own = json!({"model": "m", "sub_agents": [{"agent": "s", "since": 2}], "later": true});
        let agent = read(&text_of(&own, &json!({})), &VariableExpander::default()).unwrap();
        assert_eq!(
            (agent.model.as_str(), agent.sub_agents[0].agent.as_str()),
            ("m", "s")
        );
        let nameless = text_of(&json!({"tools": []}), &json!({}));
        assert_eq!(
            read(&nameless, &VariableExpander::default()),
            Err(DefinitionError::Damaged),
            "a stored agent always has a model"
        );
    }

    #[test]
    fn pinned_agent_is_read_with_current_variables_and_limits() {
        let own = json!({
            "model": "m", "instructions": "You are ${WHO}.", "tools": ["t"], "human": ["guidance"],
            "sub_agents": ["s", {"agent": "u", "session": true}], "limits": {"max_calls": 2},
        });
        let definition = text_of(
            &own,
            &json!({"description": "For ${WHO}.", "parameters": {"type": "object"}}),
        );
        let fill = VariableExpander::new(|text| Ok(text.replace("${WHO}", "Ada")));
        let current = Agent {
            name: "a".into(),
            limits: Limits {
                max_calls: 7,
                ..Limits::default()
            },
            open_to: Some(super::super::OpenTo::default()),
            ..Agent::default()
        };
        let agents = Agents::new(Vec::new(), "a", fill);
        let version = digest(&definition);
        let agent = agents.pinned(&current, &version, &definition).unwrap();
        assert_eq!(
            (agent.model.as_str(), agent.instructions.as_str()),
            ("m", "You are Ada.")
        );
        assert_eq!(
            (agent.limits.max_calls, agent.open_to),
            (7, current.open_to.clone())
        );
        assert_eq!(agent.tools[0].description, "For Ada.");
        assert_eq!(agent.human, [HumanKind::Guidance]);
        let sub = |agent: &str, description: &str, session| SubAgent {
            agent: agent.into(),
            description: description.into(),
            session,
        };
        assert_eq!(agent.sub_agents, [sub("s", "d", false), sub("u", "", true)]);
        for damaged in [
            definition.replace("Ada", "Eve"),
            definition.replace("WHO", "YOU"),
            String::new(),
        ] {
            if damaged != definition {
                assert_eq!(
                    agents.pinned(&current, &version, &damaged),
                    Err(DefinitionError::Damaged)
                );
            }
        }
        let other = Agent {
            name: "b".into(),
            ..current.clone()
        };
        assert_eq!(
            agents.pinned(&other, &version, &definition),
            Err(DefinitionError::Damaged),
            "another agent's"
        );
        let gone = Agents::new(
            Vec::new(),
            "a",
            VariableExpander::new(|_| Err("the variable `WHO` is not set".to_owned())),
        );
        let missing = DefinitionError::Missing("the variable `WHO` is not set".to_owned());
        assert_eq!(gone.pinned(&current, &version, &definition), Err(missing));
    }
}
