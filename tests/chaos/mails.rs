//! Tests that kill the sender of mails at each of its failpoints. Every question reaches each of
//! its approvers, and all copies of a mail about the same questions have the same id.

use std::collections::{BTreeMap, BTreeSet};

use macro_rules_attribute::apply;
use serde_json::Value;

use super::messages::KilledReplica;
use super::with_failpoints;
use crate::notify::mail::{ALICE, BOB, BY_MAIL, yaml};
use crate::support::fake_chat_completions::calls;
use crate::support::fake_mail_server::FakeMailServer;
use crate::support::pause;
use crate::support::test_app::On;

/// The failpoints at which [`KilledReplica::killed_at`] kills processes.
const POINTS: [&str; 4] = [
    "spread.committed",
    "deliver.claimed",
    "deliver.sent",
    "deliver.recorded",
];

fn refund() -> Value {
    calls(&[("refund", r#"{"order": 17, "amount": 120}"#)])
}

/// The address to which a mail was sent, and the ids of the questions that the mail is about.
type About = (String, BTreeSet<String>);

/// Returns the ids of the mails that arrived, grouped by address and by the requests that the mail
/// is about. If a mail arrived twice, its group has the mail's id twice.
fn mail_ids(server: &FakeMailServer, requests: &[String]) -> BTreeMap<About, Vec<String>> {
    let mut told: BTreeMap<About, Vec<String>> = BTreeMap::new();
    for mail in server.all() {
        let about = requests.iter().filter(|id| mail.text.contains(*id));
        let about = (mail.to.clone(), about.cloned().collect());
        told.entry(about).or_default().push(mail.id);
    }
    told
}

async fn killed_at_each_point(on: On, gather: &str) {
    let server = FakeMailServer::start().await;
    let entry = BY_MAIL.replace("tenants", &format!("gather: {gather}, tenants"));
    let yaml = yaml(&entry, "127.0.0.1", &server);
    let mut service = KilledReplica::new(on, &yaml, refund).await;
    service.killed_at(&POINTS).await;
    let process = service.start("").await.unwrap();
    let tasks = service.client.all("Paused").await.len();
    let listed = service.client.get("/v1/requests?limit=200").await.unwrap();
    let requests: Vec<String> = listed["requests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["request_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(requests.len(), tasks, "each task has its question");
    let told = loop {
        let told = mail_ids(&server, &requests);
        let reached = |person: &str, request: &String| {
            let mut mails = told.keys();
            mails.any(|(to, about)| to == person && about.contains(request))
        };
        if requests
            .iter()
            .all(|request| reached(ALICE, request) && reached(BOB, request))
        {
            break told;
        }
        pause().await;
    };
    for ((to, about), ids) in &told {
        let distinct: BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), 1, "{to}, {about:?}: {ids:?}");
    }
    let mut most: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for ((to, about), ids) in &told {
        for request in about {
            *most.entry((to, request)).or_default() += ids.len();
        }
    }
    assert!(
        most.values().any(|times| *times > 1),
        "what was sent and not recorded is sent again"
    );
    process.kill().await;
}

#[apply(with_failpoints)]
async fn killed_sender_loses_no_mail_on_sqlite() {
    killed_at_each_point(On::Sqlite, "0s").await;
}

/// The killed process leaves leases, and gathered mails wait until these leases have run out. So
/// the test runs only on Postgres, where it can set the clock ahead past the end of the leases.
#[apply(with_failpoints)]
async fn killed_sender_loses_no_gathered_mail_on_postgres() {
    killed_at_each_point(On::Postgres, "500ms").await;
}
