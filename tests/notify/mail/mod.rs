//! Tests mail to people: its recipients, its content and its delivery.

mod connections;
mod content;
mod delivery;
mod gather;
mod timers;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::notify::was_tried;
use crate::support::fake_mail_server::FakeMailServer;
use crate::support::test_app::{ACCOUNTS, OPS, On, REFUNDS, TestApp};
use crate::support::test_clock::TestClock;

pub const HOUR: Duration = Duration::from_hours(1);
pub const MINUTE: Duration = Duration::from_mins(1);

/// The people and their addresses. alice owns the tasks and may decide. bob may decide, too,
/// because bob's key is in the group finance. carol may not decide. dora has no key, so dora's line
/// below states the group finance. mallory belongs to another tenant.
const PEOPLE: &str = "  people:
    - { user: alice, tenant: acme, email: alice@acme.com, language: zh }
    - { user: bob, tenant: acme, email: bob@acme.com }
    - { user: carol, tenant: acme, email: carol@acme.com }
    - { user: dora, tenant: acme, groups: [finance], email: dora@acme.com }
    - { user: mallory, tenant: other, email: mallory@other.com }
";
/// An entry that sends mail to every approver.
pub const BY_MAIL: &str = "    - { name: by-mail, mail: { to: approvers }, tenants: [acme] }";
/// An entry that sends mail to bob alone.
pub const BOB_ONLY: &str =
    "    - { name: by-mail, mail: { to: { users: [bob] } }, tenants: [acme] }";
pub const BOB: &str = "bob@acme.com";
pub const ALICE: &str = "alice@acme.com";

/// The refund agent, a mail server, and a clock that a test advances.
pub struct Post {
    pub app: TestApp,
    pub server: FakeMailServer,
    clock: Arc<TestClock>,
}

/// Returns the configuration with these entries. `host` is the host of the mail server.
pub fn yaml(entries: &str, host: &str, server: &FakeMailServer) -> String {
    let accounts = ACCOUNTS.replace("admin: true, may: [read]", "admin: true");
    let refunds = REFUNDS.replace("{approvers}", "{ owner: true, groups: [finance] }");
    let mail = format!(
        "{{ url: \"smtp://{host}:{}\", from: \"Holdpoint <holdpoint@acme.com>\" }}",
        server.port
    );
    format!("{refunds}{accounts}{PEOPLE}notify:\n  mail: {mail}\n  to:\n{entries}\n")
}

impl Post {
    pub async fn start(on: On, entries: &str) -> Self {
        Self::with(on, entries, |yaml| yaml).await
    }

    pub async fn with(on: On, entries: &str, change: impl Fn(String) -> String) -> Self {
        let server = FakeMailServer::start().await;
        let clock = TestClock::new();
        let yaml = change(yaml(entries, "127.0.0.1", &server));
        let app = TestApp::timed(on, &yaml, clock.clone()).await;
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

    pub async fn deliveries(&self) -> Vec<Value> {
        let reply = self.app.actor(OPS).get("/v1/deliveries?limit=200").await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.body["deliveries"].as_array().unwrap().clone()
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

    pub async fn until(&self, expected: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let found = async || {
            let found = self.deliveries().await;
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

    pub async fn reject(&self, request: &str, key: &'static str) {
        let path = format!("/resume/{request}/reject");
        let reply = self.app.actor(key).post(&path, &json!({})).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    }
}
