//! Agents and gates: their settings, their permitted callers, and the definition to which a task is
//! pinned. Invariant: limits and `open_to` are not pinned; they always come from the current
//! configuration.

pub mod gate;
mod settings;
pub(crate) mod version;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

pub use self::gate::Gate;
pub use self::settings::{OpenTo, Settings, SubAgent};
use self::version::{DefinitionError, VariableExpander};
use crate::task::limits::Limits;
use crate::task::request::RequestKind;
pub use crate::task::request_kind::HumanKind;
use crate::task::user::UserId;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agent {
    pub name: String,
    pub description: String,
    /// The name of the model in the configuration; empty for a gate.
    pub model: String,
    /// The system prompt; empty for none.
    pub instructions: String,
    /// The tools that the model is offered; for a gate, the tools that callers may propose to call.
    pub tools: Vec<ToolDescription>,
    /// The digest of `definition`, as `sha256:…`.
    pub version: String,
    /// The definition as canonical JSON. `version::read` reads an agent back from this text.
    pub definition: String,
    pub limits: Limits,
    /// The callers who may use the agent; `None` admits every caller.
    pub open_to: Option<OpenTo>,
    /// The agents that the model may call.
    pub sub_agents: Vec<SubAgent>,
    /// The kinds of question that the model may ask a person.
    pub human: Vec<HumanKind>,
    /// The settings if this is a gate, which has no model; `None` if this is an agent with a model.
    pub gate: Option<Box<Gate>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ToolDescription {
    pub name: String,
    pub description: String,
    /// The JSON Schema of the tool's arguments.
    pub parameters: Value,
}

impl OpenTo {
    /// Whether `tenants`, `users` or `groups` admits the caller.
    #[must_use]
    pub fn admits(&self, tenant: &str, user: &UserId, groups: &[String]) -> bool {
        self.tenants.iter().any(|name| name == tenant)
            || self.users.iter().any(|name| user.is_same_person(name))
            || groups.iter().any(|group| self.groups.contains(group))
    }
}

impl Agent {
    /// Returns the offered tool with exactly this name, as the model sees the tool.
    #[must_use]
    pub fn offered_tool(&self, name: &str) -> Option<&ToolDescription> {
        self.tools.iter().find(|offer| offer.name == name)
    }

    #[must_use]
    pub fn sub_agent(&self, name: &str) -> Option<&SubAgent> {
        self.sub_agents.iter().find(|sub| sub.agent == name)
    }

    /// Returns the kind of question that the tool `tool` asks a person; `None` if the agent lacks
    /// the tool.
    #[must_use]
    pub fn human_request_kind(&self, tool: &str) -> Option<RequestKind> {
        RequestKind::from_tool(tool).filter(|_| self.human.iter().any(|kind| kind.tool() == tool))
    }

    #[must_use]
    pub fn is_open_to(&self, tenant: &str, user: &UserId, groups: &[String]) -> bool {
        self.open_to
            .as_ref()
            .is_none_or(|open_to| open_to.admits(tenant, user, groups))
    }
}

/// All agents and gates of the configuration, by name.
#[derive(Clone, Debug, Default)]
pub struct Agents {
    by_name: BTreeMap<String, Arc<Agent>>,
    default: String,
    expander: VariableExpander,
}

impl Agents {
    /// Indexes the agents. `default` is the name of the agent for tasks that name no agent.
    /// `expander` expands the `${…}` of stored definitions.
    #[must_use]
    pub fn new(agents: Vec<Agent>, default: &str, expander: VariableExpander) -> Self {
        let agents = agents
            .into_iter()
            .map(|agent| (agent.name.clone(), Arc::new(agent)))
            .collect();
        Self {
            by_name: agents,
            default: default.to_owned(),
            expander,
        }
    }

    /// Reads an agent or a gate from a stored `definition`. The limits and `open_to` of the result
    /// come from `current`. For a gate, the settings that are not pinned also come from `current`.
    ///
    /// # Errors
    /// - `Damaged`: `definition` cannot be read, does not match the digest `version`, or belongs to
    ///   another agent.
    /// - `Missing`: a `${…}` in `definition` cannot be expanded.
    /// - `Missing`: the name of a tool contains a `${…}` whose value has changed since
    ///   `definition` was stored.
    /// - `Missing`: one of `definition` and `current` is an agent, and the other is a gate.
    pub fn pinned(
        &self,
        current: &Agent,
        version: &str,
        definition: &str,
    ) -> Result<Agent, DefinitionError> {
        if version::digest(definition) != version {
            return Err(DefinitionError::Damaged);
        }
        let pinned = version::read(definition, &self.expander)?;
        if pinned.name != current.name {
            return Err(DefinitionError::Damaged);
        }
        let gate = match (&pinned.gate, &current.gate) {
            (None, None) => None,
            (Some(pinned_gate), Some(gate)) => Some(Box::new(
                gate::PinnedGateSettings::from(&**pinned_gate).apply_to(gate),
            )),
            (Some(_), None) | (None, Some(_)) => {
                let why = "a gate and an agent have had this name".to_owned();
                return Err(DefinitionError::Missing(why));
            }
        };
        Ok(Agent {
            limits: current.limits,
            open_to: current.open_to.clone(),
            gate,
            ..pinned
        })
    }

    /// Returns the agent of this name, without checking whether the caller may use it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Agent>> {
        self.by_name.get(name)
    }

    #[must_use]
    pub fn is_gate(&self, name: &str) -> bool {
        self.get(name).is_some_and(|agent| agent.gate.is_some())
    }

    #[must_use]
    pub fn default_name(&self) -> &str {
        &self.default
    }

    /// Returns the agent `name`; the default agent if `name` is `None`. Returns `None` if the agent
    /// is unknown, is a gate, or is not open to the caller.
    #[must_use]
    pub fn find(
        &self,
        name: Option<&str>,
        tenant: &str,
        user: &UserId,
        groups: &[String],
    ) -> Option<&Arc<Agent>> {
        self.get(name.unwrap_or(&self.default))
            .filter(|agent| agent.gate.is_none() && agent.is_open_to(tenant, user, groups))
    }

    /// Returns all agents except the gates, ordered by name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Agent>> {
        self.by_name.values().filter(|agent| agent.gate.is_none())
    }

    /// Returns all agents and gates, ordered by name. Their definitions must be stored, because a
    /// task may be pinned to any of them.
    pub fn definitions(&self) -> impl Iterator<Item = &Arc<Agent>> {
        self.by_name.values()
    }

    /// Returns all gates, ordered by name.
    pub fn gates(&self) -> impl Iterator<Item = (&Arc<Agent>, &Gate)> {
        let gates = self.by_name.values();
        gates.filter_map(|agent| Some((agent, agent.gate.as_deref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_is_open_to_callers_in_any_of_its_lists() {
        let open = Agent {
            name: "open".into(),
            ..Agent::default()
        };
        let to = OpenTo {
            tenants: vec!["acme".into()],
            users: vec!["eve".into()],
            groups: vec!["support".into()],
        };
        let closed = Agent {
            name: "closed".into(),
            open_to: Some(to),
            ..Agent::default()
        };
        let nobody = Agent {
            name: "nobody".into(),
            open_to: Some(OpenTo::default()),
            ..Agent::default()
        };
        let agents = Agents::new(
            vec![open, closed, nobody],
            "open",
            VariableExpander::default(),
        );
        let support = ["support".to_owned()];
        let names = |tenant, user, groups| {
            let open = agents
                .all()
                .filter(|agent| agent.is_open_to(tenant, &UserId::from(user), groups));
            open.map(|agent| agent.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names("other", "bob", &[]), ["open"]);
        assert_eq!(names("other", "eve", &[]), ["closed", "open"]);
        assert_eq!(names("other", "EVE", &[]), ["closed", "open"]);
        assert_eq!(names("acme", "bob", &[]), ["closed", "open"]);
        assert_eq!(names("other", "bob", &support), ["closed", "open"]);
        assert_eq!(
            agents.find(None, "x", &"y".into(), &[]).unwrap().name,
            "open"
        );
        assert!(agents.find(Some("closed"), "x", &"y".into(), &[]).is_none());
        assert!(agents.find(Some("gone"), "x", &"y".into(), &[]).is_none());
    }
}
