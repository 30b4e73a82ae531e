//! Keeps what this process knows of the other replicas: their subscriptions, and the notifications
//! that are to be sent to them.
//!
//! Notifications are sent in batches. So the subscription of a listener on another replica reaches
//! this process some time after the listener has read the tree. Commits of this process in the
//! meantime are kept, and sent once the subscription arrives. Otherwise the listener would notice
//! these commits only at its replica's next poll.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{MAX_REMOTE_SUBSCRIPTIONS, SUBSCRIPTION_TTL};
use crate::task::delta::Delta;
use crate::task::id::{RequestId, TaskId};

/// The time for which unsent commits are kept: several times the pause between two batches of
/// notifications.
const UNSENT_TTL: Duration = Duration::from_millis(250);

/// The subscriptions of other replicas, and the notifications that are to be sent to them.
#[derive(Debug, Default)]
pub(super) struct OtherReplicas {
    /// Whether a relay (see `relay.rs`) exchanges notifications with other replicas.
    pub(super) has_relay: bool,
    /// The trees that other replicas subscribe to, with the end of each subscription.
    pub(super) tree_subscriptions: HashMap<TaskId, Instant>,
    /// The tenants whose inboxes other replicas subscribe to, with the end of each subscription.
    pub(super) inboxes: HashMap<String, Instant>,
    /// The time until which another replica is assumed to exist; `None` if no other replica has
    /// sent a message.
    pub(super) replica_seen_until: Option<Instant>,
    pub(super) outgoing: Outgoing,
    /// The commits of the last `UNSENT_TTL` to trees without a subscription, the oldest first.
    unsent: VecDeque<UnsentCommit>,
}

/// A commit that was not sent, because no other replica had subscribed to its tree.
#[derive(Debug)]
struct UnsentCommit {
    at: Instant,
    root: TaskId,
    /// Whether the root runs; `None` if the commit did not set the root's status.
    running: Option<bool>,
}

impl OtherReplicas {
    pub(super) fn subscribes_to(&self, root: TaskId) -> bool {
        self.tree_subscriptions
            .get(&root)
            .is_some_and(|until| Instant::now() < *until)
    }

    /// Adds a commit of this process to the notifications if another replica subscribes to the
    /// tree. Otherwise, if another replica is known, keeps the commit for `UNSENT_TTL`, because a
    /// subscription may be on its way.
    pub(super) fn add_commit(&mut self, root: TaskId, running: Option<bool>) {
        let now = Instant::now();
        if self.subscribes_to(root) {
            self.outgoing.add_commit(root, running);
        } else if self.replica_seen_until.is_some_and(|until| now < until) {
            let is_old = |commit: &UnsentCommit| now.duration_since(commit.at) > UNSENT_TTL;
            while self.unsent.front().is_some_and(is_old) {
                self.unsent.pop_front();
            }
            self.unsent.push_back(UnsentCommit {
                at: now,
                root,
                running,
            });
        }
    }

    /// Records the trees to which another replica subscribes, and adds their unsent commits to the
    /// notifications.
    pub(super) fn record_subscriptions(&mut self, roots: Vec<TaskId>) {
        let new: HashSet<_> = roots.iter().copied().collect();
        let known = &mut self.tree_subscriptions;
        record(known, roots, MAX_REMOTE_SUBSCRIPTIONS);
        let outgoing = &mut self.outgoing;
        self.unsent.retain(|commit| {
            let is_wanted = new.contains(&commit.root);
            if is_wanted && commit.at.elapsed() <= UNSENT_TTL {
                outgoing.add_commit(commit.root, commit.running);
            }
            !is_wanted
        });
    }
}

#[derive(Debug, Default, PartialEq)]
pub(in crate::store) struct Outgoing {
    /// The trees with commits since the last message to other replicas. The value says whether the
    /// root runs; `None` if none of these commits set the root's status.
    pub(in crate::store) news: BTreeMap<TaskId, Option<bool>>,
    pub(in crate::store) deltas: Vec<Arc<Delta>>,
    /// The trees for which this replica announces its subscription.
    pub(in crate::store) subscriptions: BTreeSet<TaskId>,
    /// The tenants for whose inboxes this replica announces its subscription.
    pub(in crate::store) inboxes: BTreeSet<String>,
    /// Requests that commits have opened, answered or closed, by tenant.
    pub(in crate::store) requests: BTreeMap<String, BTreeSet<RequestId>>,
    /// Whether this process has queued a task, which any worker may claim.
    pub(in crate::store) has_queued_task: bool,
}

impl Outgoing {
    pub(in crate::store) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add_commit(&mut self, root: TaskId, running: Option<bool>) {
        let known = self.news.entry(root).or_default();
        *known = running.or(*known);
    }
}

/// Records subscriptions of another replica in `known`, and removes all that have ended. Always
/// renews a known subscription. Drops a new subscription if `limit` others are known.
pub(super) fn record<K: Eq + Hash>(
    known: &mut HashMap<K, Instant>,
    keys: impl IntoIterator<Item = K>,
    limit: usize,
) {
    let now = Instant::now();
    known.retain(|_, until| now < *until);
    for key in keys {
        if known.len() < limit || known.contains_key(&key) {
            known.insert(key, now + SUBSCRIPTION_TTL);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn tree(number: u128) -> TaskId {
        TaskId(Uuid::from_u128(number))
    }

    #[test]
    fn commit_that_precedes_the_arrival_of_its_subscription_is_sent_when_it_arrives() {
        let mut replicas = OtherReplicas::default();
        let news_for = |replicas: &mut OtherReplicas, root| {
            replicas.record_subscriptions(vec![tree(root)]);
            std::mem::take(&mut replicas.outgoing).news
        };
        replicas.add_commit(tree(1), None);
        let none = BTreeMap::new();
        assert_eq!(
            news_for(&mut replicas, 1),
            none,
            "no other replica was known"
        );
        replicas.replica_seen_until = Some(Instant::now() + SUBSCRIPTION_TTL);
        for (root, running) in [(2, Some(false)), (3, Some(true)), (2, None)] {
            replicas.add_commit(tree(root), running);
        }
        assert!(replicas.outgoing.is_empty());
        let sent = news_for(&mut replicas, 2);
        assert_eq!(sent, BTreeMap::from([(tree(2), Some(false))]));
        assert_eq!(news_for(&mut replicas, 2), none, "they were sent already");
        let age = |replicas: &mut OtherReplicas| {
            for commit in &mut replicas.unsent {
                commit.at -= UNSENT_TTL + Duration::from_millis(1);
            }
        };
        age(&mut replicas);
        replicas.add_commit(tree(4), None);
        assert_eq!(replicas.unsent.len(), 1, "the old commit is dropped");
        age(&mut replicas);
        assert_eq!(
            news_for(&mut replicas, 4),
            none,
            "the next poll finds an old commit"
        );
    }
}
