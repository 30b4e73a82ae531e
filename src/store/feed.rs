//! Tells readers that a tree has news, and what its models are saying. News are told after a commit: a count, and whether
//! the root runs, so that who waits for its end need not read each time. The rows are the truth: a reader that missed a
//! word loses nothing but time. What goes to other replicas is handed to the relay (`relay.rs`), and only what one of them
//! has asked for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;

use crate::task::delta::Delta;
use crate::task::id::TaskId;

/// How many pieces wait for a listener at most; who is slower misses the oldest.
const PIECES: usize = 64;
/// How many pieces wait for the relay at most.
const WAITING: usize = 1024;
/// How many trees other replicas may want to hear of at once.
const WANTED: usize = 100_000;
/// How long the interest of another replica lasts that is not renewed.
pub(super) const INTEREST: Duration = Duration::from_mins(1);

/// What is known of a tree without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// Commits that somebody heard of since somebody listens.
    pub commits: u64,
    /// Whether its root runs, as of the last of them that said so; `None` when that is not known.
    pub running: Option<bool>,
}

/// Hears of one tree: that something was committed, and what its models are saying.
#[derive(Debug)]
pub struct Listener {
    news: watch::Receiver<News>,
    deltas: broadcast::Receiver<Arc<Delta>>,
    /// Held by who means to go on listening; one who only attends is nobody to speak for.
    counted: Option<Arc<()>>,
}

/// What a listener hears.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// Something was committed, or may have been: the rows say what.
    News,
    /// A model said something. It may be about an answer that is stored by now.
    Delta(Arc<Delta>),
}

