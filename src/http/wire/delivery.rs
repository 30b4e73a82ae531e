//! Messages about what was committed: their deliveries as admins see them, and the messages
//! themselves as receivers get them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::brief::RequestBrief;
use super::task::WireTaskStatus;
use super::wire_enum;
use crate::store::{DeliveryChannel, DeliveryRow, DeliveryState, LastAttempt};

wire_enum! {
    /// The state of a delivery: `due` now or later, `sent`, `dead` after the last attempt, or
    /// `dropped` without a recipient: no entry of the configuration sends it, the
    /// request was closed first, or the person has answered or may not decide it.
    WireDeliveryState as DeliveryState from DeliveryState, "snake_case" { Due, Sent, Dead, Dropped }
}

wire_enum! {
    /// How a message is sent: a signed POST, a `mail` to a person, or a message in a room of `slack`
    /// or `teams`.
    WireDeliveryChannel as DeliveryChannel from DeliveryChannel, "snake_case" { Webhook, Mail, Slack, Teams }
}

/// A page of deliveries, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct DeliveryList {
    /// The deliveries.
    pub deliveries: Vec<Delivery>,
    /// The value of `cursor` for the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// One message to one receiver. It never has a URL, an address or the message's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names of the API's members")]
pub(crate) struct Delivery {
    /// Its id.
    #[schema(format = Uuid)]
    pub delivery_id: String,
    /// The name of the receiver in the configuration.
    pub target: String,
    /// How it is sent.
    pub channel: WireDeliveryChannel,
    /// The person whom it is for; null for a receiver that is no person.
    pub person: Option<String>,
    /// The message's type: the name of its event, `request.expiring` or `request.waiting`.
    pub r#type: String,
    /// The `webhook-id` of the message, the same for each attempt.
    pub webhook_id: String,
    /// The root of the tree that it is about.
    #[schema(format = Uuid)]
    pub root_task_id: String,
    /// The number of its event in that tree.
    pub event: i64,
    /// The request that it is about.
    #[schema(format = Uuid)]
    pub request_id: Option<String>,
    /// Its state.
    pub state: WireDeliveryState,
    /// How many attempts there were.
    pub attempts: i64,
    /// The time of the next attempt; after the delivery has ended, the time of its last attempt.
    #[schema(format = DateTime)]
    pub due_at: String,
    /// When it was sent, died or was dropped.
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
    /// The last attempt.
    pub last: Option<DeliveryAttempt>,
}

/// An attempt at a delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct DeliveryAttempt {
    /// Its end.
    #[schema(format = DateTime)]
    pub at: String,
    /// The status of the answer; null where there was none.
    pub http_status: Option<i64>,
    /// Why it failed; null for a success.
    pub problem: Option<String>,
    /// How long it took.
    pub milliseconds: i64,
}

/// How many deliveries are due again.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct ResentDeliveries {
    /// Their number.
    pub count: usize,
}

impl Delivery {
    /// The delivery of a row.
    #[must_use]
    pub(crate) fn of(row: &DeliveryRow) -> Self {
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
            last: row.last.as_ref().map(DeliveryAttempt::of),
        }
    }
}

impl DeliveryAttempt {
    fn of(last: &LastAttempt) -> Self {
        Self {
            at: last.at.to_string(),
            http_status: last.http_status,
            problem: last.problem.clone(),
            milliseconds: last.milliseconds,
        }
    }
}

/// The body of a webhook, signed as Standard Webhooks 1.0 says: the headers `webhook-id`,
/// `webhook-timestamp` and `webhook-signature`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct WebhookMessage {
    /// The name of the event: `task.*`, `sub_agent.*` or `request.*`. `request.expiring` and
    /// `request.waiting` are no events, but reminders of a request that still waits.
    pub r#type: String,
    /// The time of the event's commit; of a reminder, the time at which it was due.
    #[schema(format = DateTime)]
    pub timestamp: String,
    /// The event in brief; with `payload: full`, the data that the event has in the stream of its
    /// tree.
    pub data: WebhookData,
}

/// An event in brief, as it was when it was committed. A reminder has the event that asked, and the
/// task and the request as they are when it is sent.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct WebhookData {
    /// The tenant of the tree.
    pub tenant: String,
    /// The root of the tree.
    #[schema(format = Uuid)]
    pub root_task_id: String,
    /// The event's number in the tree. Messages come in no order: the highest number is the newest.
    pub event: i64,
    /// The task of the event; it may be a sub-agent's task.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The session.
    pub session_id: String,
    /// The owner of the tree.
    pub user_id: String,
    /// The agent of the task.
    pub agent: String,
    /// The names of the agents from the root to the task.
    pub agent_path: Vec<String>,
    /// The metadata that the root was created with.
    pub metadata: BTreeMap<String, Value>,
    /// The status of the task when the event was committed.
    pub task_status: WireTaskStatus,
    /// The request of a `request.*` event.
    #[schema(required = true)]
    pub request: Option<RequestBrief>,
    /// True where `payload: full` would be over 256 KiB, so that this message is in brief.
    pub truncated: Option<bool>,
}
