//! The tail of a tenant: the newest changes of its requests, read once for all inbox streams of the
//! tenant in this process. Each stream has a follower, which is its subscription to the tail.
//!
//! The reader of a tenant learns from notifications which requests any replica has changed, and
//! reads the rows of these requests. Notifications may be lost, so every [`SEARCH_INTERVAL`] the
//! reader also searches for changed requests. The reader stops when its last follower is dropped.
//!
//! When the deadline of a request in the view of a stream (`InboxView`) passes by the process's
//! clock, the reader reads the row of the request. The row tells whether the deadline has also
//! passed by the database's clock, which decides whether the request has expired.
//!
//! Invariant: for every changed request of its tenant, a follower gets the row, or learns that the
//! row cannot be read, or that rows may be missing ([`InboxFollower::next`] returns `None`). For an
//! exception, see [`SEARCH_OVERLAP`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, broadcast};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::http::Http;
use crate::http::events::stream::RETRY_DELAY;
use crate::store::{InboxListener, OpenRequest, Page, ReadError, RequestRow};
use crate::task::id::RequestId;
use crate::task::status::RequestStatus;
use crate::task::time::Time;
use crate::world::Locked;

/// The interval at which the reader searches for changes whose notification was lost.
const SEARCH_INTERVAL: Duration = Duration::from_secs(15);
/// The minimum delay between two reads of overdue requests. If a deadline has passed by the
/// process's clock but not yet by the database's clock, the request is read again after this delay.
const MIN_OVERDUE_DELAY: Duration = Duration::from_millis(200);
/// The overlap of a search for lost changes with the requests that are already known. An id starts
/// with the time at which a replica generated the id, so a request may be committed later than a
/// request with a greater id. Therefore, a search begins at the newest known id minus this time. A
/// request that an outage has delayed for longer may be missed, if its notification is lost, too.
const SEARCH_OVERLAP: Duration = Duration::from_mins(2);
/// The maximum number of [`ChangedRequests`] that wait for one follower. If more arrive, the
/// follower loses the oldest, and its stream has to read the inbox again.
const MAX_UNREAD_SENDS: usize = 32;

/// The tails of this process, by tenant. A tail lives as long as it has a follower.
#[derive(Clone, Debug, Default)]
pub(crate) struct InboxTails(Arc<Locked<HashMap<String, Weak<InboxTail>>>>);

/// The result of one read of the changed requests of a tenant.
#[derive(Debug, Default)]
pub(super) struct ChangedRequests {
    pub(super) rows: Vec<RequestRow>,
    /// The requests whose rows cannot be read.
    pub(super) unreadable: Vec<RequestId>,
}

/// The state that the inbox streams of a tenant (its followers) share with the tenant's reader. The
/// state is dropped with the last follower, even while the reader still runs.
#[derive(Debug)]
struct InboxTail {
    tenant: String,
    changes: broadcast::Sender<Arc<ChangedRequests>>,
    shown: Locked<ShownRequests>,
    /// Wakes the reader when a follower shows further requests, because the deadline of such a
    /// request may pass before the reader's next read.
    more_shown: Arc<Notify>,
    tails: InboxTails,
    /// Stops the reader when the tail is dropped.
    _stop: DropGuard,
}

/// The open requests that at least one follower shows.
#[derive(Debug, Default)]
struct ShownRequests(BTreeMap<RequestId, ShownRequest>);

#[derive(Debug)]
struct ShownRequest {
    followers: usize,
    answers: usize,
    /// The deadline. `None` if the request has no deadline, or if the reader has found that the
    /// request is expired, closed or unreadable.
    expires_at: Option<Time>,
}

/// The subscription of one inbox stream to the changed requests of its tenant, with the ids of the
/// requests that the stream shows.
#[derive(Debug)]
pub(super) struct InboxFollower {
    tail: Arc<InboxTail>,
    changes: broadcast::Receiver<Arc<ChangedRequests>>,
    shown_ids: BTreeSet<RequestId>,
}

