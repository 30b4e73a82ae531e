//! Tests messages that Slack or Teams refuses, and processes that die while they post.

use std::time::Duration;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::{BOT, GATHERS, HOOK, TEAMS, answer, of, rooms, until_any};
use crate::api::approval_cycle::on_both;
use crate::notify::{BEYOND_RETRIES, micros, was_tried};
use crate::support::fake_slack::{CHANNEL, TOKEN};
use crate::support::test_app::{BOB, On};

fn problem(delivery: &Value) -> (&Value, &Value) {
    (&delivery["state"], &delivery["last"]["problem"])
}

#[apply(on_both)]
async fn error_of_slack_is_a_failure_although_its_status_is_200(on: On) {
    for (error, state, said) in [
        (
            "not_in_channel",
            "due",
            "the bot is not a member of the channel",
        ),
        ("invalid_auth", "due", "Slack does not accept the token"),
        (
            "msg_too_long",
            "dead",
            "Slack does not accept a message like this",
        ),
    ] {
        let entry = BOT.replace(" }, tenants", ", summaries: true }, tenants");
        let (fixture, slack) = rooms(on, &entry).await;
        slack.fails("chat.postMessage", error);
        fixture.app.held().await;
        let found = fixture.until_tried(1).await;
        assert_eq!(problem(&found[0]), (&json!(state), &json!(said)));
        assert_eq!(found[0]["last"]["http_status"], 200);
        slack.mend();
        fixture.advance(BEYOND_RETRIES);
        if state == "due" {
            slack.until(|all| all.len() == 1).await;
        } else {
            fixture.counted(&[("dead", 1)]).await;
            assert_eq!(fixture.server.count(), 1);
        }
    }
}

#[apply(on_both)]
async fn room_that_asks_to_wait_is_waited_for(on: On) {
    for entry in [BOT, HOOK, TEAMS] {
        let (fixture, _slack) = rooms(on, entry).await;
        fixture
            .server
            .answers_by(|_| (429, vec![("retry-after", "600".to_owned())]));
        fixture.app.held().await;
        let found = fixture
            .until(|found| found.len() == 1 && found[0]["last"]["http_status"] == 429)
            .await;
        let wait = micros(&found[0], "/due_at") - micros(&found[0], "/last/at");
        assert!((600_000_000..=720_000_000).contains(&wait), "{wait}");
        assert_eq!(found[0]["attempts"], 1);
    }
}

#[apply(on_both)]
async fn redirect_of_a_room_is_a_failure_and_not_followed(on: On) {
    for (entry, status) in [(BOT, 307), (HOOK, 302), (TEAMS, 308)] {
        let (fixture, _slack) = rooms(on, entry).await;
        let other = format!("{}/other", fixture.server.url);
        fixture
            .server
            .answers_by(move |_| (status, vec![("location", other.clone())]));
        fixture.app.held().await;
        let found = fixture.until_tried(1).await;
        assert_eq!(
            problem(&found[0]),
            (&json!("due"), &json!("a redirect is not followed"))
        );
        let all = fixture.server.all();
        assert!(all.iter().all(|call| call.path != "/other"));
    }
}

#[apply(on_both)]
async fn answer_of_slack_is_read_to_16_kib_and_no_further(on: On) {
    for (before, problem_told) in [
        (1024, ""),
        (16 * 1024, "the answer is not one of Slack's API"),
    ] {
        let (fixture, _slack) = rooms(on, BOT).await;
        fixture.server.replies(move |_| {
            let body = json!({"a": "x".repeat(before), "ok": true, "ts": "1700000000.000001"});
            axum::response::IntoResponse::into_response(body.to_string())
        });
        fixture.app.held().await;
        let found = fixture.until_tried(1).await;
        assert_eq!(
            found[0]["last"]["problem"].as_str().unwrap_or(""),
            problem_told
        );
    }
}

#[apply(on_both)]
async fn room_of_another_tenant_gets_no_question_that_waited_for_it(on: On) {
    for entry in [BOT, HOOK, TEAMS, GATHERS] {
        let (mut fixture, _slack) = rooms(on, entry).await;
        fixture.server.answers(500);
        fixture.app.held().await;
        fixture.until_tried(1).await;
        fixture.replace("tenants: [acme]", "tenants: [other]").await;
        let before = fixture.server.count();
        fixture.server.answers(200);
        fixture.advance(BEYOND_RETRIES);
        let found = fixture.counted(&[("dropped", 1)]).await;
        assert_eq!(
            (problem(&found[0]).1, fixture.server.count()),
            (
                &json!("the request no longer waits for this recipient"),
                before
            )
        );
    }
}

