//! Finds mistakes in tools and agents, and in the names by which they refer to each other.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Config;
use super::check_people::has_broken;
use super::tree::{Kind, Node};
use crate::agent::{self, HumanKind, OpenTo};
use crate::task::request::RequestKind;
use crate::tool::catalog;
use crate::tool::credential::REFERENCE_START;
use crate::tool::schema::case_collisions;
use crate::world::Mistakes;

/// Reports an invalid name. The report calls the named thing `noun`, such as `a tool`.
pub(crate) fn check_name(place: &[&str], noun: &str, name: &str, mistakes: &mut Mistakes) {
    if !is_name(name) {
        let detail = format!(
            "`{name}` cannot be the name of {noun}: a name is 1 to 64 of `A-Z a-z 0-9 _ -`"
        );
        mistakes.add(place, detail);
    }
}

/// Whether a text is a valid name, such as the name of a tool or an agent.
pub(super) fn is_name(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    (1..=64).contains(&text.len()) && text.chars().all(letter)
}

pub(crate) fn tools(config: &Config, root: &Node, mistakes: &mut Mistakes) {
    for (tool_name, tool) in &config.tools {
        check_name(&["tools", tool_name], "a tool", tool_name, mistakes);
        let Some(node) = root.at(&["tools", tool_name]).filter(|node| !node.broken) else {
            continue;
        };
        let purpose = "how the tool is performed";
        check_single_key(
            &["tools", tool_name],
            node,
            &catalog::KINDS,
            purpose,
            mistakes,
        );
        if let Some(parameters) = &tool.parameters {
            let place = vec!["tools", tool_name, "parameters"];
            if tool.shell.is_some() {
                mistakes.add(
                    &place,
                    "a shell tool's argument is `command`; it has no `parameters`",
                );
            } else if tool.mcp.is_some() && node.get("parameters").is_some() {
                mistakes.add(
                    &place,
                    "the lock file has the parameters of a tool of an MCP server",
                );
            } else if !parameters.is_object() {
                mistakes.add(
                    &place,
                    format!("expected a map, found {}", json_noun(parameters)),
                );
            }
            for (below, one, other) in case_collisions(parameters) {
                let below = below.iter().map(String::as_str);
                let place: Vec<&str> = place.iter().copied().chain(below).collect();
                let detail = format!("the parameters `{one}` and `{other}` differ only in case");
                mistakes.add(&place, detail);
            }
        }
    }
}

/// Checks that the map `node` has exactly one of `keys`, and that the value of this key is not
/// null. If `node` has none of `keys`, `purpose` completes the message
/// `one of … is missing: it says {purpose}`.
pub(crate) fn check_single_key(
    place: &[&str],
    node: &Node,
    keys: &[&str],
    purpose: &str,
    mistakes: &mut Mistakes,
) {
    let mut set = keys.iter().filter_map(|key| Some((*key, node.get(key)?)));
    let all = keys.join("`, `");
    match (set.next(), set.next()) {
        (Some((key, value)), None) => {
            if matches!(value.kind, Kind::Null) && !value.broken {
                mistakes.add(&[place, &[key]].concat(), "expected a map, found nothing");
            }
        }
        (None, _) => {
            mistakes.add(
                place,
                format!("one of `{all}` is missing: it says {purpose}"),
            );
        }
        (Some(_), Some(_)) => mistakes.add(place, format!("only one of `{all}` may be set")),
    }
}

