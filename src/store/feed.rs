//! Notifies readers of a tree's commits and of its models' deltas. The notification of a commit
//! says whether the root runs, so that a reader that waits for the root need not read its row each
//! time. A reader that misses a notification loses only time, because the rows hold the state. The
//! relay (`relay.rs`) sends notifications to the replicas that have asked for them. Readers of
//! inboxes subscribe to a tenant instead of a tree (`feed/inbox.rs`).

mod inbox;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;

pub use self::inbox::InboxListener;
use self::inbox::Inboxes;
use super::Stopped;
use crate::task::delta::Delta;
use crate::task::id::{RequestId, TaskId};

/// How many deltas a listener may fall behind. A listener that falls further behind misses the
/// oldest ones.
const PIECES: usize = 64;
/// The maximum number of deltas that are buffered for the relay.
const WAITING: usize = 1024;
/// The maximum number of subscriptions of other replicas to trees, and likewise to inboxes.
const WANTED: usize = 100_000;
/// How long a subscription of another replica lasts unless it is renewed, and how long the replica
/// is assumed to exist after its last message.
pub(super) const INTEREST: Duration = Duration::from_mins(1);

/// The state of a tree, as far as notifications tell it.
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    /// The number of notifications since the first receiver of the tree subscribed: one for each
    /// commit that was noticed, and one each time a commit may have been missed.
    pub commits: u64,
    /// Whether the root runs, by the last commit that said so; `None` if unknown.
    pub running: Option<bool>,
    /// The root as the last commit left it, if that commit stopped the root and was made by this
    /// process.
    pub stopped: Option<Arc<Stopped>>,
}

/// A subscription to one tree: to its commits and its models' deltas.
#[derive(Debug)]
pub struct Listener {
    news: watch::Receiver<News>,
    deltas: broadcast::Receiver<Arc<Delta>>,
    /// Set for a subscriber. A listener from `attend` is not counted as a subscriber, so no deltas
    /// are produced for it.
    counted: Option<Arc<()>>,
}

/// A notification for a listener.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// Something was, or may have been, committed; read the rows to find out.
    News,
    /// A delta of a model's answer. The answer may be stored by now.
    Delta(Arc<Delta>),
}

impl Listener {
    /// Returns the next buffered delta, if any, without waiting.
    pub fn piece(&mut self) -> Option<Arc<Delta>> {
        loop {
            match self.deltas.try_recv() {
                Ok(delta) => return Some(delta),
                Err(broadcast::error::TryRecvError::Lagged(_)) => {}
                Err(
                    broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed,
                ) => return None,
            }
        }
    }

    /// Turns the listener into a receiver of news, without deltas.
    #[must_use]
    pub fn news(self) -> watch::Receiver<News> {
        self.news
    }

    /// Waits for the next notification. Cancel-safe. A listener that is too slow misses deltas,
    /// never news.
    pub async fn next(&mut self) -> Heard {
        loop {
            tokio::select! {
                biased;
                // News come before buffered deltas. A reader that gets news calls `piece` for the
                // deltas from before the commit.
                changed = self.news.changed() => match changed {
                    Ok(()) => return Heard::News,
                    Err(_) => return std::future::pending().await,
                },
                delta = self.deltas.recv() => match delta {
                    Ok(delta) => return Heard::Delta(delta),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
                },
            }
        }
    }
}

/// The subscriptions of this replica and of the other replicas.
#[derive(Debug, Default)]
pub(super) struct Feed {
    trees: Mutex<Trees>,
    inboxes: Mutex<Inboxes>,
    abroad: Mutex<Abroad>,
    /// Wakes the relay when it has something to send.
    outgoing: Notify,
    /// Wakes a worker when another replica has queued a task.
    work: Notify,
    /// Wakes the sender of messages when there may be something to send.
    notices: Notify,
}

#[derive(Debug, Default)]
struct Trees {
    senders: HashMap<TaskId, Senders>,
    /// The size of `senders` when the trees without readers were last removed.
    swept: usize,
}

/// The channels of one tree.
#[derive(Debug)]
struct Senders {
    news: watch::Sender<News>,
    /// Created for the first listener.
    deltas: Option<broadcast::Sender<Arc<Delta>>>,
    /// Each subscriber holds a clone: the strong count is one more than the number of subscribers.
    listeners: Arc<()>,
    /// The number of the tree's last event, if known.
    last_event: Option<i64>,
}

impl Senders {
    fn has_readers(&self) -> bool {
        self.news.receiver_count() > 0
    }

    fn has_listeners(&self) -> bool {
        Arc::strong_count(&self.listeners) > 1
    }

    fn tell(
        &self,
        running: impl FnOnce(Option<bool>) -> Option<bool>,
        stopped: Option<Arc<Stopped>>,
    ) {
        self.news.send_modify(|news| {
            news.commits += 1;
            news.running = running(news.running);
            news.stopped = stopped;
        });
    }
}

