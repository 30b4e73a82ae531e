//! Reads the settings. Precedence: flags, then environment variables, then the YAML file, then the
//! defaults. Invariants: all mistakes are reported together, each with its place. Reports are
//! redacted. `Config::unexpanded` contains no literal API key, token or password. In place of any
//! other value that may be secret and comes from a variable or a flag, `Config::unexpanded` has the
//! name of the variable or flag.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use url::Url;

use crate::http::server::settings::ServerSettings;
use crate::policy::Rule;
use crate::secret::{self, Redactor, Secret};
use crate::tool::{catalog, credential, shell};
use crate::world::Mistakes;
use crate::{agent, mcp, model, notify, people, store};
pub use mcp_lock::load_mcp;

use environment::Environment;
use interpolate::{InsertedValue, Interpolation};
use layers::Flags;
use report::ConfigReport;
use sections::{correct_indexes, section, section_list, section_map};
use tree::{Kind, Node, Origin};

mod blank_limits;
pub(crate) mod check;
pub(crate) mod check_gates;
pub(crate) mod check_links;
pub(crate) mod check_notify;
pub(crate) mod check_parts;
pub(crate) mod check_people;
pub(crate) mod check_reach;
pub(crate) mod check_rule_order;
pub(crate) mod check_rules;
pub(crate) mod compose;
pub(crate) mod decode;
pub mod environment;
mod fetched_version;
pub(crate) mod interpolate;
pub mod layers;
mod mcp_lock;
pub(crate) mod mcp_tools;
pub(crate) mod page;
pub(crate) mod report;
pub(crate) mod required;
pub(crate) mod schema;
pub(crate) mod secret_values;
mod sections;
pub(crate) mod services;
pub mod tree;
pub(crate) mod unexpanded;
pub(crate) mod warnings;

/// The configuration of the demonstration, which runs if no file is named or found.
pub const DEMO: &str = include_str!("config/demo.yaml");
/// The smallest configuration, with comments: the file that `init` writes.
pub const SMALLEST: &str = include_str!("config/smallest.yaml");

#[derive(Clone, Debug)]
pub enum Source {
    Demo,
    /// A file: its path and its text.
    File(PathBuf, String),
}

impl Source {
    /// Returns four values: the name of the source in reports, the base directory of relative
    /// paths, the text, and whether the source is the demonstration.
    fn parts(self) -> (String, PathBuf, String, bool) {
        match self {
            Self::Demo => (
                "the built-in demonstration".to_owned(),
                PathBuf::new(),
                DEMO.to_owned(),
                true,
            ),
            Self::File(path, text) => (
                path.display().to_string(),
                path.parent().map(Path::to_path_buf).unwrap_or_default(),
                text,
                false,
            ),
        }
    }
}

/// All settings of the operator, checked and expanded.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub demo: bool,
    pub server: ServerSettings,
    pub database: store::Settings,
    /// The accounts. If `None`, every caller is the user `local`.
    pub auth: Option<people::settings::Settings>,
    /// The keys that seal stored credentials and links.
    pub secrets: secret::settings::Settings,
    /// The credentials that `request_credentials` may ask for.
    pub credentials: BTreeMap<String, credential::settings::Settings>,
    pub models: BTreeMap<String, model::Settings>,
    pub mcp: BTreeMap<String, mcp::Settings>,
    /// The reviewed tools of the MCP servers.
    pub lock: mcp::Lock,
    /// The tools, including those of the MCP servers.
    pub tools: BTreeMap<String, catalog::Settings>,
    pub agents: BTreeMap<String, agent::Settings>,
    pub gates: BTreeMap<String, agent::Gate>,
    /// The agent of new tasks that name no agent.
    pub default_agent: String,
    /// The rules, in the order of the file.
    pub policy: Vec<Rule>,
    pub notify: notify::Settings,
    /// The configuration as JSON, with overrides applied but with each `${…}` unexpanded. The
    /// digests of definitions are computed from this JSON.
    pub unexpanded: Value,
    /// The name and the value of each secret. [`Config::redactor`] replaces each value by its name.
    pub secret_values: Vec<(String, Secret<String>)>,
    /// The secret values that no `${…}` of a stored definition may insert, because people and
    /// models see the expanded definition.
    pub never_shown: Vec<Secret<String>>,
    /// The variables and files that `${…}` refers to, also in stored definitions.
    pub environment: Environment,
    /// The base of relative paths in `${file:…}`.
    pub directory: PathBuf,
    /// Whether to log the lines that MCP servers on this host write to standard error.
    pub log_mcp_stderr: bool,
    /// The filter of log lines, from `RUST_LOG`; `None` if it is not set or empty.
    pub log: Option<String>,
}

