//! Tests whose rights a session has, how long it lasts, and what ends it.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use macro_rules_attribute::apply;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::super::approval_cycle::on_both;
use super::{browser, cookie, program};
use crate::support::test_app::{ALICE, BOB, OPS, OTHER, On, TestApp, WEB};

async fn sessions(app: &TestApp) -> Vec<String> {
    let sql = "select token_sha256 from browser_session";
    app.database.texts(sql).await
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
            refused.about(&name).assert_code(403, "forbidden");
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
    let create = program(&app, &ops).create_task("x").await;
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
    page.about(&"the page offers the sign-in again")
        .assert_has(r#"name="key""#);
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
    let fields = [("key", "wrong-key-0123456789")];
    let wrong = program(&app, &first).submit("/sign-in", &fields).await;
    assert_eq!(
        (
            wrong.status,
            program(&app, &first).get("/v1/me").await.status
        ),
        (401, 200)
    );
    let again = program(&app, &first)
        .submit("/sign-in", &[("key", BOB)])
        .await;
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
        program(&app, &cookie).approve(&held.request).await.status,
        404
    );
    assert_eq!(
        program(&app, &cookie).get("/v1/me").await.str("/tenant"),
        "other"
    );
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
