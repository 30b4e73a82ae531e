//! Tests that replicas announce to each other the trees to which they listen. If messages are lost,
//! a listener still learns of every commit, but later.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::secret::Secret;
use holdpoint::store::{Listener, Notification, Settings, Store};
use holdpoint::task::change::TaskChange;
use holdpoint::task::delta::{Delta, DeltaContent};
use holdpoint::task::id::{CallId, TaskId};
use holdpoint::task::time::Time;
use sqlx::Executor;
use sqlx::postgres::PgListener;
use tokio::time::timeout;

use super::store_fixture::{StoreFixture, fresh, said};
use crate::support::forwarder::Forwarder;
use crate::support::{eventually, until};

/// A time limit that no step of these tests reaches if the code works.
const LONG: Duration = Duration::from_mins(1);

async fn replica(fixture: &StoreFixture) -> Store {
    Store::open(&fixture.settings, fixture.clock.clone())
        .await
        .unwrap()
}

fn piece(root: TaskId, said: DeltaContent) -> Delta {
    let (agent_path, asking) = (vec!["billing".to_owned()], root.0);
    Delta {
        root_task_id: root,
        task_id: root,
        agent_path,
        turn: 1,
        after_seq: 2,
        asking,
        at: Time(7),
        said,
    }
}

fn text(root: TaskId, text: &str) -> Delta {
    piece(
        root,
        DeltaContent::Text {
            offset: 0,
            delta: text.to_owned(),
        },
    )
}

/// Waits for the next delta and returns it. Skips notifications of commits.
async fn next_piece(listener: &mut Listener) -> Arc<Delta> {
    let next = async {
        loop {
            if let Notification::Delta(delta) = listener.next().await {
                return delta;
            }
        }
    };
    timeout(LONG, next).await.expect("the delta arrives")
}

/// Sends the delta repeatedly until it arrives, because the sender may not know of this listener
/// yet. Skips other deltas, which were sent earlier.
async fn arrives(from: &Store, listener: &mut Listener, piece: &Delta) {
    let arrived = async { while *next_piece(listener).await != *piece {} };
    tokio::pin!(arrived);
    loop {
        from.publish_delta(piece.clone());
        if timeout(Duration::from_millis(20), &mut arrived)
            .await
            .is_ok()
        {
            return;
        }
    }
}

