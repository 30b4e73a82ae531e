//! Adds the reviewed tools of MCP servers to the configured tools, as if they were in the file.
//! Invariant: a `${…}` is expanded in texts of the operator, and never in texts of a server.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use url::Url;

use super::check_parts::{check_name, is_glob, is_name};
use super::check_people::has_broken;
use super::environment::Environment;
use super::fetched_version::names_version;
use super::tree::Node;
use super::{Config, lock_path};
use crate::agent::HumanKind;
use crate::mcp::{self, Lock};
use crate::task::tool_spec::Effect;
use crate::tool::catalog;
use crate::tool::mcp::{ReviewedTool, Settings as McpTool};
use crate::world::Mistakes;

pub(crate) const DEFAULT_LOCK_FILE: &str = "holdpoint.mcp.json";

/// Reads the lock file, adds its tools to the configuration, and fills in the entries in `tools`
/// that name a tool of an MCP server.
pub(super) fn add(config: &mut Config, root: &mut Node, mistakes: &mut Mistakes) {
    let path = lock_path(root, &config.directory, mistakes);
    for (name, server) in &config.mcp {
        check_name(&["mcp", name], "an MCP server", name, mistakes);
        check_server(name, server, root, mistakes);
    }
    let mut has_lock_file = false;
    let is_path_known = root.get("mcp_lock").is_none_or(|node| !node.broken);
    if !config.mcp.is_empty() && is_path_known {
        let lock = read_lock(&config.environment, &path, mistakes);
        has_lock_file = lock.is_some();
        config.lock = lock.unwrap_or_default();
    }
    let mut exposed: BTreeMap<String, (String, String)> = BTreeMap::new();
    for (name, server) in config.mcp.clone() {
        let Some(locked) = config.lock.servers.get(&name).cloned() else {
            if has_lock_file {
                let detail = format!("the lock file has no server `{name}`: {REVIEW_ADVICE}");
                mistakes.add(&["mcp", &name], detail);
            }
            continue;
        };
        check_patterns(&name, &server, &locked, mistakes);
        for (tool, definition) in locked.tools.iter().filter(|(tool, _)| server.selects(tool)) {
            let exposed_name = server.exposed_name(&name, tool);
            if is_free(config, &exposed, &exposed_name, (&name, tool), mistakes) {
                let settings = tool_settings(config, &name, &server, tool, definition, None);
                insert_tool(config, &exposed_name, settings);
                exposed.insert(exposed_name, (name.clone(), tool.clone()));
            }
        }
    }
    complete_tools(config, has_lock_file, mistakes);
    expand_globs(config, &exposed, mistakes);
}

const REVIEW_ADVICE: &str = "review its tools with `holdpoint mcp lock`";

fn read_lock(environment: &Environment, path: &Path, mistakes: &mut Mistakes) -> Option<Lock> {
    let found = match environment.file(path).map(|text| Lock::read(&text)) {
        Ok(Ok(lock)) => return Some(lock),
        Ok(Err(found)) => found,
        Err(error) => vec![format!(
            "cannot be read: {error}; write it with `holdpoint mcp lock`"
        )],
    };
    let file = path.display();
    for detail in found {
        mistakes.add(&["mcp_lock"], format!("the lock file `{file}` {detail}"));
    }
    None
}

