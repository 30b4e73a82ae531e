//! Tests that a bot's messages are updated with the outcomes of the questions that they ask.

use std::time::Duration;

use macro_rules_attribute::apply;
use serde_json::json;

use super::{BOT, GATHERS, answer, of, rooms, until_any};
use crate::api::approval_cycle::on_both;
use crate::notify::BEYOND_RETRIES;
use crate::support::test_app::{ALICE, BOB, On};
use crate::support::until;

#[apply(on_both)]
async fn decided_message_is_updated_with_who_decided(on: On) {
    for (action, said) in [
        ("approve", "Approved by bob, "),
        ("reject", "Rejected by bob, "),
    ] {
        let (fixture, slack) = rooms(on, BOT).await;
        let held = fixture.app.held().await;
        slack.until(|all| all.len() == 1).await;
        answer(&fixture, BOB, &held, action).await;
        fixture.counted(&[("sent", 2), ("due", 0)]).await;
        let message = slack.message();
        assert!(
            message.text().starts_with(said) && message.text().ends_with(" UTC: refund (billing)"),
            "{}",
            message.text()
        );
        let says = message.last_body();
        assert!(
            !says.contains("/resume/") && !says.contains("Review"),
            "{says}"
        );
        assert_eq!(
            message.bodies.len(),
            2,
            "it is posted once and changed once"
        );
        let found = fixture.deliveries("").await;
        let changed = of(&found, "request.decided");
        assert_eq!(
            (changed.len(), &changed[0]["channel"], &changed[0]["state"]),
            (1, &json!("slack"), &json!("sent"))
        );
    }
}

#[apply(on_both)]
async fn message_of_a_question_that_is_withdrawn_says_so(on: On) {
    let (fixture, slack) = rooms(on, BOT).await;
    let held = fixture.app.held().await;
    slack.until(|all| all.len() == 1).await;
    let reply = fixture
        .app
        .owner()
        .hit(&format!("/v1/tasks/{}/cancel", held.task))
        .await;
    assert_eq!(reply.status, 200);
    slack
        .until(|all| all[0].text() == "Withdrawn: refund (billing)")
        .await;
    fixture.counted(&[("sent", 2), ("due", 0)]).await;
}

#[apply(on_both)]
async fn message_of_a_question_that_expires_says_so(on: On) {
    let (mut fixture, slack) = rooms(on, BOT).await;
    fixture
        .replace(
            "decide: hold, reason",
            "decide: hold, expires_in: 1h, reason",
        )
        .await;
    fixture.app.held().await;
    slack.until(|all| all.len() == 1).await;
    fixture.counted(&[("sent", 1)]).await;
    fixture.advance(Duration::from_mins(61));
    let all = slack.until(|all| all[0].bodies.len() == 2).await;
    assert!(all[0].text().starts_with("Expired, "), "{}", all[0].text());
}

#[apply(on_both)]
async fn gathered_message_shows_what_became_of_each_of_its_questions(on: On) {
    let (fixture, slack) = rooms(on, GATHERS).await;
    fixture.app.held().await;
    slack.until(|all| all.len() == 1).await;
    fixture.counted(&[("sent", 1)]).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(fixture.app.held().await);
    }
    fixture.counted(&[("due", 3)]).await;
    fixture.advance(Duration::from_secs(61));
    slack.until(|all| all.len() == 2).await;
    answer(&fixture, BOB, &held[1], "reject").await;
    let all = slack.until(|all| all[1].bodies.len() == 2).await;
    let says = all[1].last_body();
    assert_eq!(all[1].text(), "2 of 3 questions still wait");
    assert_eq!(says.matches("|Review>").count(), 2);
    assert_eq!(says.matches("/resume/").count(), 2);
    assert!(says.contains("Rejected by bob, "));
    for held in [&held[0], &held[2]] {
        answer(&fixture, BOB, held, "approve").await;
    }
    fixture.counted(&[("sent", 7), ("due", 0)]).await;
    let all = slack.messages();
    assert_eq!(all.len(), 2);
    assert_eq!(all[1].text(), "None of 3 questions waits any more");
    assert_eq!(all[1].last_body().matches("Approved by bob, ").count(), 2);
    assert_eq!(
        all[0].bodies.len(),
        1,
        "nothing became of the other message's question"
    );
}

#[apply(on_both)]
async fn change_is_sent_at_once_and_not_gathered(on: On) {
    let (fixture, slack) = rooms(on, GATHERS).await;
    let held = fixture.app.held().await;
    slack.until(|all| all.len() == 1).await;
    answer(&fixture, BOB, &held, "approve").await;
    slack.until(|all| all[0].bodies.len() == 2).await;
}

#[apply(on_both)]
async fn question_that_is_decided_before_its_message_goes_is_not_told_of(on: On) {
    let (fixture, slack) = rooms(on, BOT).await;
    slack.fails("chat.postMessage", "ratelimited");
    let held = fixture.app.held().await;
    fixture.until_tried(1).await;
    answer(&fixture, BOB, &held, "approve").await;
    slack.mend();
    until_any(&fixture, "request.decided", |one| one["state"] == "dropped").await;
    fixture.advance(BEYOND_RETRIES);
    fixture.counted(&[("dropped", 2), ("due", 0)]).await;
    assert_eq!(slack.messages().len(), 0);
}

