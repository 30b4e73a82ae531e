//! Converts the settings for each room. Invariant: a room never imports config.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Config;
use crate::config::parts::ToolSettings;
use crate::config::rules::Decide;
use crate::config::settings::Provider;
use crate::model::{anthropic, openai};
use crate::policy::{self, Expiry, Rule, RuleApprovers};
use crate::store;
use crate::task::tool_spec::{Effect, ToolKind, ToolSpec};
use crate::tool::{agent, catalog, external, http, shell};

impl Config {
    /// The Chat Completions models, by name.
    #[must_use]
    pub fn openai_models(&self) -> BTreeMap<String, openai::Settings> {
        self.models_of(Provider::Openai)
    }

    /// The Messages models, by name.
    #[must_use]
    pub fn anthropic_models(&self) -> BTreeMap<String, anthropic::Settings> {
        self.models_of(Provider::Anthropic)
    }

    /// The models of a provider, by name.
    fn models_of(&self, provider: Provider) -> BTreeMap<String, openai::Settings> {
        let models = self
            .models
            .iter()
            .filter(|(_, model)| model.provider == provider);
        let settings = models.map(|(name, model)| {
            let settings = openai::Settings {
                name: name.clone(),
                base_url: model.base_url.clone().unwrap_or_default(),
                model: model.model.clone().unwrap_or_default(),
                api_key: model.api_key.clone(),
                timeout: model.timeout,
                retries: model.retries,
                headers: model.headers.clone(),
                query: model.query.clone(),
                body: model.body.clone(),
            };
            (name.clone(), settings)
        });
        settings.collect()
    }

    /// The scripted models: (name, script).
    pub fn scripts(&self) -> impl Iterator<Item = (&str, &str)> {
        let models = self
            .models
            .iter()
            .filter(|(_, model)| model.provider == Provider::Scripted);
        models.map(|(name, model)| (name.as_str(), model.script.as_deref().unwrap_or_default()))
    }

    /// The tools, by name.
    #[must_use]
    pub fn tools(&self) -> BTreeMap<String, catalog::Settings> {
        self.tools
            .iter()
            .filter_map(|(name, tool)| Some((name.clone(), self.tool(name, tool)?)))
            .collect()
    }

    /// The tool; `None` if its settings do not say how it is performed.
    pub(super) fn tool(&self, name: &str, tool: &ToolSettings) -> Option<catalog::Settings> {
        let kind = if let Some(settings) = &tool.http {
            catalog::Kind::Http(http::Settings {
                method: settings.method.as_str().parse().ok()?,
                url: settings.url.clone(),
                headers: settings.headers.clone(),
                timeout: settings.timeout,
            })
        } else if let Some(settings) = &tool.shell {
            let env = &settings.env.0;
            catalog::Kind::Shell(shell::Settings {
                working_dir: settings.working_dir.clone(),
                timeout: settings.timeout,
                environment: env
                    .iter()
                    .filter_map(|(name, value)| Some((name.clone(), value.clone()?)))
                    .collect(),
                env: env.keys().cloned().collect(),
                max_output: usize::try_from(settings.max_output).unwrap_or(usize::MAX),
            })
        } else {
            catalog::Kind::External(external::Settings {
                result: tool.external.as_ref()?.result.clone(),
            })
        };
        Some(catalog::Settings {
            description: tool.description.clone(),
            effect: tool.effect,
            parameters: tool.parameters.clone(),
            summary: tool.summary.clone(),
            kind,
            raw: self.unexpanded(&["tools", name]),
        })
    }

    /// Tools with mistakes, as far as readable, so that rules may name them.
    pub fn unusable_tools<'c>(
        &'c self,
        usable: impl Fn(&str) -> bool + 'c,
    ) -> impl Iterator<Item = ToolSpec> + 'c {
        self.tools
            .iter()
            .filter(move |(name, _)| !usable(name))
            .map(|(name, tool)| {
                let spec = bare(name, ToolKind::Http);
                let parameters = tool
                    .parameters
                    .clone()
                    .unwrap_or_else(|| spec.parameters.clone());
                ToolSpec { parameters, ..spec }
            })
    }

    /// The tools that policy may name besides the configured ones: sub-agents and `request_…`
    /// tools.
    #[must_use]
    pub fn other_tools(&self) -> Vec<ToolSpec> {
        // An unknown agent is reported where it is listed, not in each rule that names it.
        let agents = self.agents.values().flat_map(|agent| &agent.sub_agents);
        let subs: BTreeSet<&str> = agents.map(|sub| sub.agent.as_str()).collect();
        let mut specs: Vec<ToolSpec> = subs
            .into_iter()
            .map(agent::spec)
            .chain(self.human_tools())
            .collect();
        // A tool that cannot be offered is reported where it is listed, not in each rule that names
        // it.
        for kind in self.agents.values().flat_map(|agent| &agent.human) {
            if !specs.iter().any(|spec| spec.name == kind.tool()) {
                specs.push(bare(kind.tool(), ToolKind::Human));
            }
        }
        specs
    }

    /// The rules, in order.
    #[must_use]
    pub fn rules(&self) -> Vec<Rule> {
        let rules = self.policy.iter().map(|rule| Rule {
            name: rule.name.clone(),
            tools: rule.tools.clone(),
            when: rule.when.clone(),
            decide: match rule.decide {
                Decide::Allow => policy::Decide::Allow,
                Decide::Hold => policy::Decide::Hold,
                Decide::Deny => policy::Decide::Deny,
            },
            reason: rule.reason.clone(),
            message: rule.message.clone(),
            approvers: RuleApprovers {
                owner: rule.approvers.owner,
                users: rule.approvers.users.clone(),
                groups: rule.approvers.groups.clone(),
                // Without accounts all callers are one person, whose approval suffices.
                required: if self.auth.is_some() {
                    rule.approvers.required
                } else {
                    1
                },
            },
            expires_in: Some(rule.expires_in.0.map_or(Expiry::Never, Expiry::After)),
            on_expiry: rule.on_expiry,
            on_reject: rule.on_reject,
            allow: Some(rule.allow.clone()),
        });
        rules.collect()
    }

    #[must_use]
    pub fn store(&self, permit_unsafe: bool) -> store::Settings {
        let database = &self.database;
        store::Settings {
            url: database.url.reveal().clone(),
            max_connections: database.max_connections,
            acquire_timeout: database.acquire_timeout,
            statement_timeout: database.statement_timeout,
            migrate: database.migrate,
            unsafe_ok: permit_unsafe,
            restored: false,
        }
    }
}

/// A tool known only to rules.
fn bare(name: &str, kind: ToolKind) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: String::new(),
        parameters: serde_json::json!({ "type": "object" }),
        effect: Effect::Once,
        kind,
        target: String::new(),
        summary: None,
        timeout: std::time::Duration::ZERO,
        definition: String::new(),
        needs: Vec::new(),
    }
}
