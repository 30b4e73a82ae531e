//! One stream of an inbox, from its first byte to its end. The HTTP body is pulled: nothing is read
//! before the client has taken what was written.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use futures_util::stream::unfold;

use super::tail::InboxFollower;
use super::view::{COUNTED, Change, InboxView};
use crate::http::Http;
use crate::http::api::requests::inbox_filter::InboxFilter;
use crate::http::events::opening::streamed;
use crate::http::events::sse::SseBuffer;
use crate::http::events::stream::{CHECK, RETRY, SILENCE, Watcher, log_failure};
use crate::http::events::stream_limiter::StreamPermit;
use crate::http::server::problem::Problem;
use crate::http::wire::brief::RequestBrief;
use crate::http::wire::decision::WireDecision;
use crate::http::wire::inbox::{
    CHANGED, CREATED, GONE, GoneReason, INBOX, InboxEvent, InboxGoneEvent, InboxRequestEvent,
};
use crate::http::wire::request::state;
use crate::people::may::can_decide;
use crate::store::{OpenRequests, ReadError, RequestRow};
use crate::task::id::RequestId;

/// The most requests that the event `inbox` lists.
const LISTED: usize = 200;

/// An open stream.
struct InboxStream {
    http: Arc<Http>,
    watcher: Watcher,
    filter: InboxFilter,
    follower: InboxFollower,
    view: InboxView,
    text: SseBuffer,
    ended: bool,
    /// Uptimes of the process clock.
    opened_at: Duration,
    checked_at: Duration,
    last_write: Duration,
    _permit: StreamPermit,
}

/// Opens the stream of what waits for a caller.
///
/// # Errors
/// `unavailable` or `internal` when the requests cannot be read.
pub(crate) async fn open(
    http: &Arc<Http>,
    watcher: Watcher,
    filter: InboxFilter,
    permit: StreamPermit,
) -> Result<Response, Problem> {
    let now = http.clock.uptime();
    // Follows before the first read, so that no commit in between is missed.
    let follower = http.inbox_tails.follower(http, &watcher.caller.tenant);
    let mut text = SseBuffer::default();
    text.retry(RETRY);
    let mut stream = InboxStream {
        http: Arc::clone(http),
        watcher,
        filter,
        follower,
        view: InboxView::default(),
        text,
        ended: false,
        opened_at: now,
        checked_at: now,
        last_write: now,
        _permit: permit,
    };
    stream.begin().await?;
    Ok(streamed(stream.body()))
}

impl InboxStream {
    fn body(self) -> Body {
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
            if let Err(error) = self.wait().await {
                log_failure(&error);
                self.ended = true;
            }
        }
    }

    /// Reads what waits for the caller, and writes it.
    async fn begin(&mut self) -> Result<(), ReadError> {
        let caller = &self.watcher.caller;
        let read = if caller.may.decide {
            let open = self.filter.open_for(caller, 0);
            self.http.store.open_requests(&open, COUNTED).await?
        } else {
            OpenRequests::default()
        };
        let oldest: Vec<RequestId> = read.requests.iter().map(|request| request.id).collect();
        let oldest = oldest.get(..LISTED).unwrap_or(&oldest);
        let rows = self.http.store.requests_of(&caller.tenant, oldest).await?;
        let mine = |row: &&RequestRow| can_decide(caller, &row.tenant, &row.owner, &state(row));
        let briefs = rows.iter().filter(mine);
        let requests: Vec<_> = briefs
            .map(|row| RequestBrief::of(row, &self.http.settings))
            .collect();
        self.view = InboxView::of(&read);
        self.follower.show_all(&read);
        let event = InboxEvent {
            event: INBOX,
            open: self.view.count(),
            more: read.more,
            requests,
        };
        self.write(INBOX, &event)
    }

    /// Waits for news, or the next deadline of the stream.
    async fn wait(&mut self) -> Result<(), ReadError> {
        let now = self.http.clock.uptime();
        let ends = [
            self.last_write + SILENCE,
            self.checked_at + CHECK,
            self.opened_at + self.http.settings.stream_life,
        ];
        let next = ends.into_iter().min().unwrap_or(now);
        let news = tokio::select! {
            biased;
            () = self.http.shutdown.cancelled() => return Ok(()),
            news = self.follower.next() => Some(news),
            () = self.http.clock.sleep(next.saturating_sub(now)) => None,
        };
        match news {
            Some(Some(rows)) => {
                for row in rows.iter() {
                    self.tell(row)?;
                }
                if self.view.is_outdated() {
                    self.begin().await?;
                }
            }
            Some(None) => self.begin().await?,
            None if self.http.clock.uptime() >= self.last_write + SILENCE => self.text.comment(),
            None => {}
        }
        Ok(())
    }

    /// Writes what a request, as it is now, means to the caller.
    fn tell(&mut self, row: &RequestRow) -> Result<(), ReadError> {
        let change = self.view.note(row, &self.watcher.caller, &self.filter);
        let Some(change) = change else {
            return Ok(());
        };
        let open = self.view.count();
        let event = match change {
            Change::Created => CREATED,
            Change::Changed => CHANGED,
            Change::Gone(reason) => {
                self.follower.hide(row.asked.request_id);
                return self.write(GONE, &gone(row, reason, open));
            }
        };
        if self.view.ids().any(|id| id == row.asked.request_id) {
            self.follower.show(row);
        }
        let request = RequestBrief::of(row, &self.http.settings);
        let data = InboxRequestEvent {
            event,
            request,
            open,
        };
        self.write(event, &data)
    }

    fn write(&mut self, name: &str, data: &impl serde::Serialize) -> Result<(), ReadError> {
        self.text
            .event(None, name, data)
            .map_err(|error| ReadError::Corrupt(format!("an event: {error}")))
    }

    /// Whether the stream's lifetime has time left and the caller may still read. The caller is
    /// checked once every `CHECK`.
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
        let Ok(Some(caller)) = self.watcher.caller_now(&self.http).await else {
            return false;
        };
        let rights = |caller: &crate::people::Caller| (caller.groups.clone(), caller.may);
        if rights(&caller) != rights(&self.watcher.caller) {
            return false;
        }
        self.watcher.caller = caller;
        true
    }
}

fn gone(row: &RequestRow, reason: GoneReason, open: usize) -> InboxGoneEvent {
    let decision = WireDecision::of_request(&state(row)).filter(|_| reason == GoneReason::Decided);
    InboxGoneEvent {
        event: GONE,
        request_id: row.asked.request_id.to_string(),
        reason,
        decision: decision.map(Into::into),
        open,
    }
}
