//! Notifies readers of the commits to a tree, and of the deltas of models' answers in the tree. The
//! notification of a commit says whether the root runs, so that readers need not read the root's
//! row after every commit. A reader that misses a notification of a commit is delayed but loses
//! nothing, because the rows hold the state. The relay (`relay.rs`) sends notifications to the
//! replicas that have subscribed to them. Readers of inboxes subscribe to a tenant instead of a
//! tree (`feed/inbox.rs`).

mod commits;
mod inbox;
mod other_replicas;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;

pub use self::commits::CommitListener;
pub use self::inbox::InboxListener;
use self::inbox::Inboxes;
use self::other_replicas::OtherReplicas;
pub(super) use self::other_replicas::Outgoing;
use super::StoppedTask;
use crate::task::delta::Delta;
use crate::task::id::TaskId;
use crate::world::Locked;

/// How many deltas a listener may fall behind. Beyond this number, it misses the oldest deltas.
const DELTA_BUFFER: usize = 64;
const MAX_OUTGOING_DELTAS: usize = 1024;
/// The maximum number of trees to which other replicas may subscribe. Also the maximum number of
/// tenants to whose inboxes they may subscribe.
const MAX_REMOTE_SUBSCRIPTIONS: usize = 100_000;
/// How long a subscription of another replica lasts without renewal, and how long another replica
/// is assumed to exist after its last message.
pub(super) const SUBSCRIPTION_TTL: Duration = Duration::from_mins(1);

/// The state of a tree, as far as it is known from notifications.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct News {
    /// The number of notifications so far. This process publishes a notification for each report of
    /// commits from another replica, whenever it may have missed a commit, and for each of its own
    /// commits, except a commit that only changes the presence of an asker.
    pub commits: u64,
    /// Whether the root runs, by the last commit that set the root's status; `None` if unknown.
    pub running: Option<bool>,
    /// The state of the root after the last commit. `Some` only if that commit paused or ended the
    /// root, and this process made the commit.
    pub stopped: Option<Arc<StoppedTask>>,
}

/// A subscription to the commits to one tree and to the deltas of models' answers in the tree.
#[derive(Debug)]
pub struct Listener {
    news: watch::Receiver<News>,
    deltas: broadcast::Receiver<Arc<Delta>>,
    /// If `Some`, this listener counts as a subscriber to the tree. Deltas are published only while
    /// the tree has a subscriber. `None` for a listener from `listen_locally`.
    subscriber: Option<Arc<()>>,
}

/// A notification for a listener.
#[derive(Clone, Debug, PartialEq)]
pub enum Notification {
    /// A commit was made, or may have been missed. The rows show what has changed.
    Commit,
    /// A delta of a model's answer. When the delta arrives, the whole answer may be stored already.
    Delta(Arc<Delta>),
}

impl Listener {
    /// Returns the next buffered delta, if any, without waiting.
    pub fn try_next_delta(&mut self) -> Option<Arc<Delta>> {
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

    /// Turns the listener into a receiver of news without deltas.
    #[must_use]
    pub fn news(self) -> watch::Receiver<News> {
        self.news
    }

    /// Waits for the next notification. Cancel-safe. A slow listener misses deltas, but always
    /// learns that a commit was made.
    pub async fn next(&mut self) -> Notification {
        loop {
            tokio::select! {
                biased;
                // Returns a commit even if older deltas are still buffered. After the commit, the
                // reader gets these deltas from `try_next_delta`.
                changed = self.news.changed() => match changed {
                    Ok(()) => return Notification::Commit,
                    Err(_) => return std::future::pending().await,
                },
                delta = self.deltas.recv() => match delta {
                    Ok(delta) => return Notification::Delta(delta),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
                },
            }
        }
    }
}

/// The subscriptions of this replica and of the other replicas, and the channels of the readers.
#[derive(Debug, Default)]
pub(super) struct Feed {
    trees: Locked<Trees>,
    inboxes: Locked<Inboxes>,
    replicas: Locked<OtherReplicas>,
    /// Wakes the relay when notifications are to be sent to other replicas.
    pub(super) outgoing_ready: Notify,
    /// Wakes a worker when another replica has queued a task.
    pub(super) task_queued: Notify,
    /// Wakes the sender of messages when this process has made a delivery due or has written a
    /// notice. The sender turns each notice into deliveries.
    pub(super) sender_wakeup: Notify,
}

#[derive(Debug, Default)]
struct Trees {
    channels: HashMap<TaskId, TreeChannels>,
    /// The size of `channels` after the last sweep, which removed the trees without readers. The
    /// next sweep begins when the size has about doubled.
    len_after_sweep: usize,
}

#[derive(Debug, Default)]
struct TreeChannels {
    news: watch::Sender<News>,
    /// The channel of the deltas, created for the first listener.
    deltas: Option<broadcast::Sender<Arc<Delta>>>,
    /// Each subscriber holds a clone of this `Arc`, so the strong count is one more than the number
    /// of subscribers.
    listeners: Arc<()>,
    /// Each [`CommitListener`] holds a clone of this `Arc`, so the strong count is one more than
    /// the number of these listeners.
    commit_listeners: Arc<()>,
    /// The number of the tree's last event, if known.
    last_event: Option<i64>,
}

impl TreeChannels {
    fn has_readers(&self) -> bool {
        self.news.receiver_count() > 0
    }

