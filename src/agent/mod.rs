//! What an agent is made of, the digest of it, and who may use it.
//! What must stay true: a digest is computed from unexpanded definitions: no secret can enter it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::task::limits::Limits;
use crate::task::request::sha256;

/// One agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The model it asks, by name.
    pub model: String,
    /// The system prompt; empty is none.
    pub instructions: String,
    /// The tools it is offered, by name.
    pub tools: Vec<String>,
    /// `sha256:…` over its definition, from unexpanded values: no secret can enter it.
    pub version: String,
    /// Its limits.
    pub limits: Limits,
    /// Who may use it.
    pub open_to: Option<OpenTo>,
    /// The agents it may call.
    pub sub_agents: Vec<SubAgent>,
    /// What it may ask a human.
    pub human: Vec<HumanKind>,
}

/// An agent that another one may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubAgent {
    /// Its name.
    pub agent: String,
    /// Whether it keeps its conversation over the calls of one root task.
    pub session: bool,
}

/// What an agent may ask a human.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HumanKind {
    /// `request_human_guidance`.
    Guidance,
    /// `request_credentials`.
    Credentials,
    /// `request_confirmation`.
    Confirmation,
}

impl HumanKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Guidance, Self::Credentials, Self::Confirmation];

    /// The word in the configuration and on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guidance => "guidance",
            Self::Credentials => "credentials",
            Self::Confirmation => "confirmation",
        }
    }

    /// The tool it offers.
    #[must_use]
    pub fn tool(self) -> &'static str {
        match self {
            Self::Guidance => "request_human_guidance",
            Self::Credentials => "request_credentials",
            Self::Confirmation => "request_confirmation",
        }
    }
}

/// Who may use an agent; anybody who is in one of the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenTo {
    /// Tenants.
    pub tenants: Vec<String>,
    /// Users.
    pub users: Vec<String>,
    /// Groups.
    pub groups: Vec<String>,
}

impl Agent {
    /// Whether that person may use it.
    #[must_use]
    pub fn is_open_to(&self, tenant: &str, user: &str, groups: &[String]) -> bool {
        let Some(to) = &self.open_to else { return true };
        to.tenants.iter().any(|name| name == tenant)
            || to.users.iter().any(|name| name == user)
            || groups.iter().any(|group| to.groups.contains(group))
    }
}

/// All agents, by name.
#[derive(Clone, Debug, Default)]
pub struct Agents {
    agents: BTreeMap<String, Arc<Agent>>,
    default: String,
}

impl Agents {
    /// These, one of which is for tasks that name none.
    #[must_use]
    pub fn new(agents: Vec<Agent>, default: &str) -> Self {
        let agents = agents.into_iter().map(|agent| (agent.name.clone(), Arc::new(agent))).collect();
        Self { agents, default: default.to_owned() }
    }

    /// The agent of that name, whoever asks.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Agent>> {
        self.agents.get(name)
    }

    /// The name of the agent for tasks that name none.
    #[must_use]
    pub fn default_name(&self) -> &str {
        &self.default
    }

    /// The agent that a task of that person names, or the default one. For others it is unknown.
    #[must_use]
    pub fn find(&self, name: Option<&str>, tenant: &str, user: &str, groups: &[String]) -> Option<&Arc<Agent>> {
        self.get(name.unwrap_or(&self.default)).filter(|agent| agent.is_open_to(tenant, user, groups))
    }

    /// The agents that person may use, by name.
    pub fn open_for<'a>(
        &'a self,
        tenant: &'a str,
        user: &'a str,
        groups: &'a [String],
    ) -> impl Iterator<Item = &'a Arc<Agent>> {
        self.agents.values().filter(move |agent| agent.is_open_to(tenant, user, groups))
    }

    /// All of them, by name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Agent>> {
        self.agents.values()
    }
}

/// What is not part of a version: limits and who may use an agent are always the current configuration's.
const CURRENT: [&str; 2] = ["limits", "open_to"];

