//! Checks the required keys. The check runs on the tree before the settings are read, so that a
//! missing key is reported along with all other mistakes. A missing key is then read as an empty
//! setting, which later checks must not report again.

use super::tree::{Kind, Node};
use crate::world::Mistakes;

/// The path of each map with required keys, and the required keys. `*` stands for any name or
/// index. The text, list or map at a required key must not be empty.
const REQUIRED_KEYS: [(&[&str], &[&str]); 15] = [
    (&["auth", "api_keys", "*"], &["user"]),
    (&["auth", "people", "*"], &["user"]),
    (&["secrets", "keys", "*"], &["id", "key"]),
    (&["models", "*"], &["provider"]),
    (&["tools", "*", "http"], &["url"]),
    (&["agents", "*"], &["model"]),
    (&["agents", "*", "sub_agents", "*"], &["agent"]),
    (&["policy", "*"], &["name", "tools", "decide"]),
    (&["policy", "*", "remember"], &["for", "most"]),
    (&["credentials", "*"], &["fields"]),
    (&["notify", "mail"], &["url", "from"]),
    (&["notify", "to", "*"], &["name"]),
    (&["notify", "to", "*", "webhook"], &["url", "secrets"]),
    (&["notify", "to", "*", "teams"], &["url"]),
    (&[], &["models", "agents"]),
];

pub(crate) fn check(root: &mut Node, mistakes: &mut Mistakes) {
    let has_gates = root
        .get("gates")
        .is_some_and(|gates| !gates.entries().is_empty());
    for (pattern, keys) in REQUIRED_KEYS {
        // With gates, `models` and `agents` may be missing: the agents run elsewhere.
        if pattern.is_empty() && has_gates {
            continue;
        }
        visit_matching(root, pattern, &mut Vec::new(), &mut |node, place| {
            if !matches!(node.kind, Kind::Map(_)) {
                return;
            }
            for key in keys {
                let is_missing = match node.get(key) {
                    None => true,
                    Some(value) => {
                        matches!(&value.kind, Kind::Text(text) if text.trim().is_empty() && !value.broken)
                            || matches!(&value.kind, Kind::List(list) if list.is_empty())
                            || matches!(&value.kind, Kind::Map(map) if map.is_empty())
                    }
                };
                if !is_missing {
                    continue;
                }
                let mut key_path: Vec<&str> = place.iter().map(String::as_str).collect();
                if let Some(value) = node.get_mut(key) {
                    value.broken = true;
                    key_path.push(key);
                    mistakes.add(&key_path, format!("`{key}` is empty"));
                } else {
                    mistakes.add(&key_path, format!("`{key}` is missing"));
                }
            }
        });
    }
}

fn visit_matching(
    node: &mut Node,
    pattern: &[&str],
    place: &mut Vec<String>,
    visit: &mut dyn FnMut(&mut Node, &[String]),
) {
    let Some((step, rest)) = pattern.split_first() else {
        visit(node, place);
        return;
    };
    let steps: Vec<String> = match &node.kind {
        Kind::Map(entries) => entries.iter().map(|entry| entry.key.clone()).collect(),
        Kind::List(elements) => (0..elements.len()).map(|index| index.to_string()).collect(),
        Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) => Vec::new(),
    };
    for next in steps
        .into_iter()
        .filter(|next| *step == "*" || next == step)
    {
        if let Some(below) = node.get_mut(&next) {
            place.push(next);
            visit_matching(below, rest, place, visit);
            place.pop();
        }
    }
}
