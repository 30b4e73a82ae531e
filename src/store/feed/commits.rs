//! Notifies the asker of a gate call when a commit changes the call. Thousands of askers may wait
//! at the same time, each for minutes, so a [`CommitListener`] uses little memory. Unlike a
//! [`Listener`](super::Listener), it needs no buffer of deltas and no
//! [`StoppedTask`](crate::store::StoppedTask).

use std::future::pending;
use std::sync::Arc;

use tokio::sync::watch;

use super::{Feed, News};
use crate::store::Store;
use crate::task::id::TaskId;

/// A subscription to the commits to one tree.
#[derive(Debug)]
pub struct CommitListener {
    /// A clone of `TreeChannels::commit_listeners`. `Feed::is_watched` subtracts the number of
    /// these clones from the number of receivers of `news`. Fields are dropped in the order of
    /// their declaration, so this field stands before `news`. In the opposite order, a listener
    /// that is being dropped would for a moment have a clone and no receiver. `Feed::is_watched`
    /// would then subtract too much, and could overlook another reader.
    _counted: Arc<()>,
    news: watch::Receiver<News>,
    /// If `Some`, this listener counts as a subscriber to the tree. `None` for a listener from
    /// [`Store::listen_to_local_commits`].
    subscriber: Option<Arc<()>>,
}

impl CommitListener {
    /// Waits until a commit was made, or may have been missed. Cancel-safe.
    pub async fn next(&mut self) {
        if self.news.changed().await.is_err() {
            pending::<()>().await;
        }
    }
}

impl Feed {
    fn listen_to_local_commits(&self, root: TaskId) -> CommitListener {
        self.with_channels(root, |channels| CommitListener {
            _counted: Arc::clone(&channels.commit_listeners),
            news: channels.news.subscribe(),
            subscriber: None,
        })
    }

    fn subscribe_to_commits(&self, root: TaskId, mut listener: CommitListener) -> CommitListener {
        listener.subscriber = Some(self.subscriber(root));
        listener
    }

    /// Whether this process has a reader of the tree other than a [`CommitListener`]. Only such a
    /// reader needs [`News::stopped`]: a [`CommitListener`] does not read this field.
    pub(in crate::store) fn is_watched(&self, root: TaskId) -> bool {
        let trees = self.trees.lock();
        trees.channels.get(&root).is_some_and(|channels| {
            // `channels` holds one clone of the `Arc`, and each `CommitListener` holds another.
            let commit_listeners = Arc::strong_count(&channels.commit_listeners) - 1;
            channels.news.receiver_count() > commit_listeners
        })
    }
}

impl Store {
    /// Returns a listener for the commits to the tree of `root`. The listener gets every commit of
    /// this process, and may miss commits of other replicas.
    pub fn listen_to_local_commits(&self, root: TaskId) -> CommitListener {
        self.inner.feed.listen_to_local_commits(root)
    }

    /// Gives a listener from [`Store::listen_to_local_commits`] the commits of all replicas. The
    /// listener misses no commit during the switch.
    pub fn subscribe_to_commits(&self, root: TaskId, listener: CommitListener) -> CommitListener {
        self.inner.feed.subscribe_to_commits(root, listener)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const ROOT: TaskId = TaskId(Uuid::from_u128(1));

    #[test]
    fn tree_is_watched_only_if_a_reader_takes_more_than_its_commits() {
        let feed = Feed::default();
        let asker = feed.listen_to_local_commits(ROOT);
        assert!(!feed.is_watched(ROOT));
        let reader = feed.watch(ROOT);
        assert!(feed.is_watched(ROOT));
        drop(asker);
        assert!(feed.is_watched(ROOT));
        drop(reader);
        assert!(!feed.is_watched(ROOT));
    }

    #[tokio::test]
    async fn listener_to_commits_gets_each_commit_and_counts_as_a_subscriber() {
        let feed = Feed::default();
        let mut asker = feed.listen_to_local_commits(ROOT);
        assert!(!feed.is_listened_to(ROOT));
        feed.publish_commit(ROOT, None, 1, None);
        asker.next().await;
        asker = feed.subscribe_to_commits(ROOT, asker);
        assert!(feed.is_listened_to(ROOT));
        feed.forget(ROOT);
        feed.publish_remote_commit(ROOT, None);
        asker.next().await;
        drop(asker);
        assert!(!feed.is_listened_to(ROOT));
    }
}
