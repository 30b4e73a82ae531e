//! Adds the reviewed tools of MCP servers to the configured tools, as if they were in the file.
//! Invariant: texts of a server are not treated like texts of the operator: a `${…}` in them is not
//! expanded.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};
use url::Url;

use super::check_parts::is_glob;
use super::environment::Environment;
use super::tree::Node;
use super::{Config, lock_path};
use crate::agent::HumanKind;
use crate::mcp::{self, Lock};
use crate::task::tool_spec::Effect;
use crate::tool::catalog;
use crate::tool::mcp::{Reviewed, Settings as McpTool};
use crate::world::Mistakes;

/// The default of `mcp_lock`.
pub(crate) const LOCK: &str = "holdpoint.mcp.json";

/// Reads the lock file, adds its tools to the configuration, and completes the tools in `tools`
/// that name a tool of a server.
pub(super) fn add(config: &mut Config, root: &mut Node, mistakes: &mut Mistakes) {
    let path = lock_path(root, &config.directory, mistakes);
    for (name, server) in &config.mcp {
        super::check_parts::name(&["mcp", name], "an MCP server", name, mistakes);
        check_server(name, server, root, mistakes);
    }
    let mut known = false;
    if !config.mcp.is_empty() {
        let lock = read_lock(&config.environment, &path, mistakes);
        known = lock.is_some();
        config.lock = lock.unwrap_or_default();
    }
    let mut exposed: BTreeMap<String, (String, String)> = BTreeMap::new();
    for (name, server) in config.mcp.clone() {
        let Some(locked) = config.lock.servers.get(&name).cloned() else {
            if known {
                let detail = format!("the lock file has no server `{name}`: {RUN}");
                mistakes.add(&["mcp", &name], detail);
            }
            continue;
        };
        check_patterns(&name, &server, &locked, mistakes);
        for (tool, definition) in locked.tools.iter().filter(|(tool, _)| server.has(tool)) {
            let shown = server.exposed(&name, tool);
            if is_free(config, &exposed, &shown, (&name, tool), mistakes) {
                let settings = settings(config, &name, &server, tool, definition, None);
                insert(config, &shown, settings);
                exposed.insert(shown, (name.clone(), tool.clone()));
            }
        }
    }
    complete(config, known, mistakes);
    expand_globs(config, &exposed, mistakes);
}

/// The advice in a report about a server or tool that the lock file lacks.
const RUN: &str = "review its tools with `holdpoint mcp lock`";

fn read_lock(environment: &Environment, path: &Path, mistakes: &mut Mistakes) -> Option<Lock> {
    let place = ["mcp_lock"];
    let file = path.display();
    let text = match environment.file(path) {
        Ok(text) => text,
        Err(error) => {
            let detail = format!(
                "the lock file {file} cannot be read: {error}; write it with `holdpoint mcp lock`"
            );
            mistakes.add(&place, detail);
            return None;
        }
    };
    match Lock::read(&text) {
        Ok(lock) => Some(lock),
        Err(found) => {
            for detail in found {
                mistakes.add(&place, format!("the lock file {file} {detail}"));
            }
            None
        }
    }
}

/// Checks those settings of a server that can be checked without the lock file.
pub(super) fn check_server(
    name: &str,
    server: &mcp::Settings,
    root: &Node,
    mistakes: &mut Mistakes,
) {
    if root.at(&["mcp", name]).is_none_or(|node| node.broken) {
        return;
    }
    for (keys, detail) in server.checked().1 {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let place = [&["mcp", name], keys.as_slice()].concat();
        let key = keys.last().copied().unwrap_or_default();
        mistakes.add(&place, format!("`{key}` {detail}"));
    }
    let query = server.url.as_ref().and_then(|url| Url::parse(url).ok());
    if query.is_some_and(|url| url.query().is_some()) {
        let detail =
            "a secret belongs into `headers`: servers and proxies write queries into their logs";
        mistakes.warn(&["mcp", name, "url"], detail);
    }
    let program = server
        .command
        .first()
        .map(|program| program.reveal().as_str());
    let fetches = matches!(program, Some("npx" | "uvx"));
    let pinned = |argument: &str| argument.trim_start_matches('@').contains(['@', '=']);
    if fetches
        && !server
            .command
            .iter()
            .any(|argument| pinned(argument.reveal()))
    {
        let detail = "this fetches the newest version of the server at each start: name a version";
        mistakes.warn(&["mcp", name, "command"], detail);
    }
}

