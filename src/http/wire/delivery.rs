//! Deliveries as admins see them, and the messages that receivers get.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::brief::RequestBrief;
use super::task::WireTaskStatus;
use super::wire_enum;
use crate::store::{DeliveryChannel, DeliveryRow, DeliveryState};

wire_enum! {
    /// The state of a delivery: `due` (to be sent now or later), `sent` (the receiver accepted the
    /// message), `dead` (the final attempt failed, the receiver wants no more attempts, or no
    /// message could be made) or `dropped` (not sent, because the message is no longer needed). A
    /// message is no longer needed if no entry of the configuration sends it, if the request was
    /// closed, or if the person has answered the request or may not decide it.
    WireDeliveryState as DeliveryState from DeliveryState, "snake_case" { Due, Sent, Dead, Dropped }
}

wire_enum! {
    /// How a message is sent: `webhook` (a signed POST), `mail` (to a person), `slack` or `teams`
    /// (to a room).
    WireDeliveryChannel as DeliveryChannel from DeliveryChannel, "snake_case" { Webhook, Mail, Slack, Teams }
}

/// A page of deliveries, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct DeliveryList {
    /// The deliveries of this page.
    pub deliveries: Vec<Delivery>,
    /// The value of `cursor` for the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// One message to one receiver. URLs, addresses and the message's text are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names of the API's members")]
pub(crate) struct Delivery {
    /// The id of the delivery, as `POST /v1/deliveries/{delivery_id}/resend` takes it.
    #[schema(format = Uuid)]
    pub delivery_id: String,
    /// The name of the receiver in the configuration.
    pub target: String,
    /// How the message is sent.
    pub channel: WireDeliveryChannel,
    /// The id of the person who gets the message; null if a webhook or a room gets it.
    pub person: Option<String>,
    /// The type of the message: for an event, the name of the event; for a reminder,
    /// `request.expiring` or `request.waiting`.
    pub r#type: String,
    /// The `webhook-id` of the message, the same for each attempt.
    pub webhook_id: String,
    /// The id of the root task of the tree that the message is about.
    #[schema(format = Uuid)]
    pub root_task_id: String,
    /// The number of the event that the message is about. Each tree numbers its own events.
    pub event: i64,
    /// The id of the request that the message is about; null if the message is about a task.
    #[schema(format = Uuid)]
    pub request_id: Option<String>,
    /// `due` while the message is to be sent; any other state says how the delivery ended.
    pub state: WireDeliveryState,
    /// The number of attempts so far.
    pub attempts: i64,
    /// The time of the next attempt; after the delivery has ended, the time of its last attempt.
    #[schema(format = DateTime)]
    pub due_at: String,
    /// The time at which the delivery ended; null while it is due.
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
    /// The last attempt; null before the first.
    pub last: Option<DeliveryAttempt>,
}

/// One attempt to send a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct DeliveryAttempt {
    /// The time at which the attempt ended.
    #[schema(format = DateTime)]
    pub at: String,
    /// The HTTP status of the receiver's answer; null without an HTTP answer.
    pub http_status: Option<i64>,
    /// The cause of the failure, in words; null for a success.
    pub problem: Option<String>,
    /// The duration of the attempt, in milliseconds.
    pub milliseconds: i64,
}

/// The result of sending a receiver's messages again.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct ResentDeliveries {
    /// The number of deliveries that are due again. Without an `Idempotency-Key`, all that match;
    /// with this key, at most 20,000. To make the rest due, send another POST with a new key.
    pub count: usize,
}

impl Delivery {
    #[must_use]
    pub(crate) fn from_row(row: &DeliveryRow) -> Self {
        Self {
            delivery_id: row.id.to_string(),
            target: row.target.clone(),
            channel: row.channel.into(),
            person: row.person.clone(),
            r#type: row.kind.clone(),
            webhook_id: row.message_id(),
            root_task_id: row.root.to_string(),
            event: row.event_number,
            request_id: row.request.map(|id| id.to_string()),
            state: row.state.into(),
            attempts: row.attempts,
            due_at: row.due_at.to_string(),
            ended_at: row.ended_at.map(|at| at.to_string()),
            last: row.last.as_ref().map(|last| DeliveryAttempt {
                at: last.at.to_string(),
                http_status: last.http_status,
                problem: last.problem.clone(),
                milliseconds: last.milliseconds,
            }),
        }
    }
}

/// The body of a webhook. The message is signed according to Standard Webhooks 1.0, with the
/// headers `webhook-id`, `webhook-timestamp` and `webhook-signature`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct WebhookMessage {
    /// The name of the event: `task.*`, `sub_agent.*` or `request.*`. `request.expiring` and
    /// `request.waiting` are not events but reminders of a request that still waits. `ping` is a
    /// test message, which only the command `holdpoint notify` sends.
    pub r#type: String,
    /// The time at which the event was committed; for a reminder, the time at which the reminder
    /// was due; for a ping, the time at which it was sent.
    #[schema(format = DateTime)]
    pub timestamp: String,
    /// The event in brief, or with `payload: full` the whole event or reminder; for a ping, the
    /// name of the receiver.
    // `openapi/webhooks.rs` replaces the type in the document with the union of these variants.
    pub data: WebhookData,
}

/// The data of a message of type `ping`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct WebhookPing {
    /// The name of the receiver in the configuration.
    pub target: String,
}

/// An event in brief, with the task and the request as they were when the event was committed. A
/// reminder shows the event that opened the request, and the request at the time of sending.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct WebhookData {
    /// The tenant that the tree belongs to.
    pub tenant: String,
    /// The id of the tree's root task.
    #[schema(format = Uuid)]
    pub root_task_id: String,
    /// The number of the event in the tree. Messages may arrive in any order; a higher number means
    /// a later event. A reminder has the number of the event that opened the request.
    pub event: i64,
    /// The task of the event; it may be a sub-agent's task.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The caller's name for the conversation, as in the task.
    pub session_id: String,
    /// The id of the user who owns the tree.
    pub user_id: String,
    /// The name of the task's agent.
    pub agent: String,
    /// The names of the agents from the root to the task.
    pub agent_path: Vec<String>,
    /// The metadata that the root task was created with.
    pub metadata: BTreeMap<String, Value>,
    /// The status of the task when the event was committed.
    pub task_status: WireTaskStatus,
    /// The request of a message whose type is `request.*`; null for other types.
    #[schema(required = true)]
    pub request: Option<RequestBrief>,
    /// True if `payload: full` is configured but the full data would be over 256 KiB, so that the
    /// event is in brief; else absent.
    pub truncated: Option<bool>,
}