/// The subscriptions of other replicas, and the notifications that are not sent to those replicas
/// yet.
#[derive(Debug, Default)]
struct Abroad {
    /// Whether a relay runs.
    open: bool,
    /// The trees that other replicas subscribe to, with the end of each subscription.
    wanted: HashMap<TaskId, Instant>,
    /// The tenants whose inboxes other replicas subscribe to, with the end of each subscription.
    inboxes: HashMap<String, Instant>,
    /// The time until which another replica is assumed to exist; `None` if no replica was heard.
    others: Option<Instant>,
    out: Outgoing,
}

impl Abroad {
    fn wants(&self, root: TaskId) -> bool {
        self.wanted
            .get(&root)
            .is_some_and(|until| Instant::now() < *until)
    }
}

/// Notifications to be sent to other replicas.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Trees with a commit, each with whether its root runs; `None` if no commit said so.
    pub(super) news: BTreeMap<TaskId, Option<bool>>,
    /// Deltas of models' answers, in the order in which they were published.
    pub(super) said: Vec<Arc<Delta>>,
    /// The trees that this replica subscribes to.
    pub(super) wants: BTreeSet<TaskId>,
    /// The tenants whose inboxes this replica subscribes to.
    pub(super) inboxes: BTreeSet<String>,
    /// Requests that commits have opened, answered or closed, by tenant.
    pub(super) touched: BTreeMap<String, BTreeSet<RequestId>>,
    /// Whether this process has queued a task, which any worker may claim.
    pub(super) work: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feed {
    pub(super) fn watch(&self, root: TaskId) -> watch::Receiver<News> {
        self.with(root, |senders| senders.news.subscribe())
    }

    /// Returns a listener for the news and deltas of a tree. The listener does not count as a
    /// subscriber: other replicas are not asked for notifications.
    pub(super) fn attend(&self, root: TaskId) -> Listener {
        self.with(root, |senders| Listener {
            news: senders.news.subscribe(),
            deltas: senders
                .deltas
                .get_or_insert_with(|| broadcast::channel(PIECES).0)
                .subscribe(),
            counted: None,
        })
    }

    /// Turns a listener into a subscriber to the tree, and announces the subscription to the other
    /// replicas.
    pub(super) fn listen(&self, root: TaskId, mut listener: Listener) -> Listener {
        listener.counted = Some(self.with(root, |senders| Arc::clone(&senders.listeners)));
        self.hand_over(|abroad| {
            abroad.out.wants.insert(root);
        });
        listener
    }

    fn with<R>(&self, root: TaskId, receiver: impl FnOnce(&mut Senders) -> R) -> R {
        let mut trees = locked(&self.trees);
        if trees.senders.len() > 2 * trees.swept + 64 {
            trees.senders.retain(|_, senders| senders.has_readers());
            trees.swept = trees.senders.len();
        }
        let quiet = News {
            commits: 0,
            running: None,
            stopped: None,
        };
        let none = || Senders {
            news: watch::channel(quiet).0,
            deltas: None,
            listeners: Arc::default(),
            last_event: None,
        };
        receiver(trees.senders.entry(root).or_insert_with(none))
    }

    /// Removes a tree without receivers, so that its last news take no memory.
    pub(super) fn forget(&self, root: TaskId) {
        let mut trees = locked(&self.trees);
        let unwatched = |senders: &Senders| !senders.has_readers();
        if trees.senders.get(&root).is_some_and(unwatched) {
            trees.senders.remove(&root);
        }
    }

    /// Whether the tree's news have a receiver in this process.
    pub(super) fn is_watched(&self, root: TaskId) -> bool {
        locked(&self.trees)
            .senders
            .get(&root)
            .is_some_and(Senders::has_readers)
    }

    /// Whether the tree has a subscriber on this replica or, as far as is known, on another.
    pub(super) fn is_listened_to(&self, root: TaskId) -> bool {
        let here = locked(&self.trees)
            .senders
            .get(&root)
            .is_some_and(Senders::has_listeners);
        here || locked(&self.abroad).wants(root)
    }

    /// Publishes a delta of a model called by this process.
    pub(super) fn say(&self, delta: Delta) {
        let (root, delta) = (delta.root_task_id, Arc::new(delta));
        self.pass_on(Arc::clone(&delta));
        self.tell_abroad(root, |out| {
            // A full buffer drops deltas: a reader that misses one reads the stored answer.
            if out.said.len() < WAITING {
                out.said.push(delta);
            }
        });
    }

    /// Delivers a delta, from this or another replica, to the local listeners.
    pub(super) fn pass_on(&self, delta: Arc<Delta>) {
        let trees = locked(&self.trees);
        if let Some(deltas) = trees
            .senders
            .get(&delta.root_task_id)
            .and_then(|senders| senders.deltas.as_ref())
        {
            // Without a receiver the delta is not needed.
            let _ = deltas.send(delta);
        }
    }

    /// Records that a commit of this process queued a task, for the workers of other replicas. The
    /// workers of this process are woken separately.
    pub(super) fn queued(&self) {
        self.hand_over(|abroad| {
            abroad.out.work |= abroad.others.is_some_and(|until| Instant::now() < until);
        });
    }

    /// Records that another replica exists.
    pub(super) fn met(&self) {
        locked(&self.abroad).others = Some(Instant::now() + INTEREST);
    }

    /// Wakes a worker, because another replica has queued a task.
    pub(super) fn has_work(&self) {
        self.work.notify_one();
    }

    /// Returns when another replica has queued a task.
    pub(super) async fn work(&self) {
        self.work.notified().await;
    }

    /// Wakes the sender of messages, because this process has written a notice or made a delivery
    /// due.
    pub(super) fn noticed(&self) {
        self.notices.notify_one();
    }

    /// Returns when this process has written a notice, or made a delivery due.
    pub(super) async fn notices(&self) {
        self.notices.notified().await;
    }

    /// Publishes a commit of this process. `items` is the number of items that the commit adds to
    /// the tree. `running` says whether the root runs; `None` if the commit does not set the root's
    /// status. `stopped` is the root after the commit, if the commit stops the root.
    pub(super) fn tell(
        &self,
        root: TaskId,
        running: Option<bool>,
        items: usize,
        stopped: Option<Stopped>,
    ) {
        let mut trees = locked(&self.trees);
        if let Some(senders) = trees.senders.get_mut(&root) {
            if senders.has_readers() {
                let items = i64::try_from(items).unwrap_or(0);
                senders.last_event = senders.last_event.map(|last| last + items);
                senders.tell(|known| running.or(known), stopped.map(Arc::new));
            } else {
                trees.senders.remove(&root);
            }
        }
        drop(trees);
        self.tell_abroad(root, |out| {
            let known = out.news.entry(root).or_default();
            *known = running.or(*known);
        });
    }

    fn tell_abroad(&self, root: TaskId, add: impl FnOnce(&mut Outgoing)) {
        self.hand_over(|abroad| {
            if abroad.wants(root) {
                add(&mut abroad.out);
            }
        });
    }

    fn hand_over(&self, add: impl FnOnce(&mut Abroad)) {
        let mut abroad = locked(&self.abroad);
        if abroad.open {
            add(&mut abroad);
            if !abroad.out.is_empty() {
                self.outgoing.notify_one();
            }
        }
    }

    /// Records that a relay to other replicas runs. Without a relay, nothing is stored for other
    /// replicas.
    pub(super) fn open(&self) {
        locked(&self.abroad).open = true;
    }

    /// Returns when there is something to send to other replicas.
    pub(super) async fn outgoing(&self) {
        self.outgoing.notified().await;
    }

    /// Takes the notifications to be sent now.
    pub(super) fn take(&self) -> Outgoing {
        std::mem::take(&mut locked(&self.abroad).out)
    }

    /// Records that another replica subscribes to these trees.
    pub(super) fn wanted(&self, roots: impl IntoIterator<Item = TaskId>) {
        let (mut abroad, now) = (locked(&self.abroad), Instant::now());
        abroad.wanted.retain(|_, until| now < *until);
        let room = WANTED.saturating_sub(abroad.wanted.len());
        abroad.wanted.extend(
            roots
                .into_iter()
                .take(room)
                .map(|root| (root, now + INTEREST)),
        );
    }

    /// Publishes a commit of another replica to the local readers. `running` says whether the root
    /// runs; `None` if unknown.
    pub(super) fn heard(&self, root: TaskId, running: Option<bool>) {
        if let Some(senders) = locked(&self.trees).senders.get_mut(&root) {
            senders.last_event = None;
            senders.tell(|_| running, None);
        }
    }

    /// Tells all local readers that commits may have been missed, so that any tree or inbox may
    /// have changed.
    pub(super) fn heard_nothing(&self) {
        for senders in locked(&self.trees).senders.values_mut() {
            senders.last_event = None;
            senders.tell(|_| None, None);
        }
        self.touched_unknown();
    }

    /// Announces this replica's subscriptions again, because a replica that has just started does
    /// not know them.
    pub(super) fn want_again(&self) {
        let (wants, inboxes) = (self.listened(), self.listened_inboxes());
        self.hand_over(|abroad| {
            abroad.out.wants.extend(wants);
            abroad.out.inboxes.extend(inboxes);
        });
    }

    /// Returns the trees with a subscriber on this replica.
    pub(super) fn listened(&self) -> Vec<TaskId> {
        let trees = locked(&self.trees);
        trees
            .senders
            .iter()
            .filter(|(_, senders)| senders.has_listeners())
            .map(|(root, _)| *root)
            .collect()
    }

    /// Records the number of a tree's last event, just read from the database. Publishes news if
    /// this number differs from the known number.
    pub(super) fn reached(&self, root: TaskId, last_event: i64) {
        if let Some(senders) = locked(&self.trees).senders.get_mut(&root)
            && senders.last_event.replace(last_event) != Some(last_event)
        {
            senders.tell(|_| None, None);
        }
    }
}

impl Outgoing {
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            news,
            said,
            wants,
            inboxes,
            touched,
            work,
        } = self;
        news.is_empty()
            && said.is_empty()
            && wants.is_empty()
            && inboxes.is_empty()
            && touched.is_empty()
            && !work
    }
}

#[cfg(test)]
mod tests;
