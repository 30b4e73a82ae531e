//! Tests of the sign-in of a browser. A key opens a session, which has the key's current rights and
//! ends when the key is removed.

mod cookies;
mod secrets;
mod session_rights;

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use macro_rules_attribute::apply;
use reqwest::Method;

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::text_answer;
use crate::support::test_app::{ALICE, Actor, BOB, On, Reply, TestApp};

const FORM: &str = "application/x-www-form-urlencoded";
const HTML: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

async fn post(actor: &Actor<'_>, path: &str, form: &str) -> Reply {
    actor
        .send(Method::POST, path, Some((FORM, form.to_owned())))
        .await
}

/// Signs in with this key, on a form that leads to `next`.
async fn enter(actor: &Actor<'_>, key: &str, next: &str) -> Reply {
    let fields = [("key", key), ("next", next)];
    actor.submit("/sign-in", &fields).await
}

/// Signs in with this key. Returns the cookie that the sign-in sets, as a browser sends it back.
async fn cookie(app: &TestApp, key: &str) -> String {
    let entered = post(&app.anonymous(), "/sign-in", &format!("key={key}")).await;
    entered.assert_header(303, "location", "/inbox");
    entered.cookie()
}

fn browser<'a>(app: &'a TestApp, cookie: &str) -> Actor<'a> {
    app.anonymous()
        .header("cookie", cookie)
        .header("accept", HTML)
}

fn program<'a>(app: &'a TestApp, cookie: &str) -> Actor<'a> {
    app.anonymous().header("cookie", cookie)
}

/// Starts a service with an open request that Bob may decide. Returns the service, and the path of
/// the request's page.
async fn with_request(on: On) -> (TestApp, String) {
    let app = TestApp::with_finance(on).await;
    let path = format!("/resume/{}", app.held().await.request);
    (app, path)
}

/// Returns a browser that is not signed in and posts a form from a page of the service.
fn own_page(app: &TestApp) -> Actor<'_> {
    let browser = app.anonymous().header("accept", HTML);
    browser.header("origin", &app.url())
}

