//! Tests that kill or freeze the real binary at any moment, and that crash, cut off or restore its
//! database. They check that no `once` call runs again without a person's decision.

mod chaos_run;
mod checker;
mod cut_answers;
mod database;
mod failpoints;
mod frozen_replica;
mod gate_askers;
mod gate_database;
mod gates;
mod grants;
mod hooks;
mod inbox_rows;
mod mail_to_result;
mod mails;
mod messages;
pub mod process;
mod restored;
mod scripted_model;
mod sender;
mod simulated_people;
mod stored_prompts;
mod storm;
mod tool_server;

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use self::process::{Process, Replica};
use crate::support::database::Database;
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::fake_tool::FakeTool;
use crate::support::http_client;
use crate::support::test_app::{ALICE, On, VARIABLES, refunds};

/// The arguments of a refund that is held.
const LARGE: &str = r#"{"order":1,"amount":50}"#;

/// Makes a test that needs failpoints. A build without failpoints ignores the test.
macro_rules! with_failpoints {
    ($(#[$meta:meta])* async fn $name:ident() $body:block) => {
        $(#[$meta])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[cfg_attr(not(failpoints), ignore = "needs failpoints")]
        async fn $name() $body
    };
}
pub(crate) use with_failpoints;

/// Replaces `{model}`, `{tool}` and the [`VARIABLES`] in `yaml` by their values, adds the database,
/// and writes the result to a file in `folder`. Returns the file's path.
fn write_configuration(
    folder: &Path,
    yaml: &str,
    model: &FakeModel,
    tool: &FakeTool,
    database: &Database,
) -> PathBuf {
    let mut yaml = yaml
        .replace("{model}", &model.base_url)
        .replace("{tool}", &tool.url);
    for (name, value) in VARIABLES {
        yaml = yaml.replace(&format!("${{{name}}}"), value);
    }
    let path = folder.join("holdpoint.yaml");
    let text = format!("{yaml}\ndatabase: {{ url: \"{}\" }}\n", database.url());
    std::fs::write(&path, text).unwrap();
    path
}

/// The refund agent at a fixed port, with the fakes and the database that it uses.
struct ServiceFixture {
    _folder: tempfile::TempDir,
    model: FakeModel,
    tool: FakeTool,
    _database: Database,
    replica: Replica,
    http: reqwest::Client,
}

impl ServiceFixture {
    /// Creates a service whose large refunds are decided by `approvers`. `approvers` is YAML.
    async fn new(on: On, approvers: &str) -> Self {
        let (model, tool) = (FakeModel::start().await, FakeTool::start().await);
        let database = Database::of(on).await;
        let folder = tempfile::tempdir().unwrap();
        let yaml = refunds(approvers);
        let config = write_configuration(folder.path(), &yaml, &model, &tool, &database);
        Self {
            _folder: folder,
            model,
            tool,
            _database: database,
            replica: Replica::new(config),
            http: http_client(),
        }
    }

    /// Starts a process with these failpoints, and returns once it is ready.
    async fn start(&self, failpoints: &str) -> Process {
        self.replica.serve(failpoints, &self.http).await
    }

    async fn post(&self, path: &str, body: &Value) -> reqwest::Result<(u16, Value)> {
        let post = self.http.post(format!("{}{path}", self.replica.url()));
        let reply = post.bearer_auth(ALICE).json(body).send().await?;
        Ok((reply.status().as_u16(), reply.json().await?))
    }

    async fn get(&self, path: &str) -> Value {
        let get = self.http.get(format!("{}{path}", self.replica.url()));
        let reply = get.bearer_auth(ALICE).send().await.unwrap();
        reply.json().await.unwrap()
    }
}

/// Returns the path of the POST that answers the first open request of a task.
fn resume_path(task: &Value) -> String {
    let request = &task["pending"][0]["request_id"];
    format!("/resume/{}", request.as_str().unwrap())
}

async fn killed_in_the_pause(on: On) {
    let service = ServiceFixture::new(on, "{ owner: true }").await;
    let process = service.start("").await;
    service.model.then(calls(&[("refund", LARGE)]));
    let held = service.post("/v1/tasks", &json!({"input": "go"})).await;
    let (status, held) = held.unwrap();
    assert_eq!((status, &held["status"]), (201, &json!("Paused")), "{held}");
    process.kill().await;
    let process = service.start("").await;
    service.model.then(text_answer("done"));
    let yes = json!({"action": "approve"});
    let (status, done) = service.post(&resume_path(&held), &yes).await.unwrap();
    assert_eq!(
        (status, &done["status"]),
        (200, &json!("Completed")),
        "{done}"
    );
    assert_eq!(service.tool.ledger().len(), 1);
    process.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_killed_during_a_pause_still_runs_the_call_once_on_sqlite() {
    killed_in_the_pause(On::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_killed_during_a_pause_still_runs_the_call_once_on_postgres() {
    killed_in_the_pause(On::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_killed_during_an_approved_call_opens_a_reconcile_request() {
    let service = ServiceFixture::new(On::Sqlite, "{ owner: true }").await;
    let process = service.start("").await;
    service.model.then(calls(&[("refund", LARGE)]));
    let held = service.post("/v1/tasks", &json!({"input": "go"})).await;
    let (_, held) = held.unwrap();
    service.tool.close();
    let path = resume_path(&held);
    let request = service
        .http
        .post(format!("{}{path}/approve", service.replica.url()))
        .bearer_auth(ALICE);
    let (cut, ()) = tokio::join!(request.send(), async {
        service.tool.reached(1).await;
        // The call has taken effect, but the service has not received the response.
        process.signal(Signal::KILL);
    });
    assert!(cut.is_err());
    process.kill().await;
    service.tool.open();
    let process = service.start("").await;
    let task = format!("/v1/tasks/{}", held["task_id"].as_str().unwrap());
    let asked = loop {
        let task = service.get(&task).await;
        if task["status"] == "Paused" {
            break task;
        }
        crate::support::pause().await;
    };
    assert_eq!(asked["pending"][0]["kind"], "reconcile", "{asked}");
    assert_eq!(service.tool.ledger().len(), 1, "never silently run again");
    service.model.then(text_answer("done"));
    let answer = json!({"action": "respond", "result": "it was paid"});
    let (_, done) = service.post(&resume_path(&asked), &answer).await.unwrap();
    assert_eq!(done["status"], "Completed", "{done}");
    assert_eq!(service.tool.ledger().len(), 1);
    process.kill().await;
}
