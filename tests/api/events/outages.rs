//! Tests of event streams that are open while the database is away or becomes another server.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::super::inbox_stream::{next, stream};
use super::deltas::asking;
use crate::support::database::Database;
use crate::support::event_stream::{Event, StreamBlock, names, numbers};
use crate::support::forwarder::Forwarder;
use crate::support::test_app::{ALICE, Actor, On, TestApp, refunds};
use crate::support::test_clock::TestClock;

/// The length of an outage. A read waits at most 3 s for a connection, so a stream tries to read
/// and fails at least once during the outage.
const OUTAGE: Duration = Duration::from_secs(8);
/// An upper bound of the time for steps that should not block, even on a busy machine.
const SOON: Duration = Duration::from_mins(1);

async fn cancel(app: &TestApp, task: &str) {
    let canceled = app.owner().cancel(task).await;
    assert_eq!(canceled.str("/status"), "Canceled", "{}", canceled.text);
}

fn signed_in<'a>(app: &'a TestApp, cookie: &str) -> Actor<'a> {
    app.anonymous().header("cookie", cookie)
}

/// Asserts that these are the events of a canceled task, each once.
fn is_whole(events: &[Event]) {
    assert_eq!(names(events).last(), Some(&"task.canceled"));
    let found = numbers(events);
    let all: Vec<i64> = (1..).take(found.len()).collect();
    assert_eq!(found, all);
}

/// The second replica reaches the database all the time, and commits during the outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_goes_on_after_a_database_outage_with_every_event_once() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = TestApp::at(line.url()).await;
    let other = TestApp::at(database.url()).await;
    let (held, kept) = (app.held().await, app.held().await);
    let mut watch = app.owner().watch(&held.task, None).await;
    let mut quiet = app.owner().watch(&kept.task, None).await;
    let mut told = watch.until("caught_up").await;
    let mut told_of_kept = quiet.until("caught_up").await;
    line.cut();
    cancel(&other, &held.task).await;
    let during = timeout(OUTAGE, watch.event()).await;
    assert!(during.is_err(), "it stays open: {during:?}");
    line.mend();
    told.extend(watch.rest().await);
    is_whole(&told);
    // The task `kept` had no commit during the outage. Its stream must show this first commit after
    // the outage.
    cancel(&other, &kept.task).await;
    told_of_kept.extend(quiet.rest().await);
    is_whole(&told_of_kept);
    other.stop().await;
    app.stop().await;
}

/// A stream checks its caller again after a minute. In this test, the database is away at that
/// time, and the browser session of the stream `leaving` has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_sends_no_event_before_a_check_that_an_outage_delayed() {
    let clock = TestClock::new();
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let yaml = refunds("{ owner: true }");
    let app = TestApp::at_timed(line.url(), &yaml, Arc::<TestClock>::clone(&clock)).await;
    let other = TestApp::at(database.url()).await;
    let held = app.held().await;
    let (leaves, stays) = (app.sign_in(ALICE).await, app.sign_in(ALICE).await);
    let mut leaving = signed_in(&app, &leaves).watch(&held.task, None).await;
    let mut staying = signed_in(&app, &stays).watch(&held.task, None).await;
    let mut inbox = stream(&signed_in(&app, &stays), "").await;
    leaving.until("caught_up").await;
    staying.until("caught_up").await;
    assert_eq!(inbox.said().await, Some(StreamBlock::Retry(1000)));
    next(&mut inbox, "inbox").await;
    line.cut();
    signed_in(&other, &leaves).hit("/sign-out").await;
    assert_eq!(
        signed_in(&other, &leaves)
            .watch(&held.task, None)
            .await
            .status,
        401
    );
    cancel(&other, &held.task).await;
    clock.stop();
    for _ in 0..5 {
        clock.advance(Duration::from_secs(16));
        for watch in [&mut leaving, &mut staying, &mut inbox] {
            assert_eq!(
                watch.said().await,
                Some(StreamBlock::Comment),
                "it stays open"
            );
        }
    }
    line.mend();
    clock.go_on();
    assert!(leaving.rest().await.is_empty(), "its session has ended");
    let rest = staying.rest().await;
    assert_eq!(names(&rest).last(), Some(&"task.canceled"));
    next(&mut inbox, "request.gone").await;
    other.stop().await;
    app.stop().await;
}

/// No answer comes to the read that a delta causes, and its connection stays open. Without an
/// answer, this read ends after an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_whose_read_hangs_sends_comments_and_then_every_event_once() {
    let clock = TestClock::new();
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let yaml = refunds("{ owner: true }");
    let mut app = TestApp::at_timed(line.url(), &yaml, Arc::<TestClock>::clone(&clock)).await;
    app.restart_with(|yaml| yaml.replace("statement_timeout: 2s", "statement_timeout: 1h"))
        .await;
    let other = TestApp::at(database.url()).await;
    let held = app.held().await;
    let mut watch = app.owner().watch(&held.task, None).await;
    let mut told = watch.until("caught_up").await;
    line.blackhole();
    asking(&app, &held, 99).text(0, "It is");
    for _ in 0..3 {
        clock.advance(Duration::from_secs(16));
        let said = timeout(SOON, watch.said()).await;
        assert_eq!(said, Ok(Some(StreamBlock::Comment)), "it stays open");
    }
    line.cut();
    cancel(&other, &held.task).await;
    line.mend();
    told.extend(watch.rest().await);
    is_whole(&told);
    other.stop().await;
    app.stop().await;
}

/// Every connection breaks, and the server has another identity afterwards. It answers at once and
/// has all events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_ends_once_the_database_is_another_server() {
    let app = TestApp::start(On::Postgres).await;
    let held = app.held().await;
    let mut watch = app.owner().watch(&held.task, None).await;
    watch.until("caught_up").await;
    let database = &app.database;
    database
        .execute("update database_identity set identity = 'another'")
        .await;
    database
        .execute(
            "select pg_terminate_backend(pid) from pg_stat_activity
              where datname = current_database() and application_name = 'holdpoint'",
        )
        .await;
    let rest = timeout(SOON, watch.rest()).await;
    assert_eq!(rest, Ok(Vec::new()), "it ends");
    app.stop().await;
}
