//! Writes the content of a webhook message: an envelope and the data of an event. The data is read
//! from the journal at each attempt, so that the database does not store a copy.
//!
//! Invariant: a message shows the state as of its event's commit, even if it is sent much later.
//! Only the request in a reminder is as of the time of the attempt.

use serde::Serialize;
use serde_json::value::RawValue;

use super::Sender;
use super::entry::{Entry, WebhookChannel};
use super::settings::Payload;
use crate::store::{ClaimedDelivery, MessageEvent, ReadError, RequestRow, message_id, reminder_id};
use crate::task::id::TaskId;
use crate::task::time::Time;

/// The maximum size of a body in bytes. A longer `full` body is replaced by a thin body.
const MAX_BODY_BYTES: usize = 256 * 1024;

/// A message that is ready to be signed.
#[derive(Debug)]
pub(super) struct SignableMessage {
    /// The `webhook-id`: unique to the message, and the same for each attempt.
    pub(super) id: String,
    pub(super) body: Vec<u8>,
    /// The time of the event, or the time at which the reminder was due.
    pub(super) at: Time,
}

struct MessageSource<'m> {
    kind: &'m str,
    at: Time,
    root: TaskId,
    message_event: &'m MessageEvent,
    /// The type of a reminder, which shows the present state of the request. `None` for any other
    /// message, which shows the state as of the event's commit.
    reminder: Option<&'static str>,
}

#[derive(Serialize)]
struct Envelope<'m> {
    r#type: &'m str,
    timestamp: String,
    data: &'m RawValue,
}

/// The `data` of a webhook message with `payload: thin`, or with `payload: full` if the full body
/// would exceed `MAX_BODY_BYTES`.
#[derive(Serialize)]
struct Thin<'m> {
    tenant: &'m str,
    root_task_id: String,
    event: i64,
    task_id: String,
    session_id: &'m str,
    user_id: &'m str,
    agent: &'m str,
    agent_path: &'m [String],
    metadata: Box<RawValue>,
    task_status: &'static str,
    request: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

impl Sender {
    /// Returns the message of a delivery about `message_event`. If the message is a reminder,
    /// `reminder_request` is the request of which the message reminds people. A reminder shows the
    /// request's present state. The time of a reminder is the time at which the reminder was due.
    ///
    /// # Errors
    /// Fails if the database does not answer, or if the event cannot be read.
    pub(super) async fn message(
        &self,
        entry: &Entry,
        hook: &WebhookChannel,
        claimed: &ClaimedDelivery,
        message_event: &MessageEvent,
        reminder_request: Option<&RequestRow>,
    ) -> Result<SignableMessage, ReadError> {
        let written_at = message_event.event.item.at;
        let (id, at) = if let Some(request) = reminder_request {
            let due = entry
                .planned_message(request)
                .and_then(|message| message.due_at);
            let id = reminder_id(request.spec.request_id, &entry.name);
            (id, due.unwrap_or(written_at))
        } else {
            (message_id(claimed.change, claimed.event_number), written_at)
        };
        let source = MessageSource {
            kind: &claimed.kind,
            at,
            root: claimed.root,
            message_event,
            reminder: reminder_request.and(entry.reminder_kind()),
        };
        let body = self.body(hook, &source).await?;
        Ok(SignableMessage { id, body, at })
    }

    async fn body(
        &self,
        hook: &WebhookChannel,
        source: &MessageSource<'_>,
    ) -> Result<Vec<u8>, ReadError> {
        let MessageEvent { event, .. } = source.message_event;
        let mut truncated = false;
        if hook.payload == Payload::Full {
            let data = (self.rendering.data)(source.root, event.clone(), source.reminder).await?;
            let body = event_envelope(source, &data)?;
            if body.len() <= MAX_BODY_BYTES {
                return Ok(body);
            }
            truncated = true;
        }
        let request = match event.item.fact.request_id() {
            Some(id) => {
                let event = source.reminder.is_none().then(|| event.clone());
                Some((self.rendering.brief)(id, event, hook.shows_summaries).await?)
            }
            None => None,
        };
        let status = source.message_event.status_after;
        let metadata =
            RawValue::from_string(source.message_event.metadata.clone()).map_err(unreadable)?;
        let thin = Thin {
            tenant: &source.message_event.tenant,
            root_task_id: source.root.to_string(),
            event: event.number,
            task_id: event.task_id.to_string(),
            session_id: &source.message_event.session_id,
            user_id: &source.message_event.user_id,
            agent: event
                .agent_path
                .last()
                .unwrap_or(&source.message_event.root_agent),
            agent_path: &event.agent_path,
            metadata,
            task_status: status.as_str(),
            request,
            truncated,
        };
        let data = serde_json::value::to_raw_value(&thin).map_err(unreadable)?;
        event_envelope(source, &data)
    }
}

fn event_envelope(source: &MessageSource<'_>, data: &RawValue) -> Result<Vec<u8>, ReadError> {
    envelope(source.kind, source.at, data).map_err(unreadable)
}

pub(super) fn envelope(kind: &str, at: Time, data: &RawValue) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Envelope {
        r#type: kind,
        timestamp: at.to_string(),
        data,
    })
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn unreadable(error: serde_json::Error) -> ReadError {
    ReadError::Corrupt(format!("a message: {error}"))
}