/// `sha256:…` over an agent's unexpanded definition, those of its tools, and what its sub-agents are offered as.
#[must_use]
pub fn version<'a>(
    name: &str,
    definition: &Value,
    tools: impl IntoIterator<Item = (&'a str, Value)>,
    sub_agents: impl IntoIterator<Item = (&'a str, Value)>,
) -> String {
    let own = match definition {
        Value::Object(members) => Value::Object(
            members
                .iter()
                .filter(|(key, _)| !CURRENT.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => definition.clone(),
    };
    let tools: Map<String, Value> = tools.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let offered = |value: Value| value.get("description").cloned().unwrap_or(Value::Null);
    let subs: Map<String, Value> =
        sub_agents.into_iter().map(|(name, value)| (name.to_owned(), offered(value))).collect();
    let whole = serde_json::json!({"agent": own, "name": name, "tools": tools, "sub_agents": subs});
    let mut text = String::new();
    canonical(&whole, &mut text);
    sha256(&Sha256::digest(text.as_bytes()))
}

/// JSON with sorted keys and no blanks: equal values give equal text, however they were written.
pub fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let sorted: BTreeMap<&String, &Value> = members.iter().collect();
            out.push('{');
            for (index, (key, below)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                canonical(below, out);
            }
            out.push('}');
        }
        Value::Array(elements) => {
            out.push('[');
            for (index, below) in elements.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                canonical(below, out);
            }
            out.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => out.push_str(&value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(definition: &Value, tool: &Value) -> String {
        version("a", definition, [("t", tool.clone())], [("s", json!({"description": "d", "model": "m"}))])
    }

    #[test]
    fn a_version_depends_on_what_is_written_and_not_on_its_order() {
        let definition = json!({"model": "m", "instructions": "x", "tools": ["t"]});
        let tool = json!({"http": {"url": "http://h/${KEY}"}, "effect": "once"});
        let one = of(&definition, &tool);
        assert!(one.starts_with("sha256:") && one.len() == 71, "{one}");
        let reordered: Value = serde_json::from_str(r#"{"tools":["t"],"instructions":"x","model":"m"}"#).unwrap();
        assert_eq!(of(&reordered, &tool), one);
        let current = json!({"model": "m", "instructions": "x", "tools": ["t"], "limits": {"max_calls": 2}});
        assert_eq!(of(&current, &tool), one, "limits are always the current ones");
        for (definition, tool) in [
            (json!({"model": "n", "instructions": "x", "tools": ["t"]}), tool.clone()),
            (json!({"model": "m", "instructions": "y", "tools": ["t"]}), tool.clone()),
            (definition.clone(), json!({"http": {"url": "http://h/${KEY}"}, "effect": "idempotent"})),
        ] {
            assert_ne!(of(&definition, &tool), one);
        }
        assert_ne!(version("b", &definition, [("t", tool.clone())], []), version("a", &definition, [("t", tool)], []));
    }

    #[test]
    fn an_agent_is_open_to_anybody_in_one_of_its_lists() {
        let open = Agent { name: "open".into(), ..Agent::default() };
        let to = OpenTo { tenants: vec!["acme".into()], users: vec!["eve".into()], groups: vec!["support".into()] };
        let closed = Agent { name: "closed".into(), open_to: Some(to), ..Agent::default() };
        let nobody = Agent { name: "nobody".into(), open_to: Some(OpenTo::default()), ..Agent::default() };
        let agents = Agents::new(vec![open, closed, nobody], "open");
        let support = ["support".to_owned()];
        let names = |tenant, user, groups| {
            agents.open_for(tenant, user, groups).map(|agent| agent.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names("other", "bob", &[]), ["open"]);
        assert_eq!(names("other", "eve", &[]), ["closed", "open"]);
        assert_eq!(names("acme", "bob", &[]), ["closed", "open"]);
        assert_eq!(names("other", "bob", &support), ["closed", "open"]);
        assert_eq!(agents.find(None, "x", "y", &[]).unwrap().name, "open");
        assert!(agents.find(Some("closed"), "x", "y", &[]).is_none());
        assert!(agents.find(Some("gone"), "x", "y", &[]).is_none());
    }
}