impl Config {
    /// Returns the unexpanded definition at a path such as `&["tools", "pay"]`, or `Null`.
    #[must_use]
    pub fn unexpanded(&self, path: &[&str]) -> Value {
        path.iter()
            .try_fold(&self.unexpanded, |value, step| value.get(step))
            .cloned()
            .unwrap_or(Value::Null)
    }

    #[must_use]
    pub fn redactor(&self) -> Redactor {
        Redactor::new(
            self.secret_values
                .iter()
                .map(|(name, value)| (name.as_str(), value)),
        )
    }
}

const SECTIONS: [&str; 14] = [
    "server",
    "database",
    "auth",
    "secrets",
    "credentials",
    "models",
    "mcp",
    "mcp_lock",
    "tools",
    "agents",
    "gates",
    "default_agent",
    "policy",
    "notify",
];

/// Loads a configuration. `check_modules` adds the mistakes that other modules find in their
/// settings. If the text cannot be parsed, `check_modules` is not called.
///
/// # Errors
/// Fails if there is a mistake. The error is the report of all mistakes.
pub fn load(
    source: Source,
    environment: &Environment,
    flags: &Flags,
    check_modules: impl FnOnce(&Config, &mut Mistakes),
) -> Result<(Config, ConfigReport), ConfigReport> {
    let (name, directory, text, demo) = source.parts();
    let mut mistakes = Mistakes::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let Some(mut root) = tree::parse(text, None, &mut mistakes) else {
        let nowhere = Node::new(Origin::File { line: 1, column: 1 }, Kind::Null);
        let none = Redactor::default();
        return Err(ConfigReport::new(&name, &nowhere, &mistakes, &none, &[]));
    };
    if matches!(root.kind, Kind::Null) {
        root.kind = Kind::Map(Vec::new());
    }
    layers::apply_variables(&mut root, environment, schema::keys, &mut mistakes);
    layers::apply_flags(&mut root, flags);
    let unexpanded = unexpanded::definitions(&root);
    warnings::check_unexpanded(&root, &mut mistakes);
    let inserted = expand(&mut root, environment, &directory, &mut mistakes);
    check_schema_variables(&inserted, &mut mistakes);
    required::check(&mut root, &mut mistakes);
    blank_limits::check(&mut root, &mut mistakes);
    let mut config = read_sections(&mut root, &mut mistakes);
    let (found_before, warned_before) = (mistakes.found.len(), mistakes.warnings.len());
    check_people::replace_unreadable_keys(&mut config, &root);
    config.demo = demo;
    config.unexpanded = unexpanded;
    config.environment = environment.clone();
    config.directory.clone_from(&directory);
    let log = environment.variable("RUST_LOG");
    // An empty filter would let no line through, not even an error.
    config.log = log.filter(|log| !log.trim().is_empty()).map(str::to_owned);
    config.secret_values = secret_values::find(&root, &inserted);
    config.never_shown = secret_values::never_shown(&root, &inserted, &config.secret_values);
    mcp_tools::add(&mut config, &mut root, &mut mistakes);
    check::all(&mut config, &root, &mut mistakes);
    check_rules::check_remembered_conditions(&root, &inserted, &mut mistakes);
    warnings::check_settings(&config, &root, &mut mistakes);
    complete_settings(&mut config, &root, &mut mistakes);
    check_parts::credential_references(&config, &root, &mut mistakes);
    check_gates::credentials(&config, &mut mistakes);
    correct_indexes(&root, mistakes.found.iter_mut().skip(found_before));
    correct_indexes(&root, mistakes.warnings.iter_mut().skip(warned_before));
    let mut found = Mistakes::default();
    check_modules(&config, &mut found);
    correct_indexes(&root, found.found.iter_mut().chain(&mut found.warnings));
    report::merge(&root, &mut mistakes, found);
    let everything = inserted.iter().map(|one| (one.name.as_str(), &one.value));
    let redactor = Redactor::new(everything).merged_with(&config.redactor());
    let report = ConfigReport::new(&name, &root, &mistakes, &redactor, &inserted);
    if mistakes.is_empty() {
        Ok((config, report))
    } else {
        Err(report)
    }
}

