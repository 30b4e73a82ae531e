//! The settings of an agent in the configuration file.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::HumanKind;
use crate::task::limits::Limits;

/// An agent: a model with instructions, tools and limits.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Agent", extend("required" = ["model"]))]
pub struct Settings {
    /// The purpose of the agent, shown to callers and to the models of agents that may call it.
    pub description: String,
    /// The name of a model in `models`.
    pub model: String,
    /// The system prompt. Empty: the model gets none.
    pub instructions: String,
    /// The names of the tools that the model is offered.
    pub tools: Vec<String>,
    /// The kinds of question that the model may ask a person.
    #[schemars(extend("description" = human_description()))]
    pub human: Vec<HumanKind>,
    /// The agents that the model may call. The model sees each of them as a tool with the agent's
    /// name.
    pub sub_agents: Vec<SubAgent>,
    /// The callers who may use the agent. Default: every caller.
    #[schemars(with = "OpenTo")]
    pub open_to: Option<OpenTo>,
    /// The limits of the agent's tasks.
    pub limits: Limits,
}

/// Returns the text that describes the key `human`. The text names the tool of each kind.
fn human_description() -> String {
    let tools = HumanKind::ALL.map(|kind| format!("`{}`", kind.tool()));
    format!(
        "The kinds of question that the model may ask a person. Each kind offers the model a tool: {}.",
        tools.join(", ")
    )
}

/// An agent that another agent may call. An element of `sub_agents` in the configuration is either
/// the name of the agent or a map with options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubAgent {
    pub agent: String,
    /// The called agent's description, for the model of the calling agent.
    pub description: String,
    /// Whether all calls of one task to this agent continue the same conversation. If false, each
    /// call starts a new task.
    pub session: bool,
}

/// A sub-agent with its options.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "SubAgentOptions", extend("required" = ["agent"]))]
struct Options {
    /// The name of an agent in `agents`.
    agent: String,
    /// Whether all calls of one task to the sub-agent continue the same conversation.
    /// Default: each call starts a new task.
    session: bool,
}

impl<'de> Deserialize<'de> for SubAgent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct NameOrMap;
        impl<'de> Visitor<'de> for NameOrMap {
            type Value = SubAgent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an agent's name, or a map")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<SubAgent, E> {
                Ok(SubAgent {
                    agent: name.to_owned(),
                    ..SubAgent::default()
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SubAgent, A::Error> {
                let Options { agent, session } =
                    Options::deserialize(MapAccessDeserializer::new(map))?;
                Ok(SubAgent {
                    agent,
                    session,
                    ..SubAgent::default()
                })
            }
        }
        from.deserialize_any(NameOrMap)
    }
}

impl JsonSchema for SubAgent {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SubAgent".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let map = generator.subschema_for::<Options>();
        json_schema!({"anyOf": [{"type": "string"}, map]})
    }
}

/// The callers who may use an agent or a gate: everyone who is in at least one of the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpenTo {
    /// The names of tenants whose users are admitted.
    pub tenants: Vec<String>,
    /// The ids of users who are admitted, in any tenant.
    pub users: Vec<String>,
    /// The names of groups whose members are admitted.
    pub groups: Vec<String>,
}
