//! Tests of the sign-in of a browser. A key opens a session, which has the key's current rights and
//! ends when the key is removed.

use std::collections::BTreeSet;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::text_answer;
use crate::support::test_app::{ALICE, Actor, BOB, OPS, OTHER, On, Reply, TestApp, WEB, refunds};

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

/// Signs in with this key. Returns the cookie that the sign-in sets, as a browser sends it back.
async fn cookie(app: &TestApp, key: &str) -> String {
    let entered = post(&app.anonymous(), "/sign-in", &format!("key={key}")).await;
    assert_eq!(
        (entered.status, entered.header("location")),
        (303, "/inbox"),
        "{}",
        entered.text
    );
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

/// Starts the service with this `public_url`. Members of `finance` decide.
async fn at(on: On, public_url: &str) -> TestApp {
    let server = format!("\nserver: {{ public_url: \"{public_url}\" }}\n");
    TestApp::with(on, &(refunds("{ groups: [finance] }") + &server)).await
}

async fn sessions(app: &TestApp) -> Vec<String> {
    let sql = "select token_sha256 from browser_session";
    app.database.texts(sql).await
}

/// Returns everything that is stored: every row of every Postgres table, or every byte of the
/// SQLite files.
async fn everything(app: &TestApp) -> Vec<u8> {
    if let Some(file) = app.database.url().strip_prefix("sqlite://") {
        let folder = Path::new(file).parent().unwrap();
        let files = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        return files
            .flat_map(|file| std::fs::read(file).unwrap())
            .collect();
    }
    let tables = "select tablename::text from pg_tables where schemaname = 'public'";
    let mut all = String::new();
    for table in app.database.texts(tables).await {
        let rows = format!("select row_to_json(t)::text from {table} t");
        all += &app.database.texts(&rows).await.concat();
    }
    all.into_bytes()
}

fn holds(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[apply(on_both)]
async fn person_with_a_browser_signs_in_decides_and_signs_out(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    let path = format!("/resume/{}", held.request);
    let asked = app.anonymous().header("accept", HTML).get(&path).await;
    let way_in = format!("/sign-in?next={}", encoded(&path));
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

    let ours = || {
        app.anonymous()
            .header("accept", HTML)
            .header("origin", &app.url())
    };
    let wrong = post(
        &ours(),
        "/sign-in",
        &format!("key=wrong-key-0123456789&next={}", encoded(&path)),
    )
    .await;
    assert_eq!(
        (wrong.status, wrong.header("www-authenticate")),
        (401, "Bearer"),
        "{}",
        wrong.text
    );
    assert!(
        wrong.text.contains("This key is unknown")
            && wrong.text.contains(&format!(r#"value="{path}""#))
    );
    assert!(!wrong.text.contains("wrong-key-0123456789") && wrong.header("set-cookie").is_empty());

    let entered = post(
        &ours(),
        "/sign-in",
        &format!("key={BOB}&next={}", encoded(&path)),
    )
    .await;
    assert_eq!(
        (entered.status, entered.header("location")),
        (303, path.as_str()),
        "{}",
        entered.text
    );
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
    let cookie = set.split(';').next().unwrap();

    let shown = browser(&app, cookie).get(&path).await;
    assert!(
        shown.status == 200 && shown.text.contains("Refund 120 for order 17"),
        "{}",
        shown.text
    );
    assert_eq!(
        program(&app, cookie).get("/v1/me").await.str("/user_id"),
        "bob"
    );
    assert_eq!(
        program(&app, cookie).get("/v1/requests").await.body["requests"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let home = browser(&app, cookie).get("/sign-in").await;
    assert!(
        home.text.contains("bob") && home.text.contains(r#"action="/sign-out""#),
        "{}",
        home.text
    );

    app.model.then(text_answer("ok"));
    let digest = encoded(held.body["pending"][0]["digest"].as_str().unwrap());
    let decided = post(
        &browser(&app, cookie).header("origin", &app.url()),
        &format!("{path}/approve"),
        &format!("digest={digest}"),
    )
    .await;
    assert_eq!(
        (decided.status, decided.header("location")),
        (303, path.as_str()),
        "{}",
        decided.text
    );
    app.tool.reached(1).await;
    let answered = app.approver().get(&path).await;
    assert_eq!(
        ["/decision/by", "/decision/door"].map(|member| answered.str(member)),
        ["bob", "session"]
    );

    let left = post(
        &browser(&app, cookie).header("origin", &app.url()),
        "/sign-out",
        "",
    )
    .await;
    assert_eq!(
        (left.status, left.header("location")),
        (303, "/sign-in"),
        "{}",
        left.text
    );
    assert_eq!(
        left.header("set-cookie"),
        "holdpoint_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"
    );
    assert_eq!(
        program(&app, cookie).get("/v1/me").await.status,
        401,
        "the token is worth nothing any more"
    );
    assert_eq!(browser(&app, cookie).get(&path).await.status, 303);
    assert_eq!(
        program(&app, cookie).hit("/sign-out").await.status,
        303,
        "a signed-out session may sign out again"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn cookie_and_links_follow_the_public_url(on: On) {
    let app = at(on, "https://hold.example/base/").await;
    let held = app.held().await;
    let next = format!("/base/resume/{}", held.request);
    let asked = app
        .anonymous()
        .header("accept", HTML)
        .get(&format!("/resume/{}", held.request))
        .await;
    assert_eq!(
        asked.header("location"),
        format!("/base/sign-in?next={}", encoded(&next))
    );
    let page = app
        .anonymous()
        .get(&format!("/sign-in?next={}", encoded(&next)))
        .await;
    assert!(
        page.text.contains(r#"action="/base/sign-in""#)
            && page.text.contains(&format!(r#"value="{next}""#)),
        "{}",
        page.text
    );
    let entered = post(
        &app.anonymous().header("origin", "https://hold.example"),
        "/sign-in",
        &format!("key={BOB}&next={}", encoded(&next)),
    )
    .await;
    assert_eq!(
        (entered.status, entered.header("location")),
        (303, next.as_str()),
        "{}",
        entered.text
    );
    let set = entered.header("set-cookie");
    assert!(set.starts_with("__Secure-holdpoint_session="), "{set}");
    assert!(
        set.ends_with("; Path=/base; Max-Age=43200; HttpOnly; SameSite=Lax; Secure"),
        "{set}"
    );
    let elsewhere = post(
        &app.anonymous(),
        "/sign-in",
        &format!("key={BOB}&next=%2Fneighbour"),
    )
    .await;
    assert_eq!(
        elsewhere.header("location"),
        "/base/inbox",
        "the neighbour behind the proxy is not ours"
    );
    let cookie = entered.cookie();
    let home = browser(&app, &cookie).get("/sign-in").await;
    assert!(
        home.text.contains(r#"action="/base/sign-out""#),
        "{}",
        home.text
    );
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
    let entered = post(
        &app.anonymous().header("origin", "https://hold.example"),
        "/sign-in",
        &format!("key={BOB}"),
    )
    .await;
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
            assert_eq!(
                (entered.status, entered.header("location")),
                (303, "/inbox"),
                "{name} {next:?}"
            );
            assert_eq!(entered.headers.get_all("set-cookie").iter().count(), 1);
        }
    }
    for next in ["/resume/x?a=b&c=//d", "/v1/me", "/"] {
        let entered = post(
            &app.anonymous(),
            "/sign-in",
            &format!("key={ALICE}&next={}", encoded(next)),
        )
        .await;
        assert_eq!(entered.header("location"), next);
    }
    let nul = post(
        &app.anonymous(),
        "/sign-in",
        &format!("key={ALICE}&next=%2F%00"),
    )
    .await;
    assert_eq!((nul.status, nul.header("set-cookie")), (422, ""));
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
        assert_eq!(
            (refused.status, refused.header("www-authenticate")),
            (401, "Bearer"),
            "{wrong:?}"
        );
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
async fn session_speaks_only_for_its_own_user(on: On) {
    let app = TestApp::start(on).await;
    for key in [ALICE, WEB] {
        let cookie = cookie(&app, key).await;
        for (name, value) in [
            ("holdpoint-user", "bob"),
            ("holdpoint-groups", "finance"),
            ("holdpoint-tenant", "other"),
        ] {
            let refused = program(&app, &cookie)
                .header(name, value)
                .get("/v1/me")
                .await;
            assert_eq!(
                (refused.status, refused.str("/code").as_str()),
                (403, "forbidden"),
                "{name}"
            );
        }
        assert_eq!(
            program(&app, &cookie).get("/v1/me").await.body["via"],
            Value::Null
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn session_has_the_current_rights_of_its_key_and_ends_with_it(on: On) {
    let mut app = TestApp::with_finance(on).await;
    let held = app.held().await;
    let (alice, bob, ops) = (
        cookie(&app, ALICE).await,
        cookie(&app, BOB).await,
        cookie(&app, OPS).await,
    );
    let create = program(&app, &ops)
        .post("/v1/tasks", &json!({"input": "x"}))
        .await;
    assert_eq!(create.status, 403, "{}", create.text);
    assert_eq!(program(&app, &ops).get("/v1/me").await.body["admin"], true);
    let path = format!("/resume/{}", held.request);
    assert_eq!(
        program(&app, &bob).get(&path).await.body["can_decide"],
        true
    );
    app.restart_with(|yaml| {
        yaml.replace(
            "groups: [finance], key: \"bob",
            "groups: [support], key: \"bob",
        )
        .replace(", admin: true", "")
    })
    .await;
    assert_eq!(
        program(&app, &bob).get("/v1/me").await.body["groups"],
        json!(["support"]),
        "it outlives the process"
    );
    assert_eq!(
        program(&app, &bob)
            .post(&format!("{path}/approve"), &json!({}))
            .await
            .status,
        403
    );
    assert_eq!(program(&app, &ops).get("/v1/me").await.body["admin"], false);
    app.restart_with(|yaml| yaml.replace(BOB, "another-key-01234567").replace(r#"    - { user: alice, tenant: acme, groups: [support], key: "alice-key-0123456789" }"#, "")).await;
    for cookie in [&alice, &bob] {
        assert_eq!(
            program(&app, cookie).get("/v1/me").await.status,
            401,
            "the key is gone"
        );
        assert_eq!(browser(&app, cookie).get(&path).await.status, 303);
        assert_eq!(
            program(&app, cookie)
                .post(&format!("{path}/approve"), &json!({}))
                .await
                .status,
            401
        );
    }
    assert_eq!(
        program(&app, &ops).get("/v1/me").await.status,
        200,
        "the others go on"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn session_expires_after_twelve_hours(on: On) {
    let app = TestApp::start(on).await;
    let cookie = cookie(&app, ALICE).await;
    // Moving `expires_at` back simulates that 11 hours and 59 minutes pass.
    app.database
        .execute("update browser_session set expires_at = expires_at - 43140000000")
        .await;
    assert_eq!(
        program(&app, &cookie).get("/v1/me").await.status,
        200,
        "a minute is left"
    );
    app.database
        .execute("update browser_session set expires_at = expires_at - 60000000")
        .await;
    assert_eq!(program(&app, &cookie).get("/v1/me").await.status, 401);
    let page = browser(&app, &cookie).get("/sign-in").await;
    assert!(
        page.text.contains(r#"name="key""#),
        "the page offers the sign-in again: {}",
        page.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn expired_sessions_are_removed_by_the_worker(on: On) {
    let mut app = TestApp::start(on).await;
    let (over, alive) = (cookie(&app, ALICE).await, cookie(&app, BOB).await);
    let digest = |cookie: &str| {
        BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(
            BASE64_URL_SAFE_NO_PAD.decode(&cookie[18..]).unwrap(),
        ))
    };
    app.database
        .execute(&format!(
            "update browser_session set expires_at = 1 where token_sha256 = '{}'",
            digest(&over)
        ))
        .await;
    app.restart().await;
    let is_removed = async || !sessions(&app).await.contains(&digest(&over));
    crate::support::until("the session is removed", is_removed).await;
    assert_eq!(sessions(&app).await, [digest(&alive)]);
    assert_eq!(program(&app, &alive).get("/v1/me").await.status, 200);
    app.stop().await;
}

#[apply(on_both)]
async fn new_sign_in_replaces_the_session(on: On) {
    let app = TestApp::start(on).await;
    let first = cookie(&app, ALICE).await;
    let wrong = post(
        &program(&app, &first),
        "/sign-in",
        "key=wrong-key-0123456789",
    )
    .await;
    assert_eq!(
        (
            wrong.status,
            program(&app, &first).get("/v1/me").await.status
        ),
        (401, 200)
    );
    let again = post(&program(&app, &first), "/sign-in", &format!("key={BOB}")).await;
    let second = again.cookie();
    assert_ne!(first, second);
    assert_eq!(program(&app, &first).get("/v1/me").await.status, 401);
    assert_eq!(
        program(&app, &second).get("/v1/me").await.str("/user_id"),
        "bob"
    );
    let both = format!("{first}; {second}");
    assert_eq!(
        program(&app, &both).get("/v1/me").await.status,
        401,
        "of two session cookies one is not ours"
    );
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
                    assert_eq!(
                        reply.header("location"),
                        format!("/sign-in?next={}", encoded(&path))
                    );
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
                assert_eq!(
                    (reply.status, reply.header("www-authenticate")),
                    (401, "Bearer"),
                    "{path}"
                );
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
            assert_eq!(
                (refused.status, refused.header("set-cookie")),
                (403, ""),
                "{path} {name}: {value}"
            );
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

#[apply(on_both)]
async fn session_of_another_tenant_finds_nothing(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    let cookie = cookie(&app, OTHER).await;
    for path in [
        format!("/resume/{}", held.request),
        format!("/v1/tasks/{}", held.task),
    ] {
        assert_eq!(program(&app, &cookie).get(&path).await.status, 404);
    }
    assert_eq!(
        program(&app, &cookie)
            .hit(&format!("/resume/{}/approve", held.request))
            .await
            .status,
        404
    );
    assert_eq!(
        program(&app, &cookie).get("/v1/me").await.str("/tenant"),
        "other"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn key_is_never_read_from_a_url(on: On) {
    let app = TestApp::start(on).await;
    let query = format!(
        "key={ALICE}&api_key={ALICE}&holdpoint_session={ALICE}&authorization=Bearer%20{ALICE}"
    );
    let page = app.anonymous().get(&format!("/sign-in?{query}")).await;
    assert!(
        page.status == 200 && page.header("set-cookie").is_empty() && !page.text.contains(ALICE),
        "{}",
        page.text
    );
    let posted = post(&app.anonymous(), &format!("/sign-in?{query}"), "").await;
    assert_eq!((posted.status, posted.header("set-cookie")), (422, ""));
    assert_eq!(
        app.anonymous().get(&format!("/v1/me?{query}")).await.status,
        401
    );
    app.stop().await;
}

#[apply(on_both)]
async fn key_posted_without_a_name_is_not_sent_back(on: On) {
    let app = TestApp::start(on).await;
    for actor in [app.anonymous(), app.anonymous().header("accept", HTML)] {
        for body in [
            ALICE.to_owned(),
            format!("key=wrong-key-0123456789&{ALICE}"),
        ] {
            let refused = post(&actor, "/sign-in", &body).await;
            assert_eq!(
                (refused.status, refused.header("set-cookie")),
                (422, ""),
                "{}",
                refused.text
            );
            assert!(
                refused.text.contains("no such member") && !refused.text.contains(ALICE),
                "{}",
                refused.text
            );
        }
    }
    app.stop().await;
}

#[apply(on_both)]
async fn stored_session_reveals_neither_its_key_nor_its_token(on: On) {
    let app = TestApp::start(on).await;
    let cookie = cookie(&app, ALICE).await;
    post(&app.anonymous(), "/sign-in", "key=wrong-key-0123456789").await;
    assert_eq!(program(&app, &cookie).get("/v1/me").await.status, 200);
    let token = cookie.strip_prefix("holdpoint_session=").unwrap();
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).unwrap();
    let key: [u8; 32] = Sha256::digest(ALICE).into();
    let all = everything(&app).await;
    let kept = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&bytes));
    assert!(
        holds(&all, kept.as_bytes()),
        "the session is there, under the hash of its token"
    );
    for secret in [ALICE, "wrong-key-0123456789", token] {
        assert!(!holds(&all, secret.as_bytes()), "{secret}");
    }
    for secret in [bytes.as_slice(), &key] {
        assert!(!holds(&all, secret));
        for text in [
            hex(secret),
            hex(secret).to_uppercase(),
            BASE64_URL_SAFE_NO_PAD.encode(secret),
            BASE64_STANDARD_NO_PAD.encode(secret),
        ] {
            assert!(!holds(&all, text.as_bytes()), "{text}");
        }
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_is_known_to_every_replica_and_ends_on_all_of_them() {
    let here = TestApp::start(On::Postgres).await;
    let there = here.replica().await;
    let cookie = cookie(&here, ALICE).await;
    assert_eq!(
        program(&there, &cookie).get("/v1/me").await.str("/user_id"),
        "alice"
    );
    assert_eq!(program(&there, &cookie).hit("/sign-out").await.status, 303);
    assert_eq!(program(&here, &cookie).get("/v1/me").await.status, 401);
    there.stop().await;
    here.stop().await;
}
