//! The configured tools by name, each with its spec, its compiled schema and its implementation.

mod checks;
mod settings;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use self::settings::KindSettings;
pub use self::settings::Settings;
pub(crate) use self::settings::{KINDS, definition_digest};
use super::credential::PlainFields;
use super::http::HttpTool;
use super::human::{self, Service};
use super::schema::CompiledSchema;
use super::shell::{GuardCommand, ShellTool};
use super::{DefinitionChange, Tool, agent, external};
use crate::net::Net;
use crate::secret::Redactor;
use crate::task::id::TaskId;
use crate::task::request::RequestKind;
use crate::task::tool_spec::ToolSpec;
use crate::world::Mistakes;

#[derive(Clone)]
pub struct CatalogEntry {
    pub spec: ToolSpec,
    /// The schema that the arguments are checked against.
    pub schema: CompiledSchema,
    /// The schema of an external tool's result. `None` if the tool accepts any result or is not
    /// external.
    pub result_schema: Option<Value>,
    /// The implementation. `None` if the API's client, another agent or a person performs the
    /// calls. A tool of an MCP server has `None` until [`Catalog::with_tools`] sets its
    /// implementation.
    pub tool: Option<Arc<dyn Tool>>,
}

impl CatalogEntry {
    /// Returns an entry that has no implementation and accepts any result of its calls.
    pub(super) fn without_tool(spec: ToolSpec, schema: CompiledSchema) -> Self {
        Self {
            spec,
            schema,
            result_schema: None,
            tool: None,
        }
    }

    /// Returns the destination of a call with these arguments, as an approver sees it.
    #[must_use]
    pub fn address(&self, arguments: &Value) -> String {
        let address = self.tool.as_ref().and_then(|tool| tool.address(arguments));
        address.unwrap_or_else(|| self.spec.target.clone())
    }

    /// Returns the difference between the tool's reviewed definition and the definition that the
    /// tool's server showed to this task last; `None` if no difference is known.
    #[must_use]
    pub fn definition_change(&self, task: TaskId) -> Option<DefinitionChange> {
        self.tool
            .as_ref()
            .and_then(|tool| tool.definition_change(task))
    }

    /// Returns the tool's spec. If the tool's server has changed the tool, the spec's `definition`
    /// is replaced by [`DefinitionChange::definition`].
    #[must_use]
    pub fn current_spec(&self, task: TaskId) -> Cow<'_, ToolSpec> {
        DefinitionChange::applied_to(&self.spec, self.definition_change(task))
    }
}

/// The tools of the configuration: the configured tools by name, the tools that call another agent,
/// and each agent's tools for asking a human.
#[derive(Clone, Default)]
pub struct Catalog {
    entries: BTreeMap<String, CatalogEntry>,
    agents: BTreeMap<String, CatalogEntry>,
    human: BTreeMap<String, HumanTools>,
    plain: Arc<PlainFields>,
    redactor: Arc<Redactor>,
}

/// An agent's tools for asking a human, and the services whose credentials the agent may ask for.
#[derive(Clone, Default)]
struct HumanTools {
    entries: Vec<CatalogEntry>,
    services: Vec<Service>,
}

impl Catalog {
    /// Builds a catalog of the configured tools. A tool with a mistake is left out, and the mistake
    /// is added to `mistakes`.
    #[must_use]
    pub fn build(
        settings: BTreeMap<String, Settings>,
        net: &Net,
        redactor: &Arc<Redactor>,
        mistakes: &mut Mistakes,
    ) -> Self {
        let mut entries = BTreeMap::new();
        for (name, settings) in settings {
            let Some((entry, http)) = settings.prepare(&name, mistakes) else {
                continue;
            };
            let (spec, redactor) = (entry.spec.clone(), Arc::clone(redactor));
            let tool: Option<Arc<dyn Tool>> = match settings.kind() {
                Some(KindSettings::Http(_)) => http.map(|settings| {
                    let tool: Arc<dyn Tool> = Arc::new(HttpTool {
                        spec,
                        settings,
                        net: net.clone(),
                        redactor,
                    });
                    tool
                }),
                Some(KindSettings::Shell(settings)) => Some(Arc::new(ShellTool {
                    spec,
                    settings: settings.clone(),
                    guard: GuardCommand::default(),
                    redactor,
                })),
                Some(KindSettings::Mcp(_) | KindSettings::External(_)) | None => None,
            };
            entries.insert(name, CatalogEntry { tool, ..entry });
        }
        Self {
            entries,
            redactor: Arc::clone(redactor),
            ..Self::default()
        }
    }