async fn commit(fixture: &StoreFixture, root: TaskId) {
    let task = TaskChange {
        facts: vec![said("more")],
        ..fixture.next(root).await
    };
    fixture.write(task).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deltas_arrive_at_other_replicas_however_long_they_are() {
    let fixture = StoreFixture::postgres().await;
    let root = fixture.task().await;
    let other = replica(&fixture).await;
    let mut listener = other.listen(root);
    let hello = text(root, "hello");
    arrives(&fixture.store, &mut listener, &hello).await;
    let long = "aé\u{1}\"😀".repeat(12_000);
    let call = CallId(fresh());
    let pieces = [
        piece(
            root,
            DeltaContent::Named {
                tool_call_id: call,
                name: "refund".into(),
            },
        ),
        piece(
            root,
            DeltaContent::Arguments {
                tool_call_id: call,
                offset: 3,
                delta: long,
            },
        ),
        piece(root, DeltaContent::Reset),
    ];
    for piece in &pieces {
        fixture.store.publish_delta(piece.clone());
    }
    for piece in &pieces {
        let mut next = next_piece(&mut listener).await;
        // The first delta was sent repeatedly, and may arrive more than once.
        while *next == hello {
            next = next_piece(&mut listener).await;
        }
        assert_eq!(*next, *piece);
    }
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_joins_later_is_told_which_trees_are_wanted() {
    let fixture = StoreFixture::postgres().await;
    let root = fixture.task().await;
    let mut listener = fixture.store.listen(root);
    let other = replica(&fixture).await;
    let hello = text(root, "hello");
    // Every 20 s, each replica repeats the list of trees to which it listens. The timeout is
    // shorter, so the delta arrives because the list was sent at once.
    timeout(
        Duration::from_secs(15),
        arrives(&other, &mut listener, &hello),
    )
    .await
    .expect("it was announced at once");
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listener_learns_of_a_commit_although_every_notification_is_lost() {
    let fixture = StoreFixture::postgres().await;
    let (root, quiet) = (fixture.task().await, fixture.task().await);
    let other = replica(&fixture).await;
    fixture.store.mute();
    other.mute();
    let (mut listener, mut idle) = (other.listen(root), other.listen(quiet));
    // The replica `other` does not know the last event of either tree yet. So its first poll of the
    // last events wakes each listener once.
    assert_eq!(
        timeout(LONG, listener.next()).await.unwrap(),
        Notification::Commit
    );
    assert_eq!(
        timeout(LONG, idle.next()).await.unwrap(),
        Notification::Commit
    );
    for _ in 0..2 {
        commit(&fixture, root).await;
        fixture.store.publish_delta(text(root, "nobody hears this"));
        assert_eq!(
            timeout(LONG, listener.next()).await.unwrap(),
            Notification::Commit
        );
    }
    assert!(
        timeout(Duration::from_millis(1), idle.next())
            .await
            .is_err(),
        "nothing happened there"
    );
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_connection_is_opened_again() {
    let fixture = StoreFixture::postgres().await;
    let root = fixture.task().await;
    let other = replica(&fixture).await;
    let mut listener = other.listen(root);
    arrives(&fixture.store, &mut listener, &text(root, "before")).await;
    let mut connection = fixture.connection().await;
    let broken = "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and query like 'select count(pg_notify%' and pid <> pg_backend_pid()";
    connection.execute(broken).await.unwrap();
    arrives(&fixture.store, &mut listener, &text(root, "after")).await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_that_went_silent_is_replaced_while_it_is_still_open() {
    let fixture = StoreFixture::postgres().await;
    let line = Forwarder::to(fixture.settings.url.reveal()).await;
    let settings = Settings {
        url: Secret::new(line.url().to_owned()),
        statement_timeout: Duration::from_secs(3),
        ..Settings::default()
    };
    let other = Store::open(&settings, fixture.clock.clone()).await.unwrap();
    let root = fixture.task().await;
    let mut listener = other.listen(root);
    arrives(&fixture.store, &mut listener, &text(root, "before")).await;
    until("the relay holds its lock", async || other.ends_presence()).await;
    line.blackhole();
    // The relay sends the announcement of this listener over the silent connection, and waits in
    // vain for the database's answer.
    let _unheard = other.listen(TaskId(fresh()));
    let has_given_up = async || !other.ends_presence();
    until("the relay gives its connection up", has_given_up).await;
    line.mend();
    arrives(&fixture.store, &mut listener, &text(root, "after")).await;
    let closed = timeout(LONG, other.close()).await;
    closed.expect("the store does not wait for the silent connection");
}

/// The connection may still lead to the server that was in use before the promotion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_connection_opened_before_a_known_promotion_is_replaced() {
    let fixture = StoreFixture::postgres().await;
    // The query leaves out the advisory lock that a starting process holds for the migrations.
    let holder =
        "select pid::bigint from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock'
        and (classid::bigint << 32 | objid::bigint) <> 7161402375501337
        and database = (select oid from pg_database where datname = current_database())";
    let relay = async || fixture.numbers(holder).await.unwrap().first().copied();
    let old = eventually("the relay holds its lock", async || relay().await).await;
    fixture.store.learn_uncertain_until(Some(Time(1)));
    let is_replaced = async || relay().await.is_some_and(|pid| pid != old);
    until("the relay has another connection", is_replaced).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn burst_of_notifications_is_followed_by_no_empty_message() {
    let fixture = StoreFixture::postgres().await;
    fixture.store.close().await;
    let mut heard = PgListener::connect(fixture.settings.url.reveal())
        .await
        .unwrap();
    heard.listen("holdpoint_feed").await.unwrap();
    let store = replica(&fixture).await;
    assert!(next_message(&mut heard).await.contains("hello"));
    let mut listeners = Vec::new();
    for _ in 0..20 {
        let roots = [(); 3].map(|()| TaskId(fresh()));
        for root in roots {
            listeners.push(store.listen(root));
            // Gives the relay time to notice this listener before the next listener is added.
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
        let last = roots[2].to_string();
        loop {
            let message = next_message(&mut heard).await;
            assert!(message.contains("wants"), "{message}");
            if message.contains(&last) {
                break;
            }
        }
    }
    store.close().await;
}

async fn next_message(heard: &mut PgListener) -> String {
    let message = timeout(LONG, heard.recv()).await.unwrap().unwrap();
    message.payload().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_replica_is_notified_of_queued_work() {
    let fixture = StoreFixture::postgres().await;
    let other = replica(&fixture).await;
    let told = other.wait_for_queued_task();
    tokio::pin!(told);
    let first = async {
        while timeout(Duration::from_millis(20), &mut told).await.is_err() {
            fixture.task().await;
        }
    };
    timeout(LONG, first)
        .await
        .expect("the other replica is notified");
    other.close().await;
}
