//! Determines which credentials an agent may ask a person for, and which tools receive them.
//! Invariants:
//! - An agent that offers `request_credentials` may ask for every credential.
//! - Any other agent may ask only for the credentials that its own tools take, or that the tools of
//!   its sub-agents (at any depth) take.
//! - A gate may ask only for the credentials that its tools take.
//! - The form in which a person enters a credential names all tools that take the credential. No
//!   other tool receives the credential.

use std::collections::{BTreeMap, BTreeSet};

use super::Config;
use crate::agent::HumanKind;
use crate::task::request::RequestKind;
use crate::task::tool_spec::ToolSpec;
use crate::tool::catalog::{self, Catalog};
use crate::tool::credential::{PlainFields, references};
use crate::tool::human::{self, Service, ServiceField};

impl Config {
    /// Adds to the catalog the agents that other agents may call, the credential fields that are
    /// not secret, each agent's `request_…` tools, and the credentials that the tools of each agent
    /// and gate take.
    #[must_use]
    pub fn with_human_tools(&self, catalog: Catalog) -> Catalog {
        let catalog = catalog
            .with_agents(self.callable_agents())
            .with_plain_fields(self.plain_fields());
        let agents = self.agents.iter();
        let agents = agents.map(|(name, agent)| (name, request_kinds(&agent.human)));
        // A gate has no `request_…` tools, but its tools may need credentials. So the gate is added
        // with an empty list of kinds.
        let gates = self.gates.keys().map(|name| (name, Vec::new()));
        agents.chain(gates).fold(catalog, |catalog, (name, kinds)| {
            let services = self.services(name, |tool| {
                catalog.get(tool).map(|entry| receiver(&entry.spec))
            });
            catalog.with_human(name, &kinds, services)
        })
    }

    fn plain_fields(&self) -> PlainFields {
        let all = self
            .credentials
            .iter()
            .flat_map(|(name, one)| one.fields.iter().map(move |field| (name, field)));
        let plain = all.filter(|(_, (_, field))| !field.is_secret());
        plain
            .map(|(name, (field, _))| (name.clone(), field.clone()))
            .collect()
    }

    /// Returns the agents that another agent may call, each once.
    pub(super) fn callable_agents(&self) -> BTreeSet<&str> {
        let agents = self.agents.values().flat_map(|agent| &agent.sub_agents);
        agents
            .map(|sub| sub.agent.as_str())
            .filter(|name| self.agents.contains_key(*name))
            .collect()
    }

    /// Returns the `request_…` tools of all agents, so that rules can be checked against them. Each
    /// tool appears once for each set of parameters that it has. The parameters of
    /// `request_credentials` depend on the agent's credentials.
    pub(super) fn human_tools(&self) -> Vec<ToolSpec> {
        let mut specs: Vec<ToolSpec> = Vec::new();
        for (name, agent) in &self.agents {
            let services = self.services(name, |_| None);
            let kinds = request_kinds(&agent.human).into_iter();
            for spec in kinds.filter_map(|kind| Some(human::catalog_entry(kind, &services)?.spec)) {
                let is_same = |known: &ToolSpec| {
                    known.name == spec.name && known.parameters == spec.parameters
                };
                if !specs.iter().any(is_same) {
                    specs.push(spec);
                }
            }
        }
        specs
    }

    /// Returns the tools of an agent and of all agents below it, each once. `agent` may also name a
    /// gate, which has tools and no agents below it.
    pub(super) fn tools_below<'c>(&'c self, agent: &'c str) -> BTreeSet<&'c str> {
        let gate = self.gates.get(agent).into_iter();
        let of_gate = gate.flat_map(|gate| &gate.tools);
        let below = self.agents_below(agent).into_iter();
        let agents = below.filter_map(|name| self.agents.get(name));
        let of_agents = agents.flat_map(|agent| &agent.tools);
        of_gate.chain(of_agents).map(String::as_str).collect()
    }

    /// Returns the agent of this name and all agents below it, each once. Returns none if there is
    /// no agent of this name.
    pub(super) fn agents_below<'c>(&'c self, agent: &'c str) -> BTreeSet<&'c str> {
        let (mut found, mut waiting) = (BTreeSet::new(), vec![agent]);
        while let Some(name) = waiting.pop() {
            let Some(agent) = self.agents.get(name).filter(|_| found.insert(name)) else {
                continue;
            };
            waiting.extend(agent.sub_agents.iter().map(|sub| sub.agent.as_str()));
        }
        found
    }

