//! Tests messages that Slack or Teams refuses, and processes that die while they post.

use std::time::Duration;

use serde_json::{Value, json};

use super::{BOT, GATHERS, HOOK, TEAMS, answer, of, rooms};
use crate::notify::{BEYOND_RETRIES, micros, on_both, was_tried};
use crate::support::fake_slack::{CHANNEL, TOKEN};
use crate::support::test_app::BOB;

fn problem(delivery: &Value) -> (&Value, &Value) {
    (&delivery["state"], &delivery["last"]["problem"])
}

on_both! {
    async fn error_of_slack_is_a_failure_although_its_status_is_200(on) {
        for (error, state, said) in [
            ("not_in_channel", "due", "the bot is not a member of the channel"),
            ("invalid_auth", "due", "Slack does not accept the token"),
            ("msg_too_long", "dead", "Slack does not accept a message like this"),
        ] {
            let (scene, slack) = rooms(on, BOT).await;
            slack.fails("chat.postMessage", error);
            scene.app.held().await;
            let found = scene.until(|found| found.len() == 1 && was_tried(&found[0])).await;
            assert_eq!(problem(&found[0]), (&json!(state), &json!(said)));
            assert_eq!(found[0]["last"]["http_status"], 200);
            slack.mend();
            scene.leap(BEYOND_RETRIES);
            if state == "due" {
                slack.until(|all| all.len() == 1).await;
            } else {
                scene.counted(&[("dead", 1)]).await;
            }
        }
    }

    async fn room_that_asks_to_wait_is_waited_for(on) {
        for entry in [BOT, HOOK, TEAMS] {
            let (scene, _slack) = rooms(on, entry).await;
            scene.hook.answers_by(|_| (429, vec![("retry-after", "600".to_owned())]));
            scene.app.held().await;
            let found = scene.until(|found| found.len() == 1 && found[0]["last"]["http_status"] == 429).await;
            let wait = micros(&found[0], "/due_at") - micros(&found[0], "/last/at");
            assert!((600_000_000..=720_000_000).contains(&wait), "{wait}");
            assert_eq!(found[0]["attempts"], 1);
        }
    }

    async fn redirect_of_a_room_is_a_failure_and_not_followed(on) {
        for (entry, status) in [(BOT, 307), (HOOK, 302), (TEAMS, 308)] {
            let (scene, _slack) = rooms(on, entry).await;
            let other = format!("{}/other", scene.hook.url);
            scene.hook.answers_by(move |_| (status, vec![("location", other.clone())]));
            scene.app.held().await;
            let found = scene.until(|found| found.len() == 1 && was_tried(&found[0])).await;
            assert_eq!(problem(&found[0]), (&json!("due"), &json!("a redirect is not followed")));
            assert!(scene.hook.all().iter().all(|call| call.path != "/other"));
        }
    }

    async fn answer_of_slack_is_read_to_16_kib_and_no_further(on) {
        for (before, problem_told) in [(1024, ""), (16 * 1024, "the answer is not one of Slack's API")] {
            let (scene, _slack) = rooms(on, BOT).await;
            scene.hook.replies(move |_| {
                let body = json!({"a": "x".repeat(before), "ok": true, "ts": "1700000000.000001"});
                axum::response::IntoResponse::into_response(body.to_string())
            });
            scene.app.held().await;
            let found = scene.until(|found| found.len() == 1 && was_tried(&found[0])).await;
            assert_eq!(found[0]["last"]["problem"].as_str().unwrap_or(""), problem_told);
        }
    }

    async fn room_of_another_tenant_gets_no_question_that_waited_for_it(on) {
        for entry in [BOT, HOOK, TEAMS, GATHERS] {
            let (mut scene, _slack) = rooms(on, entry).await;
            scene.hook.answers(500);
            scene.app.held().await;
            scene.until(|found| found.len() == 1 && was_tried(&found[0])).await;
            scene.app.restart_with(|yaml| yaml.replace("tenants: [acme]", "tenants: [other]")).await;
            let before = scene.hook.count();
            scene.hook.answers(200);
            scene.leap(BEYOND_RETRIES);
            let found = scene.counted(&[("dropped", 1)]).await;
            assert_eq!((problem(&found[0]).1, scene.hook.count()), (&json!("the request no longer waits for this recipient"), before));
        }
    }

    async fn status_of_a_room_ends_the_attempts_only_if_it_is_410(on) {
        let gone = ("dead", "the receiver no longer wants this message");
        let failed = ("due", "no 2xx");
        let cases = [(BOT, 410, gone), (HOOK, 410, gone), (TEAMS, 410, gone), (HOOK, 404, failed), (TEAMS, 400, failed)];
        for (entry, status, (state, said)) in cases {
            let (scene, _slack) = rooms(on, entry).await;
            scene.hook.answers(status);
            scene.app.held().await;
            let found = scene.until(|found| found.len() == 1 && was_tried(&found[0])).await;
            assert_eq!(problem(&found[0]), (&json!(state), &json!(said)));
        }
    }

    async fn change_that_fails_is_tried_again_after_a_restart_and_nothing_is_posted_twice(on) {
        let (mut scene, slack) = rooms(on, BOT).await;
        let held = scene.app.held().await;
        slack.until(|all| all.len() == 1).await;
        scene.counted(&[("sent", 1)]).await;
        slack.fails("chat.update", "fatal_error");
        answer(&scene, BOB, &held, "approve").await;
        let found = scene.until(|found| of(found, "request.decided").iter().any(|one| was_tried(one))).await;
        assert_eq!(problem(of(&found, "request.decided")[0]), (&json!("due"), &json!("Slack had an error of its own")));
        scene.app.restart().await;
        slack.mend();
        scene.leap(BEYOND_RETRIES);
        scene.counted(&[("sent", 2), ("due", 0)]).await;
        assert!(slack.message().text().starts_with("Approved by bob, "));
    }

    async fn change_that_waits_is_dropped_once_the_room_of_its_entry_cannot_change_messages(on) {
        for room in ["teams: { url: \"{hook}/teams\" }", "slack: { url: \"{hook}/hook\" }"] {
            let (mut scene, slack) = rooms(on, GATHERS).await;
            let held = scene.app.held().await;
            scene.counted(&[("sent", 1)]).await;
            slack.fails("chat.update", "fatal_error");
            answer(&scene, BOB, &held, "approve").await;
            scene.until(|found| of(found, "request.decided").iter().any(|one| was_tried(one))).await;
            let url = &scene.hook.url;
            let bot = format!("slack: {{ token: \"{TOKEN}\", channel: {CHANNEL}, api_url: \"{url}/api\" }}");
            let room = room.replace("{hook}", url);
            scene.app.restart_with(|yaml| yaml.replace(&bot, &room)).await;
            let before = scene.hook.count();
            scene.leap(Duration::from_hours(25));
            let found = scene.counted(&[("sent", 1), ("dropped", 1), ("due", 0)]).await;
            let said = "the entry's settings no longer select this message";
            assert_eq!((problem(of(&found, "request.decided")[0]).1, scene.hook.count()), (&json!(said), before), "{room}");
        }
    }

    async fn change_that_waits_is_dropped_once_its_entry_is_for_another_tenant(on) {
        let (mut scene, slack) = rooms(on, BOT).await;
        let held = scene.app.held().await;
        scene.counted(&[("sent", 1)]).await;
        slack.fails("chat.update", "fatal_error");
        answer(&scene, BOB, &held, "approve").await;
        scene.until(|found| of(found, "request.decided").iter().any(|one| was_tried(one))).await;
        scene.app.restart_with(|yaml| yaml.replace("tenants: [acme]", "tenants: [other]")).await;
        slack.mend();
        let before = scene.hook.count();
        scene.leap(BEYOND_RETRIES);
        let found = scene.counted(&[("sent", 1), ("dropped", 1), ("due", 0)]).await;
        let said = "the entry's settings no longer select this message";
        assert_eq!((problem(of(&found, "request.decided")[0]).1, scene.hook.count()), (&json!(said), before));
    }

    async fn message_that_was_deleted_in_slack_is_changed_no_more(on) {
        let (scene, slack) = rooms(on, BOT).await;
        let held = scene.app.held().await;
        scene.counted(&[("sent", 1)]).await;
        slack.clear();
        answer(&scene, BOB, &held, "approve").await;
        let found = scene.counted(&[("dropped", 1), ("due", 0)]).await;
        assert_eq!(problem(of(&found, "request.decided")[0]).1, "the message was deleted in Slack");
        assert_eq!(slack.messages().len(), 0);
    }

    async fn message_whose_answer_is_lost_is_posted_again(on) {
        let (scene, _slack) = rooms(on, BOT).await;
        scene.hook.close();
        scene.app.held().await;
        scene.hook.reached(1).await;
        scene.leap(Duration::from_secs(16));
        scene.until(|found| found[0]["attempts"] == 1).await;
        scene.hook.open();
        scene.leap(Duration::from_secs(7));
        scene.counted(&[("sent", 1), ("due", 0)]).await;
        let all = scene.hook.all();
        assert_eq!((all.len(), &all[0].body), (2, &all[1].body));
    }
}
