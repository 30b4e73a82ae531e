//! Describes the events of an inbox's stream in the OpenAPI document.

use serde_json::{Map, Value, json};

use super::event_schema::{add_event_names, streamed_event_schema};
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

/// Adds the member `event`, the event's name, to the component of each event. Also adds a component
/// that is the union of all events.
pub(super) fn add(schemas: &mut Map<String, Value>) {
    add_event_names(&EVENT_COMPONENTS, schemas);
    let variants = ["InboxEvent", "InboxRequestEvent", "InboxGoneEvent"];
    let streamed = streamed_event_schema("an inbox's stream", &EVENT_COMPONENTS, variants);
    schemas.insert("InboxStreamedEvent".to_owned(), streamed);
}

/// Returns examples of the components of an inbox's events, by component name.
pub(super) fn examples(row: &RequestRow, settings: &Settings) -> Vec<(&'static str, Value)> {
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
        ("RequestBrief", brief),
        ("InboxEvent", json!(inbox)),
        ("InboxRequestEvent", json!(created)),
        ("InboxGoneEvent", json!(gone)),
    ]
}
