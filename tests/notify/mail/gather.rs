//! Tests that the questions of one interval are gathered into one mail, whose size is limited.

use std::collections::BTreeSet;

use futures_util::stream::{self, StreamExt as _};
use holdpoint::store::Store;
use holdpoint::task::request::RequestKind;
use macro_rules_attribute::apply;

use super::{BOB, BOB_ONLY, MINUTE, Post, with_links};
use crate::api::approval_cycle::on_both;
use crate::notify::store_question;
use crate::store::store_fixture::{finance, request_spec};
use crate::support::test_app::On;

/// Returns how many questions the HTML body of a mail lists.
fn listed(mail: &crate::support::fake_mail_server::Mail) -> usize {
    mail.html.matches("/resume/").count()
}

/// Stores `count` questions that members of finance may decide. Writes 64 questions at a time.
async fn ask(store: &Store, count: usize) {
    let question = || request_spec(RequestKind::Approval, finance(1), 1);
    let commit = |_| store_question(store, question());
    let commits = stream::iter(0..count).map(commit);
    commits.buffer_unordered(64).collect::<Vec<()>>().await;
}

async fn listed_as(post: &Post, state: &str, count: usize) {
    let sql = format!("select cast(count(*) as text) from delivery where state = '{state}'");
    while post.app.database.texts(&sql).await != [count.to_string()] {
        crate::support::pause().await;
    }
}

#[apply(on_both)]
async fn thousand_questions_of_a_minute_are_two_mails_of_fifty_kilobytes_at_most(on: On) {
    let post = Post::start(on, BOB_ONLY).await;
    post.app.held().await;
    listed_as(&post, "sent", 1).await;
    ask(post.app.store(), 999).await;
    listed_as(&post, "due", 999).await;
    post.advance(6 * MINUTE);
    listed_as(&post, "sent", 1000).await;
    let all = post.server.to(BOB);
    assert_eq!((all.len(), listed(&all[0]), listed(&all[1])), (2, 1, 20));
    assert_eq!(all[1].subject, "999 questions wait for you");
    for body in [&all[1].text, &all[1].html] {
        assert!(body.contains("and 979 more"), "{body}");
    }
    let sizes: Vec<_> = all.iter().map(|mail| mail.raw.len()).collect();
    assert!(sizes.iter().all(|size| *size <= 50_000), "{sizes:?}");
}

#[apply(on_both)]
async fn mail_that_omits_questions_leads_only_a_person_with_a_key_to_the_inbox(on: On) {
    let entry = BOB_ONLY.replace("[bob]", "[bob, dora]");
    let post = Post::with(on, &entry, |yaml| with_links(&yaml)).await;
    post.app.held().await;
    listed_as(&post, "sent", 2).await;
    ask(post.app.store(), 21).await;
    listed_as(&post, "due", 42).await;
    post.advance(6 * MINUTE);
    listed_as(&post, "sent", 44).await;
    // dora has no key.
    for (address, has_inbox) in [(BOB, true), ("dora@acme.com", false)] {
        let mail = post.server.to(address).pop().unwrap();
        for body in [&mail.text, &mail.html] {
            assert!(body.contains("and 1 more"), "{body}");
            assert_eq!(body.contains("/inbox"), has_inbox, "{body}");
        }
    }
}

#[apply(on_both)]
async fn many_questions_of_a_minute_are_two_mails(on: On) {
    let post = Post::start(on, BOB_ONLY).await;
    // The first mail lists at least one and at most nine of the 31 questions. So more than 20
    // questions wait for the second mail.
    for _ in 0..9 {
        post.app.held().await;
    }
    let first = &post.server.reached(1).await[0];
    let early = listed(first);
    for _ in 9..30 {
        post.app.held().await;
    }
    post.until(|found| found.iter().filter(|one| one["state"] == "sent").count() == early)
        .await;
    post.advance(4 * MINUTE);
    // This question waits for the end of the interval.
    post.app.held().await;
    assert_eq!(post.server.all().len(), 1);
    // The second mail takes the deliveries that are stored when it is sent, so the test waits
    // until all are stored.
    post.counted(&[("sent", early), ("due", 31 - early)]).await;
    post.advance(2 * MINUTE);
    let found = post.counted(&[("sent", 31), ("due", 0)]).await;
    assert_eq!(found.len(), 31);
    let all = post.server.to(BOB);
    assert_eq!((all.len(), listed(&all[1])), (2, 20));
    let count = 31 - early;
    assert_eq!(all[1].subject, format!("{count} questions wait for you"));
    assert!(all[1].text.contains(&format!("and {} more", count - 20)));
    assert!(all[1].raw.len() <= 50_000, "{}", all[1].raw.len());
}

#[apply(on_both)]
async fn without_gathering_each_question_is_a_mail(on: On) {
    let post = Post::start(on, &BOB_ONLY.replace("tenants", "gather: 0s, tenants")).await;
    for _ in 0..3 {
        post.app.held().await;
    }
    post.counted(&[("sent", 3), ("due", 0)]).await;
    let all = post.server.all();
    let ids: BTreeSet<_> = all.iter().map(|mail| mail.id.clone()).collect();
    assert_eq!((all.len(), ids.len()), (3, 3));
}

#[apply(on_both)]
async fn question_that_is_closed_or_answered_meanwhile_is_left_out(on: On) {
    let post = Post::start(on, BOB_ONLY).await;
    post.app.held().await;
    post.counted(&[("sent", 1)]).await;
    let answered = post.app.held().await;
    let open = post.app.held().await;
    post.counted(&[("due", 2)]).await;
    post.reject(&answered.request, crate::support::test_app::BOB)
        .await;
    post.advance(6 * MINUTE);
    post.counted(&[("sent", 2), ("dropped", 1), ("due", 0)])
        .await;
    let all = post.server.all();
    assert_eq!(all.len(), 2);
    assert!(all[1].text.contains(&open.request) && !all[1].text.contains(&answered.request));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_at_two_replicas_are_one_mail_in_an_interval() {
    let post = Post::start(On::Postgres, BOB_ONLY).await;
    let other = post.app.replica().await;
    for _ in 0..10 {
        post.app.held().await;
    }
    post.until(|found| found.iter().any(|one| one["state"] == "sent"))
        .await;
    // Waits until each of the ten questions has a delivery, and each delivery is either sent
    // already, or due only after the time at which the mail was sent.
    post.until(|found| {
        let told_at = found.iter().filter_map(|one| one["ended_at"].as_str());
        let told_at = told_at.max();
        let waits =
            |one: &serde_json::Value| one["state"] == "due" && one["due_at"].as_str() > told_at;
        found.len() == 10 && found.iter().all(|one| one["state"] == "sent" || waits(one))
    })
    .await;
    assert_eq!(post.server.all().len(), 1);
    other.stop().await;
}
