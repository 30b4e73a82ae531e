//! Tests mails that the server refuses, loses or does not answer.

use std::time::Duration;

use macro_rules_attribute::apply;

use super::{ALICE, BOB, BOB_ONLY, BY_MAIL, MINUTE, Post, yaml};
use crate::api::approval_cycle::on_both;
use crate::notify::{BACKEND, BEYOND_RETRIES, NEW};
use crate::support::fake_mail_server::{FakeMailServer, MailBehaviour};
use crate::support::fake_receiver::FakeReceiver;
use crate::support::test_app::{On, TestApp};

/// An entry for a room, which has the same name as the mail entry. No service listens at the port.
const ROOM: &str = "    - { name: by-mail, slack: { url: \"http://127.0.0.1:9/hook\" }, tenants: [acme], gather: 0s }";

/// Returns [`BOB_ONLY`] without gathering: each question is sent in a mail of its own.
pub(super) fn single() -> String {
    BOB_ONLY.replace("tenants", "gather: 0s, tenants")
}

/// Returns a webhook entry with the name of the mail entry. The entry sends questions and their
/// answers.
fn webhook(url: &str) -> String {
    BACKEND
        .replace("name: backend", "name: by-mail")
        .replace(
            "tenants: [acme]",
            "tenants: [acme], events: [request.created, request.decided]",
        )
        .replace("{hook}", url)
        .replace("{new}", NEW)
}

#[apply(on_both)]
async fn refusal_for_now_is_tried_again_and_a_final_one_is_not(on: On) {
    let post = Post::start(on, &single()).await;
    post.server.then(MailBehaviour::Refuse(451));
    post.app.held().await;
    let found = post.until_tried(1).await;
    assert_eq!(
        (&found[0]["state"], &found[0]["last"]["problem"]),
        (
            &"due".into(),
            &"the mail server asks to try again later (4xx)".into()
        )
    );
    post.server.then(MailBehaviour::Refuse(550));
    post.advance(BEYOND_RETRIES);
    let found = post.counted(&[("dead", 1)]).await;
    assert!(found[0]["attempts"].as_i64() >= Some(2), "{}", found[0]);
    assert_eq!(
        found[0]["last"]["problem"],
        "the mail server refuses the mail (5xx)"
    );
    assert_eq!(post.server.all().len(), 0);
}

#[apply(on_both)]
async fn refusal_is_final_although_the_server_then_stays_silent(on: On) {
    let post = Post::start(on, &single()).await;
    post.server.then(MailBehaviour::RefuseAndHang(550));
    post.app.held().await;
    let found = post.counted(&[("dead", 1)]).await;
    assert_eq!(
        (&found[0]["attempts"], &found[0]["last"]["problem"]),
        (&1.into(), &"the mail server refuses the mail (5xx)".into())
    );
}

#[apply(on_both)]
async fn mail_that_is_refused_for_good_is_sent_without_its_summaries(on: On) {
    let entry = BOB_ONLY.replace("[bob] } }", "[bob] }, summaries: true }");
    let post = Post::start(on, &entry).await;
    post.app.held().await;
    post.counted(&[("sent", 1)]).await;
    post.server.then(MailBehaviour::RefuseText("Refund 120"));
    post.app.held().await;
    post.app.held().await;
    post.counted(&[("due", 2)]).await;
    post.advance(6 * MINUTE);
    let found = post.counted(&[("sent", 3)]).await;
    assert!(found.iter().all(|one| one["attempts"] == 1), "{found:?}");
    let all = post.server.to(BOB);
    assert_eq!(all.len(), 2);
    assert!(all[0].text.contains("Refund 120"), "{}", all[0].text);
    assert_eq!(all[1].subject, "2 questions wait for you");
}

#[apply(on_both)]
async fn server_without_a_known_sign_in_is_named_as_the_problem(on: On) {
    let sign_in = |yaml: String| {
        yaml.replace(
            ", from: \"Holdpoint",
            ", user: holdpoint, password: mail-canary, from: \"Holdpoint",
        )
    };
    let post = Post::with(on, &single(), sign_in).await;
    post.server.then(MailBehaviour::OfferCramMd5);
    post.app.held().await;
    let found = post.until_tried(1).await;
    assert_eq!(
        found[0]["last"]["problem"],
        "the mail server offers no sign-in that the service can use (PLAIN, LOGIN)"
    );
    assert!(
        post.server
            .heard()
            .iter()
            .all(|line| !line.starts_with("AUTH"))
    );
}