    fn has_listeners(&self) -> bool {
        Arc::strong_count(&self.listeners) > 1
    }

    fn publish(
        &self,
        running: impl FnOnce(Option<bool>) -> Option<bool>,
        stopped: Option<Arc<StoppedTask>>,
    ) {
        self.news.send_modify(|news| {
            news.commits += 1;
            news.running = running(news.running);
            news.stopped = stopped;
        });
    }
}

impl Feed {
    pub(super) fn watch(&self, root: TaskId) -> watch::Receiver<News> {
        self.with_channels(root, |channels| channels.news.subscribe())
    }

    /// Returns a listener for the news and deltas of a tree. The listener does not count as a
    /// subscriber, so other replicas are not asked for notifications.
    pub(super) fn listen_locally(&self, root: TaskId) -> Listener {
        self.with_channels(root, |channels| Listener {
            news: channels.news.subscribe(),
            deltas: channels
                .deltas
                .get_or_insert_with(|| broadcast::channel(DELTA_BUFFER).0)
                .subscribe(),
            subscriber: None,
        })
    }

    /// Turns a listener into a subscriber to the tree. Announces the subscription to the other
    /// replicas.
    pub(super) fn subscribe(&self, root: TaskId, mut listener: Listener) -> Listener {
        listener.subscriber = Some(self.subscriber(root));
        listener
    }

    fn subscriber(&self, root: TaskId) -> Arc<()> {
        let subscriber = self.with_channels(root, |channels| Arc::clone(&channels.listeners));
        self.with_replicas(|replicas| {
            replicas.outgoing.subscriptions.insert(root);
        });
        subscriber
    }

    fn with_channels<R>(&self, root: TaskId, receiver: impl FnOnce(&mut TreeChannels) -> R) -> R {
        let mut trees = self.trees.lock();
        if trees.channels.len() > 2 * trees.len_after_sweep + 64 {
            trees.channels.retain(|_, channels| channels.has_readers());
            trees.len_after_sweep = trees.channels.len();
        }
        receiver(trees.channels.entry(root).or_default())
    }

    /// Removes the channels of a tree if they have no receivers. This frees the memory of the
    /// tree's last news.
    pub(super) fn forget(&self, root: TaskId) {
        let mut trees = self.trees.lock();
        let unwatched = |channels: &TreeChannels| !channels.has_readers();
        if trees.channels.get(&root).is_some_and(unwatched) {
            trees.channels.remove(&root);
        }
    }

    /// Whether the tree has a subscriber on this replica or, as far as is known, on another
    /// replica.
    pub(super) fn is_listened_to(&self, root: TaskId) -> bool {
        let is_local = self
            .trees
            .lock()
            .channels
            .get(&root)
            .is_some_and(TreeChannels::has_listeners);
        is_local || self.replicas.lock().subscribes_to(root)
    }

    pub(super) fn publish_delta(&self, delta: Delta) {
        let (root, delta) = (delta.root_task_id, Arc::new(delta));
        self.deliver_delta(Arc::clone(&delta));
        self.with_replicas(|replicas| {
            // If the buffer is full, the delta is dropped. A reader that misses a delta reads the
            // stored answer later.
            let is_full = replicas.outgoing.deltas.len() >= MAX_OUTGOING_DELTAS;
            if !is_full && replicas.subscribes_to(root) {
                replicas.outgoing.deltas.push(delta);
            }
        });
    }

    pub(super) fn deliver_delta(&self, delta: Arc<Delta>) {
        let trees = self.trees.lock();
        let channels = trees.channels.get(&delta.root_task_id);
        if let Some(deltas) = channels.and_then(|channels| channels.deltas.as_ref()) {
            // The send fails if the tree has no listener. Then the delta is not needed.
            let _ = deltas.send(delta);
        }
    }

