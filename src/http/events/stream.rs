//! One event stream from its first byte to its end. The HTTP body is pulled: no event is read
//! before the client has taken the previous portion, so a slow client costs one portion of memory.
//!
//! A stream ends when its task has ended and every event is sent, when its lifetime is over, on
//! shutdown, when the caller may no longer read the task, and on a read error.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures_util::stream::unfold;
use http::HeaderMap;

use super::partial::DeltaFilter;
use super::reader::EventReader;
use super::rendered::RenderedEvents;
use super::sse::SseBuffer;
use super::stream_limiter::StreamPermit;
use crate::http::Http;
use crate::http::api::access;
use crate::http::server::guard::authenticate;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::event::CaughtUpEvent;
use crate::people::Caller;
use crate::people::may::Command;
use crate::store::{Heard, Listener, ReadError};
use crate::task::delta::Delta;
use crate::task::id::TaskId;

/// The client's reconnection delay, in milliseconds.
pub(super) const RETRY: u32 = 1000;
/// A comment is sent after this much silence.
pub(super) const SILENCE: Duration = Duration::from_secs(15);
/// The most deltas that are kept while the stream still reads stored events; further deltas are
/// dropped.
const WAITING: usize = 256;
/// How often the caller's access is checked again.
pub(super) const CHECK: Duration = Duration::from_mins(1);

/// The client of a stream.
#[derive(Debug)]
pub(crate) struct Watcher {
    pub caller: Caller,
    /// The credentials, which are checked again while the stream is open.
    pub headers: HeaderMap,
    /// Whether the stream is the response to a POST. A caller who may change the task may then
    /// watch it, even without the right to read it.
    pub posted: bool,
}

impl Watcher {
    /// The caller by today's keys and sessions; `None` if the credentials no longer identify the
    /// same person.
    ///
    /// # Errors
    /// `unauthorized`, `forbidden`, or the problem of a failed database access.
    pub(super) async fn caller_now(&self, http: &Http) -> Result<Option<Caller>, Problem> {
        let before = &self.caller;
        let now = authenticate(http, &self.headers).await?;
        let same = |now: &Caller| (&now.tenant, &now.user_id) == (&before.tenant, &before.user_id);
        Ok(now.filter(same))
    }
}

/// An open stream.
pub(crate) struct EventStream {
    http: Arc<Http>,
    watcher: Watcher,
    listener: Listener,
    reader: EventReader,
    partial: DeltaFilter,
    text: SseBuffer,
    /// The last event's number when the stream was opened; `None` once `caught_up` is written.
    head: Option<i64>,
    /// Deltas that are kept until the events before them are sent.
    waiting: Vec<Arc<Delta>>,
    listening: bool,
    ended: bool,
    /// A time of `Clock::uptime`, as are the next two members.
    opened_at: Duration,
    checked_at: Duration,
    last_write: Duration,
    _permit: StreamPermit,
}

impl EventStream {
    /// Begins at the reader's position; `head` is the number of the last event.
    pub(crate) fn new(
        http: &Arc<Http>,
        watcher: Watcher,
        listener: Listener,
        reader: EventReader,
        head: i64,
        permit: StreamPermit,
    ) -> Self {
        let now = http.clock.uptime();
        let mut text = SseBuffer::default();
        text.retry(RETRY);
        Self {
            http: Arc::clone(http),
            watcher,
            listener,
            reader,
            partial: DeltaFilter::default(),
            text,
            head: Some(head),
            waiting: Vec::new(),
            listening: false,
            ended: false,
            opened_at: now,
            checked_at: now,
            last_write: now,
            _permit: permit,
        }
    }

    /// Reads the first events; `false` when there are none and none will come.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the first event cannot be understood.
    pub(crate) async fn begin(&mut self) -> Result<bool, ReadError> {
        let before = self.reader.seen;
        match self.read().await {
            Err(error) if self.reader.seen == before => Err(error),
            Err(error) => {
                log_failure(&error);
                self.ended = true;
                Ok(true)
            }
            Ok(count) => Ok(count > 0 || !self.ended),
        }
    }

    /// The stream as a body.
    pub(crate) fn body(self) -> Body {
        Body::from_stream(unfold(self, async |mut stream| {
            let text = stream.next().await?;
            Some((Ok::<_, std::convert::Infallible>(text), stream))
        }))
    }

