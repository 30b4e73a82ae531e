//! Tests messages to receivers: which messages are sent, what they contain, when they are tried
//! again, and that no receiver delays another.

mod agent_texts;
mod content;
mod entries;
mod lanes;
mod lost_time;
pub mod mail;
mod receiver_state;
mod retries;
mod rooms;
mod secrecy;

use std::sync::Arc;
use std::time::Duration;

use holdpoint::store::Store;
use holdpoint::task::change::{Counters, LeaseChange};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Fact;
use holdpoint::task::request::RequestSpec;
use holdpoint::task::status::TaskStatus;
use serde_json::{Value, json};

use crate::store::store_fixture::{change, fresh, new_task, status};
use crate::support::fake_chat_completions::text_answer;
use crate::support::fake_receiver::FakeReceiver;
use crate::support::test_app::{ACCOUNTS, Held, OPS, On, REFUNDS, TestApp};
use crate::support::test_clock::TestClock;

/// `NEW` and `OLD` are the secrets with which messages to a receiver are signed.
pub const NEW: &str = "whsec_bmV3LXNlY3JldC0wMTIzNDU2Nzg5LWNhbmFyeQ==";
pub const OLD: &str = "whsec_b2xkLXNlY3JldC0wMTIzNDU2Nzg5LWNhbmFyeQ==";

/// An entry with the default events.
pub const BACKEND: &str = r#"    - { name: backend, webhook: { url: "{hook}/backend", secrets: ["{new}"] }, tenants: [acme] }"#;

/// A time longer than the two waits after the first and the second failed attempt together. After
/// the clock has advanced this far, a message is due for its next attempt, even if a slow machine
/// has made two attempts instead of one before.
pub const BEYOND_RETRIES: Duration = Duration::from_mins(8);

/// Returns whether at least one attempt at the delivery has ended. On a slow machine, a second
/// attempt may come before the test sees the first one.
pub fn was_tried(delivery: &Value) -> bool {
    delivery["attempts"].as_i64() >= Some(1)
}

/// The refund agent, the fake server that gets its messages, and a clock that a test advances.
pub struct TimedApp<S> {
    pub app: TestApp,
    pub server: S,
    clock: Arc<TestClock>,
}

pub type NotifyFixture = TimedApp<FakeReceiver>;

/// Returns the configuration with these entries. The task's owner and the group finance may decide.
pub fn yaml(entries: &str, hook: &FakeReceiver) -> String {
    let accounts = ACCOUNTS.replace("admin: true, may: [read]", "admin: true");
    let notify = entries
        .replace("{hook}", &hook.url)
        .replace("{new}", NEW)
        .replace("{old}", OLD);
    let refunds = REFUNDS.replace("{approvers}", "{ owner: true, groups: [finance] }");
    format!("{refunds}{accounts}notify:\n  to:\n{notify}\n")
}

impl NotifyFixture {
    pub async fn start(on: On, entries: &str) -> Self {
        let hook = FakeReceiver::start().await;
        Self::configured(on, &yaml(entries, &hook), hook).await
    }
}

impl<S> TimedApp<S> {
    /// Starts a service with this configuration, whose messages `server` gets.
    async fn configured(on: On, yaml: &str, server: S) -> Self {
        let clock = TestClock::new();
        let app = TestApp::timed(on, yaml, clock.clone()).await;
        Self { app, server, clock }
    }

    /// Advances the clocks of the service and of the database.
    pub fn advance(&self, by: Duration) {
        self.app.store().set_clock_forward(by);
        self.clock.advance(by);
    }

    /// Replaces a part of the configuration, and restarts the service.
    pub async fn replace(&mut self, part: &str, by: &str) {
        self.app.restart_with(|yaml| yaml.replace(part, by)).await;
    }

    /// Creates a task, which is held, approved and completed. Returns the task's id.
    pub async fn cycle(&self) -> String {
        let held = self.app.held().await;
        self.approve(&held).await;
        held.task
    }

    pub async fn approve(&self, held: &Held) {
        self.app.model.then(text_answer("done"));
        let path = format!("/resume/{}/approve", held.request);
        let reply = self.app.owner().post(&path, &json!({})).await;
        assert_eq!(reply.str("/status"), "Completed", "{}", reply.text);
    }

    /// Creates a task that completes at once. An entry with the default events gets one message
    /// about the task. Returns the task's id.
    pub async fn short(&self) -> String {
        self.app.model.then(text_answer("done"));
        let reply = self
            .app
            .owner()
            .post("/v1/tasks", &json!({"input": "hello"}))
            .await;
        assert_eq!(reply.str("/status"), "Completed", "{}", reply.text);
        reply.str("/task_id")
    }

    /// Returns the deliveries as an admin sees them, newest first.
    pub async fn deliveries(&self, query: &str) -> Vec<Value> {
        let path = format!("/v1/deliveries?limit=200{query}");
        let reply = self.app.actor(OPS).get(&path).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.body["deliveries"].as_array().unwrap().clone()
    }

    /// Returns the texts that an admin can read, and the files of the `SQLite` database.
    pub async fn shown(&self) -> Vec<String> {
        let mut texts = Vec::new();
        for path in ["/v1/deliveries", "/metrics", "/v1/agents", "/openapi.json"] {
            texts.push(self.app.actor(OPS).get(path).await.text);
        }
        for suffix in ["", "-wal"] {
            let file = format!("{}{suffix}", self.app.database.file());
            texts.push(String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned());
        }
        texts
    }

    /// Waits until `expected` accepts the deliveries. Returns the deliveries.
    pub async fn until(&self, expected: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let found = async || {
            let found = self.deliveries("").await;
            expected(&found).then_some(found)
        };
        crate::support::eventually("the deliveries are as expected", found).await
    }

    /// Waits until there are exactly `count` deliveries and each of them was tried. Returns the
    /// deliveries.
    pub async fn until_tried(&self, count: usize) -> Vec<Value> {
        self.until(|found| found.len() == count && found.iter().all(was_tried))
            .await
    }

    /// Waits until each state in `states` has exactly its count of deliveries. Returns all
    /// deliveries.
    pub async fn counted(&self, states: &[(&str, usize)]) -> Vec<Value> {
        self.until(|found| {
            states.iter().all(|(state, count)| {
                found.iter().filter(|one| one["state"] == *state).count() == *count
            })
        })
        .await
    }
}

/// Stores a task of alice that waits for the answer to this question.
pub async fn store_question(store: &Store, question: RequestSpec) {
    let id = TaskId(fresh());
    let mut task = new_task(id, "acme", "alice");
    let paused = status(TaskStatus::Paused);
    task.facts
        .extend([Fact::InterventionRequested(question), paused]);
    task.counters = Counters {
        open_requests: 1,
        ..Counters::default()
    };
    task.lease = LeaseChange::Park { wake_in: None };
    store.commit(change(id, vec![task])).await.unwrap();
}

/// Returns the time at a JSON pointer such as `/last/at`, in microseconds.
pub fn micros(delivery: &Value, pointer: &str) -> i64 {
    let text = delivery.pointer(pointer).and_then(Value::as_str).unwrap();
    text.parse::<jiff::Timestamp>().unwrap().as_microsecond()
}
