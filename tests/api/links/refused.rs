//! Tests of refused links. Forged links, damaged links, and links whose person has lost the right
//! to decide all get the same 404. Expired and revoked links all get the same 410. The response to
//! a GET is a page, whatever the client accepts, as for a valid link.

use std::time::Duration;

use macro_rules_attribute::apply;
use reqwest::Method;

use super::super::approval_cycle::on_both;
use super::{answer, linked, page, page_in, press, press_from, yaml};
use crate::support::fake_chat_completions::text_answer;
use crate::support::has_word;
use crate::support::links::{LinkSpec, OTHER_KEY, SEALING_KEY, link, link_spec};
use crate::support::test_app::{On, Reply, TestApp};
use crate::support::test_clock::TestClock;

/// Returns the text of a page without the id of its HTTP request.
fn masked(reply: &Reply) -> String {
    reply.text.replace(reply.header("x-request-id"), "ID")
}

/// Returns damaged forms of a link's path: for each position of the token, the path with another
/// character at this position; and every shorter path.
fn spoiled(path: &str) -> Vec<String> {
    let start = "/l/".len();
    let mut paths = Vec::new();
    for place in start..path.len() {
        let mut bytes = path.as_bytes().to_vec();
        bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
        paths.push(String::from_utf8(bytes).unwrap());
    }
    paths.extend((start + 1..path.len()).map(|end| path[..end].to_owned()));
    paths
}

#[apply(on_both)]
async fn link_that_is_not_good_gets_the_same_404(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    let nowhere = uuid::Uuid::from_u128(7).to_string();
    let made = |tenant, user, key, request| {
        LinkSpec {
            tenant,
            user,
            key,
            ..link_spec("", request)
        }
        .path()
    };
    let (key, request) = (SEALING_KEY, held.request.as_str());
    let good = link("dora", request);
    let mut bad = vec![
        "/l/x".to_owned(),
        format!("{good}A"),
        format!("{good}%41"),
        good.replace("k1.", "k2."),
        made("acme", "dora", OTHER_KEY, request),
        made("other", "mallory", key, request),
        made("other", "dora", key, request),
        made("acme", "zoe", key, request),
        made("acme", "fred", key, request),
        made("acme", "dora", key, &nowhere),
    ];
    bad.extend(spoiled(&good));
    let digest = held.digest();
    let fields = [("digest", digest), ("action", "approve")];
    for language in ["en", "zh"] {
        let expected = page_in(&app, "/l/nothing", language).await.text;
        for path in &bad {
            let reply = page_in(&app, path, language).await;
            assert_eq!((reply.status, &reply.text), (404, &expected), "{path}");
        }
    }
    let expected = press(&app, "/l/nothing", &fields).await.text;
    for path in &bad {
        let reply = press(&app, path, &fields).await;
        assert_eq!((reply.status, &reply.text), (404, &expected), "{path}");
    }
    assert_eq!(app.tool.ledger().len(), 0);
    assert_eq!(page(&app, &good).await.status, 200);
    app.stop().await;
}

#[apply(on_both)]
async fn link_is_answered_with_its_page_whatever_is_accepted(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    let good = link("dora", &held.request);
    let nothing = page(&app, "/l/nothing").await.text;
    for accept in [
        "*/*",
        "application/json",
        "text/html;q=0",
        "text/event-stream",
    ] {
        let reader = || app.anonymous().header("accept", accept);
        let shown = reader().get(&good).await;
        shown
            .about(&accept)
            .assert_header(200, "content-type", "text/html; charset=utf-8");
        for path in [
            "/l/x".to_owned(),
            good.replace("k1.", "k2."),
            good[..good.len() - 9].to_owned(),
        ] {
            let answer = reader().get(&path).await;
            assert_eq!(
                (answer.status, &answer.text),
                (404, &nothing),
                "{accept} {path}"
            );
            assert_eq!(
                answer.header("content-type"),
                "text/html; charset=utf-8",
                "{accept} {path}"
            );
        }
        let looked_at = reader().send(Method::HEAD, "/l/x", None).await;
        looked_at
            .about(&accept)
            .assert_header(404, "content-type", "text/html; charset=utf-8");
    }
    // A POST gets a page only if `Accept` names `text/html`, as in a POST of a browser's form.
    // This POST does not, so it gets JSON.
    app.anonymous()
        .header("origin", &app.url())
        .hit("/l/x")
        .await
        .assert_code(404, "not_found");
    app.stop().await;
}

#[apply(on_both)]
async fn link_ends_with_its_person_and_their_group(on: On) {
    let mut app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    let path = link("dora", &held.request);
    let nothing = page(&app, "/l/nothing").await.text;
    for (kept, lost) in [
        ("user: dora,", "user: dorothy,"),
        (
            "tenant: acme, groups: [finance], email: dora@",
            "tenant: acme, groups: [sales], email: dora@",
        ),
        ("notify: { links: { may: decide } }", "notify: {}"),
    ] {
        assert_eq!(page(&app, &path).await.status, 200, "{kept}");
        app.restart_with(|yaml| yaml.replace(kept, lost)).await;
        let reply = page(&app, &path).await;
        assert_eq!((reply.status, &reply.text), (404, &nothing), "{lost}");
        app.restart_with(|yaml| yaml.replace(lost, kept)).await;
    }
    app.stop().await;
}

