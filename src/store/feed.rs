//! Tells readers of this process, after a commit, that a tree has news. What is told is a count, and whether its root
//! runs, so that who waits for its end need not read each time: the rows are the truth, and a reader that missed a word
//! loses nothing but time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use crate::task::id::TaskId;

/// What is known of a tree without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// Commits of this process since somebody listens.
    pub commits: u64,
    /// Whether its root runs, as of the last of them that said so.
    pub running: Option<bool>,
}

/// Who waits for news of which tree.
#[derive(Debug, Default)]
pub(super) struct Feed {
    trees: Mutex<Trees>,
}

#[derive(Debug, Default)]
struct Trees {
    senders: HashMap<TaskId, watch::Sender<News>>,
    /// How many there were after the last look for those that nobody listens to any more.
    swept: usize,
}

impl Feed {
    /// A receiver for one tree.
    pub(super) fn watch(&self, root: TaskId) -> watch::Receiver<News> {
        let mut trees = self.trees.lock().unwrap_or_else(PoisonError::into_inner);
        if trees.senders.len() > 2 * trees.swept + 64 {
            trees.senders.retain(|_, sender| sender.receiver_count() > 0);
            trees.swept = trees.senders.len();
        }
        let quiet = News { commits: 0, running: None };
        trees.senders.entry(root).or_insert_with(|| watch::channel(quiet).0).subscribe()
    }

    /// Something was committed to that tree; `running` when it says whether the root runs.
    pub(super) fn tell(&self, root: TaskId, running: Option<bool>) {
        let mut trees = self.trees.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sender) = trees.senders.get(&root) else { return };
        if sender.receiver_count() == 0 {
            trees.senders.remove(&root);
        } else {
            sender.send_modify(|news| {
                news.commits += 1;
                news.running = running.or(news.running);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn only_the_tree_that_changed_is_told() {
        let feed = Feed::default();
        let (one, other) = (TaskId(Uuid::from_u128(1)), TaskId(Uuid::from_u128(2)));
        let (mut first, second) = (feed.watch(one), feed.watch(other));
        feed.tell(one, Some(false));
        assert!(first.has_changed().unwrap());
        assert_eq!(*first.borrow_and_update(), News { commits: 1, running: Some(false) });
        feed.tell(one, None);
        assert_eq!(*first.borrow_and_update(), News { commits: 2, running: Some(false) });
        assert!(!second.has_changed().unwrap());
    }

    #[test]
    fn nothing_is_kept_for_trees_that_nobody_watches() {
        let feed = Feed::default();
        for tree in 0..10_000_u128 {
            drop(feed.watch(TaskId(Uuid::from_u128(tree))));
        }
        assert!(feed.trees.lock().unwrap().senders.len() < 200);
    }
}