/// Expands every `${…}` below `root`. Returns the inserted values.
fn expand(
    root: &mut Node,
    environment: &Environment,
    directory: &Path,
    mistakes: &mut Mistakes,
) -> Vec<InsertedValue> {
    let mut interpolation = Interpolation {
        environment,
        directory,
        inserted: Vec::new(),
        mistakes,
    };
    interpolation.expand_node(root, &mut Vec::new());
    interpolation.inserted
}

/// Reports each `${…}` in a tool's JSON Schema, which models and approvers see. A `${…}` in a
/// `description` or a `title` is allowed.
fn check_schema_variables(inserted: &[InsertedValue], mistakes: &mut Mistakes) {
    for one in inserted {
        if unexpanded::is_in_a_schema(&one.place) && !unexpanded::is_shown(&one.place) {
            let place: Vec<&str> = one.place.iter().map(String::as_str).collect();
            let detail = "models and approvers see this schema: a `${…}` may stand in its `description` and `title` only";
            mistakes.add(&place, detail);
        }
    }
}

/// Reads each section separately. If a section is a map or a list of settings, reads each of its
/// entries separately. So a mistake in one part does not hide the mistakes in other parts.
fn read_sections(root: &mut Node, mistakes: &mut Mistakes) -> Config {
    if !matches!(root.kind, Kind::Map(_)) {
        mistakes.add(&[], format!("expected a map, found {}", root.noun()));
        return Config::default();
    }
    let unknown: Vec<String> = root
        .entries()
        .iter()
        .map(|entry| entry.key.clone())
        .filter(|key| !SECTIONS.contains(&key.as_str()))
        .collect();
    for key in unknown {
        let known = SECTIONS.map(|section| format!("`{section}`")).join(", ");
        mistakes.add(&[&key], format!("unknown key `{key}`; known are {known}"));
    }
    Config {
        server: section(root, "server", mistakes),
        database: section(root, "database", mistakes),
        auth: root.get("auth").is_some().then(|| {
            let api_keys = section_list(root, &["auth", "api_keys"], mistakes);
            let people = section_list(root, &["auth", "people"], mistakes);
            people::settings::Settings {
                api_keys,
                people,
                ..section(root, "auth", mistakes)
            }
        }),
        secrets: {
            let keys = section_list(root, &["secrets", "keys"], mistakes);
            let _: secret::settings::Settings = section(root, "secrets", mistakes);
            secret::settings::Settings { keys }
        },
        credentials: section_map(root, "credentials", mistakes),
        models: section_map(root, "models", mistakes),
        mcp: section_map(root, "mcp", mistakes),
        tools: section_map(root, "tools", mistakes),
        agents: section_map(root, "agents", mistakes),
        gates: section_map(root, "gates", mistakes),
        default_agent: section(root, "default_agent", mistakes),
        policy: section_list(root, &["policy"], mistakes),
        notify: {
            let to = section_list(root, &["notify", "to"], mistakes);
            notify::Settings {
                to,
                ..section(root, "notify", mistakes)
            }
        },
        ..Config::default()
    }
}

/// Completes the settings: the models' names, the tools' unexpanded definitions, relative paths,
/// the database's URL, the variables that are passed on to shell tools and MCP servers, and the
/// tenants of the receivers of messages.
fn complete_settings(config: &mut Config, root: &Node, mistakes: &mut Mistakes) {
    let (environment, directory) = (&config.environment, &config.directory);
    let place = |path: &[&str], text: &str| resolve_path(root, path, text, directory);
    for (name, model) in &mut config.models {
        if let Some(script) = model
            .script
            .as_mut()
            .filter(|script| !script.starts_with("builtin:"))
        {
            *script = place(&["models", name, "script"], script);
        }
        model.name.clone_from(name);
    }
    for (name, tool) in &mut config.tools {
        tool.raw = config
            .unexpanded
            .get("tools")
            .and_then(|tools| tools.get(name))
            .cloned()
            .unwrap_or_default();
        let Some(shell) = &mut tool.shell else {
            continue;
        };
        let at = ["tools", name, "shell", "working_dir"];
        shell.working_dir = place(&at, &shell.working_dir);
        if let Ok(absolute) = std::path::absolute(&shell.working_dir) {
            shell.working_dir = absolute.display().to_string();
        }
        let at = ["tools", name, "shell", "env"];
        pass_on_variables(&at, &mut shell.env, environment, mistakes);
    }
    complete_servers(&mut config.mcp, root, environment, directory, mistakes);
    if is_from_file(root, &["database", "url"]) {
        let url = config.database.url.reveal();
        let resolved = resolve_sqlite(url, directory).or_else(|| resolve_postgres(url, directory));
        if let Some(resolved) = resolved {
            config.database.url = Secret::new(resolved);
        }
    }
    check_notify::complete_tenants(config);
}

