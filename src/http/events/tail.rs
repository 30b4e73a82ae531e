//! The newest events of one tree, read and rendered once for all streams of this process.
//!
//! A stream that has sent every stored event becomes a follower of the tail. The first follower
//! that is notified of a commit starts a read of the rows after the tail's last event. All
//! followers take the events of that read from memory. If the read fails, each waiting follower
//! reads the rows itself until the follower has caught up. A slow follower does the same once the
//! tail has dropped events that the follower has not taken. The tail is freed when its last
//! follower is dropped.
//!
//! Invariants: a follower gets all events after its position in order, or learns that it has to
//! read the rows itself. The tail drops an event once every follower has taken the event. For a
//! slow follower, the tail keeps the events of the last read, and at most [`MAX_KEPT_BYTES`] bytes
//! of earlier events.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};

use tokio::sync::{Notify, watch};

use super::rendered::{self, MAX_PORTION, RenderedEvent, RenderedEvents};
use super::request_at_event::JournalCache;
use crate::http::Http;
use crate::store::{News, Store, Subtree};
use crate::task::id::TaskId;
use crate::world::Locked;

/// The limit of the buffer, in bytes. Before [`Buffer::add`] adds the events of a read, it drops
/// the oldest events until the buffer is within the limit. It drops even events that a slow
/// follower has not taken.
const MAX_KEPT_BYTES: usize = 1024 * 1024;

/// The tails of this process, by root task. A tail lives as long as it has a follower.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tails(Arc<Locked<HashMap<TaskId, Weak<Tail>>>>);

impl Tails {
    /// Returns a follower of the tree's tail; creates the tail if there is none. The follower takes
    /// no events from the tail until [`Follower::join`] is called.
    pub(super) fn follower(&self, store: &Store, root: TaskId) -> Follower {
        let mut tails = self.0.lock();
        let known = tails.get(&root).and_then(Weak::upgrade);
        let tail = known.unwrap_or_else(|| {
            let tail = Arc::new(Tail {
                root,
                news: store.watch(root),
                buffer: Locked::default(),
                changed: Notify::new(),
                tails: self.clone(),
            });
            tails.insert(root, Arc::downgrade(&tail));
            tail
        });
        Follower {
            tail,
            position: None,
        }
    }
}

#[derive(Debug)]
struct Tail {
    root: TaskId,
    /// The news of the tree. `News::commits` is the number of notifications about the tree. As long
    /// as this receiver exists, the store keeps the news, so the number does not restart at 0.
    news: watch::Receiver<News>,
    buffer: Locked<Buffer>,
    /// Wakes the waiting followers after each read.
    changed: Notify,
    tails: Tails,
}

impl Drop for Tail {
    fn drop(&mut self) {
        let mut tails = self.tails.0.lock();
        // Removes only the entry of a dropped tail: by now, the tree may have a new tail.
        if tails
            .get(&self.root)
            .is_some_and(|tail| tail.strong_count() == 0)
        {
            tails.remove(&self.root);
        }
    }
}

#[derive(Debug, Default)]
struct Buffer {
    /// The events with numbers greater than `after`, up to and including `last`. `bytes` is the
    /// total size of the texts of these events.
    events: VecDeque<Arc<RenderedEvent>>,
    bytes: usize,
    after: i64,
    last: i64,
    /// The number of followers by position. A follower's position is the number of the last event
    /// that the follower has taken. Positions without followers are left out.
    positions: BTreeMap<i64, usize>,
    /// The number of notifications that had arrived when the last successful read began; `None`
    /// before the first such read.
    commits_at_read: Option<u64>,
    /// Whether more events may follow `last`, according to the last successful read.
    more: bool,
    is_reading: bool,
    /// The number of reads that have begun. `reads_failed` counts the reads that have failed. A
    /// [`FollowerQuery`] has copies of both counters. The copies show whether a read has begun or
    /// failed since the query was made.
    reads_begun: u64,
    reads_failed: u64,
}

