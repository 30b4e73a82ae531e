//! Builds the directory of people, the agents, the rules and the specs of tools, each of which
//! needs settings of several modules.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Config, interpolate};
use crate::agent::gate::{OtherTools, PinnedGateSettings};
use crate::agent::version::{self, UnexpandedTool, VariableExpander};
use crate::agent::{self, Agent, Agents, Gate, SubAgent, ToolDescription};
use crate::mcp::Servers;
use crate::people::authenticator::{Authenticator, KeyAuthenticator, OpenAuthenticator};
use crate::people::directory::Directory;
use crate::people::link::Links;
use crate::people::settings::ApiKey;
use crate::policy::{Rule, RuleApprovers};
use crate::secret::Redactor;
use crate::secret::seal::Sealer;
use crate::store;
use crate::task::tool_spec::{Effect, ToolKind, ToolSpec};
use crate::tool::agent::spec;
use crate::tool::catalog::Catalog;

impl Config {
    #[must_use]
    pub fn authenticator(&self) -> Box<dyn Authenticator> {
        match self.directory() {
            Some(directory) => Box::new(KeyAuthenticator::new(directory)),
            None => Box::new(OpenAuthenticator),
        }
    }

    /// Adds the implementations of the MCP servers' tools to the catalog.
    #[must_use]
    pub fn with_mcp_tools(
        &self,
        catalog: Catalog,
        servers: &Servers,
        redactor: &Arc<Redactor>,
    ) -> Catalog {
        catalog.with_tools(|spec| {
            let mcp = self.tools.get(&spec.name)?.mcp.as_ref()?;
            servers.tool(spec, &mcp.server, &mcp.tool, redactor)
        })
    }

    /// Returns the accounts and the people; `None` if the configuration has no `auth`.
    #[must_use]
    pub fn directory(&self) -> Option<Directory> {
        let auth = self.auth.as_ref()?;
        let approvers = self.policy.iter().flat_map(|rule| &rule.approvers.users);
        let agents = self.agents.values().map(|agent| &agent.open_to);
        let gates = self.gates.values().map(|gate| &gate.open_to);
        let users = agents.chain(gates).flatten().flat_map(|to| &to.users);
        let accounts = Directory::new(auth.api_keys.iter().filter_map(ApiKey::account).collect());
        Some(
            accounts
                .with_user_ids(auth.user_ids)
                .with_links(self.notify.links.as_ref().map(|links| links.may))
                .with_people(auth.people())
                .with_named_users(approvers.chain(users).cloned().collect()),
        )
    }

    /// Whether a gate has `other_tools: judge`, so that the rules judge tools that the file does
    /// not name.
    #[must_use]
    pub fn judges_other_tools(&self) -> bool {
        let mut gates = self.gates.values();
        gates.any(|gate| gate.other_tools == OtherTools::Judge)
    }

    /// Returns the sealer that encrypts credentials and links, with all valid keys. `None` if no
    /// key is valid.
    #[must_use]
    pub fn sealer(&self) -> Option<Sealer> {
        self.secrets.sealer()
    }

    /// Returns the `Links` that make links under this public URL; `None` if `notify.links` is not
    /// set or no sealing key is valid.
    #[must_use]
    pub fn links(&self, public_url: &str) -> Option<Links> {
        let settings = self.notify.links.clone()?;
        Some(Links::new(settings, self.sealer()?, public_url))
    }

    /// Returns the agents and the gates.
    #[must_use]
    pub fn agents(&self) -> Agents {
        let agents = self.agents.iter();
        let agents = agents.map(|(name, settings)| self.agent(name, settings));
        let gates = self.gates.iter();
        let gates = gates.map(|(name, settings)| self.gate(name, settings));
        Agents::new(
            agents.chain(gates).collect(),
            &self.default_agent,
            self.variable_expander(),
        )
    }

    /// Returns the function that expands stored definitions with the current variables and files.
    /// The function refuses to insert a value of [`Config::never_shown`], because people and models
    /// see the expanded text.
    fn variable_expander(&self) -> VariableExpander {
        let (environment, directory) = (self.environment.clone(), self.directory.clone());
        let secrets = self.never_shown.clone();
        VariableExpander::new(move |text| {
            let (text, inserted) = interpolate::expand_text(text, &environment, &directory)?;
            match inserted.iter().find(|one| secrets.contains(&one.value)) {
                Some(one) => Err(format!("`{}` is a secret of this configuration", one.name)),
                None => Ok(text),
            }
        })
    }

    /// Returns the description of a tool for an agent's model, and the tool's unexpanded settings.
    /// `None` if the tool does not exist, or if its settings do not say which kind of tool it is.
    fn offered(&self, name: &str) -> Option<(ToolDescription, UnexpandedTool)> {
        let tool = self.tools.get(name).filter(|tool| tool.has_kind())?;
        let parameters = tool.parameters();
        let definition = &tool.raw;
        let written = definition
            .get("parameters")
            .filter(|_| tool.parameters.is_some());
        let written = UnexpandedTool {
            name: name.to_owned(),
            parameters: written.unwrap_or(&parameters).clone(),
            definition: definition.clone(),
        };
        Some((
            ToolDescription {
                name: name.to_owned(),
                description: tool.description.clone(),
                parameters,
            },
            written,
        ))
    }

