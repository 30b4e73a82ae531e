//! Tests of event streams that end before their task: at the end of the browser session, after an
//! hour, at shutdown, or at an unreadable event. Also tests the limits on the number of streams.

use std::sync::Arc;
use std::time::Duration;

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::json;
use tokio::time::timeout;

use super::super::approval_cycle::on_both;
use crate::support::event_stream::{StreamBlock, numbers};
use crate::support::test_app::{ALICE, BOB, Held, On, TestApp, refunds};
use crate::support::test_clock::TestClock;

/// An upper bound of the time for steps that should not block, even on a busy machine.
const SOON: Duration = Duration::from_secs(20);

fn yaml(more: &str) -> String {
    refunds("{ groups: [finance] }") + more
}

async fn with_test_clock(on: On) -> (TestApp, Arc<TestClock>) {
    let clock = TestClock::new();
    (
        TestApp::timed(on, &yaml(""), Arc::<TestClock>::clone(&clock)).await,
        clock,
    )
}

#[apply(on_both)]
async fn idle_stream_sends_a_comment_every_fifteen_seconds(on: On) {
    let (app, clock) = with_test_clock(on).await;
    let Held { task, .. } = app.held().await;
    let mut watch = app.owner().watch(&task, None).await;
    watch.until("caught_up").await;
    for _ in 0..3 {
        clock.advance(Duration::from_secs(16));
        assert_eq!(watch.said().await, Some(StreamBlock::Comment));
    }
    app.stop().await;
}