    /// Returns the redactor, which replaces the configuration's secrets in texts.
    #[must_use]
    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// Returns the catalog with `plain` as the set of credential fields that are not secret.
    #[must_use]
    pub fn with_plain_fields(self, plain: PlainFields) -> Self {
        Self {
            plain: Arc::new(plain),
            ..self
        }
    }

    /// Returns the credential fields that are not secret.
    #[must_use]
    pub fn plain_fields(&self) -> &Arc<PlainFields> {
        &self.plain
    }

    /// Returns the catalog with each tool's implementation replaced by the result of `tool`. Where
    /// `tool` returns `None`, the implementation stays.
    #[must_use]
    pub fn with_tools(mut self, tool: impl Fn(&ToolSpec) -> Option<Arc<dyn Tool>>) -> Self {
        for entry in self.entries.values_mut() {
            entry.tool = tool(&entry.spec).or(entry.tool.take());
        }
        self
    }

    /// Returns the catalog with tools that call the agents in `names`.
    #[must_use]
    pub fn with_agents<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Self {
        self.agents = names
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), agent::catalog_entry(name)?)))
            .collect();
        self
    }

    /// Returns the tool that calls the agent named exactly `name`. `None` if no configured agent
    /// has that agent as a sub-agent.
    #[must_use]
    pub fn agent(&self, name: &str) -> Option<&CatalogEntry> {
        self.agents.get(name)
    }

    /// Returns the catalog with tools for `agent` to ask a human. `kinds` are the kinds of question
    /// that the agent may ask. `services` are the services whose credentials the agent may ask for.
    #[must_use]
    pub fn with_human(
        mut self,
        agent: &str,
        kinds: &[RequestKind],
        services: Vec<Service>,
    ) -> Self {
        let entries = kinds.iter();
        let entries = entries.filter_map(|kind| human::catalog_entry(*kind, &services));
        let entries = entries.collect();
        self.human
            .insert(agent.to_owned(), HumanTools { entries, services });
        self
    }

    /// Returns the tool named exactly `tool_name` among the tools with which `agent` asks a human;
    /// `None` if the agent has no such tool.
    #[must_use]
    pub fn human(&self, agent: &str, tool_name: &str) -> Option<&CatalogEntry> {
        let mut entries = self.human.get(agent)?.entries.iter();
        entries.find(|entry| entry.spec.name == tool_name)
    }

    /// Whether any agent or gate may ask for credentials.
    pub(crate) fn has_services(&self) -> bool {
        self.human.values().any(|human| !human.services.is_empty())
    }

    /// Returns the services whose credentials `agent` may ask for. `agent` is the name of an agent
    /// or a gate.
    #[must_use]
    pub fn services(&self, agent: &str) -> &[Service] {
        self.human.get(agent).map_or(&[], |human| &human.services)
    }

    /// Returns the configured tool named exactly `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&CatalogEntry> {
        self.entries.get(name)
    }

    /// Returns an entry for a tool that is not configured. The API's client performs the calls. The
    /// effect is `once`, and any JSON object is accepted as arguments. Returns `None` if the name
    /// is empty, is longer than 128 characters, or has a character that is not an ASCII letter, a
    /// digit or one of `_.:/-`.
    #[must_use]
    pub fn unconfigured(name: &str) -> Option<CatalogEntry> {
        external::unconfigured(name)
    }

    /// Returns the specs of all configured tools, ordered by name.
    pub fn specs(&self) -> impl Iterator<Item = &ToolSpec> {
        self.entries.values().map(|entry| &entry.spec)
    }
}

#[cfg(test)]
mod tests;