/// Sets the working directory and the environment of each MCP server that is a child process.
fn complete_servers(
    servers: &mut BTreeMap<String, mcp::Settings>,
    root: &Node,
    environment: &Environment,
    directory: &Path,
    mistakes: &mut Mistakes,
) {
    for (name, server) in servers
        .iter_mut()
        .filter(|(_, server)| server.url.is_none())
    {
        let at = ["mcp", name, "working_dir"];
        let working_dir = server.working_dir.as_deref().unwrap_or(".");
        let working_dir = resolve_path(root, &at, working_dir, directory);
        let absolute = std::path::absolute(&working_dir);
        server.working_dir = Some(absolute.map_or(working_dir, |path| path.display().to_string()));
        pass_on_variables(
            &["mcp", name, "env"],
            &mut server.env,
            environment,
            mistakes,
        );
    }
}

/// Whether the value at `path` comes from the file or a default, not from a variable or a flag.
fn is_from_file(root: &Node, path: &[&str]) -> bool {
    !matches!(
        root.at(path).map(|node| &node.origin),
        Some(Origin::Variable(_) | Origin::Flag(_))
    )
}

/// Resolves `path`, the value at `place`, against `directory`. Returns `path` unchanged if a
/// variable or a flag sets it.
fn resolve_path(root: &Node, place: &[&str], path: &str, directory: &Path) -> String {
    if is_from_file(root, place) {
        directory.join(path).display().to_string()
    } else {
        path.to_owned()
    }
}

/// Returns the path of the lock file: `mcp_lock`, or the default beside the configuration file.
fn lock_path(root: &mut Node, directory: &Path, mistakes: &mut Mistakes) -> PathBuf {
    let written: Option<String> = section(root, "mcp_lock", mistakes);
    let name = written.as_deref().unwrap_or(mcp_tools::DEFAULT_LOCK_FILE);
    PathBuf::from(resolve_path(root, &["mcp_lock"], name, directory))
}

/// Fills in, from the environment of this process, each variable of `env` that has no value. `env`
/// is the environment of a command. `place` is the path of `env` in the configuration.
fn pass_on_variables(
    place: &[&str],
    env: &mut shell::Env,
    environment: &Environment,
    mistakes: &mut Mistakes,
) {
    for (variable, value) in &mut env.0 {
        if value.is_none() {
            *value = environment
                .variable(variable)
                .map(|value| Secret::new(value.to_owned()));
            if value.is_none() && shell::Env::is_name(variable) {
                let why = if environment.is_undecodable(variable) {
                    "has a value that is not UTF-8"
                } else {
                    "is not set"
                };
                let detail = format!("the variable `{variable}` {why}, so it is not passed on");
                mistakes.warn(place, detail);
            }
        }
    }
}

/// Resolves the relative path in the URL of a SQLite database against `directory`. Returns `None`
/// if the URL has no such path.
fn resolve_sqlite(url: &str, directory: &Path) -> Option<String> {
    let rest = url.strip_prefix("sqlite:")?;
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (path, query) = rest
        .split_once('?')
        .map_or((rest, ""), |(path, query)| (path, query));
    if path.is_empty() || path == ":memory:" || directory.as_os_str().is_empty() {
        return None;
    }
    let question = if query.is_empty() { "" } else { "?" };
    Some(format!(
        "sqlite://{}{question}{query}",
        directory.join(path).display()
    ))
}

/// The parameters of a Postgres URL that name a file, with the spellings that `sqlx` reads.
const FILE_PARAMETERS: [&str; 7] = [
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
];

/// Resolves the relative paths of certificates and keys in a Postgres URL against `directory`.
/// Returns `None` if the URL has no such path.
fn resolve_postgres(url: &str, directory: &Path) -> Option<String> {
    let mut url = Url::parse(url).ok()?;
    let names_file = |name: &str, value: &str| {
        // The value may also be the certificate itself.
        FILE_PARAMETERS.contains(&name) && !value.trim_start().starts_with("-----BEGIN")
    };
    let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
    if !pairs.iter().any(|(name, value)| names_file(name, value)) {
        return None;
    }
    let mut query = url.query_pairs_mut();
    query.clear();
    for (name, value) in &pairs {
        if names_file(name, value) {
            query.append_pair(name, &directory.join(value).display().to_string());
        } else {
            query.append_pair(name, value);
        }
    }
    drop(query);
    Some(url.into())
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_bad;