#[apply(on_both)]
async fn status_of_a_room_ends_the_attempts_only_if_it_is_410(on: On) {
    let gone = ("dead", "the receiver no longer wants this message");
    let failed = ("due", "no 2xx");
    let cases = [
        (BOT, 410, gone),
        (HOOK, 410, gone),
        (TEAMS, 410, gone),
        (HOOK, 404, failed),
        (TEAMS, 400, failed),
    ];
    for (entry, status, (state, said)) in cases {
        let (fixture, _slack) = rooms(on, entry).await;
        fixture.server.answers(status);
        fixture.app.held().await;
        let found = fixture.until_tried(1).await;
        assert_eq!(problem(&found[0]), (&json!(state), &json!(said)));
    }
}

#[apply(on_both)]
async fn change_that_fails_is_tried_again_after_a_restart_and_nothing_is_posted_twice(on: On) {
    let (mut fixture, slack) = rooms(on, BOT).await;
    let held = fixture.app.held().await;
    slack.until(|all| all.len() == 1).await;
    fixture.counted(&[("sent", 1)]).await;
    slack.fails("chat.update", "fatal_error");
    answer(&fixture, BOB, &held, "approve").await;
    let found = until_any(&fixture, "request.decided", was_tried).await;
    assert_eq!(
        problem(of(&found, "request.decided")[0]),
        (&json!("due"), &json!("Slack had an error of its own"))
    );
    fixture.app.restart().await;
    slack.mend();
    fixture.advance(BEYOND_RETRIES);
    fixture.counted(&[("sent", 2), ("due", 0)]).await;
    assert!(slack.message().text().starts_with("Approved by bob, "));
}

#[apply(on_both)]
async fn change_that_waits_is_dropped_once_the_room_of_its_entry_cannot_change_messages(on: On) {
    for room in [
        "teams: { url: \"{hook}/teams\" }",
        "slack: { url: \"{hook}/hook\" }",
    ] {
        let (mut fixture, slack) = rooms(on, GATHERS).await;
        let held = fixture.app.held().await;
        fixture.counted(&[("sent", 1)]).await;
        slack.fails("chat.update", "fatal_error");
        answer(&fixture, BOB, &held, "approve").await;
        until_any(&fixture, "request.decided", was_tried).await;
        let url = &fixture.server.url;
        let bot =
            format!("slack: {{ token: \"{TOKEN}\", channel: {CHANNEL}, api_url: \"{url}/api\" }}");
        let room = room.replace("{hook}", url);
        fixture.replace(&bot, &room).await;
        let before = fixture.server.count();
        fixture.advance(Duration::from_hours(25));
        let found = fixture
            .counted(&[("sent", 1), ("dropped", 1), ("due", 0)])
            .await;
        let said = "the entry's settings no longer select this message";
        assert_eq!(
            (
                problem(of(&found, "request.decided")[0]).1,
                fixture.server.count()
            ),
            (&json!(said), before),
            "{room}"
        );
    }
}

#[apply(on_both)]
async fn change_that_waits_is_dropped_once_its_entry_is_for_another_tenant(on: On) {
    let (mut fixture, slack) = rooms(on, BOT).await;
    let held = fixture.app.held().await;
    fixture.counted(&[("sent", 1)]).await;
    slack.fails("chat.update", "fatal_error");
    answer(&fixture, BOB, &held, "approve").await;
    until_any(&fixture, "request.decided", was_tried).await;
    fixture.replace("tenants: [acme]", "tenants: [other]").await;
    slack.mend();
    let before = fixture.server.count();
    fixture.advance(BEYOND_RETRIES);
    let found = fixture
        .counted(&[("sent", 1), ("dropped", 1), ("due", 0)])
        .await;
    let said = "the entry's settings no longer select this message";
    assert_eq!(
        (
            problem(of(&found, "request.decided")[0]).1,
            fixture.server.count()
        ),
        (&json!(said), before)
    );
}

#[apply(on_both)]
async fn message_that_was_deleted_in_slack_is_changed_no_more(on: On) {
    let (fixture, slack) = rooms(on, BOT).await;
    let held = fixture.app.held().await;
    fixture.counted(&[("sent", 1)]).await;
    slack.clear();
    answer(&fixture, BOB, &held, "approve").await;
    let found = fixture.counted(&[("dropped", 1), ("due", 0)]).await;
    assert_eq!(
        problem(of(&found, "request.decided")[0]).1,
        "the message was deleted in Slack"
    );
    assert_eq!(slack.messages().len(), 0);
}

#[apply(on_both)]
async fn message_whose_answer_is_lost_is_posted_again(on: On) {
    let (fixture, _slack) = rooms(on, BOT).await;
    fixture.server.close();
    fixture.app.held().await;
    fixture.server.reached(1).await;
    fixture.advance(Duration::from_secs(16));
    fixture.until(|found| found[0]["attempts"] == 1).await;
    fixture.server.open();
    fixture.advance(Duration::from_secs(7));
    fixture.counted(&[("sent", 1), ("due", 0)]).await;
    let all = fixture.server.all();
    assert_eq!((all.len(), &all[0].body), (2, &all[1].body));
}
