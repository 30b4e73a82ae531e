//! Reports keys that limit something and have no value, such as `when:`. Without this report, the
//! service would read such a key as a missing key. A missing key sets no limit, so a limit whose
//! value was forgotten would let everything through.

use super::tree::{Kind, Node};
use crate::world::Mistakes;

/// The places of the keys that limit something. A `*` stands for each key of a map and each element
/// of a list.
const LIMITS: [&[&str]; 8] = [
    &["policy", "*", "when"],
    // Without a value and without other approvers, the owner would decide.
    &["policy", "*", "approvers", "owner"],
    &["agents", "*", "open_to"],
    &["gates", "*", "open_to"],
    &["mcp", "*", "tools"],
    &["auth", "api_keys", "*", "may"],
    &["credentials", "*", "expires_in"],
    &["notify", "links", "not_before"],
];

pub(super) fn check(root: &mut Node, mistakes: &mut Mistakes) {
    for limit in LIMITS {
        check_below(root, limit, &mut Vec::new(), mistakes);
    }
}

/// Follows `steps` from `node`, and reports each node at the end of the steps that has no value. A
/// step is a key, or `*` for any key or element. `place` is the path from the root to `node`.
fn check_below(node: &mut Node, steps: &[&str], place: &mut Vec<String>, mistakes: &mut Mistakes) {
    let [step, rest @ ..] = steps else {
        if matches!(node.kind, Kind::Null) && !node.broken {
            node.broken = true;
            let path: Vec<&str> = place.iter().map(String::as_str).collect();
            let key = path.last().copied().unwrap_or_default();
            let detail = format!("`{key}` has no value: give one, or leave the key out");
            mistakes.add(&path, detail);
        }
        return;
    };
    for (name, below) in node.children_mut() {
        if *step == "*" || *step == name {
            place.push(name);
            check_below(below, rest, place, mistakes);
            place.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::LIMITS;
    use crate::config::schema::{resolved, schema};

    #[test]
    fn schema_refuses_null_for_each_key_that_limits_something_and_proposes_none() {
        let schema = schema();
        for limit in LIMITS {
            let mut key = &schema;
            for step in limit {
                let map = resolved(key, &schema);
                key = match *step {
                    "*" => map.get("items").unwrap_or(&map["additionalProperties"]),
                    name => &map["properties"][name],
                };
            }
            assert!(key.is_object(), "the schema lacks {limit:?}");
            assert_ne!(key.get("default"), Some(&Value::Null), "{limit:?}");
            let mut alone = key.clone();
            alone["$defs"] = schema["$defs"].clone();
            let validator = jsonschema::validator_for(&alone).unwrap();
            assert!(!validator.is_valid(&Value::Null), "{limit:?}");
        }
    }
}