    /// Returns each credential that the tools of an agent, or of the agents below it, take. Each
    /// credential comes with the names of the tools that take it.
    pub(super) fn credential_takers<'c>(
        &'c self,
        agent: &'c str,
    ) -> BTreeMap<&'c str, BTreeSet<&'c str>> {
        let mut takers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for tool in self.tools_below(agent) {
            let settings = self.tools.get(tool).into_iter();
            let texts = settings.flat_map(|settings| self.credential_texts(settings));
            for (credential, field) in texts.flat_map(|text| references(text).unwrap_or_default()) {
                let known = self.credentials.get(credential);
                if known.is_some_and(|known| known.fields.contains_key(field)) {
                    takers.entry(credential).or_default().insert(tool);
                }
            }
        }
        takers
    }

    /// Returns the texts of a tool's settings that may refer to a credential.
    pub(super) fn credential_texts<'c>(&'c self, tool: &'c catalog::Settings) -> Vec<&'c str> {
        let server = tool.mcp.as_ref().and_then(|mcp| self.mcp.get(&mcp.server));
        let headers = tool.http.iter().map(|http| &http.headers);
        let headers = headers.chain(server.map(|server| &server.headers));
        let values = headers.flat_map(BTreeMap::values);
        let shell = tool.shell.iter();
        let env = shell.flat_map(|shell| shell.env.0.values().flatten());
        let urls = tool.http.iter().map(|http| http.url.as_str());
        let values = values.chain(env).map(|text| text.reveal().as_str());
        urls.chain(values).collect()
    }

    /// Returns the credentials that an agent may ask for. If the agent offers
    /// `request_credentials`, these are all credentials, because the model may name any credential
    /// in the argument `service`. Otherwise they are the credentials that the agent's tools, or the
    /// tools of agents below it, take. `receiver` returns the text that tells people where a tool
    /// sends a credential, or `None` to leave the tool out of the form.
    fn services(&self, agent: &str, receiver: impl Fn(&str) -> Option<String>) -> Vec<Service> {
        let takers = self.credential_takers(agent);
        let agent = self.agents.get(agent);
        let offers_all = agent.is_some_and(|agent| agent.human.contains(&HumanKind::Credentials));
        let services = self.credentials.iter().filter_map(|(name, settings)| {
            let tools = takers.get(name.as_str());
            if tools.is_none() && !offers_all {
                return None;
            }
            let fields = settings.fields.iter().map(|(name, field)| ServiceField {
                name: name.clone(),
                format: field.format.map(|format| format.name().to_owned()),
                description: field.description.clone().unwrap_or_default(),
            });
            Some(Service {
                name: name.clone(),
                description: settings.description.clone(),
                fields: fields.collect(),
                expires_in: settings.expires_in,
                receivers: tools
                    .into_iter()
                    .flatten()
                    .filter_map(|tool| Some(format!("{tool}: {}", receiver(tool)?)))
                    .collect(),
            })
        });
        services.collect()
    }
}

/// Returns the text that tells people where a tool sends a credential.
fn receiver(spec: &ToolSpec) -> String {
    let fixed = spec.kind.properties().receiver;
    fixed.map_or_else(|| spec.target.clone(), str::to_owned)
}

fn request_kinds(human: &[HumanKind]) -> Vec<RequestKind> {
    human.iter().map(|kind| kind.request()).collect()
}

#[cfg(test)]
mod tests {
    use crate::task::tool_spec::ToolKind;
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::config::environment::Environment;
    use crate::config::layers::Flags;
    use crate::config::{Source, load};
    use crate::net::Net;
    use crate::policy::Policy;
    use crate::world::Mistakes;

