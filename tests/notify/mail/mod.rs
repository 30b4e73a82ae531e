//! Tests mail to people: its recipients, its content and its delivery.

mod connections;
mod content;
mod delivery;
mod gather;
mod timers;

use std::time::Duration;

use serde_json::json;

use crate::notify::TimedApp;
use crate::support::fake_mail_server::FakeMailServer;
use crate::support::links::SEALING_KEY;
use crate::support::test_app::{ACCOUNTS, On, REFUNDS};

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

pub type Post = TimedApp<FakeMailServer>;

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

/// Returns the configuration with links by which people may decide.
pub fn with_links(yaml: &str) -> String {
    let yaml = yaml.replace("notify:\n", "notify:\n  links: { may: decide }\n");
    format!("{yaml}secrets: {{ keys: [ {{ id: k1, key: \"{SEALING_KEY}\" }} ] }}\n")
}

impl Post {
    pub async fn start(on: On, entries: &str) -> Self {
        Self::with(on, entries, |yaml| yaml).await
    }

    pub async fn with(on: On, entries: &str, change: impl Fn(String) -> String) -> Self {
        let server = FakeMailServer::start().await;
        let yaml = change(yaml(entries, "127.0.0.1", &server));
        Self::configured(on, &yaml, server).await
    }

    pub async fn reject(&self, request: &str, key: &'static str) {
        let path = format!("/resume/{request}/reject");
        let reply = self.app.actor(key).post(&path, &json!({})).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    }
}
