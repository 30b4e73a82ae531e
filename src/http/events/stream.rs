//! One stream from its first byte to its end. It is a body that is pulled: nothing is read before the client has taken
//! what was read before, so a slow client costs what one portion costs.
//!
//! It ends when everything is sent and its task is over, when its time is over, when the service goes down, when whoever
//! asked for it may not read it any more, and when something cannot be read.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures_util::stream::unfold;
use http::HeaderMap;

use super::partial::Partial;
use super::reader::Reader;
use super::seats::Seat;
use crate::http::operation::who;
use crate::http::problem::{Code, Problem};
use crate::http::sse::Text;
use crate::http::wire::event::CaughtUpEvent;
use crate::http::{Http, read};
use crate::people::Caller;
use crate::people::may::Command;
use crate::store::{Events, Heard, Listener, ReadError};
use crate::task::delta::Delta;

/// How long a client waits before it connects again, in milliseconds.
const RETRY: u32 = 1000;
/// After how much silence a comment goes out.
const SILENCE: Duration = Duration::from_secs(15);
/// How many pieces wait at most: who reads a long history first misses some of what is said meanwhile.
const WAITING: usize = 256;
/// How often it is asked again whether the caller may still read.
const CHECK: Duration = Duration::from_mins(1);

/// Who watches.
#[derive(Debug)]
pub struct Watcher {
    /// Him.
    pub caller: Caller,
    /// What he showed: it must still be good later.
    pub headers: HeaderMap,
    /// It is the answer to a POST of his: whoever may move the task may see where it goes.
    pub posted: bool,
}

/// A stream that is open.
pub struct Stream {
    http: Arc<Http>,
    watcher: Watcher,
    listener: Listener,
    reader: Reader,
    partial: Partial,
    text: Text,
    /// The last number there was when it was opened, until that is told.
    head: Option<i64>,
    /// Pieces that wait for the events before them.
    waiting: Vec<Arc<Delta>>,
    listening: bool,
    over: bool,
    /// Moments, since the machine booted.
    born: Duration,
    checked: Duration,
    spoke: Duration,
    _seat: Seat,
}

impl Stream {
    /// One that begins where `reader` stands; `head` is the number of the last event there was.
    pub fn new(http: &Arc<Http>, watcher: Watcher, listener: Listener, reader: Reader, head: i64, seat: Seat) -> Self {
        let now = http.clock.uptime();
        let mut text = Text::default();
        text.retry(RETRY);
        Self {
            http: Arc::clone(http),
            watcher,
            listener,
            reader,
            partial: Partial::default(),
            text,
            head: Some(head),
            waiting: Vec::new(),
            listening: false,
            over: false,
            born: now,
            checked: now,
            spoke: now,
            _seat: seat,
        }
    }

    /// Reads the first events. `false`: there are none, and none will come.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the first event cannot be understood.
    pub async fn begin(&mut self) -> Result<bool, ReadError> {
        let before = self.reader.seen;
        match self.read().await {
            Err(error) if self.reader.seen == before => Err(error),
            Err(error) => {
                broken(&error);
                self.over = true;
                Ok(true)
            }
            Ok(count) => Ok(count > 0 || !self.over),
        }
    }

    /// The stream as a body.
    pub fn body(self) -> Body {
        Body::from_stream(unfold(self, async |mut stream| {
            let text = stream.next().await?;
            Some((Ok::<_, std::convert::Infallible>(text), stream))
        }))
    }

