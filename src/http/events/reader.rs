//! The position of a stream in the events of its tree. A stream first reads the stored events from
//! the database. Then it follows the tail of the tree (`tail.rs`), which reads new events once for
//! all streams of this process.
//!
//! Invariants: each event is sent once, in the order of the numbers. The stream of a root task
//! sends the events of the whole tree, and skips no number.

use std::sync::Arc;

use super::rendered::{self, RenderedEvent, RenderedEvents};
use super::request_at_event::JournalCache;
use super::sse::SseBuffer;
use super::tail::Follower;
use crate::http::Http;
use crate::store::{ReadError, Store, Subtree};
use crate::task::status::TaskStatus;
use crate::task::time::Time;

#[derive(Debug)]
pub(crate) struct EventReader {
    pub part: Subtree,
    /// The position: the stream goes on with the first event of `part` after this number.
    pub seen: i64,
    /// The status of the task `part.task`, as of the last event that [`Self::write`] appended.
    /// Before the first event, the task's status when the stream was opened.
    pub status: TaskStatus,
    journals: JournalCache,
    follower: Option<Follower>,
    /// The number of the last event that the tail (`tail.rs`) had read when `Follower::next` last
    /// returned `None`, so that the stream had to read the rows itself; 0 if this has not happened.
    /// When the stream joins the tail again, [`Self::follow`] checks that the stream of a root task
    /// has sent every event up to this number.
    tail_head: i64,
    /// The value of `Store::history_uncertain_until` before the stream's first read.
    history_uncertain_until: Option<Time>,
}

impl EventReader {
    /// Creates a reader that begins after the event number `after`. `status` is the task's status,
    /// read before the first events. `history_uncertain_until` is the store's value, read before
    /// `status`.
    #[must_use]
    pub(crate) fn new(
        part: Subtree,
        after: i64,
        status: TaskStatus,
        history_uncertain_until: Option<Time>,
    ) -> Self {
        Self {
            part,
            seen: after,
            status,
            journals: JournalCache::default(),
            follower: None,
            tail_head: 0,
            history_uncertain_until,
        }
    }

    /// Whether the database is another server than at the stream's first read, for example a
    /// promoted standby. Events that were sent may be missing there, and other events may have
    /// their numbers.
    pub(super) fn is_history_lost(&self, store: &Store) -> bool {
        store.history_uncertain_until() != self.history_uncertain_until
    }

    /// Returns the next events, and whether there may be more. If `fresh` is true, the read finds
    /// every event that is committed by now, even if the event's notification has not arrived.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the next event cannot be decoded.
    pub(super) async fn read(
        &mut self,
        http: &Arc<Http>,
        fresh: bool,
    ) -> Result<RenderedEvents, ReadError> {
        if let Some(follower) = &mut self.follower {
            if let Some(events) = follower.next(http, self.seen, fresh).await {
                return Ok(events);
            }
            self.tail_head = follower.last();
        }
        rendered::read(http, self.part, self.seen, &mut self.journals).await
    }

    /// Checks that the database still has every event up to the number `seen`.
    ///
    /// # Errors
    /// `Corrupt` if the number of the tree's last event is less than `seen`; `Unavailable` when the
    /// database does not answer.
    pub(super) async fn require_seen(&self, http: &Http) -> Result<(), ReadError> {
        let root = http.store.task(self.part.root).await?;
        if root.is_none_or(|root| root.next_event < self.seen) {
            return Err(ReadError::Corrupt(
                "an event that was sent is gone".to_owned(),
            ));
        }
        Ok(())
    }

    /// Appends an event to `text`, and moves the position to the event.
    ///
    /// # Errors
    /// `Corrupt` if the stream sends the whole tree and an event number is missing.
    pub(super) fn write(
        &mut self,
        event: &RenderedEvent,
        text: &mut SseBuffer,
    ) -> Result<(), ReadError> {
        if self.part.task == self.part.root && event.number != self.seen + 1 {
            return Err(ReadError::Corrupt("events with gaps".to_owned()));
        }
        text.append(&event.text);
        self.seen = event.number;
        if event.task == self.part.task {
            self.status = event.status.unwrap_or(self.status);
        }
        Ok(())
    }

    /// Moves the position past an event that the stream does not send, because the event is outside
    /// of `part`.
    pub(super) fn skip(&mut self, event: &RenderedEvent) {
        self.seen = event.number;
    }

    /// Joins the tail of the tree (see `tail.rs`) at the current position. From now on, the stream
    /// gets events from the tail instead of reading the rows. Frees the cached journals.
    ///
    /// # Errors
    /// `Corrupt` if the stream sends the whole tree and its position is before `tail_head`, because
    /// then an event is missing.
    pub(super) fn follow(&mut self, http: &Http) -> Result<(), ReadError> {
        self.journals.clear();
        self.mark_read_to(self.tail_head)?;
        self.follower
            .get_or_insert_with(|| http.tails.follower(&http.store, self.part.root))
            .join(self.seen);
        Ok(())
    }

    /// Sets the position to `head`, unless the position is already after `head`. Must be called
    /// after the stream has written every event of `part` up to `head`.
    ///
    /// # Errors
    /// `Corrupt` if the stream sends the whole tree and its position is before `head`, because then
    /// an event is missing.
    pub(super) fn mark_read_to(&mut self, head: i64) -> Result<(), ReadError> {
        if self.part.task == self.part.root && self.seen < head {
            return Err(ReadError::Corrupt("events with gaps".to_owned()));
        }
        self.seen = self.seen.max(head);
        Ok(())
    }
}