impl InboxTails {
    /// Returns a new follower (a subscription) of the tenant's tail. The follower receives all rows
    /// that the reader sends from now on. Starts the reader if the tenant had no follower.
    pub(super) fn follower(&self, http: &Arc<Http>, tenant: &str) -> InboxFollower {
        let mut tails = self.0.lock();
        let known = tails.get(tenant).and_then(Weak::upgrade);
        let tail = known.unwrap_or_else(|| {
            let stop = CancellationToken::new();
            let tail = Arc::new(InboxTail {
                tenant: tenant.to_owned(),
                changes: broadcast::channel(MAX_UNREAD_SENDS).0,
                shown: Locked::default(),
                more_shown: Arc::default(),
                tails: self.clone(),
                _stop: stop.clone().drop_guard(),
            });
            tails.insert(tenant.to_owned(), Arc::downgrade(&tail));
            let reader = InboxReader::new(http, &tail, stop);
            http.tracker.spawn(reader.run());
            tail
        });
        InboxFollower {
            changes: tail.changes.subscribe(),
            tail,
            shown_ids: BTreeSet::new(),
        }
    }
}

impl Drop for InboxTail {
    fn drop(&mut self) {
        let mut tails = self.tails.0.lock();
        // Removes only the entry of a dropped tail: by now, the tenant may have a new tail.
        if tails
            .get(&self.tenant)
            .is_some_and(|tail| tail.strong_count() == 0)
        {
            tails.remove(&self.tenant);
        }
    }
}

impl InboxFollower {
    /// Waits for the rows of changed requests. Returns `None` if the follower fell so far behind
    /// that rows may be missing. The function is cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Arc<ChangedRequests>> {
        match self.changes.recv().await {
            Ok(news) => Some(news),
            Err(broadcast::error::RecvError::Lagged(_)) => None,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }

    /// Replaces the set of requests that the stream shows by the requests in `read`.
    pub(super) fn show_all(&mut self, read: &Page<OpenRequest>) {
        let ids = read.iter().map(|request| request.id);
        let before = std::mem::replace(&mut self.shown_ids, ids.collect());
        let mut shown = self.tail.shown.lock();
        for request in read.iter() {
            shown.show(request.id, request.answers, request.expires_at);
        }
        for id in before {
            shown.hide(id);
        }
        drop(shown);
        self.tail.more_shown.notify_one();
    }

    /// Adds a request to the requests that the stream shows, and records the request's number of
    /// answers.
    pub(super) fn show(&mut self, row: &RequestRow) {
        let id = row.spec.request_id;
        let mut shown = self.tail.shown.lock();
        shown.show(id, row.answers.len(), row.expires_at);
        if !self.shown_ids.insert(id) {
            shown.hide(id);
        }
        drop(shown);
        self.tail.more_shown.notify_one();
    }

    pub(super) fn hide(&mut self, id: RequestId) {
        if self.shown_ids.remove(&id) {
            self.tail.shown.lock().hide(id);
        }
    }
}

impl Drop for InboxFollower {
    fn drop(&mut self) {
        let mut shown = self.tail.shown.lock();
        for id in &self.shown_ids {
            shown.hide(*id);
        }
    }
}

impl ShownRequests {
    fn show(&mut self, id: RequestId, answers: usize, expires_at: Option<Time>) {
        let shown = self.0.entry(id).or_insert(ShownRequest {
            followers: 0,
            answers,
            expires_at,
        });
        shown.followers += 1;
        shown.answers = shown.answers.max(answers);
    }

    fn hide(&mut self, id: RequestId) {
        if let Some(shown) = self.0.get_mut(&id) {
            shown.followers -= 1;
            if shown.followers == 0 {
                self.0.remove(&id);
            }
        }
    }

    fn first_deadline(&self) -> Option<Time> {
        self.0.values().filter_map(|shown| shown.expires_at).min()
    }

    fn overdue(&self, now: Time) -> Vec<RequestId> {
        let passed = |shown: &ShownRequest| shown.expires_at.is_some_and(|at| at <= now);
        let overdue = self.0.iter().filter(|(_, shown)| passed(shown));
        overdue.map(|(id, _)| *id).collect()
    }

    /// Updates a shown request from its row, before the row is sent to the followers. Records the
    /// number of answers, and clears the deadline if the request is expired or closed.
    fn record_sent(&mut self, row: &RequestRow) {
        if let Some(shown) = self.0.get_mut(&row.spec.request_id) {
            shown.answers = shown.answers.max(row.answers.len());
            if row.expired || row.status != RequestStatus::Pending {
                shown.expires_at = None;
            }
        }
    }

