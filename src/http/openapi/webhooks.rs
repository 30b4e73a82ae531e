//! Describes the messages that the service sends, and gives examples of messages and deliveries.

use serde_json::{Map, Value, json};

use super::{put, sample};
use crate::http::wire::brief::RequestBrief;
use crate::http::wire::delivery::Delivery;
use crate::store::{DeliveryChannel, DeliveryRow, DeliveryState, LastAttempt};
use crate::task::event_name::{REQUEST_EXPIRING, REQUEST_WAITING};
use crate::task::id::ChangeId;

const HEADERS: [(&str, &str); 3] = [
    (
        "webhook-id",
        "The id of the message, the same for each attempt: a receiver drops an id that it knows",
    ),
    (
        "webhook-timestamp",
        "The time of the attempt, in seconds since 1970: a receiver refuses one that is five minutes off",
    ),
    (
        "webhook-signature",
        "`v1,` and a base64 HMAC-SHA-256 over `{webhook-id}.{webhook-timestamp}.{body}`, one for each secret, with spaces between",
    ),
];

pub(super) fn describe(document: &mut Value) {
    let parameters: Vec<Value> = HEADERS
        .iter()
        .map(|(name, words)| {
            json!({ "name": name, "in": "header", "required": true, "description": words, "schema": { "type": "string" } })
        })
        .collect();
    let body = json!({ "schema": { "$ref": "#/components/schemas/WebhookMessage" } });
    let post = json!({
        "summary": "A message about a task or a request",
        "description": "Sent to each receiver of the configuration that wants its event: at least once, in no order. Any 2xx \
            is a success; 410 ends the attempts at this message; anything else is tried again, ten times in about three days.",
        "parameters": parameters,
        "requestBody": { "required": true, "content": { "application/json": body } },
        "responses": { "2XX": { "description": "The message was accepted" } }
    });
    put(document, &["webhooks", "message", "post"], post);
}

/// Adds the union of the kinds of `data` in a message, and the components of a reminder with
/// `payload: full`. Such a reminder has the data of the event that opened the request, but the type
/// of the reminder as the name of the event.
pub(super) fn add(schemas: &mut Map<String, Value>) {
    let reminder = schemas.get("InterventionRequestedEvent").cloned();
    let mut reminder = reminder.unwrap_or_default();
    let text = "A reminder with `payload: full`: the data of the event that opened the request.";
    put(&mut reminder, &["description"], json!(text));
    let event = json!({ "$ref": "#/components/schemas/ReminderType" });
    put(&mut reminder, &["properties", "event"], event);
    let text = "The request as it was when the reminder was sent.";
    let path = ["properties", "request", "description"];
    put(&mut reminder, &path, json!(text));
    // `add_discriminators` makes `type` a constant only in the variants of a union with a
    // discriminator.
    let kind = json!("intervention_requested");
    put(&mut reminder, &["properties", "type", "const"], kind);
    schemas.insert("WebhookReminder".to_owned(), reminder);
    let types = json!({
        "type": "string", "enum": [REQUEST_EXPIRING, REQUEST_WAITING],
        "description": "The type of a reminder: `request.expiring` (the deadline of the request is near) or \
            `request.waiting` (the request has waited for some time)."
    });
    schemas.insert("ReminderType".to_owned(), types);
    let variants = ["WebhookData", "TaskEvent", "WebhookReminder", "WebhookPing"];
    let variants = variants.map(|name| json!({ "$ref": format!("#/components/schemas/{name}") }));
    let data = json!({
        "description": "The data of a message: an event in brief (`WebhookData`), with `payload: full` the data that the \
            event has in the stream of its tree (`TaskEvent`) or a reminder (`WebhookReminder`), or the data of a ping.",
        "oneOf": variants
    });
    schemas.insert("WebhookMessageData".to_owned(), data);
    if let Some(message) = schemas.get_mut("WebhookMessage") {
        let reference = json!("#/components/schemas/WebhookMessageData");
        put(message, &["properties", "data", "$ref"], reference);
    }
}

/// Returns a delivery whose first attempt to reach a webhook has failed.
fn delivery() -> DeliveryRow {
    let request = sample::request();
    DeliveryRow {
        id: request.spec.request_id.0,
        target: "backend".to_owned(),
        channel: DeliveryChannel::Webhook,
        person: None,
        kind: "request.created".to_owned(),
        root: request.root_task_id,
        change: ChangeId(request.root_task_id.0),
        event_number: 6,
        request: Some(request.spec.request_id),
        state: DeliveryState::Due,
        attempts: 1,
        due_at: request.created_at,
        ended_at: None,
        last: Some(LastAttempt {
            at: request.created_at,
            http_status: Some(500),
            problem: Some("no 2xx".to_owned()),
            milliseconds: 41,
        }),
    }
}

/// Returns examples of the components of messages and deliveries, by component name.
pub(super) fn examples() -> Value {
    let row = sample::request();
    let brief = RequestBrief::from_row(&row, &sample::settings()).without_summaries();
    let data = json!({
        "tenant": row.tenant, "root_task_id": row.root_task_id, "event": 6, "task_id": row.task_id,
        "session_id": row.session_id, "user_id": row.owner, "agent": "billing", "agent_path": row.agent_path,
        "metadata": { "order": 17 }, "task_status": "Paused", "request": brief
    });
    let message = json!({
        "type": "request.created", "timestamp": row.created_at.to_string(), "data": data
    });
    let delivery = Delivery::from_row(&delivery());
    json!({
        "WebhookMessage": message,
        "WebhookPing": { "target": "backend" },
        "Delivery": delivery,
        "DeliveryList": { "deliveries": [delivery], "next_cursor": null },
        "ResendDeliveries": { "target": "backend", "since": "2026-11-22T09:00:00Z" },
    })
}
