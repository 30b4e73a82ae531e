//! Tests that watchers, listeners and other replicas are notified of the commits and deltas to
//! which they have subscribed.

use std::collections::{BTreeMap, BTreeSet};

use super::other_replicas::record;
use super::*;
use crate::task::delta::DeltaContent;
use crate::task::time::Time;
use uuid::Uuid;

fn tree(number: u128) -> TaskId {
    TaskId(Uuid::from_u128(number))
}

fn reset(root: TaskId) -> Delta {
    let asking = Uuid::nil();
    let (agent_path, turn, after_seq, at) = (Vec::new(), 1, 1, Time(0));
    Delta {
        root_task_id: root,
        task_id: root,
        agent_path,
        turn,
        after_seq,
        asking,
        at,
        said: DeltaContent::Reset,
    }
}

#[test]
fn only_watchers_of_the_changed_tree_are_notified() {
    let feed = Feed::default();
    let (mut first, second) = (feed.watch(tree(1)), feed.watch(tree(2)));
    feed.publish_commit(tree(1), Some(false), 1, None);
    assert!(first.has_changed().unwrap());
    assert_eq!(
        *first.borrow_and_update(),
        News {
            commits: 1,
            running: Some(false),
            stopped: None,
        }
    );
    feed.publish_commit(tree(1), None, 1, None);
    assert_eq!(
        *first.borrow_and_update(),
        News {
            commits: 2,
            running: Some(false),
            stopped: None,
        }
    );
    assert!(!second.has_changed().unwrap());
}

#[test]
fn feed_knows_which_trees_have_listeners() {
    let feed = Feed::default();
    feed.relay_started();
    let listener = feed.subscribe(tree(1), feed.listen_locally(tree(1)));
    let _attends = feed.listen_locally(tree(2));
    assert_eq!(
        [1, 2, 3].map(|number| feed.is_listened_to(tree(number))),
        [true, false, false]
    );
    feed.record_subscriptions(vec![tree(3)]);
    drop(listener);
    assert_eq!(
        [1, 2, 3].map(|number| feed.is_listened_to(tree(number))),
        [false, false, true]
    );
}

#[test]
fn feed_keeps_nothing_for_unwatched_trees() {
    let feed = Feed::default();
    for number in 0..10_000 {
        drop((feed.watch(tree(number)), feed.listen_locally(tree(number))));
    }
    assert!(feed.trees.lock().channels.len() < 200);
    assert!(
        feed.take_outgoing().is_empty(),
        "nobody is there to be told"
    );
}

#[tokio::test]
async fn slow_listener_misses_deltas_but_no_news() {
    let feed = Feed::default();
    let mut listener = feed.listen_locally(tree(1));
    feed.publish_commit(tree(1), None, 1, None);
    (0..3 * DELTA_BUFFER).for_each(|_| feed.publish_delta(reset(tree(1))));
    assert_eq!(
        listener.next().await,
        Notification::Commit,
        "it waits for no piece"
    );
    for _ in 0..DELTA_BUFFER {
        assert_eq!(
            listener.next().await,
            Notification::Delta(Arc::new(reset(tree(1))))
        );
    }
    assert_eq!(listener.try_next_delta(), None);
}

#[test]
fn other_replicas_hear_only_of_the_trees_they_listen_to() {
    let feed = Feed::default();
    feed.relay_started();
    let _both = [(); 2].map(|()| feed.subscribe(tree(1), feed.listen_locally(tree(1))));
    assert_eq!(
        feed.take_outgoing().subscriptions,
        BTreeSet::from([tree(1)])
    );
    feed.record_subscriptions(vec![tree(2)]);
    for root in [1, 2, 2, 3].map(tree) {
        feed.publish_commit(root, Some(true), 1, None);
        feed.publish_delta(reset(root));
    }
    let out = feed.take_outgoing();
    assert_eq!(
        (out.news, out.deltas.len()),
        (BTreeMap::from([(tree(2), Some(true))]), 2)
    );
}

#[test]
fn replica_without_peers_announces_no_work() {
    let feed = Feed::default();
    feed.relay_started();
    feed.announce_queued_task();
    assert!(feed.take_outgoing().is_empty());
    feed.record_replica();
    feed.announce_queued_task();
    assert!(feed.take_outgoing().has_queued_task);
}

#[tokio::test]
async fn known_event_number_is_no_news() {
    let feed = Feed::default();
    let mut listener = feed.listen_locally(tree(1));
    let news = |feed: &Feed| feed.with_channels(tree(1), |channels| channels.news.borrow().commits);
    for (last_event, told) in [(5, 1), (5, 1), (7, 2), (7, 2)] {
        feed.set_last_event(tree(1), last_event);
        assert_eq!(news(&feed), told);
    }
    assert_eq!(listener.next().await, Notification::Commit);
    feed.publish_commit(tree(1), None, 2, None);
    feed.set_last_event(tree(1), 9);
    assert_eq!(news(&feed), 3);
    feed.publish_remote_commit(tree(1), None);
    feed.set_last_event(tree(1), 9);
    assert_eq!(news(&feed), 5);
}

#[test]
fn known_subscription_is_renewed_at_the_limit_and_a_new_subscription_is_dropped() {
    let mut known = HashMap::new();
    record(&mut known, [1, 2, 3], 2);
    let soon = Instant::now() + Duration::from_secs(1);
    for until in known.values_mut() {
        *until = soon;
    }
    record(&mut known, [4, 2, 1], 2);
    let renewed: BTreeMap<_, _> = known
        .into_iter()
        .map(|(key, until)| (key, until > soon))
        .collect();
    assert_eq!(renewed, [(1, true), (2, true)].into());
}

#[test]
fn new_subscription_takes_the_place_of_one_that_has_ended() {
    let mut known = HashMap::from([(1, Instant::now())]);
    record(&mut known, [2], 1);
    assert_eq!(known.into_keys().collect::<Vec<_>>(), [2]);
}
