//! The newest changes of the requests of one tenant, read once for all inbox streams of this
//! process.
//!
//! The reader of the tenant learns which requests were changed by commits, on any replica, and
//! reads their rows. Notifications may be lost, so it also searches for changed requests every
//! [`LOOK`]. At the deadline of a shown request it reads that request, because the database's clock
//! decides. The reader stops when its last follower is dropped.
//!
//! Invariant: a follower gets the row of every request of its tenant that changes, or is told that
//! rows may be missing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, broadcast};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::http::Http;
use crate::store::{InboxListener, OpenRequest, Page, ReadError, RequestRow};
use crate::task::id::RequestId;
use crate::task::status::RequestStatus;
use crate::task::time::Time;

/// How often the tenant's requests are searched for changes whose notification was lost.
const LOOK: Duration = Duration::from_secs(15);
/// The pause before another attempt, after the database did not answer.
const AGAIN: Duration = Duration::from_secs(1);
/// The pause before a request is read again whose deadline has passed by the process's clock but
/// not by the database's.
const SOON: Duration = Duration::from_millis(200);
/// The search for lost changes begins this long before the newest known request, because ids of
/// several replicas are not committed in their order.
const OVERLAP: Duration = Duration::from_mins(2);
/// How many reads a follower may fall behind.
const BEHIND: usize = 32;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tails that have a follower.
#[derive(Clone, Debug, Default)]
pub(crate) struct InboxTails(Arc<Mutex<HashMap<String, Weak<InboxTail>>>>);

/// The rows of a tenant's requests that changed.
type News = Arc<Vec<RequestRow>>;

/// The tail of one tenant, as long as it has followers.
#[derive(Debug)]
struct InboxTail {
    tenant: String,
    news: broadcast::Sender<News>,
    shown: Mutex<ShownRequests>,
    /// Wakes the reader when the shown requests have changed and an earlier deadline may be among
    /// theirs.
    more_shown: Arc<Notify>,
    tails: InboxTails,
    /// Stops the reader.
    _stop: DropGuard,
}

/// The open requests that the followers show.
#[derive(Debug, Default)]
struct ShownRequests(BTreeMap<RequestId, Shown>);

#[derive(Debug)]
struct Shown {
    /// The number of followers that show the request.
    followers: usize,
    answers: usize,
    /// The deadline; `None` once the followers were told that it has passed or the request is
    /// closed.
    expires_at: Option<Time>,
}

/// A stream's place in the tail of its tenant.
#[derive(Debug)]
pub(super) struct InboxFollower {
    tail: Arc<InboxTail>,
    news: broadcast::Receiver<News>,
    shows: BTreeSet<RequestId>,
}

impl InboxTails {
    /// A follower of the tenant's tail, which gets everything that is told from now on.
    pub(super) fn follower(&self, http: &Arc<Http>, tenant: &str) -> InboxFollower {
        let mut tails = locked(&self.0);
        let known = tails.get(tenant).and_then(Weak::upgrade);
        let tail = known.unwrap_or_else(|| {
            let stop = CancellationToken::new();
            let tail = Arc::new(InboxTail {
                tenant: tenant.to_owned(),
                news: broadcast::channel(BEHIND).0,
                shown: Mutex::default(),
                more_shown: Arc::default(),
                tails: self.clone(),
                _stop: stop.clone().drop_guard(),
            });
            tails.insert(tenant.to_owned(), Arc::downgrade(&tail));
            let reader = Reader::new(http, &tail, stop);
            http.tracker.spawn(reader.run());
            tail
        });
        InboxFollower {
            news: tail.news.subscribe(),
            tail,
            shows: BTreeSet::new(),
        }
    }
}

impl Drop for InboxTail {
    fn drop(&mut self) {
        let mut tails = locked(&self.tails.0);
        // Another tail of the same tenant may exist by now.
        if tails
            .get(&self.tenant)
            .is_some_and(|tail| tail.strong_count() == 0)
        {
            tails.remove(&self.tenant);
        }
    }
}

impl InboxFollower {
    /// Waits for rows; `None` if rows may be missing. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<News> {
        match self.news.recv().await {
            Ok(news) => Some(news),
            Err(broadcast::error::RecvError::Lagged(_)) => None,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }

    /// Shows these requests from now on, and no others.
    pub(super) fn show_all(&mut self, read: &Page<OpenRequest>) {
        let ids = read.iter().map(|request| request.id);
        let before = std::mem::replace(&mut self.shows, ids.collect());
        let mut shown = locked(&self.tail.shown);
        for request in read.iter() {
            shown.show(request.id, request.answers, request.expires_at);
        }
        for id in before {
            shown.hide(id);
        }
        drop(shown);
        self.tail.more_shown.notify_one();
    }

    /// Shows one more request, or shows it with other answers.
    pub(super) fn show(&mut self, row: &RequestRow) {
        let id = row.asked.request_id;
        let mut shown = locked(&self.tail.shown);
        shown.show(id, row.answers.len(), row.expires_at);
        if !self.shows.insert(id) {
            shown.hide(id);
        }
        drop(shown);
        self.tail.more_shown.notify_one();
    }

    /// Shows a request no longer.
    pub(super) fn hide(&mut self, id: RequestId) {
        if self.shows.remove(&id) {
            locked(&self.tail.shown).hide(id);
        }
    }
}

impl Drop for InboxFollower {
    fn drop(&mut self) {
        let mut shown = locked(&self.tail.shown);
        for id in &self.shows {
            shown.hide(*id);
        }
    }
}