impl Listener {
    /// The next piece that was heard already, if there is one.
    pub fn piece(&mut self) -> Option<Arc<Delta>> {
        loop {
            match self.deltas.try_recv() {
                Ok(delta) => return Some(delta),
                Err(broadcast::error::TryRecvError::Lagged(_)) => {}
                Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed) => return None,
            }
        }
    }

    /// Whether something was committed, and nothing else.
    #[must_use]
    pub fn news(self) -> watch::Receiver<News> {
        self.news
    }

    /// The next thing there is to hear. Dropping the future loses nothing. Whoever is too slow misses pieces, never news.
    pub async fn next(&mut self) -> Heard {
        loop {
            tokio::select! {
                biased;
                // However much is said: what is committed waits for no piece. Whoever reads takes the pieces first.
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

/// Who waits for news of which tree.
#[derive(Debug, Default)]
pub(super) struct Feed {
    trees: Mutex<Trees>,
    abroad: Mutex<Abroad>,
    /// There is something for the relay.
    outgoing: Notify,
    /// Another replica has queued something.
    work: Notify,
}

#[derive(Debug, Default)]
struct Trees {
    senders: HashMap<TaskId, Senders>,
    /// How many there were after the last look for those that nobody listens to any more.
    swept: usize,
}

/// To whom one tree's news go.
#[derive(Debug)]
struct Senders {
    news: watch::Sender<News>,
    /// There is one once somebody listened.
    deltas: Option<broadcast::Sender<Arc<Delta>>>,
    /// Each listener holds another one.
    listeners: Arc<()>,
    /// The number of its last event, where it is known.
    last_event: Option<i64>,
}

impl Senders {
    fn has_readers(&self) -> bool {
        self.news.receiver_count() > 0
    }

    fn has_listeners(&self) -> bool {
        Arc::strong_count(&self.listeners) > 1
    }

    fn tell(&self, running: impl FnOnce(Option<bool>) -> Option<bool>) {
        self.news.send_modify(|news| {
            news.commits += 1;
            news.running = running(news.running);
        });
    }
}

/// What other replicas want to hear, and what they have not been told yet.
#[derive(Debug, Default)]
struct Abroad {
    /// There is a relay.
    open: bool,
    /// The trees that other replicas listen to, and until when.
    wanted: HashMap<TaskId, Instant>,
    /// Until when somebody else is taken to be there.
    others: Option<Instant>,
    out: Outgoing,
}

impl Abroad {
    fn wants(&self, root: TaskId) -> bool {
        self.wanted.get(&root).is_some_and(|until| Instant::now() < *until)
    }
}

/// For other replicas.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Trees with news, and whether their roots run, where a commit said so.
    pub(super) news: BTreeMap<TaskId, Option<bool>>,
    /// What models said.
    pub(super) said: Vec<Arc<Delta>>,
    /// Trees that this replica wants to hear of.
    pub(super) wants: BTreeSet<TaskId>,
    /// There are tasks that anybody may take.
    pub(super) work: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feed {
    /// A receiver for one tree.
    pub(super) fn watch(&self, root: TaskId) -> watch::Receiver<News> {
        self.with(root, |senders| senders.news.subscribe())
    }

    /// One who hears what this process does to a tree, and is not counted among those who listen to it.
    pub(super) fn attend(&self, root: TaskId) -> Listener {
        self.with(root, |senders| Listener {
            news: senders.news.subscribe(),
            deltas: senders.deltas.get_or_insert_with(|| broadcast::channel(PIECES).0).subscribe(),
            counted: None,
        })
    }

    /// From now on he listens to that tree, and other replicas are told that somebody here does.
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
        let quiet = News { commits: 0, running: None };
        let none =
            || Senders { news: watch::channel(quiet).0, deltas: None, listeners: Arc::default(), last_event: None };
        receiver(trees.senders.entry(root).or_insert_with(none))
    }

    /// Whether somebody listens to that tree, here or elsewhere, as far as is known.
    pub(super) fn is_listened_to(&self, root: TaskId) -> bool {
        let here = locked(&self.trees).senders.get(&root).is_some_and(Senders::has_listeners);
        here || locked(&self.abroad).wants(root)
    }

    /// A model of this process said something.
    pub(super) fn say(&self, delta: Delta) {
        let (root, delta) = (delta.root_task_id, Arc::new(delta));
        self.pass_on(Arc::clone(&delta));
        self.tell_abroad(root, |out| {
            // Nobody waits for what cannot be sent: whoever misses it reads the whole.
            if out.said.len() < WAITING {
                out.said.push(delta);
            }
        });
    }

    /// A model said something, here or elsewhere.
    pub(super) fn pass_on(&self, delta: Arc<Delta>) {
        let trees = locked(&self.trees);
        if let Some(deltas) = trees.senders.get(&delta.root_task_id).and_then(|senders| senders.deltas.as_ref()) {
            // Nobody listens any more: nobody misses it.
            let _ = deltas.send(delta);
        }
    }

    /// A commit of this process has queued something. The workers of this process know.
    pub(super) fn queued(&self) {
        self.hand_over(|abroad| abroad.out.work |= abroad.others.is_some_and(|until| Instant::now() < until));
    }

    /// Another replica is there.
    pub(super) fn met(&self) {
        locked(&self.abroad).others = Some(Instant::now() + INTEREST);
    }

    /// Another replica has queued something.
    pub(super) fn has_work(&self) {
        self.work.notify_one();
    }

    /// Returns when another replica has queued something.
    pub(super) async fn work(&self) {
        self.work.notified().await;
    }

    /// So many items were committed here to that tree; `running` when the commit says whether the root runs.
    pub(super) fn tell(&self, root: TaskId, running: Option<bool>, items: usize) {
        let mut trees = locked(&self.trees);
        if let Some(senders) = trees.senders.get_mut(&root) {
            if senders.has_readers() {
                let items = i64::try_from(items).unwrap_or(0);
                senders.last_event = senders.last_event.map(|last| last + items);
                senders.tell(|known| running.or(known));
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

    /// From now on there is a relay to other replicas.
    pub(super) fn open(&self) {
        locked(&self.abroad).open = true;
    }

    /// Returns when there is something for other replicas.
    pub(super) async fn outgoing(&self) {
        self.outgoing.notified().await;
    }

    /// What other replicas are to be told now.
    pub(super) fn take(&self) -> Outgoing {
        std::mem::take(&mut locked(&self.abroad).out)
    }

    /// Another replica wants to hear of these trees.
    pub(super) fn wanted(&self, roots: impl IntoIterator<Item = TaskId>) {
        let (mut abroad, now) = (locked(&self.abroad), Instant::now());
        abroad.wanted.retain(|_, until| now < *until);
        let room = WANTED.saturating_sub(abroad.wanted.len());
        abroad.wanted.extend(roots.into_iter().take(room).map(|root| (root, now + INTEREST)));
    }

    /// Another replica has committed something to that tree.
    pub(super) fn heard(&self, root: TaskId, running: Option<bool>) {
        if let Some(senders) = locked(&self.trees).senders.get_mut(&root) {
            senders.last_event = None;
            senders.tell(|_| running);
        }
    }

    /// Anything may have been committed anywhere.
    pub(super) fn heard_nothing(&self) {
        for senders in locked(&self.trees).senders.values_mut() {
            senders.last_event = None;
            senders.tell(|_| None);
        }
    }

    /// Somebody new has to be told what is wanted here.
    pub(super) fn want_again(&self) {
        let wants = self.listened();
        self.hand_over(|abroad| abroad.out.wants.extend(wants));
    }

    /// The trees that somebody here listens to.
    pub(super) fn listened(&self) -> Vec<TaskId> {
        let trees = locked(&self.trees);
        trees.senders.iter().filter(|(_, senders)| senders.has_listeners()).map(|(root, _)| *root).collect()
    }

    /// The number of a tree's last event, as it was just read: where it is not the one that is known, there are news.
    pub(super) fn reached(&self, root: TaskId, last_event: i64) {
        if let Some(senders) = locked(&self.trees).senders.get_mut(&root)
            && senders.last_event.replace(last_event) != Some(last_event)
        {
            senders.tell(|_| None);
        }
    }
}

impl Outgoing {
    fn is_empty(&self) -> bool {
        self.news.is_empty() && self.said.is_empty() && self.wants.is_empty() && !self.work
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::delta::Said;
    use crate::task::time::Time;
    use uuid::Uuid;

    fn tree(number: u128) -> TaskId {
        TaskId(Uuid::from_u128(number))
    }

    fn reset(root: TaskId) -> Delta {
        let asking = Uuid::nil();
        let (agent_path, turn, after_seq, at) = (Vec::new(), 1, 1, Time(0));
        Delta { root_task_id: root, task_id: root, agent_path, turn, after_seq, asking, at, said: Said::Reset }
    }

    #[test]
    fn only_the_tree_that_changed_is_told() {
        let feed = Feed::default();
        let (mut first, second) = (feed.watch(tree(1)), feed.watch(tree(2)));
        feed.tell(tree(1), Some(false), 1);
        assert!(first.has_changed().unwrap());
        assert_eq!(*first.borrow_and_update(), News { commits: 1, running: Some(false) });
        feed.tell(tree(1), None, 1);
        assert_eq!(*first.borrow_and_update(), News { commits: 2, running: Some(false) });
        assert!(!second.has_changed().unwrap());
    }

    #[test]
    fn it_is_known_whether_somebody_listens() {
        let feed = Feed::default();
        let listener = feed.listen(tree(1), feed.attend(tree(1)));
        let _attends = feed.attend(tree(2));
        assert_eq!([1, 2, 3].map(|number| feed.is_listened_to(tree(number))), [true, false, false]);
        feed.wanted([tree(3)]);
        drop(listener);
        assert_eq!([1, 2, 3].map(|number| feed.is_listened_to(tree(number))), [false, false, true]);
    }

    #[test]
    fn nothing_is_kept_for_trees_that_nobody_watches() {
        let feed = Feed::default();
        for number in 0..10_000 {
            drop((feed.watch(tree(number)), feed.attend(tree(number))));
        }
        assert!(locked(&feed.trees).senders.len() < 200);
        assert!(feed.take().is_empty(), "nobody is there to be told");
    }

    #[tokio::test]
    async fn a_slow_listener_misses_pieces_and_no_news() {
        let feed = Feed::default();
        let mut listener = feed.attend(tree(1));
        feed.tell(tree(1), None, 1);
        (0..3 * PIECES).for_each(|_| feed.say(reset(tree(1))));
        assert_eq!(listener.next().await, Heard::News, "it waits for no piece");
        for _ in 0..PIECES {
            assert_eq!(listener.next().await, Heard::Delta(Arc::new(reset(tree(1)))));
        }
        assert_eq!(listener.piece(), None);
    }

    #[test]
    fn other_replicas_are_told_what_they_want_to_hear_and_nothing_else() {
        let feed = Feed::default();
        feed.open();
        let _both = [(); 2].map(|()| feed.listen(tree(1), feed.attend(tree(1))));
        assert_eq!(feed.take().wants, BTreeSet::from([tree(1)]));
        feed.wanted([tree(2)]);
        for root in [1, 2, 2, 3].map(tree) {
            feed.tell(root, Some(true), 1);
            feed.say(reset(root));
        }
        let out = feed.take();
        assert_eq!((out.news, out.said.len()), (BTreeMap::from([(tree(2), Some(true))]), 2));
    }

    #[test]
    fn who_is_alone_tells_nobody_of_work() {
        let feed = Feed::default();
        feed.open();
        feed.queued();
        assert!(feed.take().is_empty());
        feed.met();
        feed.queued();
        assert!(feed.take().work);
    }

    #[tokio::test]
    async fn a_number_that_is_known_is_no_news() {
        let feed = Feed::default();
        let mut listener = feed.attend(tree(1));
        let news = |feed: &Feed| feed.with(tree(1), |senders| senders.news.borrow().commits);
        for (last_event, told) in [(5, 1), (5, 1), (7, 2), (7, 2)] {
            feed.reached(tree(1), last_event);
            assert_eq!(news(&feed), told);
        }
        assert_eq!(listener.next().await, Heard::News);
        feed.tell(tree(1), None, 2);
        feed.reached(tree(1), 9);
        assert_eq!(news(&feed), 3);
        feed.heard(tree(1), None);
        feed.reached(tree(1), 9);
        assert_eq!(news(&feed), 5);
    }
}