#[apply(on_both)]
async fn browser_without_a_session_is_led_to_the_form_of_the_sign_in(on: On) {
    let (app, path) = with_request(on).await;
    let asked = app.anonymous().header("accept", HTML).get(&path).await;
    let way_in = format!("/sign-in?next={path}");
    assert_eq!(
        (asked.status, asked.header("location"), asked.text.as_str()),
        (303, way_in.as_str(), "")
    );
    let page = app.anonymous().header("accept", HTML).get(&way_in).await;
    assert_eq!(page.status, 200, "{}", page.text);
    assert!(
        page.text
            .contains(&format!(r#"name="next" value="{path}""#)),
        "{}",
        page.text
    );
    assert!(page.text.contains(r#"action="/sign-in""#) && page.text.contains(r#"type="password""#));
    assert_eq!(
        (page.header("cache-control"), page.header("referrer-policy")),
        ("no-store", "same-origin")
    );
    assert_eq!(page.header("x-frame-options"), "DENY");
    assert!(
        page.header("content-security-policy")
            .contains("form-action 'self'")
    );
    app.stop().await;
}

#[apply(on_both)]
async fn sign_in_with_an_unknown_key_is_refused_and_offered_again(on: On) {
    let (app, path) = with_request(on).await;
    let wrong = enter(&own_page(&app), "wrong-key-0123456789", &path).await;
    wrong.assert_header(401, "www-authenticate", "Bearer");
    wrong.assert_has("This key is unknown");
    wrong.assert_has(&format!(r#"value="{path}""#));
    assert!(!wrong.text.contains("wrong-key-0123456789") && wrong.header("set-cookie").is_empty());
    app.stop().await;
}

#[apply(on_both)]
async fn sign_in_sets_a_cookie_of_32_bytes_and_leads_back(on: On) {
    let (app, path) = with_request(on).await;
    let entered = enter(&own_page(&app), BOB, &path).await;
    entered.assert_header(303, "location", &path);
    let set = entered.header("set-cookie");
    let token = set
        .strip_prefix("holdpoint_session=")
        .and_then(|rest| rest.split(';').next())
        .unwrap();
    assert_eq!(
        BASE64_URL_SAFE_NO_PAD.decode(token).unwrap().len(),
        32,
        "{set}"
    );
    assert!(
        set.ends_with("; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax"),
        "{set}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn person_with_a_browser_signs_in_decides_and_signs_out(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    let path = format!("/resume/{}", held.request);
    let cookie = cookie(&app, BOB).await;
    let shown = browser(&app, &cookie).get(&path).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    shown.assert_has("Refund 120 for order 17");
    assert_eq!(
        program(&app, &cookie).get("/v1/me").await.str("/user_id"),
        "bob"
    );
    assert_eq!(
        program(&app, &cookie)
            .get("/v1/requests")
            .await
            .count("requests"),
        1
    );
    let home = browser(&app, &cookie).get("/sign-in").await;
    home.assert_has("bob");
    home.assert_has(r#"action="/sign-out""#);

    app.model.then(text_answer("ok"));
    let own = browser(&app, &cookie).header("origin", &app.url());
    let fields = [("digest", held.digest())];
    let decided = own.submit(&format!("{path}/approve"), &fields).await;
    decided.assert_header(303, "location", &path);
    app.tool.reached(1).await;
    let answered = app.approver().get(&path).await;
    assert_eq!(
        ["/decision/by", "/decision/door"].map(|member| answered.str(member)),
        ["bob", "session"]
    );

    let left = own.submit("/sign-out", &[]).await;
    left.assert_header(303, "location", "/sign-in");
    assert_eq!(
        left.header("set-cookie"),
        "holdpoint_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"
    );
    assert_eq!(
        program(&app, &cookie).get("/v1/me").await.status,
        401,
        "the token is worth nothing any more"
    );
    assert_eq!(browser(&app, &cookie).get(&path).await.status, 303);
    assert_eq!(
        program(&app, &cookie).hit("/sign-out").await.status,
        303,
        "a signed-out session may sign out again"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn sign_in_redirects_only_to_a_path_of_this_service(on: On) {
    let app = TestApp::start(on).await;
    for next in [
        "https://evil.example",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "\\/evil.example",
        "https:evil.example",
        "javascript:alert(1)",
        "data:text/html,x",
        "/\t/evil.example",
        "/\n/evil.example",
        " //evil.example",
        "/x\r\nset-cookie: a=b",
        "/..//evil.example",
        "/%2e%2e//evil.example",
        "evil.example",
        "/\u{202e}",
        "?x",
        "",
    ] {
        for (name, value) in [("raw", next.to_owned()), ("encoded", encoded(next))] {
            if name == "raw"
                && !next
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && byte != b'%')
            {
                continue;
            }
            let page = app
                .anonymous()
                .get(&format!("/sign-in?next={}", encoded(next)))
                .await;
            assert!(
                page.status == 200 && !page.text.contains(r#"name="next""#),
                "{next:?}: {}",
                page.text
            );
            let entered = post(
                &app.anonymous(),
                "/sign-in",
                &format!("key={ALICE}&next={value}"),
            )
            .await;
            entered
                .about(&format_args!("{name} {next:?}"))
                .assert_header(303, "location", "/inbox");
            assert_eq!(entered.headers.get_all("set-cookie").iter().count(), 1);
        }
    }
    for next in ["/resume/x?a=b&c=//d", "/v1/me", "/"] {
        let entered = enter(&app.anonymous(), ALICE, next).await;
        assert_eq!(entered.header("location"), next);
    }
    let nul = enter(&app.anonymous(), ALICE, "/\0").await;
    nul.assert_header(422, "set-cookie", "");
    app.stop().await;
}

#[apply(on_both)]
async fn request_page_reveals_nothing_without_a_session(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    let dead = cookie(&app, ALICE).await;
    program(&app, &dead).hit("/sign-out").await;
    for rest in ["", "/approve", "/reject"] {
        let mut seen = BTreeSet::new();
        for id in [
            held.request.as_str(),
            &held.task,
            "019a4b2c-7000-7000-8000-000000000002",
            "7",
            "not-an-id",
        ] {
            let path = format!("/resume/{id}{rest}");
            for actor in [app.anonymous().header("accept", HTML), browser(&app, &dead)] {
                for method in [Method::GET, Method::HEAD] {
                    let reply = actor.send(method, &path, None).await;
                    assert_eq!((reply.status, reply.text.as_str()), (303, ""), "{path}");
                    assert_eq!(reply.header("location"), format!("/sign-in?next={path}"));
                    let mut headers: Vec<_> = reply
                        .headers
                        .iter()
                        .filter(|(name, _)| {
                            !["date", "x-request-id", "location"].contains(&name.as_str())
                        })
                        .collect();
                    headers.sort_by_key(|(name, _)| name.as_str());
                    seen.insert(format!("{headers:?}"));
                }
            }
            for actor in [
                app.anonymous(),
                program(&app, &dead),
                app.anonymous().header("accept", "application/json"),
            ] {
                let reply = actor.get(&path).await;
                reply
                    .about(&path)
                    .assert_header(401, "www-authenticate", "Bearer");
            }
            assert_eq!(browser(&app, &dead).hit(&path).await.status, 401);
        }
        assert_eq!(seen.len(), 1, "{seen:?}");
    }
    assert_eq!(
        app.anonymous()
            .header("accept", HTML)
            .get("/resume")
            .await
            .status,
        404,
        "an unknown path is no page"
    );
    app.stop().await;
}
