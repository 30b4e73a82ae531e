//! Describes the events of an inbox's stream in the OpenAPI document.

use serde_json::{Map, Value, json};

use super::event_schema::reference;
use super::put;
use crate::http::Settings;
use crate::http::wire::brief::RequestBrief;
use crate::http::wire::inbox::{
    CHANGED, CREATED, GONE, GoneReason, INBOX, InboxEvent, InboxGoneEvent, InboxRequestEvent,
};
use crate::store::RequestRow;

/// Every event name of an inbox's stream, with the component of the event's data.
const EVENT_COMPONENTS: [(&str, &str); 4] = [
    (INBOX, "InboxEvent"),
    (CREATED, "InboxRequestEvent"),
    (CHANGED, "InboxRequestEvent"),
    (GONE, "InboxGoneEvent"),
];

/// Adds, to the component of each event, the names that the event can have. Also adds a component
/// that is the union of all events.
pub(super) fn add(schemas: &mut Map<String, Value>) {
    let named = "The names of the events with this data.";
    let several = json!({ "type": "string", "enum": [CREATED, CHANGED], "description": named });
    schemas.insert("InboxRequestEventName".to_owned(), several);
    for (name, component) in EVENT_COMPONENTS {
        let event = if component == "InboxRequestEvent" {
            json!({ "$ref": reference("InboxRequestEventName") })
        } else {
            json!({ "type": "string", "const": name, "description": "The name of the event." })
        };
        if let Some(schema) = schemas.get_mut(component) {
            put(schema, &["properties", "event"], event);
        }
    }
    let mapping: Map<String, Value> = EVENT_COMPONENTS
        .iter()
        .map(|(name, component)| ((*name).to_owned(), json!(reference(component))))
        .collect();
    let variants = ["InboxEvent", "InboxRequestEvent", "InboxGoneEvent"];
    let variants = variants.map(|component| json!({ "$ref": reference(component) }));
    let streamed = json!({
        "description": "The `data` of one event of an inbox's stream; told apart by `event`. Clients ignore unknown events.",
        "oneOf": variants, "discriminator": { "propertyName": "event", "mapping": mapping }
    });
    schemas.insert("InboxStreamedEvent".to_owned(), streamed);
}

/// Returns examples of the components of an inbox's events, by component name.
pub(super) fn examples(row: &RequestRow, settings: &Settings) -> Vec<(&'static str, Vec<Value>)> {
    let request = RequestBrief::from_row(row, settings);
    let inbox = InboxEvent {
        event: INBOX,
        open: 1,
        more: false,
        requests: vec![request.clone()],
    };
    let gone = InboxGoneEvent {
        event: GONE,
        request_id: request.request_id.clone(),
        reason: GoneReason::Expired,
        decision: None,
        open: 0,
    };
    let brief = json!(request);
    let created = InboxRequestEvent {
        event: CREATED,
        request,
        open: 1,
    };
    vec![
        ("RequestBrief", vec![brief]),
        ("InboxEvent", vec![json!(inbox)]),
        ("InboxRequestEvent", vec![json!(created)]),
        ("InboxGoneEvent", vec![json!(gone)]),
    ]
}
