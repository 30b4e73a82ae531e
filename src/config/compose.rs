//! Converts settings to people and agents.

use super::Config;
use super::check_people::parse_hex;
use super::interpolate;
use super::parts::{AgentSettings, LimitsSettings};
use super::settings::{ApiKey, Use};
use crate::agent::version::{self, Fill, Written};
use crate::agent::{Agent, Agents, Offer, OpenTo, SubAgent};
use crate::people::May;
use crate::people::authenticator::{Authenticator, Keys, Open};
use crate::people::directory::{Account, Directory, hash};
use crate::secret::seal::Sealer;
use crate::task::limits::Limits;

impl Config {
    /// The authenticator of requests.
    #[must_use]
    pub fn authenticator(&self) -> Box<dyn Authenticator> {
        match self.directory() {
            Some(directory) => Box::new(Keys::new(directory)),
            None => Box::new(Open),
        }
    }

    /// The accounts; `None` if there are none.
    #[must_use]
    pub fn directory(&self) -> Option<Directory> {
        let auth = self.auth.as_ref()?;
        let approvers = self.policy.iter().flat_map(|rule| &rule.approvers.users);
        let users = self
            .agents
            .values()
            .filter_map(|agent| agent.open_to.as_ref())
            .flat_map(|to| &to.users);
        let accounts = Directory::new(auth.api_keys.iter().filter_map(account).collect());
        Some(
            accounts
                .comparing(auth.user_ids)
                .naming(approvers.chain(users).cloned().collect()),
        )
    }

    /// The sealer for credentials, with all readable keys; `None` if there are none.
    #[must_use]
    pub fn sealer(&self) -> Option<Sealer> {
        let keys = self
            .secrets
            .keys
            .iter()
            .filter_map(|key| Some((key.id.clone(), key.bytes()?)));
        Sealer::new(keys.collect())
    }

    #[must_use]
    pub fn agents(&self) -> Agents {
        let agents = self
            .agents
            .iter()
            .map(|(name, settings)| self.agent(name, settings))
            .collect();
        Agents::new(agents, &self.default_agent, self.fill())
    }

    /// Expands a stored definition with the current variables and files. Refuses values that are
    /// secrets now: the expanded text is shown.
    fn fill(&self) -> Fill {
        let (environment, directory) = (self.environment.clone(), self.directory.clone());
        let secrets = self.secret_values.clone();
        Fill::new(move |text| {
            let (text, filled) = interpolate::text(text, &environment, &directory)?;
            let shown = filled.iter().find(|one| {
                secrets
                    .iter()
                    .any(|(_, secret)| secret.reveal() == one.value.reveal())
            });
            match shown {
                Some(one) => Err(format!("`{}` is a secret of this configuration", one.name)),
                None => Ok(text),
            }
        })
    }

    /// A tool as offered to an agent, and as written.
    fn offered(&self, name: &str) -> Option<(Offer, Written)> {
        let tool = self.tool(name, self.tools.get(name)?)?;
        let parameters = tool.parameters();
        let definition = self.unexpanded(&["tools", name]);
        let written = definition
            .get("parameters")
            .filter(|_| tool.parameters.is_some());
        let written = Written {
            name: name.to_owned(),
            parameters: written.unwrap_or(&parameters).clone(),
            definition: definition.clone(),
        };
        Some((
            Offer {
                name: name.to_owned(),
                description: tool.description,
                parameters,
            },
            written,
        ))
    }

    fn agent(&self, name: &str, settings: &AgentSettings) -> Agent {
        let (tools, written): (Vec<_>, Vec<_>) = settings
            .tools
            .iter()
            .filter_map(|tool| self.offered(tool))
            .unzip();
        let subs = settings
            .sub_agents
            .iter()
            .map(|sub| (sub.agent.as_str(), self.unexpanded(&["agents", &sub.agent])));
        let definition =
            version::definition(name, &self.unexpanded(&["agents", name]), written, subs);
        let described = |agent: &str| {
            self.agents
                .get(agent)
                .map(|agent| agent.description.clone())
        };
        Agent {
            name: name.to_owned(),
            description: settings.description.clone(),
            model: settings.model.clone(),
            instructions: settings.instructions.clone(),
            tools,
            version: version::digest(&definition),
            definition,
            limits: limits(&settings.limits),
            open_to: settings.open_to.as_ref().map(|to| OpenTo {
                tenants: to.tenants.clone(),
                users: to.users.clone(),
                groups: to.groups.clone(),
            }),
            sub_agents: settings
                .sub_agents
                .iter()
                .map(|sub| SubAgent {
                    agent: sub.agent.clone(),
                    description: described(&sub.agent).unwrap_or_default(),
                    session: sub.session,
                })
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
        may: May {
            create: may(Use::Create),
            read: may(Use::Read),
            decide: may(Use::Decide),
        },
        key_sha256,
    })
}

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
