//! What an agent is made of, who may use it, and which definition of it a task is pinned to.
//! What must stay true: what a task is pinned to is its definition; limits and who may use it are always the current ones.

pub mod version;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use self::version::{Fill, Unreadable};
use crate::task::limits::Limits;
use crate::task::request::RequestKind;
use crate::task::user::UserId;

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
    /// The tools it is offered, as the model is told of them.
    pub tools: Vec<Offer>,
    /// `sha256:…` over its definition.
    pub version: String,
    /// What the digest is over, and enough to read the agent back: see [`version`].
    pub definition: String,
    /// Its limits.
    pub limits: Limits,
    /// Who may use it.
    pub open_to: Option<OpenTo>,
    /// The agents it may call.
    pub sub_agents: Vec<SubAgent>,
    /// What it may ask a human.
    pub human: Vec<HumanKind>,
}

/// A tool as a model is told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: Value,
}

/// An agent that another one may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubAgent {
    /// Its name.
    pub agent: String,
    /// What it is for, as the model is told.
    pub description: String,
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
        self.request().as_str()
    }

    /// The kind of question it is.
    #[must_use]
    pub fn request(self) -> RequestKind {
        match self {
            Self::Guidance => RequestKind::Guidance,
            Self::Credentials => RequestKind::Credentials,
            Self::Confirmation => RequestKind::Confirmation,
        }
    }

    /// The tool it offers.
    #[must_use]
    pub fn tool(self) -> &'static str {
        self.request().tool().unwrap_or_default()
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

impl OpenTo {
    /// Whether that person is in one of the lists.
    #[must_use]
    pub fn admits(&self, tenant: &str, user: &UserId, groups: &[String]) -> bool {
        self.tenants.iter().any(|name| name == tenant)
            || self.users.iter().any(|name| user.is(name))
            || groups.iter().any(|group| self.groups.contains(group))
    }
}

impl Agent {
    /// The tool of that name, byte by byte, if the agent is offered it.
    #[must_use]
    pub fn offer(&self, name: &str) -> Option<&Offer> {
        self.tools.iter().find(|offer| offer.name == name)
    }

    /// The agent of that name, byte by byte, if this one may call it.
    #[must_use]
    pub fn sub_agent(&self, name: &str) -> Option<&SubAgent> {
        self.sub_agents.iter().find(|sub| sub.agent == name)
    }

    /// The question that the tool of that name asks a human, if the agent may ask it.
    #[must_use]
    pub fn asks(&self, tool: &str) -> Option<RequestKind> {
        RequestKind::of_tool(tool).filter(|_| self.human.iter().any(|kind| kind.tool() == tool))
    }

    /// Whether that person may use it.
    #[must_use]
    pub fn is_open_to(&self, tenant: &str, user: &UserId, groups: &[String]) -> bool {
        self.open_to.as_ref().is_none_or(|to| to.admits(tenant, user, groups))
    }
}

/// All agents, by name.
#[derive(Clone, Debug, Default)]
pub struct Agents {
    by_name: BTreeMap<String, Arc<Agent>>,
    default: String,
    fill: Fill,
}

impl Agents {
    /// These, one of which is for tasks that name none.
    #[must_use]
    pub fn new(agents: Vec<Agent>, default: &str, fill: Fill) -> Self {
        let agents = agents.into_iter().map(|agent| (agent.name.clone(), Arc::new(agent))).collect();
        Self { by_name: agents, default: default.to_owned(), fill }
    }

    /// `current` as the definition that was kept under `version` has it: only its limits and who may use it are today's.
    ///
    /// # Errors
    /// `Damaged` when the text is not what the digest is over, or is another agent's; `Missing` when a `${…}` in it
    /// cannot be filled in any more.
    pub fn pinned(&self, current: &Agent, version: &str, definition: &str) -> Result<Agent, Unreadable> {
        if version::digest(definition) != version {
            return Err(Unreadable::Damaged);
        }
        let pinned = version::read(definition, &self.fill)?;
        if pinned.name != current.name {
            return Err(Unreadable::Damaged);
        }
        Ok(Agent { limits: current.limits, open_to: current.open_to.clone(), ..pinned })
    }

    /// The agent of that name, whoever asks.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Agent>> {
        self.by_name.get(name)
    }

    /// The name of the agent for tasks that name none.
    #[must_use]
    pub fn default_name(&self) -> &str {
        &self.default
    }

    /// The agent that a task of that person names, or the default one. For others it is unknown.
    #[must_use]
    pub fn find(&self, name: Option<&str>, tenant: &str, user: &UserId, groups: &[String]) -> Option<&Arc<Agent>> {
        self.get(name.unwrap_or(&self.default)).filter(|agent| agent.is_open_to(tenant, user, groups))
    }

    /// All of them, by name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Agent>> {
        self.by_name.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_open_to_anybody_in_one_of_its_lists() {
        let open = Agent { name: "open".into(), ..Agent::default() };
        let to = OpenTo { tenants: vec!["acme".into()], users: vec!["eve".into()], groups: vec!["support".into()] };
        let closed = Agent { name: "closed".into(), open_to: Some(to), ..Agent::default() };
        let nobody = Agent { name: "nobody".into(), open_to: Some(OpenTo::default()), ..Agent::default() };
        let agents = Agents::new(vec![open, closed, nobody], "open", Fill::default());
        let support = ["support".to_owned()];
        let names = |tenant, user, groups| {
            let open = agents.all().filter(|agent| agent.is_open_to(tenant, &UserId::from(user), groups));
            open.map(|agent| agent.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names("other", "bob", &[]), ["open"]);
        assert_eq!(names("other", "eve", &[]), ["closed", "open"]);
        assert_eq!(names("other", "EVE", &[]), ["closed", "open"]);
        assert_eq!(names("acme", "bob", &[]), ["closed", "open"]);
        assert_eq!(names("other", "bob", &support), ["closed", "open"]);
        assert_eq!(agents.find(None, "x", &"y".into(), &[]).unwrap().name, "open");
        assert!(agents.find(Some("closed"), "x", &"y".into(), &[]).is_none());
        assert!(agents.find(Some("gone"), "x", &"y".into(), &[]).is_none());
    }
}