    /// Clears the deadline of a shown request whose row cannot be read. Otherwise, after the
    /// deadline, the reader would read the row again every [`MIN_OVERDUE_DELAY`].
    fn record_unreadable(&mut self, id: RequestId) {
        if let Some(shown) = self.0.get_mut(&id) {
            shown.expires_at = None;
        }
    }
}

/// The reader of one tenant: reads the rows of changed requests and sends them to the followers.
struct InboxReader {
    http: Arc<Http>,
    tail: Weak<InboxTail>,
    more_shown: Arc<Notify>,
    tenant: String,
    listener: InboxListener,
    stop: CancellationToken,
    /// The changed or overdue requests that the next read has to fetch.
    pending_ids: BTreeSet<RequestId>,
    /// The requests that were read and sent. The search for lost changes looks for new requests
    /// with ids after `since`, and skips the requests in this set. When `since` moves forward, the
    /// ids before `since` are removed from this set.
    sent_ids: BTreeSet<RequestId>,
    since: RequestId,
    /// The time of the next search for lost changes, by `Clock::uptime`.
    search_at: Duration,
    /// The time before which neither a retry nor a read of overdue requests begins, by
    /// `Clock::uptime`. A notification may begin a read earlier.
    not_before: Duration,
}

impl InboxReader {
    fn new(http: &Arc<Http>, tail: &Arc<InboxTail>, stop: CancellationToken) -> Self {
        let now = http.clock.uptime();
        Self {
            http: Arc::clone(http),
            tail: Arc::downgrade(tail),
            more_shown: Arc::clone(&tail.more_shown),
            tenant: tail.tenant.clone(),
            listener: http.store.listen_to_inbox(&tail.tenant),
            stop,
            pending_ids: BTreeSet::new(),
            sent_ids: BTreeSet::new(),
            since: search_start(first_id_at(http.clock.now())),
            search_at: now + SEARCH_INTERVAL,
            not_before: now,
        }
    }

