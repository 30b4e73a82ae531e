//! Tests which cookie a sign-in sets, and when the service accepts a cookie.

use macro_rules_attribute::apply;

use super::super::approval_cycle::on_both;
use super::{HTML, browser, cookie, encoded, enter, post, program};
use crate::support::fake_chat_completions::text_answer;
use crate::support::test_app::{ALICE, BOB, On, TestApp, WEB, refunds};

/// Starts the service with this `public_url`. Members of `finance` decide the requests.
async fn at(on: On, public_url: &str) -> TestApp {
    let server = format!("\nserver: {{ public_url: \"{public_url}\" }}\n");
    TestApp::with(on, &(refunds("{ groups: [finance] }") + &server)).await
}

#[apply(on_both)]
async fn cookie_and_links_follow_the_public_url(on: On) {
    let app = at(on, "https://hold.example/base/").await;
    let held = app.held().await;
    let next = format!("/base/resume/{}", held.request);
    let asked = app
        .anonymous()
        .header("accept", HTML)
        .request(&held.request)
        .await;
    assert_eq!(
        asked.header("location"),
        format!("/base/sign-in?next={next}")
    );
    let page = app
        .anonymous()
        .get(&format!("/sign-in?next={}", encoded(&next)))
        .await;
    page.assert_has(r#"action="/base/sign-in""#);
    page.assert_has(&format!(r#"value="{next}""#));
    let own_page = app.anonymous().header("origin", "https://hold.example");
    let entered = enter(&own_page, BOB, &next).await;
    entered.assert_header(303, "location", &next);
    let set = entered.header("set-cookie");
    assert!(set.starts_with("__Secure-holdpoint_session="), "{set}");
    assert!(
        set.ends_with("; Path=/base; Max-Age=43200; HttpOnly; SameSite=Lax; Secure"),
        "{set}"
    );
    let elsewhere = enter(&app.anonymous(), BOB, "/neighbour").await;
    assert_eq!(
        elsewhere.header("location"),
        "/base/inbox",
        "the neighbour behind the proxy is not ours"
    );
    let cookie = entered.cookie();
    let home = browser(&app, &cookie).get("/sign-in").await;
    home.assert_has(r#"action="/base/sign-out""#);
    let left = browser(&app, &cookie).hit("/sign-out").await;
    assert_eq!(left.header("location"), "/base/sign-in");
    assert_eq!(
        left.header("set-cookie"),
        "__Secure-holdpoint_session=; Path=/base; Max-Age=0; HttpOnly; SameSite=Lax; Secure"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn session_over_https_takes_only_a_cookie_of_this_host(on: On) {
    let app = at(on, "https://hold.example").await;
    let own_page = app.anonymous().header("origin", "https://hold.example");
    let entered = own_page.submit("/sign-in", &[("key", BOB)]).await;
    let set = entered.header("set-cookie");
    assert!(set.starts_with("__Host-holdpoint_session="), "{set}");
    assert!(
        set.ends_with("; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure"),
        "{set}"
    );
    let cookie = set.split(';').next().unwrap();
    assert_eq!(
        program(&app, cookie).get("/v1/me").await.str("/user_id"),
        "bob"
    );
    // Another host of the same domain can set a cookie without the prefix `__Host-`. Such a
    // cookie does not sign in, and does not hide the real cookie.
    let plain = cookie.strip_prefix("__Host-").unwrap();
    assert_eq!(program(&app, plain).get("/v1/me").await.status, 401);
    assert_eq!(
        program(&app, &format!("{plain}; {cookie}"))
            .get("/v1/me")
            .await
            .str("/user_id"),
        "bob"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn key_in_the_request_takes_precedence_over_the_cookie(on: On) {
    let app = TestApp::start(on).await;
    let cookie = cookie(&app, ALICE).await;
    assert_eq!(
        program(&app, &cookie).get("/v1/me").await.str("/user_id"),
        "alice"
    );
    let both = app.actor(BOB).header("cookie", &cookie);
    assert_eq!(both.get("/v1/me").await.str("/user_id"), "bob");
    for wrong in ["Bearer wrong-key-0123456789", "Bearer ", "Basic YTpi", ""] {
        let actor = program(&app, &cookie).header("authorization", wrong);
        let refused = actor.get("/v1/me").await;
        refused
            .about(&format_args!("{wrong:?}"))
            .assert_header(401, "www-authenticate", "Bearer");
        let page = browser(&app, &cookie)
            .header("authorization", wrong)
            .get("/v1/me")
            .await;
        assert_eq!(
            page.status, 401,
            "a browser's wrong key is 401, too: {wrong:?}"
        );
    }
    let speaks = app
        .actor(WEB)
        .header("holdpoint-user", "zoe")
        .header("cookie", &cookie)
        .get("/v1/me")
        .await;
    assert_eq!(
        speaks.str("/user_id"),
        "zoe",
        "the header belongs to the key that beats the cookie"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn foreign_page_can_do_nothing_with_a_session_cookie(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let cookie = cookie(&app, ALICE).await;
    let approve = format!("/resume/{}/approve", held.request);
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://127.0.0.1:1"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        for path in [approve.as_str(), "/v1/tasks", "/sign-out", "/sign-in"] {
            let form = if path == "/sign-in" {
                format!("key={BOB}")
            } else {
                String::new()
            };
            let refused = post(&browser(&app, &cookie).header(name, value), path, &form).await;
            refused
                .about(&format_args!("{path} {name}: {value}"))
                .assert_header(403, "set-cookie", "");
        }
    }
    assert!(app.tool.ledger().is_empty());
    assert_eq!(
        program(&app, &cookie).get("/v1/me").await.status,
        200,
        "the session still holds"
    );
    app.model.then(text_answer("ok"));
    let own = browser(&app, &cookie)
        .header("origin", &app.url())
        .header("sec-fetch-site", "same-origin");
    assert_eq!(post(&own, &approve, "").await.status, 303);
    app.stop().await;
}
