//! The unexpanded configuration as JSON, and the places in it that may hold secrets or may be
//! shown. Invariants: the JSON never has the value of an API key or of another secret at a place
//! that [`is_key`] accepts, whether the file, a variable or a flag sets it. In place of any other
//! value that may be secret ([`is_secret`]) and comes from a variable or a flag, the JSON has the
//! name of the variable or flag.

use serde_json::Value;

use super::tree::{Kind, MapEntry, Node, Origin};

/// The text in the JSON in place of a key, token or password ([`is_key`]) that the file has in any
/// other form than exactly `${NAME}`. With the key itself, the digest of the JSON could be used to
/// test guesses of the key.
const KEY_MARKER: &str = "key";

/// Converts the tree to the JSON from which digests are computed. A value that may be secret
/// ([`is_secret`]) and comes from a variable or a flag is replaced by the name of the variable or
/// flag. A key, token or password ([`is_key`]) in the file is replaced by [`KEY_MARKER`], unless
/// its text is exactly `${NAME}`. Every other value is kept.
#[must_use]
pub(crate) fn definitions(root: &Node) -> Value {
    json(root, &mut Vec::new())
}

fn json(node: &Node, place: &mut Vec<String>) -> Value {
    match &node.kind {
        Kind::Text(_) | Kind::Number(_) | Kind::Bool(_) if is_secret(place) => match &node.origin {
            Origin::Variable(name) => Value::String(format!("${{{name}}}")),
            Origin::Flag(name) => Value::String((*name).to_owned()),
            Origin::File { .. } if is_key(place) && !is_name_of_variable(node) => {
                Value::String(KEY_MARKER.to_owned())
            }
            Origin::File { .. } => node.to_json(),
        },
        Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) => node.to_json(),
        Kind::List(elements) => {
            let elements = elements.iter().enumerate();
            elements
                .map(|(index, element)| below(element, index.to_string(), place))
                .collect()
        }
        Kind::Map(entries) => entries
            .iter()
            .map(|MapEntry { key, node, .. }| (key.clone(), below(node, key.clone(), place)))
            .collect(),
    }
}

/// Whether the whole text is one `${NAME}`.
fn is_name_of_variable(node: &Node) -> bool {
    let text = node.text().unwrap_or_default();
    let name = text
        .strip_prefix("${")
        .and_then(|rest| rest.strip_suffix('}'));
    name.is_some_and(|name| {
        name.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

fn below(node: &Node, step: String, place: &mut Vec<String>) -> Value {
    place.push(step);
    let value = json(node, place);
    place.pop();
    value
}

pub(crate) fn walk<'n>(
    node: &'n Node,
    place: &mut Vec<String>,
    visit: &mut dyn FnMut(&[String], &'n Node),
) {
    visit(place, node);
    for (index, element) in node.elements().iter().enumerate() {
        place.push(index.to_string());
        walk(element, place, visit);
        place.pop();
    }
    for entry in node.entries() {
        place.push(entry.key.clone());
        walk(&entry.node, place, visit);
        place.pop();
    }
}

/// Whether an expanded value at this place may be shown to people and models. The function lists
/// the places of values that are no secrets, such as names, descriptions and the service's own
/// addresses. It returns false for any other place.
#[must_use]
pub(crate) fn is_shown(place: &[String]) -> bool {
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    match place.as_slice() {
        [
            "server" | "default_agent" | "agents" | "gates" | "mcp_lock",
            ..,
        ]
        | ["auth", "people", ..]
        | ["notify", "links", ..] => true,
        ["credentials", _, key] => *key == "description",
        ["credentials", _, "fields", _, key] => matches!(*key, "description" | "format"),
        ["secrets", "keys", _, key] => *key == "id",
        ["auth", "api_keys", _, key, ..] => matches!(*key, "user" | "tenant" | "groups" | "may"),
        ["notify", "mail", key] => *key != "password",
        ["models", _, key] => matches!(*key, "model" | "provider"),
        ["tools", _, key] => matches!(*key, "description" | "summary" | "effect"),
        ["tools", _, "http", key] => matches!(*key, "url" | "method" | "timeout"),
        ["mcp", _, key, ..] => !matches!(*key, "headers" | "oauth" | "command" | "env"),
        ["policy", _, key] => *key != "when",
        ["policy", _, key, .., last] => (*key, *last) != ("remember", "when"),
        ["notify", "to", _, "slack", key] => matches!(*key, "channel" | "api_url"),
        ["notify", "to", _, key, ..] => !matches!(*key, "webhook" | "teams"),
        ["tools", _, "parameters", .., last] | ["tools", _, "external", "result", .., last] => {
            matches!(*last, "description" | "title")
        }
        _ => false,
    }
}

/// Whether this place is in a JSON Schema that models and approvers see.
#[must_use]
pub(crate) fn is_in_a_schema(place: &[String]) -> bool {
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    matches!(
        place.as_slice(),
        ["tools", _, "parameters", ..] | ["tools", _, "external", "result", ..]
    )
}

/// Whether the value at this place is an API key, a sealing key, a token, a password, the secret of
/// an OAuth client, or a secret that signs messages.
#[must_use]
pub(crate) fn is_key(place: &[String]) -> bool {
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    matches!(
        place.as_slice(),
        ["auth", "api_keys", _, "key"]
            | ["secrets", "keys", _, "key"]
            | ["models", _, "api_key"]
            | ["mcp", _, "oauth", "client_secret"]
            | ["notify", "mail", "password"]
            | ["notify", "to", _, "webhook", "secrets", _]
            | ["notify", "to", _, "slack", "token"]
    )
}

#[must_use]
pub(crate) fn is_secret(place: &[String]) -> bool {
    if is_key(place) {
        return true;
    }
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    matches!(
        place.as_slice(),
        ["auth", "api_keys", _, "key_sha256"]
            | ["database", "url"]
            | ["models", _, "base_url"]
            | ["models", _, "headers" | "query" | "body", ..]
            | ["tools", _, "http", "headers", ..]
            | ["tools", _, "shell", "env", ..]
            | ["mcp", _, "headers" | "env" | "command", ..]
            | ["notify", "to", _, "webhook" | "slack" | "teams", "url"]
            | ["notify", "to", _, "webhook", "headers", ..]
    )
}