    async fn run(mut self) {
        let (http, stop) = (Arc::clone(&self.http), self.stop.clone());
        let work = async {
            loop {
                if !self.wait().await {
                    return;
                }
                if self.read_and_send().await.is_err() {
                    self.not_before = self.http.clock.uptime() + RETRY_DELAY;
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = http.shutdown.cancelled() => {}
            () = work => {}
        }
    }

    /// Waits until a read may be due. Returns `false` if the tail has no followers any more.
    async fn wait(&mut self) -> bool {
        let now = self.http.clock.uptime();
        if !self.pending_ids.is_empty() {
            self.http
                .clock
                .sleep(self.not_before.saturating_sub(now))
                .await;
            return true;
        }
        if self.tail.strong_count() == 0 {
            return false;
        }
        let deadline = self.first_deadline();
        let until = deadline.map(|at| now + at.since(self.http.clock.now()));
        let next = until.unwrap_or(self.search_at).min(self.search_at);
        let next = next.max(self.not_before);
        tokio::select! {
            biased;
            changed = self.listener.next() => match changed {
                Some(ids) => self.pending_ids.extend(ids.iter()),
                None => self.search_at = now,
            },
            () = self.http.clock.sleep(next.saturating_sub(now)) => {}
            () = self.more_shown.notified() => {}
        }
        true
    }

    /// Returns the earliest deadline of the shown requests. This is a separate function so that its
    /// strong reference to the tail is dropped before the reader waits: a waiting reader must not
    /// keep the tail alive.
    fn first_deadline(&self) -> Option<Time> {
        let tail = self.tail.upgrade()?;
        let shown = tail.shown.lock();
        shown.first_deadline()
    }

    /// Reads the rows of changed and overdue requests, and sends them to the followers. Before
    /// that, if the time `search_at` has come, searches for changes whose notification was lost.
    async fn read_and_send(&mut self) -> Result<(), ReadError> {
        let now = self.http.clock.uptime();
        if now >= self.search_at {
            let more = self.search_lost_changes().await?;
            self.search_at = if more { now } else { now + SEARCH_INTERVAL };
        }
        let Some(tail) = self.tail.upgrade() else {
            return Ok(());
        };
        if now >= self.not_before {
            let overdue = tail.shown.lock().overdue(self.http.clock.now());
            if !overdue.is_empty() {
                self.not_before = now + MIN_OVERDUE_DELAY;
            }
            self.pending_ids.extend(overdue);
        }
        if self.pending_ids.is_empty() {
            return Ok(());
        }
        let ids: Vec<RequestId> = self.pending_ids.iter().copied().collect();
        let rows = self.http.store.requests_by_id(&self.tenant, &ids).await?;
        self.pending_ids.clear();
        let mut unreadable = ids.clone();
        unreadable.retain(|id| rows.iter().all(|row| row.spec.request_id != *id));
        let since = self.since;
        self.sent_ids
            .extend(ids.into_iter().filter(|id| *id > since));
        let mut shown = tail.shown.lock();
        for row in &rows {
            shown.record_sent(row);
        }
        for id in &unreadable {
            shown.record_unreadable(*id);
        }
        drop(shown);
        let _ = tail
            .changes
            .send(Arc::new(ChangedRequests { rows, unreadable }));
        Ok(())
    }

    /// Searches the database for new and changed requests, because a notification may be lost, and
    /// adds them to `pending_ids`. Returns `true` if the search stopped at its limit and has to go
    /// on.
    async fn search_lost_changes(&mut self) -> Result<bool, ReadError> {
        let Some(tail) = self.tail.upgrade() else {
            return Ok(false);
        };
        let shown: Vec<RequestId> = tail.shown.lock().0.keys().copied().collect();
        let store = &self.http.store;
        let found = store.inbox_state(&self.tenant, &shown, self.since).await?;
        let all = tail.shown.lock();
        let changed = all.0.iter().filter(|(id, shown)| {
            let answers = found.open.get(id);
            answers.is_none_or(|answers| *answers > shown.answers)
        });
        self.pending_ids.extend(changed.map(|(id, _)| *id));
        drop(all);
        let unknown = found.new.iter().filter(|id| !self.sent_ids.contains(id));
        self.pending_ids.extend(unknown);
        let newest = found.new.last().max(self.sent_ids.last()).copied();
        let since = match (found.more_after, newest) {
            (Some(last), _) => last,
            (None, Some(newest)) => search_start(newest),
            (None, None) => self.since,
        };
        self.since = self.since.max(since);
        self.sent_ids = self.sent_ids.split_off(&self.since);
        Ok(found.more_after.is_some())
    }
}

/// Returns a lower bound of the ids of the requests that are opened at `now` or later.
fn first_id_at(now: Time) -> RequestId {
    let milliseconds = u128::try_from(now.0 / 1000).unwrap_or(0);
    RequestId(Uuid::from_u128(milliseconds << 80))
}

/// Subtracts [`SEARCH_OVERLAP`] from the time in an id. The first 48 bits of an id (UUIDv7) are a
/// time in milliseconds.
fn search_start(id: RequestId) -> RequestId {
    let overlap = SEARCH_OVERLAP.as_millis() << 80;
    RequestId(Uuid::from_u128(id.0.as_u128().saturating_sub(overlap)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;

    #[test]
    fn id_of_an_earlier_moment_is_smaller_than_every_id_made_since() {
        let now = Time(1_793_698_200_000_000);
        let id = first_id_at(now);
        assert!(search_start(id) < id);
        assert!(first_id_at(now + Duration::from_millis(1)) > id);
        assert_eq!(search_start(first_id_at(now + SEARCH_OVERLAP)), id);
        assert_eq!(search_start(RequestId(Uuid::nil())).0, Uuid::nil());
    }

    #[test]
    fn request_is_shown_until_its_last_follower_hides_it() {
        let (mut shown, row) = (ShownRequests::default(), sample::request());
        let id = row.spec.request_id;
        shown.show(id, 0, row.expires_at);
        shown.show(id, 1, row.expires_at);
        assert_eq!(shown.first_deadline(), row.expires_at);
        shown.hide(id);
        assert_eq!(shown.0[&id].answers, 1);
        assert_eq!(shown.overdue(row.expires_at.unwrap()), [id]);
        let closed = RequestRow {
            expired: true,
            ..row
        };
        shown.record_sent(&closed);
        assert_eq!(shown.first_deadline(), None, "its passing is told once");
        shown.hide(id);
        assert!(shown.0.is_empty());
    }
}