fn json_noun(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// Checks each `{{credential:NAME.FIELD}}`: the credential and the field must exist, and
/// `secrets.keys` must have a key to seal the credential. Looks in the headers, `url` and `env` of
/// tools, and in the headers of MCP servers. If `env` passes on a variable of the service's own
/// environment, also looks in the value of that variable. Warns about other texts in `{{…}}`.
pub(crate) fn credential_references(config: &Config, root: &Node, mistakes: &mut Mistakes) {
    for (tool_name, tool) in &config.tools {
        if root
            .at(&["tools", tool_name])
            .is_some_and(|node| !node.broken)
        {
            check_tool_references(config, root, tool_name, tool, mistakes);
        }
    }
    for (server_name, server) in &config.mcp {
        for (key, text) in &server.headers {
            let place = ["mcp", server_name, "headers", key];
            check_template(config, &place, text.reveal(), mistakes);
        }
    }
}

fn check_tool_references(
    config: &Config,
    root: &Node,
    tool_name: &str,
    tool: &catalog::Settings,
    mistakes: &mut Mistakes,
) {
    if let Some(http) = &tool.http {
        let place = ["tools", tool_name, "http", "url"];
        check_references(config, &place, &http.url, mistakes);
        for (key, text) in &http.headers {
            let place = ["tools", tool_name, "http", "headers", key];
            check_template(config, &place, text.reveal(), mistakes);
        }
    }
    if let Some(shell) = &tool.shell {
        let env = ["tools", tool_name, "shell", "env"];
        let is_list = root
            .at(&env)
            .is_some_and(|node| matches!(node.kind, Kind::List(_)));
        for (key, value) in &shell.env.0 {
            let text = value.as_ref().map_or("", |value| value.reveal().as_str());
            if is_list {
                // `text` comes from the service's own environment and not from the file, so other
                // `{{…}}` in it cause no warning.
                check_references(config, &env, text, mistakes);
            } else {
                check_template(
                    config,
                    &[&env[..], &[key.as_str()]].concat(),
                    text,
                    mistakes,
                );
            }
        }
    }
}

/// Checks a text of the file in which credentials are filled in. Warns about a `{{…}}` that is no
/// reference to a credential.
fn check_template(config: &Config, place: &[&str], text: &str, mistakes: &mut Mistakes) {
    check_references(config, place, text, mistakes);
    let others = text.replace(REFERENCE_START, "");
    // A text such as `{{word:…}}` is probably a mistyped reference to a credential. Any other text
    // in braces, such as `{{.Names}}`, is a template for another program and causes no warning.
    let is_reference = |rest: &str| {
        let word = rest.trim_start().split_once(':').map(|(word, _)| word);
        rest.contains("}}") && word.is_some_and(|word| word.chars().all(char::is_alphanumeric))
    };
    if others.split("{{").skip(1).any(is_reference) {
        let detail = "a `{{…}}` other than `{{credential:NAME.FIELD}}` is not replaced: it is sent as written";
        mistakes.warn(place, detail);
    }
}

fn check_references(config: &Config, place: &[&str], text: &str, mistakes: &mut Mistakes) {
    for reference in text.split(REFERENCE_START).skip(1) {
        check_reference(config, place, reference, mistakes);
    }
}

/// Checks one reference to a credential. `reference` is the text that follows `{{credential:`.
fn check_reference(config: &Config, place: &[&str], reference: &str, mistakes: &mut Mistakes) {
    let Some((reference, _)) = reference.split_once("}}") else {
        mistakes.add(place, "a `{{credential:` has no `}}`");
        return;
    };
    // An invalid name is not quoted: the text may be a secret that looks like a reference.
    let name = |word: &str| {
        word.chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
    };
    let names = reference
        .split_once('.')
        .filter(|(credential, field)| name(credential) && name(field));
    let Some((credential, field)) = names else {
        mistakes.add(place, "a credential is named `{{credential:NAME.FIELD}}`");
        return;
    };
    match config.credentials.get(credential) {
        None => mistakes.add(place, format!("no credential is called `{credential}`")),
        Some(known) if !known.fields.contains_key(field) => {
            mistakes.add(
                place,
                format!("the credential `{credential}` has no field `{field}`"),
            );
        }
        Some(_) if config.secrets.keys.is_empty() => {
            mistakes.add(
                place,
                "a tool that takes a credential needs a key under `secrets.keys`, which seals it",
            );
        }
        Some(_) => {}
    }
}

pub(crate) fn agents(config: &Config, root: &Node, mistakes: &mut Mistakes) {
    for (agent_name, agent) in &config.agents {
        check_name(&["agents", agent_name], "an agent", agent_name, mistakes);
        if root
            .at(&["agents", agent_name])
            .is_none_or(|node| node.broken)
        {
            continue;
        }
        if !agent.model.is_empty() && !config.models.contains_key(&agent.model) {
            mistakes.add(
                &["agents", agent_name, "model"],
                format!("no model is called `{}`", agent.model),
            );
        }
        check_offered_names(config, agent_name, agent, mistakes);
        check_credentials_offer(config, root, agent_name, &agent.human, mistakes);
        for (key, expected) in agent.limits.out_of_bounds() {
            mistakes.add(
                &["agents", agent_name, "limits", key],
                format!("expected {expected}"),
            );
        }
        let place = ["agents", agent_name, "open_to"];
        let is_unreadable = root.at(&place).is_some_and(has_broken);
        if agent.open_to == Some(OpenTo::default()) && !is_unreadable {
            let detail = format!("no caller may use the agent `{agent_name}`");
            mistakes.warn(&place, detail);
        }
    }
}

/// Checks that each name in an agent's `tools` and `sub_agents` exists, and that no name appears
/// twice in `human`, `tools` and `sub_agents` together.
fn check_offered_names(
    config: &Config,
    agent_name: &str,
    agent: &agent::Settings,
    mistakes: &mut Mistakes,
) {
    let human = agent.human.iter().map(|kind| ("human", kind.tool()));
    let subs = agent
        .sub_agents
        .iter()
        .map(|sub| ("sub_agents", sub.agent.as_str()));
    let tools = agent.tools.iter().map(|tool| ("tools", tool.as_str()));
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    let mut positions: BTreeMap<&str, usize> = BTreeMap::new();
    for (list, offered) in human.chain(tools).chain(subs) {
        let position = positions.entry(list).or_default();
        let index = position.to_string();
        *position += 1;
        let place = ["agents", agent_name, list, &index];
        match list {
            "tools" if !config.tools.contains_key(offered) && !is_glob(offered) => {
                mistakes.add(&place, format!("no tool is called `{offered}`"));
            }
            "sub_agents" if !offered.is_empty() && !config.agents.contains_key(offered) => {
                let detail = if config.gates.contains_key(offered) {
                    format!("`{offered}` is a gate: only callers of the API use it")
                } else {
                    format!("no agent is called `{offered}`")
                };
                mistakes.add(&place, detail);
            }
            _ => {}
        }
        if list != "human" && RequestKind::from_tool(offered).is_some() {
            mistakes.add(&place, format!("the name `{offered}` is kept for `human`"));
        } else if let Some(other) = seen.insert(offered, list) {
            let detail = if other == list {
                format!("`{offered}` is listed twice")
            } else {
                format!(
                    "`{offered}` is in `{other}` too: an agent's tools, sub-agents and `human` share one name space"
                )
            };
            mistakes.add(&place, detail);
        }
    }
}

/// Whether an entry of a list of tools is a glob, which matches tools of MCP servers (see
/// `mcp_tools::expand_globs`).
pub(crate) fn is_glob(entry: &str) -> bool {
    entry.contains(['*', '?', '[', '{'])
}

/// Checks an agent that offers `request_credentials`. Reports a missing key in `secrets.keys`,
/// because credentials are stored sealed. Warns if the configuration has no credentials, or if no
/// tool of the agent or of the agents below it takes a credential.
fn check_credentials_offer(
    config: &Config,
    root: &Node,
    agent: &str,
    human: &[HumanKind],
    mistakes: &mut Mistakes,
) {
    if !human.contains(&HumanKind::Credentials) {
        return;
    }
    let place = ["agents", agent, "human"];
    if config.credentials.is_empty() {
        let detail = "`credentials` is not offered, because the section `credentials` is empty";
        mistakes.warn(&place, detail);
        return;
    }
    if config.credential_takers(agent).is_empty() {
        // A tool whose settings could not be read may be the tool that takes a credential. So the
        // warning is given only if all tools were read.
        let is_read = |tool: &str| root.at(&["tools", tool]).is_some_and(|node| !node.broken);
        if config.tools_below(agent).into_iter().all(is_read) {
            let detail = format!(
                "`credentials` is offered, but no tool of `{agent}` or of its sub-agents takes one of those under `credentials`"
            );
            mistakes.warn(&place, detail);
        }
    }
    if config.secrets.keys.is_empty() {
        mistakes.add(
            &place,
            "`credentials` needs a key under `secrets.keys`, which seals them",
        );
    }
}