#[apply(on_both)]
async fn link_that_is_over_says_nothing_of_its_request(on: On) {
    let clock = TestClock::new();
    let mut app = TestApp::timed(on, &yaml("{ groups: [finance] }"), clock.clone()).await;
    let (first, second) = (app.held().await, app.held().await);
    let short = |request| {
        LinkSpec {
            life: Duration::from_mins(1),
            ..link_spec("dora", request)
        }
        .path()
    };
    let paths = [short(&first.request), short(&second.request)];
    assert_eq!(page(&app, &paths[0]).await.status, 200);
    clock.advance(Duration::from_mins(2));
    for (language, words) in [("en", "This link is over."), ("zh", "此链接已失效。")] {
        let replies = [
            page_in(&app, &paths[0], language).await,
            page_in(&app, &paths[1], language).await,
        ];
        assert_eq!(replies[0].status, 410);
        assert!(replies[0].text.contains(words), "{}", replies[0].text);
        assert_eq!(replies[0].text, replies[1].text);
        for word in [first.request.as_str(), "dora", "refund", "billing"] {
            assert!(!replies[0].text.contains(word), "{word}");
        }
        assert!(!has_word(&replies[0].text, "120"), "{}", replies[0].text);
    }
    let digest = first.digest();
    let reply = press(
        &app,
        &paths[0],
        &[("digest", digest), ("action", "approve")],
    )
    .await;
    assert_eq!(reply.status, 410);
    let reply = app.anonymous().get(&paths[0]).await;
    reply.assert_header(410, "content-type", "text/html; charset=utf-8");
    // A link that was made before the time `not_before` no longer works.
    let path = link("dora", &first.request);
    assert_eq!(page(&app, &path).await.status, 200);
    app.restart_with(|yaml| {
        yaml.replace(
            "may: decide",
            "may: decide, not_before: 2999-01-01T00:00:00Z",
        )
    })
    .await;
    assert_eq!(page(&app, &path).await.status, 410);
    assert_eq!(app.tool.ledger().len(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn post_needs_our_origin_the_digest_and_a_form(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    let path = link("dora", &held.request);
    let digest = held.digest();
    let fields = [("digest", digest), ("action", "approve")];
    for origin in ["", "null", "https://evil.example", "http://127.0.0.1:1"] {
        let reply = press_from(&app, &path, &fields, origin).await;
        assert_eq!(reply.status, 403, "{origin}: {}", reply.text);
        let names_none = reply.text.contains("The request has no `Origin`.");
        assert_eq!(names_none, origin.is_empty(), "{origin}: {}", reply.text);
        let nothing = press_from(&app, "/l/nothing", &fields, origin).await;
        assert_eq!(
            masked(&reply).replace(&path, ""),
            masked(&nothing).replace("/l/nothing", ""),
            "{origin}"
        );
    }
    for (fields, status) in [
        (&[("action", "approve")][..], 422),
        (&[("digest", ""), ("action", "approve")], 422),
        (&[("digest", "sha256:0"), ("action", "approve")], 412),
        (&[("digest", digest)], 422),
        (&[("digest", digest), ("action", "retry")], 422),
    ] {
        let reply = press(&app, &path, fields).await;
        assert_eq!(reply.status, status, "{fields:?}: {}", reply.text);
    }
    let ours = app.anonymous().header("origin", &app.url());
    let json = serde_json::json!({"action": "approve", "digest": digest});
    assert_eq!(ours.post(&path, &json).await.status, 415);
    assert_eq!(ours.hit(&path).await.status, 415);
    assert_eq!(app.tool.ledger().len(), 0);
    app.model.then(text_answer("done"));
    assert_eq!(answer(&app, &path, "approve", &[]).await.status, 303);
    app.stop().await;
}

#[apply(on_both)]
async fn post_from_a_page_of_a_cors_origin_decides_nothing(on: On) {
    let origin = "https://app.example";
    let cors = format!("\nserver: {{ cors_origins: [\"{origin}\"] }}\n");
    let app = TestApp::with(on, &(yaml("{ groups: [finance] }") + &cors)).await;
    let held = app.held().await;
    let path = link("dora", &held.request);
    let digest = held.digest();
    let reply = press_from(
        &app,
        &path,
        &[("digest", digest), ("action", "approve")],
        origin,
    )
    .await;
    assert_eq!(reply.status, 403, "{}", reply.text);
    assert_eq!(app.tool.ledger().len(), 0);
    app.model.then(text_answer("done"));
    assert_eq!(answer(&app, &path, "approve", &[]).await.status, 303);
    app.stop().await;
}