#[apply(on_both)]
async fn stream_ends_when_its_session_ends(on: On) {
    let (app, clock) = with_test_clock(on).await;
    let Held { task, .. } = app.held().await;
    let (leaves, stays) = (app.sign_in(ALICE).await, app.sign_in(BOB).await);
    let mut leaving = app
        .anonymous()
        .header("cookie", &leaves)
        .watch(&task, None)
        .await;
    let mut staying = app
        .anonymous()
        .header("cookie", &stays)
        .watch(&task, None)
        .await;
    assert_eq!((leaving.status, staying.status), (200, 200));
    leaving.until("caught_up").await;
    staying.until("caught_up").await;
    app.anonymous()
        .header("cookie", &leaves)
        .hit("/sign-out")
        .await;
    clock.advance(Duration::from_secs(61));
    assert!(leaving.rest().await.is_empty(), "it has ended");
    assert_eq!(
        app.anonymous()
            .header("cookie", &leaves)
            .watch(&task, None)
            .await
            .status,
        401
    );
    assert_eq!(staying.said().await, Some(StreamBlock::Comment));
    clock.advance(Duration::from_secs(61));
    assert_eq!(
        staying.said().await,
        Some(StreamBlock::Comment),
        "the other stream stays open"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn stream_ends_after_an_hour_and_can_be_resumed(on: On) {
    let (app, clock) = with_test_clock(on).await;
    let Held { task, .. } = app.held().await;
    let mut watch = app.owner().watch(&task, None).await;
    let seen = numbers(&watch.until("caught_up").await);
    clock.advance(Duration::from_mins(59));
    assert_eq!(watch.said().await, Some(StreamBlock::Comment));
    clock.advance(Duration::from_mins(1));
    assert!(watch.rest().await.is_empty());
    let mut again = app.owner().watch(&task, seen.last().copied()).await;
    assert_eq!(again.until("caught_up").await.len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn stream_ends_at_once_when_the_service_shuts_down(on: On) {
    let mut app = TestApp::start(on).await;
    let held = app.held().await;
    let mut watch = app.owner().watch(&held.task, None).await;
    let before = watch.until("caught_up").await;
    let (down, end) = tokio::join!(timeout(SOON, app.restart()), timeout(SOON, watch.rest()));
    assert!(
        down.is_ok() && end.is_ok_and(|rest| rest.is_empty()),
        "it ends, and cleanly"
    );
    app.owner().approve(&held.request).await;
    let rest = app
        .owner()
        .events(&held.task, numbers(&before).last().copied())
        .await;
    assert_eq!(rest[0].name, "request.decided");
    app.stop().await;
}

#[apply(on_both)]
async fn stream_beyond_the_limit_is_refused_until_another_ends(on: On) {
    let app = TestApp::with(
        on,
        &yaml("\nserver: { max_streams: 3, max_streams_per_caller: 2 }\n"),
    )
    .await;
    let Held { task, .. } = app.held().await;
    let path = format!("/v1/tasks/{task}/events");
    let (first, _second) = (
        app.owner().watch(&task, None).await,
        app.owner().watch(&task, None).await,
    );
    let refused = app.owner().get(&path).await;
    refused.assert_code(429, "too_many");
    assert_eq!(refused.header("retry-after"), "1");
    let _third = app.approver().watch(&task, None).await;
    assert_eq!(app.approver().get(&path).await.status, 429, "three in all");
    // A POST that asks for a stream beyond the limit is refused before it has any effect.
    let refused = app
        .owner()
        .post_and_watch("/v1/tasks", &json!({"input": "x"}))
        .await;
    assert_eq!(refused.status, 429);
    assert_eq!(app.owner().get("/v1/tasks").await.count("tasks"), 1);
    drop(first);
    let is_free = async || app.owner().watch(&task, None).await.status != 429;
    crate::support::until("the place of the stream is free", is_free).await;
    app.stop().await;
}

#[apply(on_both)]
async fn unreadable_event_ends_the_stream_and_is_an_error_at_its_beginning(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    app.database
        .execute("update agent_task_item set body = 'x' where event_number = 4")
        .await;
    let seen = app.owner().events(&held.task, None).await;
    assert_eq!(numbers(&seen), [1, 2, 3]);
    let reply = app
        .owner()
        .get(&format!("/v1/tasks/{}/events?after=3", held.task))
        .await;
    reply.assert_code(500, "internal");
}

#[apply(on_both)]
async fn stream_never_skips_a_missing_event(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let rest = app
        .owner()
        .watch(&held.task, Some(4))
        .await
        .until("caught_up")
        .await;
    assert_eq!(numbers(&rest), [5, 6]);
    app.database
        .execute("delete from agent_task_item where event_number = 2")
        .await;
    let seen = app.owner().events(&held.task, None).await;
    assert_eq!(numbers(&seen), [1]);
    assert_eq!(app.owner().watch(&held.task, Some(1)).await.status, 500);
}

#[apply(on_both)]
async fn person_who_may_not_read_a_task_may_not_watch_it(on: On) {
    let app = TestApp::with_finance(on).await;
    let Held { task, .. } = app.held().await;
    let path = format!("/v1/tasks/{task}/events");
    for (actor, status) in [
        (app.anonymous(), 401),
        (app.stranger(), 403),
        (app.actor(crate::support::test_app::OTHER), 404),
    ] {
        let reply = actor.header("accept", "text/event-stream").get(&path).await;
        assert_eq!(reply.status, status, "{}", reply.text);
    }
    assert_eq!(
        app.approver().watch(&task, None).await.status,
        200,
        "a caller who may decide may read"
    );
    let head = app.owner().send(Method::HEAD, &path, None).await;
    head.assert_header(200, "content-type", "text/event-stream");
    assert_eq!(
        app.owner().get("/v1/tasks/nonsense/events").await.status,
        404
    );
    assert_eq!(
        app.owner().get(&format!("{path}?limit=3")).await.status,
        422
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_carries_the_cors_headers_of_its_origin() {
    let app = TestApp::with(
        On::Sqlite,
        &yaml("\nserver: { cors_origins: [\"https://app.example\"] }\n"),
    )
    .await;
    let Held { task, .. } = app.held().await;
    let watch = app
        .owner()
        .header("origin", "https://app.example")
        .watch(&task, None)
        .await;
    assert_eq!(
        watch.header("access-control-allow-origin"),
        "https://app.example"
    );
    assert!(
        watch
            .header("access-control-expose-headers")
            .contains("Content-Location")
    );
}