    fn agent(&self, name: &str, settings: &agent::Settings) -> Agent {
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
            limits: settings.limits,
            open_to: settings.open_to.clone(),
            sub_agents: settings
                .sub_agents
                .iter()
                .map(|sub| SubAgent {
                    description: described(&sub.agent).unwrap_or_default(),
                    ..sub.clone()
                })
                .collect(),
            human: settings.human.clone(),
            gate: None,
        }
    }

    fn gate(&self, name: &str, settings: &Gate) -> Agent {
        let tools = settings.tools.iter();
        let (tools, written): (Vec<_>, Vec<_>) =
            tools.filter_map(|tool| self.offered(tool)).unzip();
        let definition = version::definition(name, &self.gate_definition(name), written, []);
        Agent {
            name: name.to_owned(),
            description: settings.description.clone(),
            tools,
            version: version::digest(&definition),
            definition,
            open_to: settings.open_to.clone(),
            gate: Some(Box::new(settings.clone())),
            ..Agent::default()
        }
    }

    /// Returns the part of a gate's settings that belongs to its stored definition, unexpanded. A
    /// setting of [`PinnedGateSettings`] that the file leaves out is stored with its default,
    /// because the default may change later.
    fn gate_definition(&self, gate: &str) -> Value {
        let written = self.unexpanded(&["gates", gate]);
        let member = |key: &&str| Some(((*key).to_owned(), written.get(*key)?.clone()));
        let mut own: Map<String, Value> =
            ["description", "tools"].iter().filter_map(member).collect();
        let defaults =
            serde_json::to_value(PinnedGateSettings::from(&Gate::default())).unwrap_or_default();
        let defaults = defaults.as_object().into_iter().flatten();
        let terms: Map<String, Value> = defaults
            .map(|(key, default)| (key.clone(), written.get(key).unwrap_or(default).clone()))
            .collect();
        own.insert("gate".to_owned(), json!(terms));
        Value::Object(own)
    }

    /// Returns the rules in the order of the file. Without accounts, all callers are the same user,
    /// so each rule requires one approval.
    #[must_use]
    pub fn rules(&self) -> Vec<Rule> {
        let has_accounts = self.auth.is_some();
        let rules = self.policy.iter().map(|rule| Rule {
            approvers: RuleApprovers {
                required: if has_accounts {
                    rule.approvers.required
                } else {
                    1
                },
                ..rule.approvers.clone()
            },
            ..rule.clone()
        });
        rules.collect()
    }

    #[must_use]
    pub fn store(&self, permit_unsafe: bool) -> store::Settings {
        store::Settings {
            unsafe_ok: permit_unsafe,
            ..self.database.clone()
        }
    }

    /// Returns a placeholder spec for each configured tool for which `usable` returns false. The
    /// settings of these tools have mistakes. With the specs, the check of the rules finds the
    /// tools, so it does not report each rule that names one of them.
    pub fn unusable_tools<'c>(
        &'c self,
        usable: impl Fn(&str) -> bool + 'c,
    ) -> impl Iterator<Item = ToolSpec> + 'c {
        self.tools
            .iter()
            .filter(move |(name, _)| !usable(name))
            .map(|(name, tool)| {
                let spec = placeholder_spec(name, ToolKind::Http);
                let parameters = tool
                    .parameters
                    .clone()
                    .unwrap_or_else(|| spec.parameters.clone());
                ToolSpec { parameters, ..spec }
            })
    }

    /// Returns specs of the sub-agents and of the `request_…` tools. Rules may name these tools,
    /// although they are not configured under `tools`.
    #[must_use]
    pub fn other_tools(&self) -> Vec<ToolSpec> {
        // A sub-agent that is not configured gets a spec, too. The check of agents reports the
        // sub-agent. Without the spec, each rule that names it would be reported as well.
        let agents = self.agents.values().flat_map(|agent| &agent.sub_agents);
        let subs: BTreeSet<&str> = agents.map(|sub| sub.agent.as_str()).collect();
        let mut specs: Vec<ToolSpec> = subs
            .into_iter()
            .map(spec)
            .chain(self.human_tools())
            .collect();
        // A `request_…` tool gets a spec even if the agent that lists the tool cannot offer it.
        // Without the spec, each rule that names the tool would be reported, too.
        for kind in self.agents.values().flat_map(|agent| &agent.human) {
            if !specs.iter().any(|spec| spec.name == kind.tool()) {
                specs.push(placeholder_spec(kind.tool(), ToolKind::Human));
            }
        }
        specs
    }
}

/// Returns a spec for the checks of rules. Its fields are placeholders, except `name` and `kind`.
fn placeholder_spec(name: &str, kind: ToolKind) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: String::new(),
        parameters: json!({ "type": "object" }),
        effect: Effect::Once,
        kind,
        target: String::new(),
        summary: None,
        timeout: std::time::Duration::ZERO,
        definition: String::new(),
        needs: Vec::new(),
    }
}
