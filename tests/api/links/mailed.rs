//! Tests of links as the service mails them. Other tests seal their links themselves, without the
//! deadline of a request.

use macro_rules_attribute::apply;

use super::super::approval_cycle::on_both;
use super::super::request_kinds::items;
use super::{digest, ended, page, page_in, press};
use crate::notify::mail::{BY_MAIL, HOUR, MINUTE, Post, with_links};
use crate::support::fake_chat_completions::text_answer;
use crate::support::links::{OTHER_KEY, SEALING_KEY};
use crate::support::test_app::{Held, On};

/// Starts a service and a held task, and waits for the mails to the request's approvers. Returns
/// also the path of the link in the mail to dora, who has no key. The request's deadline is in 24
/// hours, the end of the link in 72 hours.
async fn mailed(on: On) -> (Post, Held, String) {
    let post = Post::with(on, BY_MAIL, |yaml| with_links(&yaml)).await;
    let held = post.app.held().await;
    post.counted(&[("sent", 3), ("due", 0)]).await;
    let mails = post.server.to("dora@acme.com");
    let (_, rest) = mails[0].text.split_once("/l/").unwrap();
    let token = rest.split_whitespace().next().unwrap();
    (post, held, format!("/l/{token}"))
}

#[apply(on_both)]
async fn mailed_link_shows_the_expired_request_until_its_own_end_and_decides_nothing(on: On) {
    let (post, held, path) = mailed(on).await;
    let app = &post.app;
    let open = page(app, &path).await;
    open.assert_has("For dora (dora@acme.com).");
    open.assert_has("This question can be answered until");
    let digest = digest(&open);
    app.model.then(text_answer("done"));
    post.advance(24 * HOUR + MINUTE);
    ended(app, &held.task, "Completed").await;
    for (language, words) in [("en", "No answer came in time"), ("zh", "逾期无人答复")] {
        let shown = page_in(app, &path, language).await;
        assert_eq!(shown.status, 200, "{}", shown.text);
        shown.assert_has(words);
        shown.assert_lacks("<form");
    }
    let before = items(app, &held.task).await;
    for action in ["approve", "reject"] {
        let late = press(app, &path, &[("digest", &digest), ("action", action)]).await;
        assert_eq!(late.status, 410, "{action}: {}", late.text);
        late.assert_has("The request has expired");
        late.assert_has(&format!("href=\"{path}\""));
    }
    assert_eq!(items(app, &held.task).await, before);
    assert_eq!(app.tool.ledger().len(), 0);
    post.advance(47 * HOUR);
    let shown = page(app, &path).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    post.advance(HOUR);
    let over = page(app, &path).await;
    assert_eq!(over.status, 410, "{}", over.text);
    over.assert_has("This link is over.");
    over.assert_lacks("No answer came in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mailed_link_of_an_expired_request_ends_with_not_before_its_key_and_its_person() {
    let (mut post, held, path) = mailed(On::Sqlite).await;
    post.app.model.then(text_answer("done"));
    post.advance(24 * HOUR + MINUTE);
    ended(&post.app, &held.task, "Completed").await;
    let sealing_key = format!("id: k1, key: \"{SEALING_KEY}\"");
    let other_key = format!("id: k2, key: \"{OTHER_KEY}\"");
    let not_before = "may: decide, not_before: 2999-01-01T00:00:00Z";
    for (kept, lost, status) in [
        ("may: decide", not_before, 410),
        (sealing_key.as_str(), other_key.as_str(), 404),
        ("user: dora,", "user: dorothy,", 404),
    ] {
        assert_eq!(page(&post.app, &path).await.status, 200, "{kept}");
        post.replace(kept, lost).await;
        assert_eq!(page(&post.app, &path).await.status, status, "{lost}");
        post.replace(lost, kept).await;
    }
}
