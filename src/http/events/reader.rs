//! Reads the events after a marker and writes them out, some at a time.
//! What must stay true: numbers go out in their order, each once; of a root none is left out.

use super::request_then::JournalCache;
use super::sse::SseBuffer;
use crate::http::Http;
use crate::http::wire::event::{EventData, name};
use crate::http::wire::request::InterventionRequest;
use crate::people::Caller;
use crate::store::{Event, Events, Part, Portion, ReadError};
use crate::task::item::Fact;
use crate::task::status::TaskStatus;

/// How much is read at once: a stream keeps no more than this, and one event.
const PORTION: Portion = Portion { events: 64, bytes: 256 * 1024 };

/// Where a stream stands in the events of its tree.
#[derive(Debug)]
pub(crate) struct EventReader {
    /// What it reads.
    pub part: Part,
    /// Up to which number everything that is its own was written out.
    pub seen: i64,
    /// The status of the stream's own task, as of there.
    pub status: TaskStatus,
    journals: JournalCache,
}

impl EventReader {
    /// One that begins after a number; `status` is that of its own task by a row that was read before.
    #[must_use]
    pub fn new(part: Part, after: i64, status: TaskStatus) -> Self {
        Self { part, seen: after, status, journals: JournalCache::default() }
    }

    /// The next events, and whether there may be more.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the next event cannot be understood.
    pub async fn read(&self, http: &Http) -> Result<Events, ReadError> {
        http.store.events(self.part, self.seen, PORTION).await
    }

    /// Writes one out.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or what is stored cannot be understood.
    pub async fn write(
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

    /// There are no more for now.
    pub fn drop_journals(&mut self) {
        self.journals.forget();
    }

    /// Everything of its own up to that number was written out.
    ///
    /// # Errors
    /// `Corrupt` where a root's events end before it.
    pub fn mark_read_to(&mut self, head: i64) -> Result<(), ReadError> {
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
