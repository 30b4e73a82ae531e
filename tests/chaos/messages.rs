//! The sender of messages, killed at each of its failpoints and right after the commits that it tells
//! of: every event arrives, each under one id.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::process::{Place, a_moment};
use crate::notify::{BACKEND, yaml};
use crate::support::database::Database;
use crate::support::fake_chat_completions::{FakeModel, says};
use crate::support::fake_receiver::FakeReceiver;
use crate::support::fake_tool::FakeTool;
use crate::support::test_app::{ALICE, On};

/// Where the process is killed, each at its first and its second pass.
const POINTS: [&str; 5] = [
    "task_status.committed",
    "spread.committed",
    "deliver.claimed",
    "deliver.sent",
    "deliver.recorded",
];
/// The events of a task that completes at once of which the entry wants messages.
const WANTED: [&str; 2] = ["task.created", "task.completed"];

/// A client of the service.
struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    async fn create(&self) {
        let body = json!({"input": "hello"});
        let request = self.http.post(format!("{}/v1/tasks", self.url));
        // The process may die meanwhile.
        let _ = request
            .bearer_auth(ALICE)
            .json(&body)
            .timeout(Duration::from_secs(20))
            .send()
            .await;
    }

    async fn get(&self, path: &str) -> Option<Value> {
        let request = self
            .http
            .get(format!("{}{path}", self.url))
            .bearer_auth(ALICE);
        request
            .timeout(Duration::from_secs(5))
            .send()
            .await
            .ok()?
            .json()
            .await
            .ok()
    }

    /// The items of every task that the database has, as (task, status) once each has ended.
    async fn ended(&self) -> Vec<String> {
        loop {
            let tasks = self.get("/v1/tasks?limit=200").await.unwrap_or_default();
            let tasks = tasks["tasks"].as_array().cloned().unwrap_or_default();
            if !tasks.is_empty() && tasks.iter().all(|task| task["status"] == "Completed") {
                return tasks
                    .iter()
                    .map(|task| task["task_id"].as_str().unwrap().to_owned())
                    .collect();
            }
            a_moment().await;
        }
    }
}

async fn killed_at_each_point(on: On) {
    let (model, tool, hook) = (
        FakeModel::start().await,
        FakeTool::start().await,
        FakeReceiver::start().await,
    );
    let database = match on {
        On::Sqlite => Database::sqlite(),
        On::Postgres => Database::postgres().await,
    };
    let folder = tempfile::tempdir().unwrap();
    let entry = BACKEND.replace(
        "tenants: [acme]",
        "tenants: [acme], events: [task.created, task.completed]",
    );
    let text = yaml(&entry, &hook)
        .replace("{model}", &model.base_url)
        .replace("{tool}", &tool.url)
        .replace("${MODEL_KEY}", "sk-model-key-0123456789")
        .replace("${TOOL_SECRET}", "tool-secret-0123456789");
    let text = format!("{text}database: {{ url: \"{}\" }}\n", database.url());
    let config = folder.path().join("holdpoint.yaml");
    std::fs::write(&config, text).unwrap();
    let place = Place::new(config);
    #[expect(
        clippy::disallowed_methods,
        reason = "a test is a client like any other"
    )]
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let client = Client {
        http: http.clone(),
        url: place.url(),
    };
    // Postgres' clock is set ahead each time, so that the leases of the killed process are over.
    let mut ahead = 0;
    for point in POINTS {
        for pass in [1, 2] {
            ahead += 60;
            let mut process = place.start(&format!("{point}=abort@{pass};clock={ahead}s"));
            // Deliveries of an earlier pass may bring the process to its end before it is ready.
            let ready = process.ready(&http).await;
            let killed = process.is_over().is_some_and(|end| end.code().is_none());
            assert!(ready || killed, "{}", place.last_words());
            while process.is_over().is_none() {
                model.then(says("done"));
                client.create().await;
            }
        }
    }
    ahead += 60;
    let mut process = place.start(&format!("clock={ahead}s"));
    assert!(process.ready(&http).await, "{}", place.last_words());
    for _ in 0..32 {
        model.then(says("done"));
    }
    let expected: BTreeSet<(String, &str)> = client
        .ended()
        .await
        .into_iter()
        .flat_map(|task| WANTED.map(|name| (task.clone(), name)))
        .collect();
    loop {
        let arrived = told(&hook);
        if expected
            .iter()
            .all(|event| arrived.contains_key(&(event.0.clone(), event.1.to_owned())))
        {
            let twice = arrived.values().find(|ids| ids.len() > 1);
            assert_eq!(twice, None, "an event has one id");
            break;
        }
        a_moment().await;
    }
    assert!(
        hook.count() > expected.len(),
        "what was sent and not recorded is sent again"
    );
    process.kill().await;
}

/// The ids under which each event arrived, by its task and name.
fn told(hook: &FakeReceiver) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut told: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for message in hook.all() {
        let task = message.body["data"]["root_task_id"]
            .as_str()
            .unwrap()
            .to_owned();
        told.entry((task, message.kind().to_owned()))
            .or_default()
            .insert(message.id().to_owned());
    }
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(
    not(any(debug_assertions, feature = "failpoints")),
    ignore = "needs failpoints"
)]
async fn killed_sender_loses_no_message_on_sqlite() {
    killed_at_each_point(On::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(
    not(any(debug_assertions, feature = "failpoints")),
    ignore = "needs failpoints"
)]
async fn killed_sender_loses_no_message_on_postgres() {
    killed_at_each_point(On::Postgres).await;
}