#[apply(on_both)]
async fn message_that_is_being_posted_while_its_question_is_decided_is_updated_afterwards(on: On) {
    let (fixture, slack) = rooms(on, BOT).await;
    fixture.server.close();
    let held = fixture.app.held().await;
    fixture.server.reached(1).await;
    answer(&fixture, BOB, &held, "approve").await;
    // The service claims the update while the message is still being posted, and gives it back for a
    // second.
    let given_back =
        "delivery where type = 'request.decided' and lease_until is null and due_at > created_at";
    until("the update is given back", async || {
        fixture.app.database.row_counts(&[given_back]).await == "1"
    })
    .await;
    fixture.server.open();
    slack.until(|all| all.len() == 1).await;
    fixture
        .until(|found| of(found, "request.created")[0]["state"] == "sent")
        .await;
    fixture.advance(Duration::from_secs(2));
    let all = slack.until(|all| all[0].bodies.len() == 2).await;
    assert!(all[0].text().starts_with("Approved by bob, "));
    fixture.counted(&[("sent", 2), ("due", 0)]).await;
}

#[apply(on_both)]
async fn older_change_that_arrives_last_leaves_the_newest_words(on: On) {
    let (fixture, slack) = rooms(on, GATHERS).await;
    fixture.app.held().await;
    fixture.counted(&[("sent", 1)]).await;
    let held = [fixture.app.held().await, fixture.app.held().await];
    fixture.counted(&[("due", 2)]).await;
    fixture.advance(Duration::from_secs(61));
    slack.until(|all| all.len() == 2).await;
    fixture.counted(&[("sent", 3)]).await;
    let before = fixture.server.count();
    let older = "1 of 2 questions still wait";
    fixture
        .server
        .close_to(move |message| message.body["text"] == older);
    answer(&fixture, BOB, &held[0], "approve").await;
    fixture.server.reached(before + 1).await;
    answer(&fixture, BOB, &held[1], "approve").await;
    let newest = "None of 2 questions waits any more";
    slack.until(|all| all[1].text() == newest).await;
    fixture.server.open();
    fixture.counted(&[("sent", 5), ("due", 0)]).await;
    let message = &slack.messages()[1];
    let said: Vec<_> = message
        .bodies
        .iter()
        .map(|body| body["text"].as_str().unwrap())
        .collect();
    assert_eq!(said, ["2 questions wait", newest, older, newest]);
}

#[apply(on_both)]
async fn message_is_kept_for_changes_while_its_question_is_open(on: On) {
    let (mut fixture, slack) = rooms(on, BOT).await;
    fixture
        .replace(
            "decide: hold, reason",
            "decide: hold, expires_in: 30d, reason",
        )
        .await;
    let held = fixture.app.held().await;
    fixture.counted(&[("sent", 1)]).await;
    fixture.advance(Duration::from_hours(20 * 24));
    fixture.app.restart().await;
    fixture.advance(Duration::from_mins(2));
    fixture.counted(&[("sent", 1)]).await;
    answer(&fixture, BOB, &held, "approve").await;
    slack.until(|all| all[0].bodies.len() == 2).await;
    // A delivery is kept for a fixed time after it is recorded as sent. So the test first waits
    // until the update of the message is recorded as sent.
    fixture.counted(&[("sent", 2), ("due", 0)]).await;
    fixture.advance(Duration::from_hours(5 * 24));
    fixture.counted(&[("sent", 0), ("due", 0)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_of_a_question_that_needs_two_approvals_counts_them() {
    let two = "{ groups: [finance], owner: true, required: 2 }";
    let (mut fixture, slack) = rooms(On::Sqlite, BOT).await;
    let one = "{ owner: true, groups: [finance] }";
    fixture.replace(one, two).await;
    let held = fixture.app.held().await;
    fixture.counted(&[("sent", 1)]).await;
    answer(&fixture, ALICE, &held, "approve").await;
    let all = slack.until(|all| all[0].bodies.len() == 2).await;
    let says = all[0].last_body();
    assert!(
        says.contains("1 of 2 have approved") && says.contains("|Review>"),
        "{says}"
    );
    answer(&fixture, BOB, &held, "approve").await;
    let all = slack.until(|all| all[0].bodies.len() == 3).await;
    assert!(all[0].text().starts_with("Approved by bob, "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reminder_of_a_bot_is_changed_like_any_message() {
    let entry = BOT.replace("gather: 0s", "when: { after: 2h }");
    let (fixture, slack) = rooms(On::Sqlite, &entry).await;
    let early = fixture.app.held().await;
    answer(&fixture, BOB, &early, "approve").await;
    let held = fixture.app.held().await;
    fixture.advance(Duration::from_hours(3));
    let all = slack.until(|all| all.len() == 1).await;
    assert_eq!(all[0].text(), "A question still waits: refund (billing)");
    until_any(&fixture, "request.waiting", |one| one["state"] == "sent").await;
    answer(&fixture, BOB, &held, "reject").await;
    let all = slack.until(|all| all[0].bodies.len() == 2).await;
    assert!(all[0].text().starts_with("Rejected by bob, "));
    fixture.counted(&[("due", 0)]).await;
    assert_eq!(slack.messages().len(), 1);
}
