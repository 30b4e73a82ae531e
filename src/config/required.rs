//! Checks the required keys, which the JSON Schema of the configuration names. The check runs on
//! the tree before the settings are read, so that a missing key is reported along with all other
//! mistakes. Then the settings are read with an empty value for each missing key. A later check
//! must not report this empty value, because the missing key is reported already.

use serde_json::Value;

use super::schema;
use super::tree::{Kind, Node};
use crate::world::Mistakes;

pub(crate) fn check(root: &mut Node, mistakes: &mut Mistakes) {
    let has_gates = root
        .get("gates")
        .is_some_and(|gates| !gates.entries().is_empty());
    // With gates, `models` and `agents` may be missing: the agents run elsewhere.
    if !has_gates {
        check_keys(root, &["models", "agents"], &[], mistakes);
    }
    check_sections(root, mistakes);
}

/// Checks the sections that the file has. A missing section is not reported.
pub(crate) fn check_sections(root: &mut Node, mistakes: &mut Mistakes) {
    let schema = schema::schema();
    check_maps(root, (&schema, &schema), &mut Vec::new(), mistakes);
}

/// Checks a node and the nodes below it. `part` is the schema of the node, and `whole` is that of
/// the file.
fn check_maps(
    node: &mut Node,
    (part, whole): (&Value, &Value),
    place: &mut Vec<String>,
    mistakes: &mut Mistakes,
) {
    let part = schema::resolved(part, whole);
    let required = part.get("required").and_then(Value::as_array);
    let required = required.into_iter().flatten().filter_map(Value::as_str);
    check_keys(node, &required.collect::<Vec<_>>(), place, mistakes);
    let is_list = matches!(node.kind, Kind::List(_));
    for (step, below) in node.children_mut() {
        let declared = part.get("properties").and_then(|all| all.get(&step));
        let part = if is_list {
            part.get("items")
        } else {
            declared.or_else(|| part.get("additionalProperties"))
        };
        if let Some(part) = part {
            place.push(step);
            check_maps(below, (part, whole), place, mistakes);
            place.pop();
        }
    }
}

/// Reports each of `keys` that a map lacks, and each whose value is an empty text, list or map.
fn check_keys(node: &mut Node, keys: &[&str], place: &[String], mistakes: &mut Mistakes) {
    if !matches!(node.kind, Kind::Map(_)) {
        return;
    }
    for key in keys {
        let mut key_path: Vec<&str> = place.iter().map(String::as_str).collect();
        let Some(value) = node.get_mut(key) else {
            mistakes.add(&key_path, format!("`{key}` is missing"));
            continue;
        };
        let is_empty = match &value.kind {
            Kind::Text(text) => text.trim().is_empty() && !value.broken,
            Kind::List(list) => list.is_empty(),
            Kind::Map(map) => map.is_empty(),
            Kind::Null | Kind::Bool(_) | Kind::Number(_) => false,
        };
        if is_empty {
            value.broken = true;
            key_path.push(key);
            mistakes.add(&key_path, format!("`{key}` is empty"));
        }
    }
}