impl ShownRequests {
    fn show(&mut self, id: RequestId, answers: usize, expires_at: Option<Time>) {
        let shown = self.0.entry(id).or_insert(Shown {
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

    /// The requests whose deadline has passed at `now`.
    fn overdue(&self, now: Time) -> Vec<RequestId> {
        let passed = |shown: &Shown| shown.expires_at.is_some_and(|at| at <= now);
        let overdue = self.0.iter().filter(|(_, shown)| passed(shown));
        overdue.map(|(id, _)| *id).collect()
    }

    /// Notes a row that is about to be sent to the followers.
    fn told(&mut self, row: &RequestRow) {
        if let Some(shown) = self.0.get_mut(&row.asked.request_id) {
            shown.answers = shown.answers.max(row.answers.len());
            if row.expired || row.status != RequestStatus::Pending {
                shown.expires_at = None;
            }
        }
    }
}

/// Reads the rows of touched requests for the followers of one tenant.
struct Reader {
    http: Arc<Http>,
    tail: Weak<InboxTail>,
    more_shown: Arc<Notify>,
    tenant: String,
    listener: InboxListener,
    stop: CancellationToken,
    /// The requests to read.
    touched: BTreeSet<RequestId>,
    /// The requests after `since` that the followers were told of.
    known: BTreeSet<RequestId>,
    since: RequestId,
    /// The time of the next search for lost changes (`look_at`), and the earliest time of the next
    /// read (`not_before`); both by `Clock::uptime`.
    look_at: Duration,
    not_before: Duration,
}

impl Reader {
    fn new(http: &Arc<Http>, tail: &Arc<InboxTail>, stop: CancellationToken) -> Self {
        let now = http.clock.uptime();
        Self {
            http: Arc::clone(http),
            tail: Arc::downgrade(tail),
            more_shown: Arc::clone(&tail.more_shown),
            tenant: tail.tenant.clone(),
            listener: http.store.listen_to_inbox(&tail.tenant),
            stop,
            touched: BTreeSet::new(),
            known: BTreeSet::new(),
            since: earlier(first_id_at(http.clock.now()), OVERLAP),
            look_at: now + LOOK,
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
                if self.tell().await.is_err() {
                    self.not_before = self.http.clock.uptime() + AGAIN;
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = http.shutdown.cancelled() => {}
            () = work => {}
        }
    }

    /// Waits until a read is due; `false` when there are no followers any more.
    async fn wait(&mut self) -> bool {
        let now = self.http.clock.uptime();
        if !self.touched.is_empty() {
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
        let next = until.unwrap_or(self.look_at).min(self.look_at);
        let next = next.max(self.not_before);
        tokio::select! {
            biased;
            touched = self.listener.next() => match touched {
                Some(ids) => self.touched.extend(ids.iter()),
                None => self.look_at = now,
            },
            () = self.http.clock.sleep(next.saturating_sub(now)) => {}
            () = self.more_shown.notified() => {}
        }
        true
    }

    /// The first deadline of a shown request. Releases the tail on return, because a tail that the
    /// waiting reader held could not end.
    fn first_deadline(&self) -> Option<Time> {
        let tail = self.tail.upgrade()?;
        let shown = locked(&tail.shown);
        shown.first_deadline()
    }

    /// Reads the rows that are due, and sends them to the followers.
    async fn tell(&mut self) -> Result<(), ReadError> {
        let now = self.http.clock.uptime();
        if now >= self.look_at {
            let more = self.look().await?;
            self.look_at = if more { now } else { now + LOOK };
        }
        let Some(tail) = self.tail.upgrade() else {
            return Ok(());
        };
        if now >= self.not_before {
            let overdue = locked(&tail.shown).overdue(self.http.clock.now());
            if !overdue.is_empty() {
                self.not_before = now + SOON;
            }
            self.touched.extend(overdue);
        }
        if self.touched.is_empty() {
            return Ok(());
        }
        let ids: Vec<RequestId> = self.touched.iter().copied().collect();
        let rows = self.http.store.requests_of(&self.tenant, &ids).await?;
        self.touched.clear();
        let since = self.since;
        self.known.extend(ids.into_iter().filter(|id| *id > since));
        let mut shown = locked(&tail.shown);
        for row in &rows {
            shown.told(row);
        }
        drop(shown);
        let _ = tail.news.send(Arc::new(rows));
        Ok(())
    }

    /// Finds the requests that changed without a notification; `true` if there may be more.
    async fn look(&mut self) -> Result<bool, ReadError> {
        let Some(tail) = self.tail.upgrade() else {
            return Ok(false);
        };
        let shown: Vec<RequestId> = locked(&tail.shown).0.keys().copied().collect();
        let store = &self.http.store;
        let look = store
            .look_at_inbox(&self.tenant, &shown, self.since)
            .await?;
        let all = locked(&tail.shown);
        let changed = all.0.iter().filter(|(id, shown)| {
            let answers = look.open.get(id);
            answers.is_none_or(|answers| *answers > shown.answers)
        });
        self.touched.extend(changed.map(|(id, _)| *id));
        drop(all);
        let unknown = look.new.iter().filter(|id| !self.known.contains(id));
        self.touched.extend(unknown);
        let newest = look.new.last().max(self.known.last()).copied();
        let since = match (look.more, look.new.last().copied(), newest) {
            (true, Some(last), _) => last,
            (_, _, Some(newest)) => earlier(newest, OVERLAP),
            (_, _, None) => self.since,
        };
        self.since = self.since.max(since);
        self.known = self.known.split_off(&self.since);
        Ok(look.more)
    }
}

/// The smallest id that a request asked at this moment can have.
fn first_id_at(now: Time) -> RequestId {
    let milliseconds = u128::try_from(now.0 / 1000).unwrap_or(0);
    RequestId(Uuid::from_u128(milliseconds << 80))
}

/// An id of a request that was asked this much earlier. The first 48 bits of an id are milliseconds.
fn earlier(id: RequestId, by: Duration) -> RequestId {
    let by = by.as_millis() << 80;
    RequestId(Uuid::from_u128(id.0.as_u128().saturating_sub(by)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;

    #[test]
    fn id_of_an_earlier_moment_is_smaller_than_every_id_made_since() {
        let now = Time(1_793_698_200_000_000);
        let id = first_id_at(now);
        assert!(earlier(id, Duration::from_millis(1)) < id);
        assert!(first_id_at(now + Duration::from_millis(1)) > id);
        assert_eq!(
            earlier(first_id_at(now + OVERLAP), OVERLAP),
            first_id_at(now)
        );
        assert_eq!(earlier(RequestId(Uuid::nil()), OVERLAP).0, Uuid::nil());
    }

    #[test]
    fn request_is_shown_until_its_last_follower_hides_it() {
        let (mut shown, row) = (ShownRequests::default(), sample::request());
        let id = row.asked.request_id;
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
        shown.told(&closed);
        assert_eq!(shown.first_deadline(), None, "its passing is told once");
        shown.hide(id);
        assert!(shown.0.is_empty());
    }
}