    /// The next text to send; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        loop {
            if !self.text.is_empty() {
                self.last_write = self.http.clock.uptime();
                return Some(self.text.take());
            }
            if self.ended || self.http.shutdown.is_cancelled() || !self.may_continue().await {
                return None;
            }
            let went = if self.listening {
                self.wait().await
            } else {
                self.read().await.map(|_| ())
            };
            if let Err(error) = went {
                log_failure(&error);
                self.ended = true;
            }
        }
    }

    /// Reads a portion of events and returns how many it has. After the last portion, writes
    /// `caught_up` (once per stream) and begins to listen.
    async fn read(&mut self) -> Result<usize, ReadError> {
        // All events before a delta that is kept already are committed, so this read finds them. A
        // delta that arrives during the read may follow a later commit.
        let already_waiting = self.waiting.len();
        let fresh = already_waiting > 0;
        let RenderedEvents { part, events, more } = self.reader.read(&self.http, fresh).await?;
        // Deltas that were published before these events have arrived by now; they are sent before
        // the events.
        while let Some(delta) = self.listener.piece() {
            if self.is_in_part(delta.task_id).await? && self.waiting.len() < WAITING {
                self.waiting.push(delta);
            }
        }
        for event in &events {
            let own = part == self.reader.part || self.is_in_part(event.task).await?;
            self.partial.note_task(event, own);
            if !own {
                self.reader.skip(event);
                continue;
            }
            let waiting = std::mem::take(&mut self.waiting);
            for delta in waiting {
                self.accept_delta(delta).await?;
            }
            self.reader.write(event, &mut self.text)?;
            self.partial.note_event(event);
        }
        if more {
            return Ok(events.len());
        }
        self.reader.follow(&self.http)?;
        if let Some(head) = self.head.take() {
            self.reader.mark_read_to(head)?;
            self.write(CaughtUpEvent::NAME, &CaughtUpEvent::at(self.reader.seen))?;
        }
        self.ended = self.reader.status.is_terminal();
        self.listening = true;
        let waiting = std::mem::take(&mut self.waiting);
        if !self.ended {
            for (place, delta) in waiting.into_iter().enumerate() {
                // This read found no event, so every event before this delta is sent.
                if place < already_waiting && events.is_empty() {
                    self.send_delta(&delta).await?;
                } else {
                    self.accept_delta(delta).await?;
                }
            }
        }
        Ok(events.len())
    }

    /// Waits for a notification, a delta, or the next deadline.
    async fn wait(&mut self) -> Result<(), ReadError> {
        let now = self.http.clock.uptime();
        let ends = [
            self.last_write + SILENCE,
            self.checked_at + CHECK,
            self.opened_at + self.http.settings.stream_life,
        ];
        let next = ends.into_iter().min().unwrap_or(now);
        let heard = tokio::select! {
            biased;
            () = self.http.shutdown.cancelled() => return Ok(()),
            heard = self.listener.next() => Some(heard),
            () = self.http.clock.sleep(next.saturating_sub(now)) => None,
        };
        match heard {
            Some(Heard::News) => self.listening = false,
            Some(Heard::Delta(delta)) => self.accept_delta(delta).await?,
            None if self.http.clock.uptime() >= self.last_write + SILENCE => self.text.comment(),
            None => {}
        }
        Ok(())
    }

    /// Sends a delta. Drops it if its task is outside the stream's part of the tree; keeps it for
    /// later if the stream has not sent every item of its model's prompt.
    async fn accept_delta(&mut self, delta: Arc<Delta>) -> Result<(), ReadError> {
        if !self.is_in_part(delta.task_id).await? {
            return Ok(());
        }
        if self.partial.is_ahead(&delta) {
            self.waiting.push(delta);
            self.listening = false;
            return Ok(());
        }
        self.send_delta(&delta).await
    }

    async fn is_in_part(&mut self, task: TaskId) -> Result<bool, ReadError> {
        let (store, part) = (&self.http.store, self.reader.part);
        self.partial.is_in(store, part, task).await
    }

    async fn send_delta(&mut self, delta: &Delta) -> Result<(), ReadError> {
        for event in self.partial.visible_events(&self.http.store, delta).await? {
            self.write(event.name(), &event)?;
        }
        Ok(())
    }

    fn write(&mut self, name: &str, data: &impl serde::Serialize) -> Result<(), ReadError> {
        self.text
            .event(None, name, data)
            .map_err(|error| ReadError::Corrupt(format!("an event: {error}")))
    }

    /// Whether the stream's lifetime has time left and the caller may still read the task. Access
    /// is checked once every `CHECK`.
    async fn may_continue(&mut self) -> bool {
        let now = self.http.clock.uptime();
        if now >= self.opened_at + self.http.settings.stream_life {
            return false;
        }
        if now < self.checked_at + CHECK {
            return true;
        }
        self.checked_at = now;
        // If the check itself fails, the stream ends too; the client's next connection is checked
        // again.
        self.may_read().await.unwrap_or_default()
    }

    async fn may_read(&mut self) -> Result<bool, Problem> {
        let Some(now) = self.watcher.caller_now(&self.http).await? else {
            return Ok(false);
        };
        self.watcher.caller = now;
        let (caller, task) = (&self.watcher.caller, self.reader.part.task);
        match access::readable_task(&self.http, caller, task).await {
            Ok(_) => Ok(true),
            Err(problem) if problem.code == Code::Forbidden && self.watcher.posted => {
                let row = access::task(&self.http, caller, task).await?;
                Ok(self
                    .http
                    .engine
                    .may_command(caller, Command::Cancel, &row)
                    .is_ok())
            }
            Err(problem) => Err(problem),
        }
    }
}

/// Logs why a stream was ended; the client learns it from its next connection.
pub(super) fn log_failure(error: &ReadError) {
    match error {
        ReadError::Unavailable => {
            tracing::debug!("an event stream was ended: the database does not answer");
        }
        // The error may quote stored text, which must not be logged.
        ReadError::Corrupt(_) => {
            tracing::error!("an event stream was ended: stored data cannot be read");
        }
    }
}
