//! Describes event streams in the OpenAPI document. Derives the component for an event's data from
//! the component of the event's item. Marks the responses that are event streams.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{every_operation, id_of, inbox_schema, put, referenced_component, sample, text_header};
use crate::http::wire::event::{CALLER_MEMBERS, CaughtUpEvent, EventData, TransientEvent};
use crate::http::wire::request::InterventionRequest;
use crate::store::{Event, RequestRow};
use crate::task::delta::{Delta, DeltaContent};
use crate::task::event_name::REQUEST_WAITING;
use crate::task::id::ChangeId;
use crate::task::item::{Fact, Item};

/// Every event name of a task's stream, with the component of the event's data.
pub(crate) const EVENT_COMPONENTS: [(&str, &str); 28] = [
    ("task.created", "TaskStatusEvent"),
    ("task.paused", "TaskStatusEvent"),
    ("task.resumed", "TaskStatusEvent"),
    ("task.completed", "TaskStatusEvent"),
    ("task.failed", "TaskStatusEvent"),
    ("task.canceled", "TaskStatusEvent"),
    ("sub_agent.created", "TaskStatusEvent"),
    ("sub_agent.paused", "TaskStatusEvent"),
    ("sub_agent.resumed", "TaskStatusEvent"),
    ("sub_agent.completed", "TaskStatusEvent"),
    ("sub_agent.failed", "TaskStatusEvent"),
    ("sub_agent.canceled", "TaskStatusEvent"),
    ("message.received", "UserMessageEvent"),
    ("message.completed", "AssistantMessageEvent"),
    ("tool_call.judged", "JudgedEvent"),
    ("request.created", "InterventionRequestedEvent"),
    ("request.decided", "DecisionEvent"),
    ("request.expired", "RequestClosedEvent"),
    ("request.withdrawn", "RequestClosedEvent"),
    ("tool.started", "ToolStartedEvent"),
    ("tool.finished", "ToolResultEvent"),
    ("tool.finished_late", "LateResultEvent"),
    ("sub_agent.started", "SubAgentStartedEvent"),
    ("caught_up", "CaughtUpEvent"),
    ("output_text.delta", "OutputTextDeltaEvent"),
    ("tool_call.named", "ToolCallNamedEvent"),
    ("tool_call.arguments.delta", "ToolCallArgumentsDeltaEvent"),
    ("message.reset", "MessageResetEvent"),
];

/// The POSTs that respond with an event stream if the client accepts `text/event-stream`.
pub(crate) const STREAMING_POSTS: [&str; 6] = [
    "create_task",
    "send_message",
    "retry_task",
    "decide_request",
    "approve_request",
    "reject_request",
];

/// The description that [`describe`] adds to each operation in `STREAMING_POSTS`. It describes the
/// stream in words. If the stream were a second content type of the responses, code generators
/// would drop the type of the JSON response.
const STREAM_DESCRIPTION: &str = "With `Accept: text/event-stream` a success responds with 200 and the stream of the task's events, as \
    `stream_task_events` does, from the first event of this POST's own commit on; `Content-Location` is the address to \
    reconnect to. A refusal is a problem as usual.";

fn reference(component: &str) -> String {
    format!("#/components/schemas/{component}")
}

pub(crate) fn add(schemas: &mut Map<String, Value>) {
    let request = schemas.get("InterventionRequest").cloned();
    let mut request = request.unwrap_or_default();
    let text = "A request as it was when the event was committed, the same for every reader.";
    put(&mut request, &["description"], json!(text));
    if let Some(members) = request.get_mut("properties").and_then(Value::as_object_mut) {
        members.retain(|name, _| !CALLER_MEMBERS.contains(&name.as_str()));
    }
    schemas.insert("RequestAtEvent".to_owned(), request);
    let mapping = add_durable_events(schemas);
    add_event_names(&EVENT_COMPONENTS, schemas);
    let variants: Vec<Value> = mapping
        .values()
        .map(|event| json!({ "$ref": event }))
        .collect();
    let durable = json!({
        "description": "The data of a durable event: an item, with what says where in the tree it belongs. Its `id` is \
            its number among the events of the tree.",
        "oneOf": variants, "discriminator": { "propertyName": "type", "mapping": mapping }
    });
    schemas.insert("TaskEvent".to_owned(), durable);
    let variants: BTreeSet<&str> = EVENT_COMPONENTS
        .iter()
        .map(|(_, component)| *component)
        .collect();
    let streamed = streamed_event_schema("a stream", &EVENT_COMPONENTS, variants);
    schemas.insert("StreamedEvent".to_owned(), streamed);
    inbox_schema::add(schemas);
}

/// For each type of item, adds the OpenAPI component of the event that carries such an item.
/// Returns a mapping from the type of the item to the component.
fn add_durable_events(schemas: &mut Map<String, Value>) -> Map<String, Value> {
    let union = schemas.get("AgentTaskItem");
    let items = union.and_then(|item| item.pointer("/discriminator/mapping"));
    let items = items.and_then(Value::as_object).cloned();
    let mut mapping = Map::new();
    for (kind, item) in items.iter().flatten() {
        let item = referenced_component(item);
        let Some(mut event) = schemas.get(item).cloned() else {
            continue;
        };
        let component = item.replace("Item", "Event");
        mapping.insert(kind.clone(), json!(reference(&component)));
        add_event_members(&mut event, kind);
        schemas.insert(component, event);
    }
    mapping
}