#[apply(on_both)]
async fn waiting_mail_of_a_person_whom_the_entry_no_longer_includes_is_dropped(on: On) {
    let mut post = Post::start(on, BOB_ONLY).await;
    post.server.then(MailBehaviour::Refuse(451));
    post.app.held().await;
    post.until_tried(1).await;
    post.replace("users: [bob]", "users: [alice]").await;
    post.server.then(MailBehaviour::Take);
    post.advance(BEYOND_RETRIES);
    post.counted(&[("dropped", 1)]).await;
    assert_eq!(post.server.all().len(), 0);
}

#[apply(on_both)]
async fn question_that_waits_for_a_room_is_dropped_once_its_entry_mails_people(on: On) {
    let mut post = Post::start(on, ROOM).await;
    post.app.held().await;
    post.until_tried(1).await;
    post.replace(ROOM, &single()).await;
    post.advance(BEYOND_RETRIES);
    let found = post.counted(&[("dropped", 1), ("due", 0)]).await;
    assert_eq!(
        found[0]["last"]["problem"],
        "the entry's settings no longer select this message"
    );
    assert_eq!(post.server.all().len(), 0);
}

#[apply(on_both)]
async fn answer_that_waits_for_a_webhook_is_dropped_once_its_entry_mails_people(on: On) {
    let webhook = webhook("http://127.0.0.1:9");
    let mut post = Post::start(on, &webhook).await;
    let held = post.app.held().await;
    post.reject(&held.request, crate::support::test_app::BOB)
        .await;
    post.until(|found| found.len() == 2 && found.iter().all(|one| !one["last"].is_null()))
        .await;
    post.replace(&webhook, BOB_ONLY).await;
    // The delivery of the answer is dropped only after a day. Until then, another replica may
    // still have an entry that sends the answer.
    post.advance(Duration::from_hours(25));
    let found = post.counted(&[("dropped", 2), ("due", 0)]).await;
    for dropped in found {
        assert_eq!(
            dropped["last"]["problem"],
            "the entry's settings no longer select this message"
        );
    }
    assert_eq!(post.server.all().len(), 0);
}

#[apply(on_both)]
async fn question_that_waits_for_people_is_dropped_once_its_entry_is_a_webhook(on: On) {
    let hook = FakeReceiver::start().await;
    let webhook = webhook(&hook.url);
    let mut post = Post::start(on, BY_MAIL).await;
    post.server.then(MailBehaviour::Refuse(451));
    post.app.held().await;
    post.until(|found| found.len() == 2 && found.iter().all(|one| !one["last"].is_null()))
        .await;
    post.replace(BY_MAIL, &webhook).await;
    post.advance(BEYOND_RETRIES);
    post.counted(&[("dropped", 2), ("due", 0)]).await;
    assert_eq!(hook.count(), 0);
}

#[apply(on_both)]
async fn mail_whose_end_is_unknown_is_sent_again_under_its_id(on: On) {
    let post = Post::start(on, &single()).await;
    post.server.then(MailBehaviour::Cut);
    post.app.held().await;
    post.until_tried(1).await;
    post.server.then(MailBehaviour::Take);
    post.advance(BEYOND_RETRIES);
    post.counted(&[("sent", 1)]).await;
    let all = post.server.all();
    assert!(all.len() >= 2 && all.iter().all(|mail| mail.id == all[0].id));
}

#[apply(on_both)]
async fn server_that_hangs_after_data_costs_twenty_seconds_and_no_slot(on: On) {
    let post = Post::start(on, &single()).await;
    post.server.then(MailBehaviour::Hang);
    post.app.held().await;
    post.server.reached(1).await;
    post.server.then(MailBehaviour::Take);
    post.advance(Duration::from_secs(21));
    let found = post.until(|found| found[0]["attempts"] == 1).await;
    let last = &found[0]["last"];
    assert_eq!(last["problem"], "the mail server did not answer in time");
    assert!(last["milliseconds"].as_i64() >= Some(20_000), "{last}");
    post.advance(Duration::from_secs(7));
    post.counted(&[("sent", 1)]).await;
    let all = post.server.all();
    assert_eq!((all.len(), &all[0].id), (2, &all[1].id));
    // Four mails take every slot of the entry.
    post.server.then(MailBehaviour::Hang);
    for _ in 0..4 {
        post.app.held().await;
    }
    post.server.reached(6).await;
    post.server.then(MailBehaviour::Take);
    let last = post.app.held().await;
    post.advance(Duration::from_secs(21));
    post.until(|found| {
        let mut found = found.iter();
        found.any(|one| one["request_id"] == last.request && one["state"] == "sent")
    })
    .await;
}

