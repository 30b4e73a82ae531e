//! Reads data about sent messages that can still be changed. `message_state` finds the message
//! about a request. `listed_requests` finds the requests of a message. The `reference` of a
//! delivery is the id that the chat service gave the message.

use uuid::Uuid;

use super::db::{Sql, Value, sql, values};
use super::record::record;
use super::{ReadError, Store};
use crate::task::id::RequestId;

/// The state of the message that an entry of `notify.to` gets about the opening of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// There is no message to change, and no message is being sent now. Either no message was sent,
    /// or the sent message cannot be changed.
    NotSent,
    /// The message is being sent, or the sender has not recorded the result of the attempt yet.
    Sending,
    /// The message was sent. The sender can change it by this reference.
    SentAs(String),
}

/// The requests of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedRequests {
    /// The oldest requests that the message is about, in order, up to the caller's limit.
    pub requests: Vec<RequestId>,
    /// The number of all requests that the message is about, which may exceed the caller's limit.
    pub total: u64,
    /// The message's type: the name of its event or reminder.
    pub kind: String,
}

/// Selects the deliveries to one entry of `notify.to` about the event that opened a request.
const SENT_MESSAGE: Sql = sql!(
    "select d.reference, coalesce(d.state = 'due' and d.lease_until > " (now 1) " and d.lease_until > d.due_at, false) as sending
       from intervention_request r
       join agent_task_item i on i.task_id = r.task_id and i.seq = r.seq
       join delivery d on d.target = $2 and d.person = '' and d.change_id = i.change_id
        and d.event_number = i.event_number
      where r.request_id = $3"
)
.by_key();

/// Selects the oldest requests of a message. The message is given by its entry of `notify.to`
/// (`$1`) and by its reference (`$2`).
const LISTED_REQUESTS: Sql = sql!(
    "select d.request_id, d.type as kind, count(*) over () as number from delivery d
      where d.target = $1 and d.reference = $2 and d.request_id is not null
      order by d.delivery_id limit $3"
);

pub(super) const STATEMENTS: &[Sql] = &[SENT_MESSAGE, LISTED_REQUESTS];

record! {
    struct ListedRequestRecord {
        request_id: Uuid,
        kind: String,
        number: i64,
    }
}

impl Store {
    /// Returns the state of the message to the entry `target` about the opening of a request.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn message_state(
        &self,
        target: &str,
        request: RequestId,
    ) -> Result<MessageState, ReadError> {
        let values = values![Value::Now, target, request];
        let found: Vec<(Option<String>, bool)> = self.db().all(SENT_MESSAGE, values).await?;
        // While a message is being sent again, its delivery may still have the reference of the
        // earlier message. The new message will get another reference, so this function returns
        // `Sending` and not the old reference.
        if found.iter().any(|(_, is_sending)| *is_sending) {
            return Ok(MessageState::Sending);
        }
        let reference = found.into_iter().find_map(|(reference, _)| reference);
        Ok(reference.map_or(MessageState::NotSent, MessageState::SentAs))
    }

    /// Reads the oldest requests of a message, at most `limit`.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn listed_requests(
        &self,
        target: &str,
        reference: &str,
        limit: i64,
    ) -> Result<ListedRequests, ReadError> {
        let values = values![target, reference, limit];
        let found: Vec<ListedRequestRecord> = self.db().all(LISTED_REQUESTS, values).await?;
        let mut listed = ListedRequests::default();
        for record in found {
            listed.requests.push(RequestId(record.request_id));
            listed.total = u64::try_from(record.number).unwrap_or(0);
            listed.kind = record.kind;
        }
        Ok(listed)
    }
}