    /// What goes out next; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        loop {
            if !self.text.is_empty() {
                self.spoke = self.http.clock.uptime();
                return Some(self.text.take());
            }
            if self.over || self.http.shutdown.is_cancelled() || !self.goes_on().await {
                return None;
            }
            let went = if self.listening { self.hear().await } else { self.read().await.map(|_| ()) };
            if let Err(error) = went {
                broken(&error);
                self.over = true;
            }
        }
    }

    /// Reads some events, and says how many; at the end of them, tells that once and begins to listen.
    async fn read(&mut self) -> Result<usize, ReadError> {
        // Those that waited before this reading lack nothing that is there; those that are heard now may lack what was
        // committed since.
        let lacked = self.waiting.len();
        let Events { events, more } = self.reader.some(&self.http).await?;
        // What was said before these were committed has been heard by now: it goes out before them.
        while let Some(delta) = self.listener.piece() {
            let own = self.partial.is_of(&self.http.store, self.reader.part, delta.task_id).await?;
            if own && self.waiting.len() < WAITING {
                self.waiting.push(delta);
            }
        }
        for event in &events {
            let waiting = std::mem::take(&mut self.waiting);
            for delta in waiting {
                self.weigh(delta).await?;
            }
            self.reader.tell(&self.http, &self.watcher.caller, event, &mut self.text).await?;
            self.partial.durable(event);
        }
        if more {
            return Ok(events.len());
        }
        self.reader.rests();
        if let Some(head) = self.head.take() {
            self.reader.reached(head)?;
            self.say(CaughtUpEvent::NAME, &CaughtUpEvent::at(self.reader.seen))?;
        }
        self.over = self.reader.status.is_terminal();
        self.listening = true;
        let waiting = std::mem::take(&mut self.waiting);
        if !self.over {
            for (place, delta) in waiting.into_iter().enumerate() {
                // After a reading without events one that is still here was here before.
                if place < lacked && events.is_empty() { self.pass(&delta).await? } else { self.weigh(delta).await? }
            }
        }
        Ok(events.len())
    }

    /// Waits until there is something to say.
    async fn hear(&mut self) -> Result<(), ReadError> {
        let now = self.http.clock.uptime();
        let ends = [self.spoke + SILENCE, self.checked + CHECK, self.born + self.http.settings.stream_life];
        let next = ends.into_iter().min().unwrap_or(now);
        let heard = tokio::select! {
            biased;
            () = self.http.shutdown.cancelled() => return Ok(()),
            heard = self.listener.next() => Some(heard),
            () = self.http.clock.sleep(next.saturating_sub(now)) => None,
        };
        match heard {
            Some(Heard::News) => self.listening = false,
            Some(Heard::Delta(delta)) => self.weigh(delta).await?,
            None if self.http.clock.uptime() >= self.spoke + SILENCE => self.text.comment(),
            None => {}
        }
        Ok(())
    }

    /// A piece of somebody else's part of the tree is nothing to this stream, and one whose model had been shown more than
    /// this stream has waits for the rest.
    async fn weigh(&mut self, delta: Arc<Delta>) -> Result<(), ReadError> {
        if !self.partial.is_of(&self.http.store, self.reader.part, delta.task_id).await? {
            return Ok(());
        }
        if self.partial.lacks(&delta) {
            self.waiting.push(delta);
            self.listening = false;
            return Ok(());
        }
        self.pass(&delta).await
    }

    async fn pass(&mut self, delta: &Delta) -> Result<(), ReadError> {
        for passing in self.partial.heard(&self.http.store, delta).await? {
            self.say(passing.name(), &passing)?;
        }
        Ok(())
    }

    fn say(&mut self, name: &str, data: &impl serde::Serialize) -> Result<(), ReadError> {
        self.text.event(None, name, data).map_err(|error| ReadError::Corrupt(format!("an event: {error}")))
    }

    /// Whether its time is not over, and its caller may still read.
    async fn goes_on(&mut self) -> bool {
        let now = self.http.clock.uptime();
        if now >= self.born + self.http.settings.stream_life {
            return false;
        }
        if now < self.checked + CHECK {
            return true;
        }
        self.checked = now;
        // Where nobody can say so now, whoever comes again is looked at anew.
        self.may_read().await.unwrap_or_default()
    }

    async fn may_read(&mut self) -> Result<bool, Problem> {
        let Some(now) = who(&self.http, &self.watcher.headers).await? else { return Ok(false) };
        let before = &self.watcher.caller;
        if (&now.tenant, &now.user_id) != (&before.tenant, &before.user_id) {
            return Ok(false);
        }
        self.watcher.caller = now;
        let (caller, task) = (&self.watcher.caller, self.reader.part.task);
        match read::readable(&self.http, caller, task).await {
            Ok(_) => Ok(true),
            Err(problem) if problem.code == Code::Forbidden && self.watcher.posted => {
                let row = read::task(&self.http, caller, task).await?;
                Ok(self.http.engine.may_command(caller, Command::Cancel, &row).is_ok())
            }
            Err(problem) => Err(problem),
        }
    }
}

/// A stream that cannot be read on is ended: whoever comes again is told so, or finds that it goes on.
fn broken(error: &ReadError) {
    match error {
        ReadError::Unavailable => tracing::debug!("an event stream was ended: the database does not answer"),
        // What it says may hold stored text, which no log line may.
        ReadError::Corrupt(_) => tracing::error!("an event stream was ended: what is stored cannot be understood"),
    }
}
