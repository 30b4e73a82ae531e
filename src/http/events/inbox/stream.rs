//! One stream of an inbox: first the requests that wait for the caller, then new requests and
//! changes.

use std::sync::Arc;

use axum::response::Response;

use super::filter::InboxFilter;
use super::tail::InboxFollower;
use super::view::{InboxChange, InboxView};
use crate::http::Http;
use crate::http::events::opening::stream_response;
use crate::http::events::stream::{EventSource, OpenStream, Watcher};
use crate::http::events::stream_limiter::StreamPermit;
use crate::http::server::problem::Problem;
use crate::http::wire::brief::RequestBrief;
use crate::http::wire::decision::WireDecision;
use crate::http::wire::inbox::{
    CHANGED, CREATED, GONE, GoneReason, INBOX, InboxEvent, InboxGoneEvent, InboxRequestEvent,
};
use crate::people::Caller;
use crate::people::authorization::{can_decide, may_decide_any};
use crate::store::{Page, ReadError, RequestRow};
use crate::task::id::RequestId;

const MAX_LISTED: usize = 200;

struct InboxStream {
    stream: OpenStream,
    filter: InboxFilter,
    follower: InboxFollower,
    view: InboxView,
    /// Whether the stream has to read the inbox again before it reports further changes.
    is_stale: bool,
}

/// Opens an inbox stream for the caller of `watcher`. The stream's first event lists the requests
/// that wait for the caller.
///
/// # Errors
/// `unavailable` or `internal` when the requests cannot be read.
pub(crate) async fn open(
    http: &Arc<Http>,
    watcher: Watcher,
    filter: InboxFilter,
    permit: StreamPermit,
) -> Result<Response, Problem> {
    // Subscribes to the tenant's changes before the first read. Otherwise, the stream would miss a
    // commit between the read and the subscription.
    let follower = http.inbox_tails.follower(http, &watcher.caller.tenant);
    let mut stream = InboxStream {
        stream: OpenStream::new(http, watcher, permit),
        filter,
        follower,
        view: InboxView::default(),
        is_stale: false,
    };
    stream.write_inbox().await?;
    Ok(stream_response(stream.body()))
}

impl InboxStream {
    /// Reads the inbox and writes the event `inbox`, without the requests that cannot be read. The
    /// stream calls this function at its start. The stream calls it again when the follower has
    /// missed rows, when the view is outdated, or when the reader has failed to read the changed
    /// row of a shown request.
    async fn write_inbox(&mut self) -> Result<(), ReadError> {
        let (http, caller) = (&self.stream.http, &self.stream.watcher.caller);
        let read = if may_decide_any(caller) {
            let open = self.filter.open_for(caller);
            http.store.open_requests(&open).await?
        } else {
            Page::empty()
        };
        let oldest: Vec<RequestId> = read.iter().map(|request| request.id).collect();
        let oldest = oldest.get(..MAX_LISTED).unwrap_or(&oldest);
        let brief_if_decidable = |row: RequestRow| {
            can_decide(caller, &row.tenant, &row.owner, &row.state())
                .then(|| RequestBrief::from_row(&row, &http.settings))
        };
        let tenant = &caller.tenant;
        let briefs = http
            .store
            .filter_map_requests(tenant, oldest, brief_if_decidable);
        let requests = briefs.await?;
        self.view = InboxView::from_page(&read);
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
    fn write_change(&mut self, row: &RequestRow) -> Result<(), ReadError> {
        let caller = &self.stream.watcher.caller;
        let change = self.view.update(row, caller, &self.filter);
        let Some(change) = change else {
            return Ok(());
        };
        let open = self.view.count();
        let event = match change {
            InboxChange::Created => CREATED,
            InboxChange::Changed => CHANGED,
            InboxChange::Gone(reason) => {
                self.follower.hide(row.spec.request_id);
                return self.stream.write(GONE, &gone_event(row, reason, open));
            }
        };
        if self.view.ids().any(|id| id == row.spec.request_id) {
            self.follower.show(row);
        }
        let request = RequestBrief::from_row(row, &self.stream.http.settings);
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
        if !self.is_stale {
            match self.stream.wait(self.follower.next()).await {
                Some(Some(changes)) => {
                    for row in &changes.rows {
                        self.write_change(row)?;
                    }
                    // The reader has failed to read the rows of the `unreadable` requests. If the
                    // view has such a request, a new read of the inbox tells whether the request
                    // still waits.
                    let lost = |id: RequestId| changes.unreadable.contains(&id);
                    self.is_stale = self.view.is_outdated() || self.view.ids().any(lost);
                }
                Some(None) => self.is_stale = true,
                None => {}
            }
        }
        if self.is_stale {
            self.write_inbox().await?;
            self.is_stale = false;
        }
        Ok(())
    }

    /// Returns whether the credentials still identify the person who opened the stream, and this
    /// person's rights are unchanged. Changed rights end the stream. The client's next connection
    /// begins with the requests that the new rights allow.
    async fn may_read(&mut self) -> Result<bool, Problem> {
        let watcher = &mut self.stream.watcher;
        let Some(caller) = watcher.current_caller(&self.stream.http).await? else {
            return Ok(false);
        };
        let rights = |caller: &Caller| (caller.groups.clone(), caller.permissions);
        let same = rights(&caller) == rights(&watcher.caller);
        watcher.caller = caller;
        Ok(same)
    }
}

fn gone_event(row: &RequestRow, reason: GoneReason, open: usize) -> InboxGoneEvent {
    let decision = WireDecision::of_request(&row.state()).filter(|_| reason == GoneReason::Decided);
    InboxGoneEvent {
        event: GONE,
        request_id: row.spec.request_id.to_string(),
        reason,
        decision: decision.map(Into::into),
        open,
    }
}

#[cfg(test)]
mod tests;
