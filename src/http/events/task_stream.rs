//! The stream of a task's events: first the stored events, then each new event as it is committed.
//! The stream ends when the task has ended and every event was sent, and in the cases that
//! `stream.rs` lists.

use std::pin::pin;
use std::sync::Arc;

use super::delta_filter::DeltaFilter;
use super::reader::EventReader;
use super::rendered::RenderedEvents;
use super::stream::{EventSource, OpenStream, Watcher};
use super::stream_limiter::StreamPermit;
use crate::http::Http;
use crate::http::access;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::event::CaughtUpEvent;
use crate::people::authorization::Command;
use crate::store::{Listener, Notification, ReadError};
use crate::task::delta::Delta;
use crate::task::id::TaskId;

/// The maximum number of deltas that a stream keeps while it reads stored events. Further deltas
/// are dropped.
const MAX_WAITING_DELTAS: usize = 256;

pub(crate) struct TaskStream {
    stream: OpenStream,
    listener: Listener,
    reader: EventReader,
    delta_filter: DeltaFilter,
    /// The number of the tree's last event when the stream was opened; `None` once the stream has
    /// written the event `caught_up`.
    head: Option<i64>,
    /// The deltas that wait until the stream has sent every item in the prompt of their model call.
    waiting_deltas: Vec<Arc<Delta>>,
    is_listening: bool,
    /// Whether the last read failed. The next read then checks that the database has all events
    /// that were sent.
    is_recovering: bool,
}

impl TaskStream {
    /// Creates a stream that begins at the reader's position. `head` is the number of the last
    /// event that the tree has when the stream is opened.
    pub(crate) fn new(
        http: &Arc<Http>,
        watcher: Watcher,
        listener: Listener,
        reader: EventReader,
        head: i64,
        permit: StreamPermit,
    ) -> Self {
        Self {
            stream: OpenStream::new(http, watcher, permit),
            listener,
            reader,
            delta_filter: DeltaFilter::default(),
            head: Some(head),
            waiting_deltas: Vec::new(),
            is_listening: false,
            is_recovering: false,
        }
    }

    /// Reads the first events. Returns `false` if there is no event to send and the task has ended.
    /// If the read fails after some events, the stream sends these events, and then reads again.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the first event cannot be decoded.
    pub(crate) async fn begin(&mut self) -> Result<bool, ReadError> {
        let before = self.reader.seen;
        match self.read().await {
            Err(error) if self.reader.seen == before => Err(error),
            Err(_) => {
                self.recover();
                Ok(true)
            }
            Ok(count) => Ok(count > 0 || !self.stream.ended),
        }
    }

    /// Reads a portion of events and returns the number of its events. After the last portion,
    /// writes `caught_up` (once per stream) and begins to wait for notifications.
    async fn read(&mut self) -> Result<usize, ReadError> {
        // The items in a model's prompt are committed before the model call. Therefore, a `fresh`
        // read finds these items for every delta that already waits. `already_waiting` excludes the
        // deltas that arrive during the read, because the read may miss items in their prompts.
        let already_waiting = self.waiting_deltas.len();
        let fresh = already_waiting > 0;
        let RenderedEvents { part, events, more } = self.next_events(fresh).await?;
        // By now, the deltas that this process published before the events have arrived. Adds the
        // arrived deltas of the subtree to the waiting deltas, up to the maximum. The `for` loop
        // below sends a waiting delta between the last item in the prompt of its model call and the
        // next event.
        while let Some(delta) = self.listener.try_next_delta() {
            if self.is_in_part(delta.task_id).await?
                && self.waiting_deltas.len() < MAX_WAITING_DELTAS
            {
                self.waiting_deltas.push(delta);
            }
        }
        for event in &events {
            let in_part = part == self.reader.part || self.is_in_part(event.task).await?;
            self.delta_filter.record_task(event, in_part);
            if !in_part {
                self.reader.skip(event);
                continue;
            }
            let waiting_deltas = std::mem::take(&mut self.waiting_deltas);
            for delta in waiting_deltas {
                self.accept_delta(delta).await?;
            }
            self.reader.write(event, &mut self.stream.text)?;
            self.delta_filter.record_sent(event);
        }
        if more {
            return Ok(events.len());
        }
        self.reader.follow(&self.stream.http)?;
        if let Some(head) = self.head.take() {
            self.reader.mark_read_to(head)?;
            let caught_up = CaughtUpEvent::at(self.reader.seen);
            self.stream.write(CaughtUpEvent::NAME, &caught_up)?;
        }
        self.stream.ended = self.reader.status.is_terminal();
        self.is_listening = true;
        let waiting_deltas = std::mem::take(&mut self.waiting_deltas);
        if !self.stream.ended {
            for (index, delta) in waiting_deltas.into_iter().enumerate() {
                // A `fresh` read without events shows that the stream is past every item in the
                // prompts of the first `already_waiting` deltas. `accept_delta` would keep such a
                // delta if the stream has sent no event of its task.
                if index < already_waiting && events.is_empty() {
                    self.send_delta(&delta).await?;
                } else {
                    self.accept_delta(delta).await?;
                }
            }
        }
        Ok(events.len())
    }

