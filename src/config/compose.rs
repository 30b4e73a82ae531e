//! From the settings to the nouns of the rooms that need no more than a copy: people, agents.

use super::Config;
use super::check_people::parse_hex;
use super::parts::{AgentSettings, LimitsSettings};
use super::settings::{ApiKey, Use};
use crate::agent::{Agent, Agents, OpenTo, SubAgent, version};
use crate::people::May;
use crate::people::authenticator::{Authenticator, Keys, Open};
use crate::people::directory::{Account, Directory, hash};
use crate::task::limits::Limits;

impl Config {
    /// Who may come in, as the door asks it.
    #[must_use]
    pub fn authenticator(&self) -> Box<dyn Authenticator> {
        match self.directory() {
            Some(directory) => Box::new(Keys::new(directory)),
            None => Box::new(Open),
        }
    }

    /// The accounts; `None` without any.
    #[must_use]
    pub fn directory(&self) -> Option<Directory> {
        let auth = self.auth.as_ref()?;
        Some(Directory::new(auth.api_keys.iter().filter_map(account).collect()))
    }

    /// The agents.
    #[must_use]
    pub fn agents(&self) -> Agents {
        let agents = self.agents.iter().map(|(name, settings)| self.agent(name, settings)).collect();
        Agents::new(agents, &self.default_agent)
    }

    fn agent(&self, name: &str, settings: &AgentSettings) -> Agent {
        let tools = settings.tools.iter().map(|tool| (tool.as_str(), self.unexpanded(&["tools", tool])));
        let subs = settings.sub_agents.iter().map(|sub| (sub.agent.as_str(), self.unexpanded(&["agents", &sub.agent])));
        Agent {
            name: name.to_owned(),
            description: settings.description.clone(),
            model: settings.model.clone(),
            instructions: settings.instructions.clone(),
            tools: settings.tools.clone(),
            version: version(name, &self.unexpanded(&["agents", name]), tools, subs),
            limits: limits(&settings.limits),
            open_to: settings.open_to.as_ref().map(|to| OpenTo {
                tenants: to.tenants.clone(),
                users: to.users.clone(),
                groups: to.groups.clone(),
            }),
            sub_agents: settings
                .sub_agents
                .iter()
                .map(|sub| SubAgent { agent: sub.agent.clone(), session: sub.session })
                .collect(),
            human: settings.human.clone(),
        }
    }
}

fn account(key: &ApiKey) -> Option<Account> {
    let key_sha256 = match (&key.key, &key.key_sha256) {
        (Some(text), None) => hash(text.reveal()),
        (None, Some(hex)) => parse_hex(hex.reveal())?,
        (_, _) => return None,
    };
    let may = |what: Use| key.may.contains(&what);
    Some(Account {
        user: key.user.clone(),
        tenant: key.tenant.clone(),
        groups: key.groups.clone(),
        act_as: key.act_as,
        admin: key.admin,
        may: May { create: may(Use::Create), read: may(Use::Read), decide: may(Use::Decide) },
        key_sha256,
    })
}

/// An agent's limits.
#[must_use]
pub fn limits(settings: &LimitsSettings) -> Limits {
    Limits {
        max_model_calls: settings.max_model_calls,
        max_duration: settings.max_duration,
        max_depth: settings.max_depth,
        max_rejections: settings.max_rejections,
        max_children: settings.max_children,
        max_tasks: settings.max_tasks,
        max_calls: settings.max_calls,
    }
}
