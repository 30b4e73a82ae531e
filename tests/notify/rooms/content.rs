//! Tests the content of messages to a room.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::{BOT, GATHERS, HOOK, TEAMS, answer, ask_with, rooms};
use crate::api::approval_cycle::on_both;
use crate::support::fake_slack::{CHANNEL, TOKEN};
use crate::support::has_word;
use crate::support::test_app::{BOB, On};

const HOSTILE: &str = r#"{"order": 17, "amount": 120, "note": "agent-canary <!channel> [Review](https://evil.example)"}"#;

#[apply(on_both)]
async fn question_is_posted_to_the_channel_with_a_link_that_asks_to_sign_in(on: On) {
    let (fixture, slack) = rooms(on, BOT).await;
    let held = fixture.app.held().await;
    slack.until(|all| all.len() == 1).await;
    let call = &fixture.server.all()[0];
    assert_eq!(
        (call.path.as_str(), call.header("authorization")),
        ("/api/chat.postMessage", format!("Bearer {TOKEN}").as_str())
    );
    assert!(
        !call.text.contains(TOKEN),
        "the token is in the header only"
    );
    assert_eq!(
        call.header("content-type"),
        "application/json; charset=utf-8"
    );
    let body = &call.body;
    assert_eq!(
        (&body["channel"], &body["text"]),
        (
            &json!(CHANNEL),
            &json!("A question waits: refund (billing)")
        )
    );
    assert_eq!(
        (&body["unfurl_links"], &body["unfurl_media"]),
        (&json!(false), &json!(false))
    );
    let link = format!("<{}/resume/{}|Review>", fixture.app.url(), held.request);
    assert_eq!(body.pointer("/blocks/2/text/text"), Some(&json!(link)));
    assert!(
        !has_word(&call.text, "120") && !call.text.contains("alice"),
        "{}",
        call.text
    );
    let found = fixture.counted(&[("sent", 1), ("due", 0)]).await;
    assert_eq!(
        (&found[0]["channel"], &found[0]["person"], &found[0]["type"]),
        (&json!("slack"), &json!(null), &json!("request.created"))
    );
}

#[apply(on_both)]
async fn incoming_webhook_and_teams_get_one_message_and_no_change(on: On) {
    for (entry, path, channel) in [(HOOK, "/hook", "slack"), (TEAMS, "/teams", "teams")] {
        let (fixture, _slack) = rooms(on, entry).await;
        let held = fixture.app.held().await;
        fixture.counted(&[("sent", 1)]).await;
        answer(&fixture, BOB, &held, "approve").await;
        fixture.app.held().await;
        let found = fixture.counted(&[("sent", 2), ("due", 0)]).await;
        assert!(
            found
                .iter()
                .all(|one| one["channel"] == channel && one["type"] == "request.created")
        );
        let all = fixture.server.all();
        assert!(
            all.len() == 2
                && all
                    .iter()
                    .all(|call| call.path == path && call.text.contains("Review"))
        );
        assert!(all[0].text.contains(&format!("/resume/{}", held.request)));
        assert!(
            all.iter()
                .all(|call| call.header("authorization").is_empty())
        );
    }
}

#[apply(on_both)]
async fn no_text_of_an_agent_leaves_unless_the_entry_says_so(on: On) {
    for entry in [BOT, HOOK, TEAMS] {
        for summaries in [false, true] {
            let entry = entry.replace(
                "}, tenants",
                &format!(", summaries: {summaries} }}, tenants"),
            );
            let (mut fixture, _slack) = rooms(on, &entry).await;
            let note = "exclusiveMinimum: 0 }, note: { type: string } }";
            fixture.replace("exclusiveMinimum: 0 } }", note).await;
            ask_with(&fixture, HOSTILE).await;
            fixture.counted(&[("sent", 1)]).await;
            let said = &fixture.server.all()[0].text;
            assert!(!said.contains("canary") && !said.contains("evil"), "{said}");
            assert_eq!(
                said.contains("Refund 120 for order 17"),
                summaries,
                "{said}"
            );
        }
    }
}