/// Reports each entry of a server's `tools` and `effects` that matches no tool in the lock file.
fn check_patterns(
    name: &str,
    server: &mcp::Settings,
    locked: &mcp::lock::LockedServer,
    mistakes: &mut Mistakes,
) {
    let unmatched = |pattern: &&String| {
        let mut tools = locked.tools.keys();
        !tools.any(|tool| tool == *pattern || mcp::settings::globbed(pattern, tool))
    };
    for (key, patterns) in [
        ("tools", server.tools.iter().flatten().collect::<Vec<_>>()),
        ("effects", server.effects.keys().collect()),
    ] {
        for pattern in patterns.into_iter().filter(unmatched) {
            let detail =
                format!("the lock file has no tool of `{name}` that `{pattern}` names: {RUN}");
            mistakes.add(&["mcp", name, key], detail);
        }
    }
}

/// Checks that a server's tool may have the name `shown` here: the name is valid, and nothing else
/// has it. Reports a mistake otherwise.
fn is_free(
    config: &Config,
    exposed: &BTreeMap<String, (String, String)>,
    shown: &str,
    (server, tool): (&str, &str),
    mistakes: &mut Mistakes,
) -> bool {
    let place = ["mcp", server];
    let mut add = |detail: String| mistakes.add(&place, format!("the tool `{tool}` {detail}"));
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if shown.is_empty() || shown.len() > 64 || !shown.chars().all(letter) {
        add(format!(
            "would be called `{shown}` here: a name is 1 to 64 of `A-Z a-z 0-9 _ -`; set another `prefix`"
        ));
        return false;
    }
    let same = |other: &str| other.eq_ignore_ascii_case(shown);
    if let Some((_, (server, tool))) = exposed.iter().find(|(other, _)| same(other)) {
        add(format!(
            "and the tool `{tool}` of `mcp.{server}` would both be called `{shown}` here: set another `prefix`"
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
        names.retain(|other| same(other));
        if let Some(other) = names.first() {
            add(format!(
                "would be called `{shown}` here, and there is `{section}.{other}`: set another `prefix`"
            ));
            return false;
        }
    }
    true
}

/// Returns the settings of a server's tool. `own` is the entry in `tools` that names this tool, if
/// any.
fn settings(
    config: &Config,
    name: &str,
    server: &mcp::Settings,
    tool: &str,
    locked: &mcp::lock::LockedTool,
    own: Option<(&str, &catalog::Settings)>,
) -> catalog::Settings {
    let said = own.is_some_and(|(own, _)| !config.unexpanded(&["tools", own, "effect"]).is_null());
    let claimed = if !server.trust_annotations {
        Effect::Once
    } else if locked.claims("readOnlyHint") {
        Effect::ReadOnly
    } else if locked.claims("idempotentHint") {
        Effect::Idempotent
    } else {
        Effect::Once
    };
    let (needs, target) = reach(name, server, tool);
    let mcp = McpTool {
        server: name.to_owned(),
        tool: tool.to_owned(),
        reviewed: Some(Reviewed {
            digest: locked.digest.clone(),
            target,
            timeout: server.timeout,
            needs,
            runs_here: server.url.is_none(),
        }),
    };
    let own = own.map(|(_, own)| own.clone()).unwrap_or_default();
    let described = !own.description.is_empty();
    catalog::Settings {
        description: if described {
            own.description
        } else {
            locked.description().to_owned()
        },
        effect: if said {
            own.effect
        } else {
            server.effect(tool).unwrap_or(claimed)
        },
        parameters: Some(locked.parameters()),
        mcp: Some(mcp),
        ..own
    }
}

/// Returns the credentials that calls of a server's tool need, and the target of the calls as
/// people are shown it.
fn reach(name: &str, server: &mcp::Settings, tool: &str) -> (Vec<String>, String) {
    let transport = server.checked().0;
    let needs = transport.as_ref().map(mcp::settings::Transport::needs);
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

/// Adds a tool and its definition, as if both were in the file.
fn insert(config: &mut Config, shown: &str, settings: catalog::Settings) {
    let Some(mcp) = &settings.mcp else { return };
    let reviewed = mcp.reviewed.clone().unwrap_or_default();
    let mut reach = config.unexpanded(&["mcp", &mcp.server]);
    if let Some(members) = reach.as_object_mut() {
        // The other settings of the server do not change the effect of a call, or are already in
        // the tool's own definition.
        let kept = ["url", "headers", "oauth", "command", "working_dir", "env"];
        members.retain(|key, _| kept.contains(&key.as_str()));
    }
    let mut definition = config.unexpanded(&["tools", shown]);
    if !definition.is_object() {
        definition = Value::Object(Map::new());
    }
    let described = definition.get("description").is_some();
    if let Some(members) = definition.as_object_mut() {
        if !described {
            members.insert(
                "description".to_owned(),
                literal(&json!(settings.description)),
            );
        }
        let parameters = settings.parameters.clone().unwrap_or_default();
        members.insert("parameters".to_owned(), literal(&parameters));
        members.insert("effect".to_owned(), json!(settings.effect.as_str()));
        let mcp = json!({
            "server": mcp.server, "tool": mcp.tool, "digest": reviewed.digest, "reach": reach,
        });
        members.insert("mcp".to_owned(), mcp);
    }
    if let Some(whole) = config.unexpanded.as_object_mut() {
        let tools = whole.entry("tools").or_insert_with(|| json!({}));
        if let Some(tools) = tools.as_object_mut() {
            tools.insert(shown.to_owned(), definition);
        }
    }
    config.tools.insert(shown.to_owned(), settings);
}

/// Escapes each `${` in the strings of a value, so that expanding it returns the value unchanged.
fn literal(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace("${", "$${")),
        Value::Array(elements) => elements.iter().map(literal).collect(),
        Value::Object(members) => {
            let members = members.iter();
            members
                .map(|(name, below)| (name.clone(), literal(below)))
                .collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Completes the entries in `tools` that name a tool of a server. `known`: whether the lock file
/// could be read; if not, a missing tool is not reported.
fn complete(config: &mut Config, known: bool, mistakes: &mut Mistakes) {
    let taken: Vec<_> = config
        .tools
        .iter()
        .filter_map(|(name, tool)| Some((name.clone(), tool.mcp.clone()?)))
        .filter(|(_, mcp)| mcp.reviewed.is_none())
        .collect();
    for (name, mcp) in taken {
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
            if known {
                let (tool, server) = (&mcp.tool, &mcp.server);
                let detail = format!("the lock file has no tool `{tool}` of `{server}`: {RUN}");
                mistakes.add(&["tools", &name, "mcp", "tool"], detail);
            }
            continue;
        };
        let Some(own) = config.tools.get(&name) else {
            continue;
        };
        if own.parameters.is_some() {
            // Another check reports `parameters` in an entry that names a tool of a server.
            continue;
        }
        let own = Some((name.as_str(), own));
        let settings = settings(config, &mcp.server, &server, &mcp.tool, &locked, own);
        insert(config, &name, settings);
    }
}

/// Replaces each glob in the `tools` of agents and gates by the names of the matching tools of MCP
/// servers. `exposed` has these tools by name.
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

/// Replaces the globs in a list of tools. Returns whether the list has changed. The first matching
/// name takes the place of the glob; the others are appended, so that other entries keep their
/// indexes.
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
            .filter(|name| mcp::settings::globbed(entry, name));
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