#[derive(Debug)]
struct FollowerQuery {
    seen: i64,
    fresh: bool,
    /// The values of [`Buffer`]'s `reads_begun` and `reads_failed` when the follower made this
    /// query.
    reads_begun: u64,
    reads_failed: u64,
}

enum BufferReply {
    Events(Vec<Arc<RenderedEvent>>),
    /// No event follows the event number `FollowerQuery::seen`.
    End,
    /// The follower itself has to read the rows.
    Behind,
    /// The follower has to wait for the read in progress.
    Wait,
    /// The follower has to start a read of the rows after this event number, wait for the end of
    /// the read, and then repeat the query.
    Read(i64),
}

impl Buffer {
    fn answer(&mut self, query: &FollowerQuery, commits: u64) -> BufferReply {
        if query.seen < self.after || query.reads_failed != self.reads_failed {
            return BufferReply::Behind;
        }
        let events = self.events_after(query.seen);
        if !events.is_empty() {
            return BufferReply::Events(events);
        }
        if self.is_reading {
            return BufferReply::Wait;
        }
        let is_current = self
            .commits_at_read
            .is_some_and(|commits_at_read| commits_at_read >= commits)
            && !self.more
            && !(query.fresh && self.reads_begun == query.reads_begun);
        if is_current {
            return BufferReply::End;
        }
        self.is_reading = true;
        self.reads_begun += 1;
        BufferReply::Read(self.last)
    }

    fn events_after(&self, seen: i64) -> Vec<Arc<RenderedEvent>> {
        let max_events = usize::try_from(MAX_PORTION.events).unwrap_or(usize::MAX);
        let max_bytes = usize::try_from(MAX_PORTION.bytes).unwrap_or(usize::MAX);
        let mut bytes = 0;
        self.events
            .iter()
            .skip(self.events.partition_point(|event| event.number <= seen))
            .take(max_events)
            .take_while(|event| {
                let fits = bytes < max_bytes;
                bytes += event.text.len();
                fits
            })
            .cloned()
            .collect()
    }

    /// Adds the events of `read`, a read of the rows after the event number `after`.
    /// `commits_at_read` is the number of notifications that had arrived when the read began.
    fn add(&mut self, after: i64, read: RenderedEvents, commits_at_read: u64) {
        // During the read, all followers may have left, and a new follower may have restarted the
        // buffer at another event number. The events of the read then do not continue the buffer,
        // so they are dropped.
        if after != self.last {
            return;
        }
        while self.bytes > MAX_KEPT_BYTES && self.drop_first() {}
        for event in read.events {
            self.last = event.number;
            self.bytes += event.text.len();
            self.events.push_back(event);
        }
        self.commits_at_read = Some(commits_at_read);
        self.more = read.more;
    }

    fn drop_first(&mut self) -> bool {
        let Some(event) = self.events.pop_front() else {
            return false;
        };
        self.bytes -= event.text.len();
        self.after = event.number;
        true
    }

    /// Moves a follower from one event number to another. The follower joins if `from` is `None`,
    /// and leaves if `to` is `None`. If the tail has no follower, restarts the buffer at `to`.
    /// Drops the events that every follower has taken.
    fn move_follower(&mut self, from: Option<i64>, to: Option<i64>) {
        if let Some(to) = to {
            if self.positions.is_empty() {
                *self = Self {
                    after: to,
                    last: to,
                    is_reading: self.is_reading,
                    reads_begun: self.reads_begun,
                    reads_failed: self.reads_failed,
                    ..Self::default()
                };
            }
            *self.positions.entry(to).or_default() += 1;
        }
        if let Some(from) = from
            && let Some(count) = self.positions.get_mut(&from)
        {
            *count -= 1;
            if *count == 0 {
                self.positions.remove(&from);
            }
        }
        let taken = self.positions.keys().next().copied().unwrap_or(i64::MAX);
        while self
            .events
            .front()
            .is_some_and(|event| event.number <= taken)
        {
            self.drop_first();
        }
    }
}