#[apply(on_both)]
async fn person_who_lost_the_right_or_the_address_is_sent_nothing(on: On) {
    let over = "the request no longer waits for this recipient";
    let unreached = "no mail reaches this person any more";
    let key = "groups: [finance], key: \"bob-key";
    for (lost, left, problem) in [
        (key, "groups: [support], key: \"bob-key", over),
        (", email: bob@acme.com", "", unreached),
    ] {
        let mut post = Post::start(on, BY_MAIL).await;
        post.server.then(MailBehaviour::Refuse(451));
        post.app.held().await;
        post.until_tried(2).await;
        post.replace(lost, left).await;
        post.server.then(MailBehaviour::Take);
        post.advance(BEYOND_RETRIES);
        let found = post.counted(&[("sent", 1), ("dropped", 1)]).await;
        let dropped = found.iter().find(|one| one["state"] == "dropped").unwrap();
        assert_eq!(
            (&dropped["person"], &dropped["last"]["problem"]),
            (&"bob".into(), &problem.into())
        );
        assert_eq!(post.server.to(ALICE).len(), 1);
        assert_eq!(post.server.to(BOB).len(), 0);
    }
}

#[apply(on_both)]
async fn gathered_mail_that_failed_is_sent_once_the_server_is_back(on: On) {
    let post = Post::start(on, BOB_ONLY).await;
    post.server.then(MailBehaviour::Refuse(451));
    post.app.held().await;
    post.until_tried(1).await;
    post.server.then(MailBehaviour::Take);
    post.advance(BEYOND_RETRIES);
    post.counted(&[("sent", 1)]).await;
    assert_eq!(post.server.all().len(), 1);
}

/// The first byte of a TLS record that belongs to a handshake (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;

/// Sends a mail to a server whose host does not count as loopback. Returns the problem of the first
/// attempt. Asserts that the server received nothing of the mail.
async fn problem_off_loopback(server: &FakeMailServer) -> String {
    // The service does not treat `0.0.0.0` as a loopback address, but a connection to it reaches
    // this machine.
    let yaml = yaml(BOB_ONLY, "0.0.0.0", server);
    let app = TestApp::with(On::Sqlite, &yaml).await;
    app.held().await;
    let problem = loop {
        let path = "/v1/deliveries";
        let reply = app.actor(crate::support::test_app::OPS).get(path).await;
        let last = reply.body["deliveries"][0]["last"]["problem"].clone();
        if let Some(problem) = last.as_str() {
            break problem.to_owned();
        }
        crate::support::pause().await;
    };
    for line in server.heard() {
        let words = ["EHLO", "QUIT", "STARTTLS"];
        assert!(words.iter().any(|word| line.starts_with(word)), "{line:?}");
    }
    let secured = server.after_starttls();
    assert!(
        matches!(secured.first(), None | Some(&HANDSHAKE)),
        "{secured:?}"
    );
    assert_eq!(server.all().len(), 0);
    problem
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_tls_nothing_is_said_off_loopback() {
    let server = FakeMailServer::start().await;
    let not_offered = "the mail server does not offer STARTTLS, so nothing was sent";
    assert_eq!(problem_off_loopback(&server).await, not_offered);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_from_before_tls_breaks_the_handshake_and_counts_for_nothing() {
    let server = FakeMailServer::start().await;
    server.offer_tls();
    // The server sends plain text right after its answer to STARTTLS, and never takes part in the
    // TLS handshake. A correct client reads the plain text as a part of the handshake, which then
    // fails. A client that kept the plain text would wait without end.
    let no_tls = "no secure connection could be made (TLS)";
    assert_eq!(problem_off_loopback(&server).await, no_tls);
}
