//! Adds the parts of the components that derive macros cannot express: required members, and the
//! constants that distinguish the variants of a union.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{put, referenced_component};

/// The components with optional members, besides the request bodies that refuse unknown members.
const WITH_OPTIONAL_MEMBERS: [&str; 3] = ["LinkAnswer", "WebhookData", "Problem"];

/// Marks every member of a component as required, except in a component with optional members. The
/// `required` list of such a component stays as derived from the Rust type.
pub(super) fn require_members(name: &str, schema: &mut Value) {
    let is_body = schema.get("additionalProperties") == Some(&Value::Bool(false));
    if is_body || WITH_OPTIONAL_MEMBERS.contains(&name) {
        return;
    }
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        let names = json!(properties.keys().collect::<Vec<_>>());
        put(schema, &["required"], names);
    }
}

/// For each variant of a union, makes the discriminator a constant in the variant's component.
/// If the union maps several values of the discriminator to one component, leaves that component
/// unchanged.
pub(super) fn add_discriminators(schemas: &mut Map<String, Value>) {
    let mut tags: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for schema in schemas.values() {
        let Some(discriminator) = schema.get("discriminator") else {
            continue;
        };
        let member = discriminator.get("propertyName").and_then(Value::as_str);
        let mapping = discriminator.get("mapping").and_then(Value::as_object);
        for (word, target) in mapping.into_iter().flatten() {
            let component = referenced_component(target).to_owned();
            let tag = (component, member.unwrap_or_default().to_owned());
            tags.entry(tag).or_default().push(word.clone());
        }
    }
    for ((component, member), words) in tags {
        if let ([word], Some(schema)) = (words.as_slice(), schemas.get_mut(&component)) {
            put(schema, &["properties", &member, "const"], json!(word));
        }
    }
}
