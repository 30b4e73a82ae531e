//! Tests when the event stream of an inbox ends, and which callers get no stream. A stream that
//! ends reports no further request.

use std::sync::Arc;
use std::time::Duration;

use macro_rules_attribute::apply;

use super::super::approval_cycle::on_both;
use super::{DECIDER, EVE, finance, ids, next, soon, stream, yaml};
use crate::support::event_stream::StreamBlock;
use crate::support::test_app::{BOB, On, TestApp};
use crate::support::test_clock::TestClock;

#[apply(on_both)]
async fn stream_ends_with_its_session_its_hour_and_its_service(on: On) {
    let clock = TestClock::new();
    let app = TestApp::timed(
        on,
        &yaml("{ groups: [finance] }"),
        Arc::<TestClock>::clone(&clock),
    )
    .await;
    let session = app.sign_in(BOB).await;
    let mut leaves = stream(&app.anonymous().header("cookie", &session), "").await;
    let mut stays = stream(&app.approver(), "").await;
    next(&mut leaves, "inbox").await;
    next(&mut stays, "inbox").await;
    clock.advance(Duration::from_secs(16));
    assert_eq!(leaves.said().await, Some(StreamBlock::Comment));
    app.anonymous()
        .header("cookie", &session)
        .hit("/sign-out")
        .await;
    clock.advance(Duration::from_secs(61));
    assert!(soon(leaves.rest()).await.is_empty(), "within a minute");
    assert_eq!(
        app.anonymous()
            .header("cookie", &session)
            .get("/v1/events")
            .await
            .status,
        401
    );
    app.held().await;
    next(&mut stays, "request.created").await;
    clock.advance(Duration::from_hours(1));
    assert!(soon(stays.rest()).await.is_empty(), "after an hour");
    app.stop().await;
}

#[apply(on_both)]
async fn stream_of_a_key_that_loses_its_right_ends_at_the_restart_and_tells_no_more_of_it(on: On) {
    let mut app = finance(on).await;
    let held = app.held().await;
    let (mut eves, mut doras) = (
        stream(&app.actor(EVE), "").await,
        stream(&app.actor(DECIDER), "").await,
    );
    for watch in [&mut eves, &mut doras] {
        assert_eq!(ids(&next(watch, "inbox").await), [held.request.as_str()]);
    }
    // Eve's key leaves the group, and Dora's key is removed.
    let fewer = |yaml: &str| {
        let yaml = yaml.replace("groups: [finance], key: \"eve", "key: \"eve");
        yaml.lines()
            .filter(|line| !line.contains(DECIDER))
            .fold(String::new(), |text, line| text + line + "\n")
    };
    let (eves, doras, ()) = tokio::join!(eves.rest(), doras.rest(), app.restart_with(fewer));
    assert!(eves.is_empty() && doras.is_empty());
    assert_eq!(app.actor(DECIDER).get("/v1/events").await.status, 401);
    let (mut eves, mut bobs) = (
        stream(&app.actor(EVE), "").await,
        stream(&app.approver(), "").await,
    );
    assert_eq!(next(&mut eves, "inbox").await.data["open"], 0);
    assert_eq!(next(&mut bobs, "inbox").await.data["open"], 1);
    app.held().await;
    next(&mut bobs, "request.created").await;
    app.stop().await;
    assert!(eves.rest().await.is_empty());
}

#[apply(on_both)]
async fn stream_takes_a_seat_and_needs_a_key_that_reads_or_decides(on: On) {
    let server = "\nserver: { max_streams_per_caller: 1 }\n";
    let creator =
        "    - { user: cron, tenant: acme, key: \"cron-key-0123456789ab\", may: [create] }\n";
    let app = TestApp::with(on, &(yaml("{ groups: [finance] }") + creator + server)).await;
    let one = stream(&app.approver(), "").await;
    assert_eq!(app.approver().get("/v1/events").await.status, 429);
    drop(one);
    assert_eq!(app.anonymous().get("/v1/events").await.status, 401);
    let creates = app.actor("cron-key-0123456789ab").get("/v1/events").await;
    creates.assert_code(403, "forbidden");
    app.stop().await;
}
