//! One stream of an inbox: first the requests that wait for the caller, then new requests and
//! changes.

use std::sync::Arc;

use axum::response::Response;

use super::tail::InboxFollower;
use super::view::{COUNTED, Change, InboxView};
use crate::http::Http;
use crate::http::api::requests::inbox_filter::InboxFilter;
use crate::http::events::opening::streamed;
use crate::http::events::stream::{EventSource, OpenStream, Watcher};
use crate::http::events::stream_limiter::StreamPermit;
use crate::http::server::problem::Problem;
use crate::http::wire::brief::RequestBrief;
use crate::http::wire::decision::WireDecision;
use crate::http::wire::inbox::{
    CHANGED, CREATED, GONE, GoneReason, INBOX, InboxEvent, InboxGoneEvent, InboxRequestEvent,
};
use crate::people::Caller;
use crate::people::may::can_decide;
use crate::store::{Page, ReadError, RequestRow};
use crate::task::id::RequestId;

/// The maximum number of requests that the event `inbox` lists.
const LISTED: usize = 200;

struct InboxStream {
    stream: OpenStream,
    filter: InboxFilter,
    follower: InboxFollower,
    view: InboxView,
}

/// Opens an inbox stream for the caller of `watcher`. Its first event lists the requests that wait
/// for the caller.
///
/// # Errors
/// `unavailable` or `internal` when the requests cannot be read.
pub(crate) async fn open(
    http: &Arc<Http>,
    watcher: Watcher,
    filter: InboxFilter,
    permit: StreamPermit,
) -> Result<Response, Problem> {
    // Follows the tail before the first read, so that no commit between the two is missed.
    let follower = http.inbox_tails.follower(http, &watcher.caller.tenant);
    let mut stream = InboxStream {
        stream: OpenStream::new(http, watcher, permit),
        filter,
        follower,
        view: InboxView::default(),
    };
    stream.begin().await?;
    Ok(streamed(stream.body()))
}

impl InboxStream {
    /// Reads the inbox and writes the event `inbox`: at the start, and again when the follower has
    /// missed rows or the view is outdated.
    async fn begin(&mut self) -> Result<(), ReadError> {
        let (http, caller) = (&self.stream.http, &self.stream.watcher.caller);
        let read = if caller.may.decide {
            let open = self.filter.open_for(caller, COUNTED);
            http.store.open_requests(&open).await?
        } else {
            Page::empty()
        };
        let oldest: Vec<RequestId> = read.iter().map(|request| request.id).collect();
        let oldest = oldest.get(..LISTED).unwrap_or(&oldest);
        let rows = http.store.requests_of(&caller.tenant, oldest).await?;
        let mine = |row: &&RequestRow| can_decide(caller, &row.tenant, &row.owner, &row.state());
        let briefs = rows.iter().filter(mine);
        let requests: Vec<_> = briefs
            .map(|row| RequestBrief::of(row, &http.settings))
            .collect();
        self.view = InboxView::of(&read);
        self.follower.show_all(&read);
        let event = InboxEvent {
            event: INBOX,
            open: self.view.count(),
            more: read.more,
            requests,
        };
        self.stream.write(INBOX, &event)
    }

    /// Writes the event that a changed request causes for the caller, if any.
    fn tell(&mut self, row: &RequestRow) -> Result<(), ReadError> {
        let caller = &self.stream.watcher.caller;
        let change = self.view.note(row, caller, &self.filter);
        let Some(change) = change else {
            return Ok(());
        };
        let open = self.view.count();
        let event = match change {
            Change::Created => CREATED,
            Change::Changed => CHANGED,
            Change::Gone(reason) => {
                self.follower.hide(row.asked.request_id);
                return self.stream.write(GONE, &gone(row, reason, open));
            }
        };
        if self.view.ids().any(|id| id == row.asked.request_id) {
            self.follower.show(row);
        }
        let request = RequestBrief::of(row, &self.stream.http.settings);
        let data = InboxRequestEvent {
            event,
            request,
            open,
        };
        self.stream.write(event, &data)
    }
}

impl EventSource for InboxStream {
    fn stream(&mut self) -> &mut OpenStream {
        &mut self.stream
    }

    async fn advance(&mut self) -> Result<(), ReadError> {
        match self.stream.wait(self.follower.next()).await {
            Some(Some(rows)) => {
                for row in rows.iter() {
                    self.tell(row)?;
                }
                if self.view.is_outdated() {
                    self.begin().await?;
                }
            }
            Some(None) => self.begin().await?,
            None => {}
        }
        Ok(())
    }

    /// Returns whether the credentials still identify the same caller with the same rights. If the
    /// rights changed, the stream ends: the next connection begins with the requests that the new
    /// rights allow.
    async fn may_read(&mut self) -> Result<bool, Problem> {
        let watcher = &mut self.stream.watcher;
        let Some(caller) = watcher.caller_now(&self.stream.http).await? else {
            return Ok(false);
        };
        let rights = |caller: &Caller| (caller.groups.clone(), caller.may);
        let same = rights(&caller) == rights(&watcher.caller);
        watcher.caller = caller;
        Ok(same)
    }
}

fn gone(row: &RequestRow, reason: GoneReason, open: usize) -> InboxGoneEvent {
    let decision = WireDecision::of_request(&row.state()).filter(|_| reason == GoneReason::Decided);
    InboxGoneEvent {
        event: GONE,
        request_id: row.asked.request_id.to_string(),
        reason,
        decision: decision.map(Into::into),
        open,
    }
}