    /// If other replicas are known, tells them in the next message that this process has queued a
    /// task, so that their workers wake. The workers of this process are woken separately.
    pub(super) fn announce_queued_task(&self) {
        self.with_replicas(|replicas| {
            replicas.outgoing.has_queued_task |= replicas
                .replica_seen_until
                .is_some_and(|until| Instant::now() < until);
        });
    }

    /// Records that another replica exists, because a message of that replica was received.
    pub(super) fn record_replica(&self) {
        self.replicas.lock().replica_seen_until = Some(Instant::now() + SUBSCRIPTION_TTL);
    }

    /// Publishes a commit of this process. `items` is the number of items that the commit adds to
    /// the tree. `running` says whether the root runs after the commit; `None` if the commit does
    /// not set the root's status. If the commit pauses or ends the root, `stopped` may be the
    /// root's state after the commit.
    pub(super) fn publish_commit(
        &self,
        root: TaskId,
        running: Option<bool>,
        items: usize,
        stopped: Option<StoppedTask>,
    ) {
        let mut trees = self.trees.lock();
        if let Some(channels) = trees.channels.get_mut(&root) {
            if channels.has_readers() {
                let items = i64::try_from(items).unwrap_or(0);
                channels.last_event = channels.last_event.map(|last| last + items);
                channels.publish(|known| running.or(known), stopped.map(Arc::new));
            } else {
                trees.channels.remove(&root);
            }
        }
        drop(trees);
        self.with_replicas(|replicas| replicas.add_commit(root, running));
    }

    fn with_replicas(&self, add: impl FnOnce(&mut OtherReplicas)) {
        let mut replicas = self.replicas.lock();
        if replicas.has_relay {
            add(&mut replicas);
            if !replicas.outgoing.is_empty() {
                self.outgoing_ready.notify_one();
            }
        }
    }

    /// Records that a relay to other replicas runs. Without a relay, no notifications are kept for
    /// other replicas.
    pub(super) fn relay_started(&self) {
        self.replicas.lock().has_relay = true;
    }

    pub(super) fn has_outgoing(&self) -> bool {
        !self.replicas.lock().outgoing.is_empty()
    }

    pub(super) fn take_outgoing(&self) -> Outgoing {
        std::mem::take(&mut self.replicas.lock().outgoing)
    }

    /// Records the trees to which another replica subscribes. If this process has kept unsent
    /// commits to these trees, adds them to the outgoing notifications.
    pub(super) fn record_subscriptions(&self, roots: Vec<TaskId>) {
        if !roots.is_empty() {
            self.with_replicas(|replicas| replicas.record_subscriptions(roots));
        }
    }

    /// Publishes a commit of another replica to the local readers. `running` says whether the root
    /// runs; `None` if unknown.
    pub(super) fn publish_remote_commit(&self, root: TaskId, running: Option<bool>) {
        if let Some(channels) = self.trees.lock().channels.get_mut(&root) {
            channels.last_event = None;
            channels.publish(|_| running, None);
        }
    }

    /// Notifies all local readers that commits may have been missed, so that any tree or inbox may
    /// have changed.
    pub(super) fn publish_unknown_commits(&self) {
        for channels in self.trees.lock().channels.values_mut() {
            channels.last_event = None;
            channels.publish(|_| None, None);
        }
        self.publish_unknown_requests();
    }

    /// Announces this replica's subscriptions again, so that they do not expire on other replicas.
    /// Replicas that have just started learn of the subscriptions in this way, too.
    pub(super) fn announce_subscriptions(&self) {
        let (subscriptions, inboxes) = (self.subscribed_trees(), self.subscribed_inboxes());
        self.with_replicas(|replicas| {
            replicas.outgoing.subscriptions.extend(subscriptions);
            replicas.outgoing.inboxes.extend(inboxes);
        });
    }

    pub(super) fn subscribed_trees(&self) -> Vec<TaskId> {
        let trees = self.trees.lock();
        let all = trees.channels.iter();
        let subscribed = all.filter(|(_, channels)| channels.has_listeners());
        subscribed.map(|(root, _)| *root).collect()
    }

    /// Records the number of the tree's last event, as just read from the database. If this number
    /// differs from the known number, or no number was known, publishes news, because this process
    /// may have missed a commit.
    pub(super) fn set_last_event(&self, root: TaskId, last_event: i64) {
        if let Some(channels) = self.trees.lock().channels.get_mut(&root)
            && channels.last_event.replace(last_event) != Some(last_event)
        {
            channels.publish(|_| None, None);
        }
    }
}

#[cfg(test)]
mod tests;