/// Checks a server's settings, as far as this is possible without the lock file.
pub(super) fn check_server(
    name: &str,
    server: &mcp::Settings,
    root: &Node,
    mistakes: &mut Mistakes,
) {
    if root.at(&["mcp", name]).is_none_or(|node| node.broken) {
        return;
    }
    let is_command_unreadable = root.at(&["mcp", name, "command"]).is_some_and(has_broken);
    for mistake in server.checked().1.found {
        let keys: Vec<&str> = mistake.place.iter().map(String::as_str).collect();
        let place = [&["mcp", name], keys.as_slice()].concat();
        // Without a readable `command`, `checked` requires a `url`. But a server that has a
        // `command` needs no `url`, so the missing `url` is not reported.
        let is_missing_url = keys == ["url"] && server.url.is_none();
        if root.is_broken_on_path(&place) || (is_missing_url && is_command_unreadable) {
            continue;
        }
        let key = keys.last().copied().unwrap_or_default();
        mistakes.add(&place, format!("`{key}` {}", mistake.detail));
    }
    let query = server.url.as_ref().and_then(|url| Url::parse(url).ok());
    if query.is_some_and(|url| url.query().is_some()) {
        let detail =
            "a secret belongs into `headers`: servers and proxies write queries into their logs";
        mistakes.warn(&["mcp", name, "url"], detail);
    }
    let command = server.command.iter();
    let command: Vec<&str> = command.map(|text| text.reveal().as_str()).collect();
    if !names_version(&command) {
        let detail = "each start may fetch another version of the server: name an exact version";
        mistakes.warn(&["mcp", name, "command"], detail);
    }
}

/// Reports each pattern in a server's `tools` and `effects` that matches no tool in the lock file.
fn check_patterns(
    name: &str,
    server: &mcp::Settings,
    locked: &mcp::lock::LockedServer,
    mistakes: &mut Mistakes,
) {
    let unmatched = |pattern: &&String| {
        let mut tools = locked.tools.keys();
        !tools.any(|tool| tool == *pattern || mcp::settings::matches_glob(pattern, tool))
    };
    for (key, patterns) in [
        ("tools", server.tools.iter().flatten().collect::<Vec<_>>()),
        ("effects", server.effects.keys().collect()),
    ] {
        for pattern in patterns.into_iter().filter(unmatched) {
            let detail = format!(
                "the lock file has no tool of `{name}` that `{pattern}` names: {REVIEW_ADVICE}"
            );
            mistakes.add(&["mcp", name, key], detail);
        }
    }
}

/// Whether a server's tool may have the name `exposed_name`: the name is valid, and no other tool,
/// agent or gate has this name. If not, reports a mistake.
fn is_free(
    config: &Config,
    exposed: &BTreeMap<String, (String, String)>,
    exposed_name: &str,
    (server, tool): (&str, &str),
    mistakes: &mut Mistakes,
) -> bool {
    let place = ["mcp", server];
    let mut add = |detail: String| mistakes.add(&place, format!("the tool `{tool}` {detail}"));
    if !is_name(exposed_name) {
        add(format!(
            "would be called `{exposed_name}` here: a name is 1 to 64 of `A-Z a-z 0-9 _ -`; set another `prefix`"
        ));
        return false;
    }
    let is_same_name = |other: &str| other.eq_ignore_ascii_case(exposed_name);
    if let Some((_, (other, tool))) = exposed.iter().find(|(other, _)| is_same_name(other)) {
        let advice = if other == server {
            "list only one of them in the server's `tools`"
        } else {
            "set another `prefix`"
        };
        add(format!(
            "and the tool `{tool}` of `mcp.{other}` would both be called `{exposed_name}` here: {advice}"
        ));
        return false;
    }
    let human = HumanKind::ALL.iter().map(|kind| kind.tool());
    for (section, mut names) in [
        (
            "tools",
            config.tools.keys().map(String::as_str).collect::<Vec<_>>(),
        ),
        ("agents", config.agents.keys().map(String::as_str).collect()),
        ("gates", config.gates.keys().map(String::as_str).collect()),
        ("agents.….human", human.collect()),
    ] {
        names.retain(|other| is_same_name(other));
        if let Some(other) = names.first() {
            add(format!(
                "would be called `{exposed_name}` here, and there is `{section}.{other}`: set another `prefix`"
            ));
            return false;
        }
    }
    true
}

