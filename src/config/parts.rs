//! The typed settings of tools and agents. The doc comments are the descriptions in the file's JSON
//! Schema.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::decode::from_map;
use super::units::{duration_text, size_text};
use crate::agent::HumanKind;
use crate::secret::Secret;
use crate::task::tool_spec::Effect;

/// A tool. Exactly one of `http`, `shell` and `external` says who performs it.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["http"]}, {"required": ["shell"]}, {"required": ["external"]}]))]
pub struct ToolSettings {
    /// What it does, for the model.
    pub description: String,
    /// What repeating a call does.
    pub effect: Effect,
    /// The line an approver reads: `Refund {amount} for order {order}`.
    pub summary: Option<String>,
    /// JSON Schema (2020-12) of its arguments; without it there are none. A shell tool's are fixed.
    #[schemars(schema_with = "object_schema")]
    pub parameters: Option<Value>,
    /// An HTTP request.
    pub http: Option<HttpToolSettings>,
    /// A command on this host.
    pub shell: Option<ShellToolSettings>,
    /// The caller performs it and posts its result.
    pub external: Option<ExternalToolSettings>,
}

impl Default for ToolSettings {
    fn default() -> Self {
        Self {
            description: String::new(),
            effect: Effect::Once,
            summary: None,
            parameters: None,
            http: None,
            shell: None,
            external: None,
        }
    }
}

fn object_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object"})
}

/// An HTTP request.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["url"]))]
pub struct HttpToolSettings {
    /// The method.
    pub method: Method,
    /// The URL; `{name}` is that argument as one path segment.
    pub url: String,
    /// Headers.
    pub headers: BTreeMap<String, Secret<String>>,
    /// How long one attempt may take; `10m` at most.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub timeout: Duration,
}

impl Default for HttpToolSettings {
    fn default() -> Self {
        Self {
            method: Method::Post,
            url: String::new(),
            headers: BTreeMap::new(),
            timeout: Duration::from_secs(30),
        }
    }
}

/// An HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    /// Arguments go into the query.
    Get,
    /// Arguments are the body.
    Post,
    /// Arguments are the body.
    Put,
    /// Arguments are the body.
    Patch,
    /// Arguments go into the query.
    Delete,
}

impl Method {
    /// The method as written in HTTP.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// A command on this host: argument `{"command": "…"}`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ShellToolSettings {
    /// Where it runs; default the file's own directory. A relative path is the file's. Absolute
    /// once the file was read.
    pub working_dir: String,
    /// How long one attempt may take; `10m` at most.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub timeout: Duration,
    /// Its whole environment: names that are passed on, or a map of names and values.
    pub env: ShellEnv,
    /// How much of its output is kept.
    #[serde(with = "size_text")]
    #[schemars(with = "size_text::Text")]
    pub max_output: u64,
}

impl Default for ShellToolSettings {
    fn default() -> Self {
        Self {
            working_dir: ".".to_owned(),
            timeout: Duration::from_secs(30),
            env: ShellEnv::default(),
            max_output: 64 * 1024,
        }
    }
}

/// A command's environment. A name in a list is passed on from the service's own environment: its
/// value is filled in once the file is read, and stays `None` if the service has no such variable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShellEnv(pub BTreeMap<String, Option<Secret<String>>>);

impl<'de> Deserialize<'de> for ShellEnv {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Both;
        impl<'de> Visitor<'de> for Both {
            type Value = ShellEnv;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of names, or a map of names and values")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<ShellEnv, A::Error> {
                let mut env = BTreeMap::new();
                while let Some(name) = names.next_element::<String>()? {
                    env.insert(name, None);
                }
                Ok(ShellEnv(env))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut values: A) -> Result<ShellEnv, A::Error> {
                let mut env = BTreeMap::new();
                while let Some((name, value)) = values.next_entry::<String, Secret<String>>()? {
                    env.insert(name, Some(value));
                }
                Ok(ShellEnv(env))
            }
        }
        from.deserialize_any(Both)
    }
}

impl JsonSchema for ShellEnv {
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

/// A tool that the caller performs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExternalToolSettings {
    /// JSON Schema of the result; without it, anything.
    #[schemars(schema_with = "any_schema")]
    pub result: Option<Value>,
}

fn any_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["object", "boolean"]})
}

/// An agent.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["model"]))]
pub struct AgentSettings {
    /// What it is for.
    pub description: String,
    /// The model it asks.
    pub model: String,
    /// The system prompt.
    pub instructions: String,
    /// The tools it is offered.
    pub tools: Vec<String>,
    /// What it may ask a human.
    pub human: Vec<HumanKind>,
    /// The agents it may call.
    pub sub_agents: Vec<SubAgentSettings>,
    /// Who may use it; default: everybody.
    pub open_to: Option<OpenToSettings>,
    /// How far a task may go before somebody looks.
    pub limits: LimitsSettings,
}

/// A sub-agent: its name, or `{ agent, session }`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubAgentSettings {
    pub agent: String,
    /// Whether the conversation continues across the calls of one root task.
    pub session: bool,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["agent"]))]
struct SubAgentMap {
    /// Its name.
    agent: String,
    /// Whether it keeps its conversation over the calls of one root task.
    session: bool,
}

impl<'de> Deserialize<'de> for SubAgentSettings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Both;
        impl<'de> Visitor<'de> for Both {
            type Value = SubAgentSettings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an agent's name, or a map")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<SubAgentSettings, E> {
                Ok(SubAgentSettings {
                    agent: name.to_owned(),
                    session: false,
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SubAgentSettings, A::Error> {
                let SubAgentMap { agent, session } = from_map(map)?;
                Ok(SubAgentSettings { agent, session })
            }
        }
        from.deserialize_any(Both)
    }
}

impl JsonSchema for SubAgentSettings {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SubAgent".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let map = generator.subschema_for::<SubAgentMap>();
        json_schema!({"anyOf": [{"type": "string"}, map]})
    }
}

/// Who may use an agent: anybody who is in one of the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpenToSettings {
    /// Tenants.
    pub tenants: Vec<String>,
    /// Users.
    pub users: Vec<String>,
    /// Groups.
    pub groups: Vec<String>,
}

/// How far a task may go, counted from the last user message over its tree.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsSettings {
    /// Answers of the model.
    pub max_model_calls: u32,
    /// Time spent running; waiting for a human does not count.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub max_duration: Duration,
    /// Levels of sub-agents.
    pub max_depth: u32,
    /// Calls refused because a human had said no to the same call.
    pub max_rejections: u32,
    /// Sub-agents started by one turn.
    pub max_children: u32,
    /// Tasks of the tree.
    pub max_tasks: u32,
    /// Calls in one turn.
    pub max_calls: u32,
}

impl Default for LimitsSettings {
    fn default() -> Self {
        let limits = crate::task::limits::Limits::default();
        Self {
            max_model_calls: limits.max_model_calls,
            max_duration: limits.max_duration,
            max_depth: limits.max_depth,
            max_rejections: limits.max_rejections,
            max_children: limits.max_children,
            max_tasks: limits.max_tasks,
            max_calls: limits.max_calls,
        }
    }
}
