//! Tests of the limit on wrong keys per minute, which is counted for each socket address. A right
//! key is always answered.

use std::time::Duration;

use macro_rules_attribute::apply;

use super::approval_cycle::on_both;
use crate::support::test_app::{ALICE, BOB, On, Reply, TestApp, refunds};
use crate::support::test_clock::TestClock;

async fn sign_in(app: &TestApp, key: &str, accept: &str) -> Reply {
    let browser = app.anonymous().header("accept", accept);
    browser.submit("/sign-in", &[("key", key)]).await
}

async fn try_key(app: &TestApp, number: u32) -> Reply {
    let key = format!("Bearer wrong-key-{number:010}");
    // Each attempt names a different forwarded address. The service must ignore that address and
    // count by socket address.
    let from = format!("198.51.100.{number}");
    app.anonymous()
        .header("authorization", &key)
        .header("x-forwarded-for", &from)
        .get("/v1/me")
        .await
}

#[apply(on_both)]
async fn eleventh_wrong_key_in_a_minute_is_429_and_a_right_key_is_answered(on: On) {
    let clock = TestClock::new();
    let yaml = refunds("{ owner: true }");
    let app = TestApp::timed(on, &yaml, clock.clone()).await;
    let entered = sign_in(&app, BOB, "text/html").await;
    let cookie = entered.cookie();
    for number in 0..5 {
        let wrong = try_key(&app, number).await;
        wrong.assert_code(401, "unauthorized");
        assert_eq!(
            sign_in(&app, "wrong-key-0123456789", "text/html")
                .await
                .status,
            401
        );
    }
    for number in 5..30 {
        let refused = try_key(&app, number).await;
        refused.assert_code(429, "too_many");
        let wait: u64 = refused.header("retry-after").parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
        let page = sign_in(&app, "wrong-key-0123456789", "text/html").await;
        assert!(
            page.status == 429 && page.header("content-type").starts_with("text/html"),
            "{}",
            page.text
        );
        assert!(!page.header("retry-after").is_empty() && page.header("set-cookie").is_empty());
    }
    // The limit does not apply to pages, or to HTTP requests with a right key, with a session,
    // or without a key.
    assert_eq!(app.actor(ALICE).get("/v1/me").await.status, 200);
    assert_eq!(
        app.anonymous()
            .header("cookie", &cookie)
            .get("/v1/me")
            .await
            .status,
        200
    );
    assert_eq!(sign_in(&app, BOB, "text/html").await.status, 303);
    assert_eq!(app.anonymous().get("/v1/me").await.status, 401);
    assert_eq!(
        app.anonymous().accept_html().get("/v1/me").await.status,
        303
    );
    assert_eq!(app.anonymous().get("/sign-in").await.status, 200);
    assert_eq!(
        app.anonymous()
            .header("authorization", "Basic YTpi")
            .hit("/sign-out")
            .await
            .status,
        429
    );
    clock.advance(Duration::from_mins(1));
    assert_eq!(try_key(&app, 99).await.status, 401);
    assert_eq!(
        sign_in(&app, "wrong-key-0123456789", "text/html")
            .await
            .status,
        401
    );
}

#[apply(on_both)]
async fn missing_and_right_keys_are_not_counted(on: On) {
    let clock = TestClock::new();
    let yaml = refunds("{ owner: true }");
    let app = TestApp::timed(on, &yaml, clock).await;
    for _ in 0..15 {
        assert_eq!(app.anonymous().get("/v1/me").await.status, 401);
        assert_eq!(
            app.anonymous()
                .header("cookie", "holdpoint_session=nonsense")
                .get("/v1/me")
                .await
                .status,
            401
        );
        assert_eq!(app.actor(ALICE).get("/v1/me").await.status, 200);
        assert_eq!(
            app.actor(ALICE)
                .header("holdpoint-user", "bob")
                .get("/v1/me")
                .await
                .status,
            403
        );
        assert_eq!(app.anonymous().get("/v1/nothing").await.status, 404);
    }
    assert_eq!(try_key(&app, 1).await.status, 401, "the first wrong one");
}