/// Returns the settings of a server's tool. `own` is the entry in the section `tools` that names
/// this tool; `None` if there is no such entry.
fn tool_settings(
    config: &Config,
    name: &str,
    server: &mcp::Settings,
    tool: &str,
    locked: &mcp::lock::LockedTool,
    own: Option<(&str, &catalog::Settings)>,
) -> catalog::Settings {
    let sets_effect =
        own.is_some_and(|(own, _)| !config.unexpanded(&["tools", own, "effect"]).is_null());
    let annotated_effect = if !server.trust_annotations {
        Effect::Once
    } else if locked.has_annotation("readOnlyHint") {
        Effect::ReadOnly
    } else if locked.has_annotation("idempotentHint") {
        Effect::Idempotent
    } else {
        Effect::Once
    };
    let (needs, target) = credentials_and_target(name, server, tool);
    let mcp = McpTool {
        server: name.to_owned(),
        tool: tool.to_owned(),
        reviewed: Some(ReviewedTool {
            digest: locked.digest.clone(),
            target,
            timeout: server.timeout,
            needs,
            runs_locally: server.url.is_none(),
        }),
    };
    let own = own.map(|(_, own)| own.clone()).unwrap_or_default();
    let has_description = !own.description.is_empty();
    catalog::Settings {
        description: if has_description {
            own.description
        } else {
            locked.description().to_owned()
        },
        effect: if sets_effect {
            own.effect
        } else {
            server.effect(tool).unwrap_or(annotated_effect)
        },
        parameters: Some(locked.parameters()),
        mcp: Some(mcp),
        ..own
    }
}

/// Returns the credentials that a server's tool needs, and the tool's target as a text for people.
fn credentials_and_target(name: &str, server: &mcp::Settings, tool: &str) -> (Vec<String>, String) {
    let transport = server.checked().0;
    let needs = transport
        .as_ref()
        .map(mcp::settings::Transport::credential_names);
    let place = match (&server.url, server.command.first()) {
        (Some(url), _) => match Url::parse(url) {
            Ok(mut url) => {
                url.set_query(None);
                format!(" at {url}")
            }
            Err(_) => String::new(),
        },
        (None, Some(_)) => ", a process on this host".to_owned(),
        (None, None) => String::new(),
    };
    (
        needs.unwrap_or_default(),
        format!("{tool} of the MCP server {name}{place}"),
    )
}

/// Adds a tool and its definition to the configuration, as if they were in the file.
fn insert_tool(config: &mut Config, exposed_name: &str, settings: catalog::Settings) {
    let Some(mcp) = &settings.mcp else { return };
    let reviewed = mcp.reviewed.clone().unwrap_or_default();
    let mut server_settings = config.unexpanded(&["mcp", &mcp.server]);
    if let Some(members) = server_settings.as_object_mut() {
        // Of the server's settings, the definition has only those that determine where and how a
        // call reaches the server. `effects` and `trust_annotations` are in it as the tool's
        // `effect`. The other settings do not change the definition.
        let kept = ["url", "headers", "oauth", "command", "working_dir", "env"];
        members.retain(|key, _| kept.contains(&key.as_str()));
    }
    let written = config.unexpanded(&["tools", exposed_name]);
    let mut definition = written.as_object().cloned().unwrap_or_default();
    definition
        .entry("description")
        .or_insert_with(|| escape_variables(&json!(settings.description)));
    let parameters = settings.parameters.clone().unwrap_or_default();
    definition.insert("parameters".to_owned(), escape_variables(&parameters));
    definition.insert("effect".to_owned(), json!(settings.effect.as_str()));
    let mcp = json!({
        "server": mcp.server, "tool": mcp.tool, "digest": reviewed.digest, "reach": server_settings,
    });
    definition.insert("mcp".to_owned(), mcp);
    if let Some(root) = config.unexpanded.as_object_mut() {
        let tools = root.entry("tools").or_insert_with(|| json!({}));
        if let Some(tools) = tools.as_object_mut() {
            tools.insert(exposed_name.to_owned(), Value::Object(definition));
        }
    }
    config.tools.insert(exposed_name.to_owned(), settings);
}