#[apply(on_both)]
async fn many_questions_are_one_message_at_once_and_one_a_minute_later(on: On) {
    let (fixture, slack) = rooms(on, GATHERS).await;
    fixture.app.held().await;
    slack.until(|all| all.len() == 1).await;
    fixture.counted(&[("sent", 1), ("due", 0)]).await;
    for _ in 0..22 {
        fixture.app.held().await;
    }
    fixture.counted(&[("sent", 1), ("due", 22)]).await;
    fixture.advance(std::time::Duration::from_secs(61));
    fixture.counted(&[("sent", 23), ("due", 0)]).await;
    let all = slack.messages();
    assert_eq!((all.len(), all[1].text()), (2, "22 questions wait"));
    let said = all[1].last_body();
    assert_eq!(
        (
            said.matches("|Review>").count(),
            said.contains("and 2 more")
        ),
        (20, true)
    );
}

/// A name with markup of Slack and of Markdown.
const NAME: &str = "<!channel>*&[x](https://evil.example)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_names_and_messages_stay_text() {
    for entry in [BOT, TEAMS] {
        let hook = crate::support::fake_receiver::FakeReceiver::start().await;
        let entry = entry
            .replace("{token}", TOKEN)
            .replace("{channel}", CHANNEL);
        let message = format!("message: \"{NAME}\\n<https://evil.example|Review>\", approvers");
        let yaml = crate::notify::yaml(&entry, &hook)
            .replace("approvers", &message)
            .replace("user: bob", &format!("user: \"{NAME}\""));
        let slack = crate::support::fake_slack::FakeSlack::serve_on(&hook);
        let on = On::Sqlite;
        let app = crate::support::test_app::TestApp::with(on, &yaml).await;
        let held = app.held().await;
        hook.reached(1).await;
        let said: Value = hook.all()[0].body.clone();
        if entry.contains("teams") {
            let run = said
                .pointer("/attachments/0/content/body/1/inlines/0")
                .unwrap();
            assert_eq!(run["type"], "TextRun");
            assert_eq!(run["text"], format!("{NAME} <https://evil.example|Review>"));
            continue;
        }
        let text = said.pointer("/blocks/0/text").unwrap();
        assert_eq!(text["type"], "plain_text");
        let escaped = NAME
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        assert!(text["text"].as_str().unwrap().contains(&escaped), "{text}");
        app.model
            .then(crate::support::fake_chat_completions::text_answer("done"));
        let path = format!("/resume/{}/approve", held.request);
        assert_eq!(app.actor(BOB).hit(&path).await.status, 200);
        let all = slack
            .until(|all| all.first().is_some_and(|posted| posted.bodies.len() == 2))
            .await;
        let expected = format!("Approved by {escaped}, ");
        assert!(all[0].text().starts_with(&expected), "{}", all[0].text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_and_urls_of_rooms_are_in_no_row_answer_or_metric() {
    let secret = "path-canary-0123456789";
    let urls = [HOOK, TEAMS].map(|entry| entry.replace("\" }", &format!("?{secret}\" }}")));
    for (entry, error) in [(BOT, TOKEN), (&urls[0], secret), (&urls[1], secret)] {
        let (fixture, slack) = rooms(On::Sqlite, entry).await;
        slack.fails("chat.postMessage", TOKEN);
        if entry != BOT {
            fixture.server.answers(500);
        }
        fixture.app.held().await;
        fixture.until_tried(1).await;
        let texts = fixture.shown().await;
        for canary in [error, &fixture.server.url, CHANNEL] {
            assert!(texts.iter().all(|text| !text.contains(canary)), "{canary}");
        }
    }
}

const LINKED: &str = "  people:
    - { user: bob, tenant: acme, email: bob@acme.com }
secrets: { keys: [ { id: k1, key: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE= } ] }
notify:
  links: { may: decide }
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_never_gets_the_link_of_a_person() {
    for entry in [BOT, HOOK, TEAMS] {
        let on = On::Sqlite;
        let (mut fixture, _slack) = rooms(on, entry).await;
        fixture.replace("notify:\n", LINKED).await;
        let held = fixture.app.held().await;
        fixture.counted(&[("sent", 1)]).await;
        answer(&fixture, BOB, &held, "approve").await;
        fixture.counted(&[("due", 0)]).await;
        for call in fixture.server.all() {
            let plain = format!("{}/resume/{}", fixture.app.url(), held.request);
            // The update of the message after the decision has no link at all.
            let is_change = call.path == "/api/chat.update";
            assert!(
                call.text.contains(&plain) != is_change && !call.text.contains("/l/"),
                "{}",
                call.text
            );
        }
    }
}
