//! Adds the parts of the components that derive macros cannot express: required members, and the
//! constants that distinguish the variants of a union.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{put, referenced_component};

/// The components whose `required` list stays as derived from the Rust type: the request bodies,
/// `Problem`, and the data of a webhook. In every other component, all members become required.
const REQUEST_BODIES: &[&str] = &[
    "CreateTask",
    "SendMessage",
    "NewMessageItem",
    "ApproveDecision",
    "RejectDecision",
    "RespondDecision",
    "RetryDecision",
    "PerCallDecision",
    "ApproveCall",
    "RejectCall",
    "EditCall",
    "RespondCall",
    "ApproveBody",
    "RejectBody",
    "NewRemember",
    "NewGateCall",
    "ReportGateOutcome",
    "SignIn",
    "LinkAnswer",
    "ResendDeliveries",
    "WebhookData",
    "Problem",
];

/// Marks every member of a component as required, except in the [`REQUEST_BODIES`].
pub(super) fn require_members(name: &str, schema: &mut Value) {
    if REQUEST_BODIES.contains(&name) {
        return;
    }
    let names: Vec<Value> = match schema.get("properties").and_then(Value::as_object) {
        Some(properties) => properties.keys().map(|name| json!(name)).collect(),
        None => return,
    };
    put(schema, &["required"], Value::Array(names));
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
