//! Reads the events after an event number in portions, and formats them for a stream. Invariant:
//! each event is sent once, in the order of the numbers; the stream of a root task skips no number.

use super::request_then::JournalCache;
use super::sse::SseBuffer;
use crate::http::Http;
use crate::http::wire::event::{EventData, name};
use crate::http::wire::request::InterventionRequest;
use crate::people::Caller;
use crate::store::{Event, Events, Part, Portion, ReadError};
use crate::task::item::Fact;
use crate::task::status::TaskStatus;

/// The size of one read: a stream keeps at most this plus one event in memory.
const PORTION: Portion = Portion {
    events: 64,
    bytes: 256 * 1024,
};

/// The position of a stream in the events of its tree.
#[derive(Debug)]
pub(crate) struct EventReader {
    /// The subtree whose events the stream sends.
    pub part: Part,
    /// Every event of `part` up to this number was written.
    pub seen: i64,
    /// The status of the stream's own task as of event `seen`.
    pub status: TaskStatus,
    journals: JournalCache,
}

impl EventReader {
    /// Begins after the event number `after`. `status` is the task's status, read before the first
    /// events.
    #[must_use]
    pub(crate) fn new(part: Part, after: i64, status: TaskStatus) -> Self {
        Self {
            part,
            seen: after,
            status,
            journals: JournalCache::default(),
        }
    }

    /// The next events, and whether there may be more.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the next event cannot be understood.
    pub(crate) async fn read(&self, http: &Http) -> Result<Events, ReadError> {
        http.store.events(self.part, self.seen, PORTION).await
    }

    /// Writes one event.
    pub(crate) async fn write(
        &mut self,
        http: &Http,
        caller: &Caller,
        event: &Event,
        text: &mut SseBuffer,
    ) -> Result<(), ReadError> {
        if self.part.task == self.part.root && event.number != self.seen + 1 {
            return Err(ReadError::Corrupt("events with gaps".to_owned()));
        }
        self.write_event(http, caller, event, text).await?;
        self.seen = event.number;
        if let Fact::TaskStatus { status, .. } = &event.item.fact
            && event.task_id == self.part.task
        {
            self.status = *status;
        }
        Ok(())
    }

    /// Frees the cached journals once the stream has caught up.
    pub(crate) fn drop_journals(&mut self) {
        self.journals.forget();
    }

    /// Moves the position to `head`, up to which every event of `part` was written.
    ///
    /// # Errors
    /// `Corrupt` when a root's events end before `head`.
    pub(crate) fn mark_read_to(&mut self, head: i64) -> Result<(), ReadError> {
        if self.part.task == self.part.root && self.seen < head {
            return Err(ReadError::Corrupt("events with gaps".to_owned()));
        }
        self.seen = self.seen.max(head);
        Ok(())
    }

    async fn write_event(
        &mut self,
        http: &Http,
        caller: &Caller,
        event: &Event,
        text: &mut SseBuffer,
    ) -> Result<(), ReadError> {
        let request = match event.item.fact.request_id() {
            Some(id) => {
                let row = self.journals.request(&http.store, id, event).await?;
                Some(InterventionRequest::of(&row, caller, &http.settings))
            }
            None => None,
        };
        let data = EventData::of(self.part.root, event, request, &http.settings);
        text.event(Some(event.number), name(event), &data)
            .map_err(|error| ReadError::Corrupt(format!("an event: {error}")))
    }
}
