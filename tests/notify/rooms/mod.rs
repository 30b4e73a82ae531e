//! Tests rooms of Slack and Teams: the messages that a room gets, a bot's updates with the outcomes
//! of the questions, and refusals by Slack.

mod changes;
mod content;
mod failures;

use serde_json::{Value, json};

use super::NotifyFixture;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::fake_slack::{CHANNEL, FakeSlack, TOKEN};
use crate::support::test_app::{ALICE, Held, On};

/// An entry for a bot that posts each question in a message of its own.
pub const BOT: &str = r#"    - { name: room, slack: { token: "{token}", channel: {channel}, api_url: "{hook}/api" }, tenants: [acme], gather: 0s }"#;
/// An entry for a bot that gathers questions into one message.
pub const GATHERS: &str = r#"    - { name: room, slack: { token: "{token}", channel: {channel}, api_url: "{hook}/api" }, tenants: [acme] }"#;
/// An entry for an incoming webhook of Slack.
pub const HOOK: &str =
    r#"    - { name: room, slack: { url: "{hook}/hook" }, tenants: [acme], gather: 0s }"#;
/// An entry for a workflow of Teams.
pub const TEAMS: &str =
    r#"    - { name: room, teams: { url: "{hook}/teams" }, tenants: [acme], gather: 0s }"#;

/// Starts a service with this entry. Returns the service, and the fake Slack to which it posts.
pub async fn rooms(on: On, entry: &str) -> (NotifyFixture, FakeSlack) {
    let entry = entry
        .replace("{token}", TOKEN)
        .replace("{channel}", CHANNEL);
    let fixture = NotifyFixture::start(on, &entry).await;
    let slack = FakeSlack::serve_on(&fixture.server);
    (fixture, slack)
}

pub async fn answer(fixture: &NotifyFixture, key: &'static str, held: &Held, action: &str) {
    fixture.app.model.then(text_answer("done"));
    let path = format!("/resume/{}/{action}", held.request);
    let reply = fixture.app.actor(key).post(&path, &json!({})).await;
    assert!(reply.status < 300, "{}", reply.text);
}

pub async fn ask_with(fixture: &NotifyFixture, arguments: &str) {
    fixture.app.model.then(calls(&[("refund", arguments)]));
    let body = json!({"input": "please"});
    let reply = fixture.app.actor(ALICE).post("/v1/tasks", &body).await;
    assert_eq!(reply.str("/status"), "Paused", "{}", reply.text);
}

/// Waits until `is` accepts a delivery of an event of this kind. Returns all deliveries.
pub async fn until_any(
    fixture: &NotifyFixture,
    kind: &str,
    is: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    let is_there = |found: &[Value]| of(found, kind).into_iter().any(&is);
    fixture.until(is_there).await
}

pub fn of<'d>(found: &'d [Value], kind: &str) -> Vec<&'d Value> {
    found.iter().filter(|one| one["type"] == kind).collect()
}