    /// `boss` may call `clerk`, `clerk` may call `boss` and `hand`; `loner` calls no agent.
    const TREE: &str = r#"
secrets: { keys: [ { id: k1, key: "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=" } ] }
credentials:
  crm:   { fields: { key: {} } }
  jira:  { description: The caller's Jira., fields: { email: { format: email, description: As you sign in. }, token: {} }, expires_in: 8h }
  ssh:   { fields: { agent: {} } }
  spare: { fields: { x: {} } }
models: { m: { provider: openai, model: x } }
tools:
  comment: { http: { url: "https://jira.acme.com/rest/secret-path", headers: { Authorization: "Bearer {{credential:jira.token}}" } } }
  search:  { http: { method: GET, url: "http://jira.internal:8443/find?key={{credential:jira.email}}&as={{credential:crm.key}}" } }
  deploy:  { shell: { working_dir: /srv/ops, env: { SSH: "{{credential:ssh.agent}}" } } }
  plain:   { http: { url: "http://h/" } }
default_agent: boss
agents:
  boss:  { model: m, human: [credentials, guidance], tools: [comment], sub_agents: [clerk] }
  clerk: { model: m, human: [credentials, confirmation], tools: [search, plain], sub_agents: [{ agent: boss, session: true }, hand] }
  hand:  { model: m, human: [credentials], tools: [deploy] }
  loner: { model: m, human: [guidance], tools: [plain] }
"#;

    fn read(text: &str) -> Result<Config, String> {
        read_with_warnings(text).map(|(config, _)| config)
    }

    /// Returns the configuration and the lines of its warnings.
    fn read_with_warnings(text: &str) -> Result<(Config, String), String> {
        let source = Source::File("/etc/holdpoint/holdpoint.yaml".into(), text.to_owned());
        load(
            source,
            &Environment::default(),
            &Flags::default(),
            |_, _| {},
        )
        .map(|(config, report)| (config, report.to_string()))
        .map_err(|report| report.to_string())
    }

    fn catalog(config: &Config) -> Catalog {
        let mut mistakes = Mistakes::default();
        let catalog = Catalog::build(
            config.tools.clone(),
            &Net::new().unwrap(),
            &Arc::default(),
            &mut mistakes,
        );
        assert_eq!(mistakes.found, []);
        config.with_human_tools(catalog)
    }

    #[test]
    fn agent_that_asks_for_credentials_is_offered_all_with_the_receivers_of_its_tree() {
        let catalog = catalog(&read(TREE).unwrap());
        let names = |agent: &str| {
            catalog
                .services(agent)
                .iter()
                .map(|one| one.name.as_str())
                .collect::<Vec<_>>()
        };
        for agent in ["boss", "clerk", "hand"] {
            assert_eq!(names(agent), ["crm", "jira", "spare", "ssh"], "{agent}");
        }
        assert_eq!(names("loner"), Vec::<&str>::new());
        assert_eq!(
            catalog.services("clerk"),
            catalog.services("boss"),
            "who can call an agent above it has that one's tools too"
        );
        let [crm, jira, spare, ssh] = catalog.services("boss") else {
            panic!("four")
        };
        assert_eq!(spare.receivers, Vec::<String>::new());
        assert_eq!(crm.receivers, ["search: GET http://jira.internal:8443"]);
        assert_eq!(
            jira.receivers,
            [
                "comment: POST https://jira.acme.com",
                "search: GET http://jira.internal:8443"
            ]
        );
        assert_eq!(ssh.receivers, ["deploy: a command on this host"]);
        assert_eq!(jira.description, "The caller's Jira.");
        assert_eq!(jira.expires_in, Some(std::time::Duration::from_hours(8)));
        let fields: Vec<_> = jira
            .fields
            .iter()
            .map(|field| {
                (
                    field.name.as_str(),
                    field.format.as_deref(),
                    field.description.as_str(),
                )
            })
            .collect();
        assert_eq!(
            fields,
            [
                ("email", Some("email"), "As you sign in."),
                ("token", None, "")
            ]
        );
    }

    #[test]
    fn gate_asks_for_the_credentials_that_its_own_tools_take() {
        let config = read(&format!(
            "{TREE}gates: {{ coding: {{ tools: [comment, plain] }} }}\n"
        ));
        let catalog = catalog(&config.unwrap());
        let [jira] = catalog.services("coding") else {
            panic!("one credential")
        };
        assert_eq!(jira.name, "jira");
        assert_eq!(jira.receivers, ["comment: POST https://jira.acme.com"]);
    }

    #[test]
    fn field_is_secret_unless_it_is_an_email_or_the_file_says_so() {
        let with = |field: &str| {
            let config = read(&TREE.replace("token: {}", &format!("token: {field}"))).unwrap();
            let plain = catalog(&config)
                .plain_fields()
                .iter()
                .map(|(name, field)| format!("{name}.{field}"))
                .collect::<Vec<_>>();
            plain.join(" ")
        };
        assert_eq!(with("{}"), "jira.email");
        assert_eq!(with("{ format: uri }"), "jira.email");
        assert_eq!(with("{ secret: false }"), "jira.email jira.token");
        assert_eq!(with("{ format: email, secret: true }"), "jira.email");
        let told = read(&TREE.replace("token: {}", "token: { secret: maybe }")).unwrap_err();
        assert!(
            told.contains("credentials.jira.fields.token.secret") && !told.contains("maybe"),
            "{told}"
        );
    }

    #[test]
    fn each_agent_is_offered_the_human_tools_of_its_list() {
        let config = read(TREE).unwrap();
        let catalog = catalog(&config);
        for (agent, settings) in &config.agents {
            for kind in HumanKind::ALL {
                let offered = catalog.human(agent, kind.tool());
                assert_eq!(
                    offered.is_some(),
                    settings.human.contains(&kind),
                    "{agent}: {}",
                    kind.tool()
                );
                assert_eq!(kind.request().tool(), Some(kind.tool()));
                assert_eq!(kind.request().as_str(), kind.as_str());
            }
        }
        let parameters = &catalog
            .human("hand", "request_credentials")
            .unwrap()
            .spec
            .parameters;
        assert_eq!(
            parameters["properties"]["service"]["enum"],
            json!(["crm", "jira", "spare", "ssh"])
        );
    }

    #[test]
    fn rules_see_each_human_tool_as_it_is_offered() {
        let config = read(TREE).unwrap();
        let catalog = catalog(&config);
        let seen = config.other_tools();
        for (agent, settings) in &config.agents {
            for kind in &settings.human {
                let spec = &catalog.human(agent, kind.tool()).unwrap().spec;
                let known = seen
                    .iter()
                    .filter(|known| known.name == spec.name && known.parameters == spec.parameters);
                assert!(
                    known.clone().count() == 1
                        && known.clone().all(|known| known.kind == ToolKind::Human)
                );
            }
        }
    }

    #[test]
    fn callable_agent_is_a_tool_that_rules_see_as_it_is_offered() {
        let config = read(TREE).unwrap();
        let catalog = catalog(&config);
        let called = ["boss", "clerk", "hand"];
        for name in config.agents.keys() {
            assert_eq!(
                catalog.agent(name).is_some(),
                called.contains(&name.as_str()),
                "{name}"
            );
        }
        let specs = config.other_tools();
        let seen: Vec<_> = specs
            .iter()
            .filter(|spec| spec.kind == ToolKind::Agent)
            .collect();
        assert_eq!(seen, called.map(|name| &catalog.agent(name).unwrap().spec));
        assert!(
            catalog.get("clerk").is_none(),
            "it is in no agent's `tools`"
        );
    }

    #[test]
    fn rule_may_read_only_the_task_argument_of_a_sub_agent_call() {
        let mistakes = |when: &str| {
            let rule = format!(
                "policy: [ {{ name: r, tools: [clerk], when: \"{when}\", decide: deny }} ]\n"
            );
            let config = read(&format!("{TREE}{rule}")).unwrap();
            let mut mistakes = Mistakes::default();
            let _ = Policy::new(&config.rules(), &config.other_tools(), &mut mistakes);
            mistakes.found.len()
        };
        assert_eq!(
            mistakes("args.task.contains('delete') && agent.name == 'boss'"),
            0
        );
        assert_eq!(mistakes("args.agent == 'boss'"), 1);
    }

    #[test]
    fn allow_for_a_tool_that_asks_a_person_is_warned_about_once() {
        let rule = "policy: [ { name: r, tools: [request_confirmation], decide: allow } ]\n";
        let source = Source::File("h.yaml".into(), format!("{TREE}{rule}"));
        let (none, flags) = (Environment::default(), Flags::default());
        let rules = |config: &Config, mistakes: &mut Mistakes| {
            let _ = Policy::new(&config.rules(), &config.other_tools(), mistakes);
        };
        let (_, report) = load(source, &none, &flags, rules).unwrap();
        let warnings = report.warnings.iter();
        let about = warnings.filter(|line| line.path == "policy[0].decide");
        assert_eq!(about.count(), 1, "{report}");
    }

    #[test]
    fn credentials_that_no_tool_of_a_tree_takes_are_offered_with_a_warning() {
        let without = TREE.replace("tools: [deploy]", "tools: [plain]");
        let (config, warnings) = read_with_warnings(&without).unwrap();
        assert_eq!(
            warnings,
            "warning: /etc/holdpoint/holdpoint.yaml:12:14: tools.deploy.shell: a command runs as the user whom the \
             embedded database belongs to, and can rewrite it: use Postgres\n\
             warning: /etc/holdpoint/holdpoint.yaml:18:22: agents.hand.human: `credentials` is offered, but no tool \
             of `hand` or of its sub-agents takes one of those under `credentials`\n"
        );
        let catalog = catalog(&config);
        let offered = catalog.services("hand");
        assert_eq!(offered.len(), 4);
        assert!(offered.iter().all(|service| service.receivers.is_empty()));
        let unreadable = without.replace(
            "tools: [plain] }\n  loner",
            "tools: [plain, gone] }\n  loner",
        );
        let told = read(&unreadable).unwrap_err();
        assert!(
            told.contains("no tool is called `gone`") && !told.contains("takes one of those"),
            "{told}"
        );
    }

    #[test]
    fn credentials_of_an_empty_section_are_not_offered_and_need_no_key() {
        let file = "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m, human: [credentials] } }\n";
        let (config, warnings) = read_with_warnings(file).unwrap();
        assert_eq!(
            warnings,
            "warning: /etc/holdpoint/holdpoint.yaml:2:26: agents.a.human: `credentials` is not offered, because the \
             section `credentials` is empty\n"
        );
        assert!(catalog(&config).human("a", "request_credentials").is_none());
    }
}