/// Escapes each `${` in the strings of a value, so that a later expansion of the escaped value
/// gives back the original value.
fn escape_variables(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace("${", "$${")),
        Value::Array(elements) => elements.iter().map(escape_variables).collect(),
        Value::Object(members) => {
            let members = members.iter();
            members
                .map(|(name, below)| (name.clone(), escape_variables(below)))
                .collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Fills in, from the lock file, each entry in `tools` that names a tool of an MCP server. If the
/// lock file could be read (`has_lock_file`), reports each tool that the lock file lacks.
fn complete_tools(config: &mut Config, has_lock_file: bool, mistakes: &mut Mistakes) {
    let unreviewed: Vec<_> = config
        .tools
        .iter()
        .filter_map(|(name, tool)| Some((name.clone(), tool.mcp.clone()?)))
        .filter(|(_, mcp)| mcp.reviewed.is_none())
        .filter(|(_, mcp)| !mcp.server.is_empty() && !mcp.tool.is_empty())
        .collect();
    for (name, mcp) in unreviewed {
        let Some(server) = config.mcp.get(&mcp.server).cloned() else {
            let detail = format!("no MCP server is called `{}`", mcp.server);
            mistakes.add(&["tools", &name, "mcp", "server"], detail);
            continue;
        };
        let locked = config.lock.servers.get(&mcp.server);
        let Some(locked) = locked
            .and_then(|locked| locked.tools.get(&mcp.tool))
            .cloned()
        else {
            if has_lock_file {
                let (tool, server) = (&mcp.tool, &mcp.server);
                let detail =
                    format!("the lock file has no tool `{tool}` of `{server}`: {REVIEW_ADVICE}");
                mistakes.add(&["tools", &name, "mcp", "tool"], detail);
            }
            continue;
        };
        let Some(own) = config.tools.get(&name) else {
            continue;
        };
        if own.parameters.is_some() {
            // An entry that names a tool of a server must not have `parameters`.
            // `check_parts::tools` reports this mistake.
            continue;
        }
        let own = Some((name.as_str(), own));
        let settings = tool_settings(config, &mcp.server, &server, &mcp.tool, &locked, own);
        insert_tool(config, &name, settings);
    }
}

/// Replaces each glob in the `tools` of agents and gates by the names of the matching tools in
/// `exposed`.
fn expand_globs(
    config: &mut Config,
    exposed: &BTreeMap<String, (String, String)>,
    mistakes: &mut Mistakes,
) {
    let agents = config.agents.iter_mut();
    let agents = agents.map(|(name, agent)| (["agents", name, "tools"], &mut agent.tools));
    let gates = config.gates.iter_mut();
    let gates = gates.map(|(name, gate)| (["gates", name, "tools"], &mut gate.tools));
    for (place, tools) in agents.chain(gates) {
        let changed = expand(place, tools, exposed, mistakes);
        let written = config
            .unexpanded
            .pointer_mut(&format!("/{}", place.join("/")));
        if let Some(written) = written.filter(|_| changed) {
            *written = json!(tools);
        }
    }
}

/// Replaces the globs in a list of tools, and returns whether the list has changed. The first name
/// that matches a glob takes the place of the glob. All further names are appended to the list, so
/// that the other entries keep their indexes. A tool that is then listed several times is kept
/// once.
fn expand(
    place: [&str; 3],
    tools: &mut Vec<String>,
    exposed: &BTreeMap<String, (String, String)>,
    mistakes: &mut Mistakes,
) -> bool {
    let mut further = Vec::new();
    let mut changed = false;
    for (index, entry) in tools.iter_mut().enumerate() {
        if !is_glob(entry) {
            continue;
        }
        let matching = exposed
            .keys()
            .filter(|name| mcp::settings::matches_glob(entry, name));
        let mut matching: Vec<_> = matching.cloned().collect();
        if matching.is_empty() {
            let index = index.to_string();
            let place = [&place[..], &[index.as_str()]].concat();
            let detail = format!("`{entry}` matches no tool of an MCP server");
            mistakes.add(&place, detail);
            continue;
        }
        *entry = matching.remove(0);
        further.append(&mut matching);
        changed = true;
    }
    tools.append(&mut further);
    if changed {
        let mut seen = std::collections::BTreeSet::new();
        tools.retain(|name| !exposed.contains_key(name) || seen.insert(name.clone()));
    }
    changed
}
