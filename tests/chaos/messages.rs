//! Tests that kill the service at each failpoint of the sender of messages, and right before and
//! right after the commit of an event that needs a message. A message about every event arrives,
//! each message is about an event of a journal, and all messages about one event have the same id.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::process::{Process, Replica};
use super::{with_failpoints, write_configuration};
use crate::notify::{BACKEND, yaml};
use crate::support::database::Database;
use crate::support::fake_chat_completions::{FakeModel, text_answer};
use crate::support::fake_receiver::FakeReceiver;
use crate::support::fake_tool::FakeTool;
use crate::support::test_app::{ALICE, On};
use crate::support::{http_client, pause};

/// The failpoints at which [`KilledReplica::killed_at`] kills processes.
const POINTS: [&str; 6] = [
    "task_status.before",
    "task_status.committed",
    "spread.committed",
    "deliver.claimed",
    "deliver.sent",
    "deliver.recorded",
];
/// The events that the entry of `notify.to` gets. All of them occur in a task that completes at
/// once.
const WANTED: [&str; 2] = ["task.created", "task.completed"];

pub struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    async fn create(&self) {
        let body = json!({"input": "hello"});
        let request = self.http.post(format!("{}/v1/tasks", self.url));
        // The HTTP request fails if the process dies during it.
        let _ = request
            .bearer_auth(ALICE)
            .json(&body)
            .timeout(Duration::from_secs(20))
            .send()
            .await;
    }

    pub async fn get(&self, path: &str) -> Option<Value> {
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

    /// Waits until the service lists at least one task and every listed task has this status.
    /// Returns the ids of the tasks.
    pub async fn all(&self, status: &str) -> Vec<String> {
        loop {
            let tasks = self.get("/v1/tasks?limit=200").await.unwrap_or_default();
            let tasks = tasks["tasks"].as_array().cloned().unwrap_or_default();
            if !tasks.is_empty() && tasks.iter().all(|task| task["status"] == status) {
                return tasks
                    .iter()
                    .map(|task| task["task_id"].as_str().unwrap().to_owned())
                    .collect();
            }
            pause().await;
        }
    }
}

/// A service that is killed again and again, and the service's database.
pub struct KilledReplica {
    database: Database,
    _folder: tempfile::TempDir,
    replica: Replica,
    pub client: Client,
    /// The number of seconds by which the clock of Postgres is ahead. It grows at each start, so
    /// that the leases of the killed process are over.
    ahead: u32,
}

impl KilledReplica {
    /// Creates a service with this configuration, whose model gives the same answer to each task.
    pub async fn new(on: On, yaml: &str, answer: fn() -> Value) -> Self {
        let (model, tool) = (FakeModel::start().await, FakeTool::start().await);
        let database = Database::of(on).await;
        let folder = tempfile::tempdir().unwrap();
        let config = write_configuration(folder.path(), yaml, &model, &tool, &database);
        model.otherwise(move |_| answer());
        let replica = Replica::new(config);
        let client = Client {
            http: http_client(),
            url: replica.url(),
        };
        Self {
            database,
            _folder: folder,
            replica,
            client,
            ahead: 0,
        }
    }

    /// Starts a process with these failpoints. Returns `None` if the process was killed before it
    /// was ready.
    pub async fn start(&mut self, failpoints: &str) -> Option<Process> {
        self.ahead += 60;
        let mut process = self
            .replica
            .start(&format!("{failpoints};clock={}s", self.ahead));
        if process.ready(&self.client.http).await {
            return Some(process);
        }
        let killed = process.ended().await.signal().is_some();
        assert!(killed, "{}", self.replica.last_log_lines());
        None
    }

    /// Returns the ids that messages about the journaled events have.
    async fn event_ids(&self, on: On) -> BTreeSet<String> {
        let change = match on {
            On::Sqlite => "lower(hex(change_id))",
            On::Postgres => "replace(cast(change_id as text), '-', '')",
        };
        let sql = format!(
            "select 'evt_' || {change} || '_' || cast(event_number as text) from agent_task_item"
        );
        self.database.texts(&sql).await.into_iter().collect()
    }

    /// Starts two processes for each point, one after the other. The first process dies the first
    /// time that it reaches the point. The second process dies the second time that it reaches the
    /// point. Creates tasks until each process has died.
    pub async fn killed_at(&mut self, points: &[&str]) {
        for point in points {
            for pass in [1, 2] {
                let Some(mut process) = self.start(&format!("{point}=abort@{pass}")).await else {
                    continue;
                };
                while process.is_over().is_none() {
                    self.client.create().await;
                    a_while(&mut process).await;
                }
            }
        }
    }
}

/// Waits until the process has ended, or has had enough time to reach its failpoint.
async fn a_while(process: &mut Process) {
    for _ in 0..20 {
        if process.is_over().is_some() {
            return;
        }
        pause().await;
    }
}

async fn killed_at_each_point(on: On) {
    let hook = FakeReceiver::start().await;
    let entry = BACKEND.replace(
        "tenants: [acme]",
        "tenants: [acme], events: [task.created, task.completed]",
    );
    let mut service = KilledReplica::new(on, &yaml(&entry, &hook), || text_answer("done")).await;
    service.killed_at(&POINTS).await;
    let process = service.start("").await.unwrap();
    let expected: BTreeSet<(String, &str)> = service
        .client
        .all("Completed")
        .await
        .into_iter()
        .flat_map(|task| WANTED.map(|name| (task.clone(), name)))
        .collect();
    loop {
        let arrived = ids_by_event(&hook);
        if expected
            .iter()
            .all(|event| arrived.contains_key(&(event.0.clone(), event.1.to_owned())))
        {
            let twice = arrived.values().find(|ids| ids.len() > 1);
            assert_eq!(twice, None, "an event has one id");
            break;
        }
        pause().await;
    }
    assert!(
        hook.count() > expected.len(),
        "what was sent and not recorded is sent again"
    );
    process.kill().await;
    let journaled = service.event_ids(on).await;
    for ((task, kind), ids) in ids_by_event(&hook) {
        assert!(ids.is_subset(&journaled), "{kind} of {task}: {ids:?}");
    }
}

/// Returns the ids under which each event arrived, by task and event name.
fn ids_by_event(hook: &FakeReceiver) -> BTreeMap<(String, String), BTreeSet<String>> {
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

#[apply(with_failpoints)]
async fn killed_sender_loses_no_message_on_sqlite() {
    killed_at_each_point(On::Sqlite).await;
}

#[apply(with_failpoints)]
async fn killed_sender_loses_no_message_on_postgres() {
    killed_at_each_point(On::Postgres).await;
}