/// Adds the members that an event has in addition to the members of its item. `kind` is the item's
/// type.
fn add_event_members(event: &mut Value, kind: &str) {
    let path = json!({
        "type": "array", "items": { "type": "string" },
        "description": "The names of the agents from the root to the task."
    });
    put(event, &["properties", "agent_path"], path);
    let root =
        json!({ "type": "string", "format": "uuid", "description": "The root of its tree." });
    put(event, &["properties", "root_task_id"], root);
    if matches!(
        kind,
        "intervention_requested" | "decision" | "request_closed"
    ) {
        put(
            event,
            &["properties", "request"],
            json!({ "$ref": reference("RequestAtEvent") }),
        );
    }
}

/// Adds the member `event` to each component in `events`, a list of event names with their
/// components. If a component has one event name, the member is a constant. Otherwise the member
/// refers to an enum of the names, which the function adds to `schemas`.
pub(super) fn add_event_names(events: &[(&str, &str)], schemas: &mut Map<String, Value>) {
    for (_, component) in events {
        let names: Vec<&str> = events
            .iter()
            .filter(|(_, of)| of == component)
            .map(|(name, _)| *name)
            .collect();
        let member = if let [only] = names.as_slice() {
            json!({ "type": "string", "const": only, "description": "The name of the event." })
        } else {
            let name = format!("{component}Name");
            let member = json!({ "$ref": reference(&name) });
            let described = "The names of the events with this data.";
            let all = json!({ "type": "string", "enum": names, "description": described });
            schemas.insert(name, all);
            member
        };
        if let Some(schema) = schemas.get_mut(*component) {
            put(schema, &["properties", "event"], member);
        }
    }
}

/// Returns the schema of the data of any event of a stream: the union of the components in
/// `variants`. `stream` names the stream in the description, and `events` maps each event name to
/// its component.
pub(super) fn streamed_event_schema<'c>(
    stream: &str,
    events: &[(&str, &str)],
    variants: impl IntoIterator<Item = &'c str>,
) -> Value {
    let names: Map<String, Value> = events
        .iter()
        .map(|(name, component)| ((*name).to_owned(), json!(reference(component))))
        .collect();
    let variants: Vec<Value> = variants
        .into_iter()
        .map(|component| json!({ "$ref": reference(component) }))
        .collect();
    json!({
        "description": format!("The `data` of one event of {stream}; told apart by `event`. Clients ignore unknown events."),
        "oneOf": variants, "discriminator": { "propertyName": "event", "mapping": names }
    })
}

/// Describes the event streams in two places: in the responses of the two stream operations, and in
/// the descriptions of the `STREAMING_POSTS`.
pub(crate) fn describe(document: &mut Value) {
    for (_, operation) in every_operation(document) {
        let id = id_of(operation);
        if STREAMING_POSTS.contains(&id.as_str()) {
            let description = operation.get("description").and_then(Value::as_str);
            let description = description.unwrap_or_default();
            let description = format!("{description}\n\n{STREAM_DESCRIPTION}");
            operation.insert("description".to_owned(), json!(description.trim()));
        }
        let component = match id.as_str() {
            "stream_task_events" => "StreamedEvent",
            "stream_inbox" => "InboxStreamedEvent",
            _ => continue,
        };
        let Some(responses) = operation.get_mut("responses") else {
            continue;
        };
        // The stream is text; only the data of each event is JSON.
        let stream = json!({ "schema": {
            "type": "string",
            "contentMediaType": "text/event-stream",
            "contentSchema": { "$ref": reference(component) },
        } });
        put(responses, &["200", "content", "text/event-stream"], stream);
        for (name, value) in [
            ("Cache-Control", "`no-store, no-transform`"),
            ("X-Accel-Buffering", "`no`"),
        ] {
            put(responses, &["200", "headers", name], text_header(value));
        }
    }
}

/// Returns examples of the components of events, by component name.
pub(crate) fn examples() -> Vec<(&'static str, Value)> {
    let (row, settings, task) = (sample::request(), sample::settings(), sample::task());
    let event = Event {
        number: task.next_event - 1,
        task_id: task.task_id,
        of_root: true,
        agent_path: task.agent_path,
        change: ChangeId(row.spec.request_id.0),
        item: Item {
            seq: task.last_seq - 1,
            at: row.created_at,
            fact: Fact::InterventionRequested(row.spec.clone()),
        },
    };
    let request = InterventionRequest::for_caller(&row, &sample::caller(), &settings);
    let durable = EventData::from_event(task.root_task_id, &event, Some(request), &settings);
    let reminder = durable.clone().named(REQUEST_WAITING);
    let mut all = vec![
        ("TaskEvent", json!(durable)),
        ("WebhookReminder", json!(reminder)),
        ("CaughtUpEvent", json!(CaughtUpEvent::at(task.next_event))),
    ];
    all.extend(inbox_schema::examples(&row, &settings));
    for (component, said) in transient_examples(&row) {
        let delta = Delta {
            root_task_id: event.task_id,
            task_id: event.task_id,
            agent_path: event.agent_path.clone(),
            turn: 1,
            after_seq: 2,
            asking: event.change.0,
            at: row.created_at,
            said,
        };
        all.push((component, json!(TransientEvent::from_delta(&delta))));
    }
    all
}

fn transient_examples(row: &RequestRow) -> Vec<(&'static str, DeltaContent)> {
    let mut examples = vec![
        (
            "OutputTextDeltaEvent",
            DeltaContent::Text {
                offset: 12,
                delta: "order 17.".to_owned(),
            },
        ),
        ("MessageResetEvent", DeltaContent::Reset),
    ];
    if let Some(call) = row.spec.own_calls().next() {
        let tool_call_id = call.tool_call_id;
        let name = call.name.clone();
        examples.push((
            "ToolCallNamedEvent",
            DeltaContent::Named { tool_call_id, name },
        ));
        examples.push((
            "ToolCallArgumentsDeltaEvent",
            DeltaContent::Arguments {
                tool_call_id,
                offset: 0,
                delta: "{\"amount\":".to_owned(),
            },
        ));
    }
    examples
}
