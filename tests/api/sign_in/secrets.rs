//! Tests that the service takes a key only from a form or header, and shows or stores no secret.

use std::path::Path;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use macro_rules_attribute::apply;
use sha2::{Digest as _, Sha256};

use super::super::approval_cycle::on_both;
use super::{HTML, cookie, post, program};
use crate::support::test_app::{ALICE, On, TestApp};

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
    posted.assert_header(422, "set-cookie", "");
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
            refused.assert_header(422, "set-cookie", "");
            refused.assert_has("no such member");
            refused.assert_lacks(ALICE);
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
