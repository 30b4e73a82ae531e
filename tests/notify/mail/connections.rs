//! Tests the connections to the mail server: mails that follow each other share them, and a
//! connection that is lost loses no mail.

use std::collections::BTreeSet;
use std::time::Duration;

use macro_rules_attribute::apply;
use serde_json::Value;

use super::delivery::single;
use super::{HOUR, Post};
use crate::api::approval_cycle::on_both;
use crate::notify::BEYOND_RETRIES;
use crate::support::fake_mail_server::{FakeMailServer, MailBehaviour};
use crate::support::test_app::On;

/// The number of mails that wait for their next attempt when a test begins.
const BATCH: usize = 10;
/// The maximum number of mails that an entry sends at once.
const SLOTS: usize = 4;
const LOST: &str = "the connection to the mail server was lost";

/// Starts a service with a batch of mails. The server has refused each of them for now.
async fn with_refused_batch(on: On) -> Post {
    let post = Post::start(on, &single()).await;
    post.server.then(MailBehaviour::Refuse(451));
    for _ in 0..BATCH {
        post.app.held().await;
    }
    post.until_tried(BATCH).await;
    post
}

/// Returns the number of lines with this command that the server has heard.
fn count(server: &FakeMailServer, command: &str) -> usize {
    let heard = server.heard();
    heard
        .iter()
        .filter(|line| line.starts_with(command))
        .count()
}

#[apply(on_both)]
async fn mails_that_follow_each_other_share_connections(on: On) {
    let post = with_refused_batch(on).await;
    post.server.then(MailBehaviour::Take);
    let before = count(&post.server, "EHLO");
    post.advance(BEYOND_RETRIES);
    post.counted(&[("sent", BATCH)]).await;
    assert_eq!(post.server.all().len(), BATCH);
    // On a slow machine, the service sends some mails before the clock advances. The advance makes
    // their connections idle for too long, so the service opens new ones for the other mails.
    let opened = count(&post.server, "EHLO") - before;
    assert!(opened <= 2 * SLOTS, "{opened} connections");
}

#[apply(on_both)]
async fn kept_connection_that_the_server_has_closed_costs_no_attempt(on: On) {
    let post = with_refused_batch(on).await;
    post.server.then(MailBehaviour::Close);
    post.advance(BEYOND_RETRIES);
    let found = post.counted(&[("sent", BATCH)]).await;
    let all = post.server.all();
    let ids: BTreeSet<_> = all.iter().map(|mail| &mail.id).collect();
    assert_eq!((all.len(), ids.len()), (BATCH, BATCH));
    // An attempt that failed on a closed connection would be counted, but the server would not hear
    // its `RCPT` command.
    let attempts = found.iter().map(|one| one["attempts"].as_u64().unwrap());
    let attempts = attempts.sum::<u64>();
    assert_eq!(
        usize::try_from(attempts).unwrap(),
        count(&post.server, "RCPT")
    );
}

#[apply(on_both)]
async fn mail_whose_kept_connection_is_lost_at_its_end_waits_for_its_next_attempt(on: On) {
    let post = with_refused_batch(on).await;
    post.server.then(MailBehaviour::CutSecond);
    post.advance(BEYOND_RETRIES);
    let is_lost = |one: &Value| one["last"]["problem"] == LOST;
    let mut mails = BATCH;
    loop {
        let are_all_sent = |found: &[Value]| found.iter().all(|one| one["state"] == "sent");
        let found = post.until(|found| {
            found.len() == mails && (found.iter().any(is_lost) || are_all_sent(found))
        });
        if found.await.iter().any(is_lost) {
            break;
        }
        // On a slow machine, each mail may have had a connection of its own.
        post.app.held().await;
        post.app.held().await;
        mails += 2;
    }
    // The clock must not advance while an attempt is in flight: its lease would be over.
    let in_flight = "select 'in flight' from delivery where state = 'due' and lease_until > due_at";
    let has_none = async || post.app.database.texts(in_flight).await.is_empty();
    crate::support::until("no attempt is in flight", has_none).await;
    post.server.then(MailBehaviour::Take);
    post.advance(20 * HOUR);
    post.counted(&[("sent", mails)]).await;
    let all = post.server.all();
    let ids: BTreeSet<_> = all.iter().map(|mail| &mail.id).collect();
    assert_eq!(ids.len(), mails, "a mail is lost");
    assert!(all.len() > mails, "no mail was sent again");
}

#[apply(on_both)]
async fn connection_without_mails_is_closed_after_five_seconds(on: On) {
    let post = Post::start(on, &single()).await;
    post.app.held().await;
    post.counted(&[("sent", 1)]).await;
    post.advance(Duration::from_secs(5));
    let is_closed = async || count(&post.server, "QUIT") == 1;
    crate::support::until("the connection is closed", is_closed).await;
    post.app.held().await;
    post.counted(&[("sent", 2)]).await;
    assert_eq!(count(&post.server, "EHLO"), 2);
}

#[apply(on_both)]
async fn service_that_stops_closes_its_connections(on: On) {
    let Post { app, server, .. } = Post::start(on, &single()).await;
    app.held().await;
    server.reached(1).await;
    app.stop().await;
    assert_eq!((count(&server, "EHLO"), count(&server, "QUIT")), (1, 1));
}