/// A stream's position in the tail of its tree.
#[derive(Debug)]
pub(super) struct Follower {
    tail: Arc<Tail>,
    /// The number of the last event that the stream has taken. `None` while the stream does not
    /// follow the tail, but reads the rows itself.
    position: Option<i64>,
}

impl Follower {
    /// Joins the tail after the event `seen`. Does nothing if the follower has joined already.
    pub(super) fn join(&mut self, seen: i64) {
        if self.position.is_none() {
            self.move_to(Some(seen));
        }
    }

    /// Returns the number of the last event that the tail has read.
    pub(super) fn last(&self) -> i64 {
        self.tail.buffer.lock().last
    }

    /// Returns the next portion of the events after `seen`; an empty list if there are none. If
    /// `fresh` is true, an empty list is always the result of a read that began after this call.
    /// Returns `None` if the follower has not joined, if the tail has dropped events after `seen`,
    /// or if a read of the tail fails during this call. After `None`, the stream has to read the
    /// rows itself and call `join`.
    pub(super) async fn next(
        &mut self,
        http: &Arc<Http>,
        seen: i64,
        fresh: bool,
    ) -> Option<RenderedEvents> {
        self.position?;
        self.move_to(Some(seen));
        let tail = Arc::clone(&self.tail);
        let query = {
            let buffer = tail.buffer.lock();
            FollowerQuery {
                seen,
                fresh,
                reads_begun: buffer.reads_begun,
                reads_failed: buffer.reads_failed,
            }
        };
        let events = loop {
            let changed = tail.changed.notified();
            let commits = tail.news.borrow().commits;
            let answer = tail.buffer.lock().answer(&query, commits);
            match answer {
                BufferReply::Events(events) => break events,
                BufferReply::End => break Vec::new(),
                BufferReply::Behind => {
                    self.move_to(None);
                    return None;
                }
                BufferReply::Wait => {}
                BufferReply::Read(after) => tail.start_read(http, after),
            }
            changed.await;
        };
        Some(RenderedEvents {
            part: tail.part(),
            more: !events.is_empty(),
            events,
        })
    }

    fn move_to(&mut self, position: Option<i64>) {
        self.tail
            .buffer
            .lock()
            .move_follower(self.position, position);
        self.position = position;
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.move_to(None);
    }
}

impl Tail {
    fn part(&self) -> Subtree {
        Subtree {
            root: self.root,
            task: self.root,
        }
    }

    /// Reads the rows after the number `after` in a separate Tokio task, which completes even if
    /// the client that caused the read disconnects.
    fn start_read(self: &Arc<Self>, http: &Arc<Http>, after: i64) {
        let (tail, work) = (Arc::clone(self), Arc::clone(http));
        let reading = ReadGuard {
            tail: Arc::clone(self),
            has_failed: true,
        };
        http.tracker.spawn(async move {
            // Moves the whole guard, not only its field `has_failed`, into the Tokio task. The
            // guard is therefore dropped when the Tokio task ends.
            let mut reading = reading;
            let commits_at_read = tail.news.borrow().commits;
            let journals = &mut JournalCache::default();
            if let Ok(read) = rendered::read(&work, tail.part(), after, journals).await {
                tail.buffer.lock().add(after, read, commits_at_read);
                reading.has_failed = false;
            }
        });
    }
}

/// The guard of a read in progress. Dropping the guard marks the read as ended and wakes the
/// followers, even after a panic in the read.
struct ReadGuard {
    tail: Arc<Tail>,
    has_failed: bool,
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        let mut buffer = self.tail.buffer.lock();
        buffer.is_reading = false;
        buffer.reads_failed += u64::from(self.has_failed);
        drop(buffer);
        self.tail.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