    /// Returns the next portion. After a failed read, first checks that the database has all events
    /// that were sent, because the database may now be a standby that lacks the last events. Gives
    /// up at the stream's next deadline, because a read may hang, for example while the network
    /// drops packets. A read that was given up loses no event: the next read begins at the same
    /// position. The first read, by [`Self::begin`], is not given up: a POST whose change is
    /// committed is answered with its events also during a shutdown.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer in time, or the next event cannot be
    /// decoded. Also when the database has become another server; the stream then ends.
    async fn next_events(&mut self, fresh: bool) -> Result<RenderedEvents, ReadError> {
        let Self {
            stream,
            reader,
            is_recovering,
            ..
        } = self;
        let http = Arc::clone(&stream.http);
        let read = {
            let reading = pin!(async {
                if *is_recovering {
                    reader.require_seen(&http).await?;
                    *is_recovering = false;
                }
                reader.read(&http, fresh).await
            });
            // During the first read, the text has the `retry` of `OpenStream::new`. Before each
            // later read, the text has been sent, so it is empty.
            if stream.text.is_empty() {
                stream.wait(reading).await
            } else {
                Some(reading.await)
            }
        };
        if reader.is_history_lost(&http.store) {
            stream.ended = true;
            return Err(ReadError::Unavailable);
        }
        read.unwrap_or(Err(ReadError::Unavailable))
    }

    /// Makes the next call of [`Self::advance`] read the rows, because the last call failed.
    fn recover(&mut self) {
        self.is_listening = false;
        self.is_recovering = true;
    }

    /// Waits for a notification, a delta, or the next deadline.
    async fn wait(&mut self) -> Result<(), ReadError> {
        match self.stream.wait(self.listener.next()).await {
            Some(Notification::Commit) => self.is_listening = false,
            Some(Notification::Delta(delta)) => self.accept_delta(delta).await?,
            None => {}
        }
        Ok(())
    }

    /// Drops a delta whose task is outside the subtree that the stream sends. Keeps a delta for
    /// later if the stream has not yet sent every item in the prompt of the delta's model call.
    /// Sends any other delta.
    async fn accept_delta(&mut self, delta: Arc<Delta>) -> Result<(), ReadError> {
        if !self.is_in_part(delta.task_id).await? {
            return Ok(());
        }
        if self.delta_filter.is_ahead(&delta) {
            self.waiting_deltas.push(delta);
            self.is_listening = false;
            return Ok(());
        }
        self.send_delta(&delta).await
    }

    async fn is_in_part(&mut self, task: TaskId) -> Result<bool, ReadError> {
        let (store, part) = (&self.stream.http.store, self.reader.part);
        self.delta_filter.is_in_subtree(store, part, task).await
    }

    async fn send_delta(&mut self, delta: &Delta) -> Result<(), ReadError> {
        let store = &self.stream.http.store;
        for event in self.delta_filter.visible_events(store, delta).await? {
            self.stream.write(event.name(), &event)?;
        }
        Ok(())
    }
}

impl EventSource for TaskStream {
    fn stream(&mut self) -> &mut OpenStream {
        &mut self.stream
    }

    async fn advance(&mut self) -> Result<(), ReadError> {
        let advanced = if self.is_listening {
            self.wait().await
        } else {
            self.read().await.map(|_| ())
        };
        if advanced.is_err() {
            self.recover();
        }
        advanced
    }

    async fn may_read(&mut self) -> Result<bool, Problem> {
        let OpenStream { http, watcher, .. } = &mut self.stream;
        let Some(now) = watcher.current_caller(http).await? else {
            return Ok(false);
        };
        watcher.caller = now;
        let (caller, task) = (&watcher.caller, self.reader.part.task);
        match access::readable_task(http, caller, task).await {
            Ok(_) => Ok(true),
            Err(problem) if problem.code == Code::Forbidden && watcher.is_post_response => {
                let row = access::task(http, caller, task).await?;
                Ok(http
                    .engine
                    .may_command(caller, Command::Cancel, &row)
                    .is_ok())
            }
            Err(problem) => Err(problem),
        }
    }
}
