//! Tests that kill or freeze the real binary at any moment, and that crash, cut off or restore its
//! database. They check that no non-repeatable call runs again without a person's decision.

mod chaos_run;
mod checker;
mod cut_answers;
mod database;
mod failpoints;
mod gate_askers;
mod gate_database;
mod gates;
mod grants;
mod hooks;
mod inbox_rows;
mod mail_to_result;
mod mails;
mod messages;
mod process;
mod restored;
mod scripted_model;
mod sender;
mod simulated_people;
mod stored_prompts;
mod storm;
mod world;
mod zombie;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::database::Database;
use crate::support::fake_chat_completions::{FakeModel, calls, says};
use crate::support::fake_tool::FakeTool;
use crate::support::test_app::{ACCOUNTS, ALICE, On, REFUNDS};

/// A running process of the binary. It is killed when this value is dropped.
struct Binary {
    child: Child,
    url: String,
    http: reqwest::Client,
}

impl Binary {
    async fn start(config: &Path, port: u16) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_holdpoint"))
            .args(["serve", "--config"])
            .arg(config)
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .envs([
                ("MODEL_KEY", "sk-model-key-0123456789"),
                ("TOOL_SECRET", "tool-secret-0123456789"),
            ])
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        #[expect(
            clippy::disallowed_methods,
            reason = "a test is a client like any other"
        )]
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut binary = Self {
            child,
            url: format!("http://127.0.0.1:{port}"),
            http,
        };
        loop {
            assert!(
                binary.child.try_wait().unwrap().is_none(),
                "it ended instead of getting ready"
            );
            let ready = binary
                .http
                .get(format!("{}/readyz", binary.url))
                .timeout(Duration::from_secs(1))
                .send()
                .await;
            if ready.is_ok_and(|reply| reply.status() == 200) {
                return binary;
            }
            crate::support::pause().await;
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = self
            .http
            .post(format!("{}{path}", self.url))
            .bearer_auth(ALICE);
        let reply = request.json(body).send().await.unwrap();
        (reply.status().as_u16(), reply.json().await.unwrap())
    }

    async fn get(&self, path: &str) -> Value {
        let request = self
            .http
            .get(format!("{}{path}", self.url))
            .bearer_auth(ALICE);
        request.send().await.unwrap().json().await.unwrap()
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A configuration file with the fakes and the database that it names.
struct ServiceFixture {
    folder: tempfile::TempDir,
    model: FakeModel,
    tool: FakeTool,
    _database: Database,
    port: u16,
}

impl ServiceFixture {
    async fn new(on: On) -> Self {
        let (model, tool) = (FakeModel::start().await, FakeTool::start().await);
        let database = match on {
            On::Sqlite => Database::sqlite(),
            On::Postgres => Database::postgres().await,
        };
        let yaml = REFUNDS
            .replace("{approvers}", "{ owner: true }")
            .replace("{model}", &model.base_url);
        let yaml = yaml.replace("{tool}", &tool.url);
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "{yaml}{ACCOUNTS}\ndatabase: {{ url: \"{}\" }}\n",
            database.url()
        );
        std::fs::write(folder.path().join("holdpoint.yaml"), text).unwrap();
        Self {
            folder,
            model,
            tool,
            _database: database,
            port: process::free_port(),
        }
    }

    async fn start(&self) -> Binary {
        Binary::start(&self.folder.path().join("holdpoint.yaml"), self.port).await
    }
}

async fn killed_in_the_pause(on: On) {
    let fixture = ServiceFixture::new(on).await;
    let binary = fixture.start().await;
    fixture
        .model
        .then(calls(&[("refund", r#"{"order":1,"amount":50}"#)]));
    let (status, held) = binary.post("/v1/tasks", &json!({"input": "go"})).await;
    assert_eq!((status, &held["status"]), (201, &json!("Paused")), "{held}");
    binary.kill();
    let binary = fixture.start().await;
    fixture.model.then(says("done"));
    let path = format!(
        "/resume/{}",
        held["pending"][0]["request_id"].as_str().unwrap()
    );
    let (status, done) = binary.post(&path, &json!({"action": "approve"})).await;
    assert_eq!(
        (status, &done["status"]),
        (200, &json!("Completed")),
        "{done}"
    );
    assert_eq!(fixture.tool.ledger().len(), 1);
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
    let fixture = ServiceFixture::new(On::Sqlite).await;
    let binary = fixture.start().await;
    fixture
        .model
        .then(calls(&[("refund", r#"{"order":1,"amount":50}"#)]));
    let (_, held) = binary.post("/v1/tasks", &json!({"input": "go"})).await;
    let path = format!(
        "/resume/{}",
        held["pending"][0]["request_id"].as_str().unwrap()
    );
    fixture.tool.close();
    let request = binary
        .http
        .post(format!("{}{path}/approve", binary.url))
        .bearer_auth(ALICE);
    let (cut, ()) = tokio::join!(request.send(), async {
        fixture.tool.reached(1).await;
        // The call has taken effect, but the service has not received the response.
        let pid =
            rustix::process::Pid::from_raw(i32::try_from(binary.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    });
    assert!(cut.is_err());
    binary.kill();
    fixture.tool.open();
    let binary = fixture.start().await;
    let task = format!("/v1/tasks/{}", held["task_id"].as_str().unwrap());
    let asked = loop {
        let task = binary.get(&task).await;
        if task["status"] == "Paused" {
            break task;
        }
        crate::support::pause().await;
    };
    assert_eq!(asked["pending"][0]["kind"], "reconcile", "{asked}");
    assert_eq!(fixture.tool.ledger().len(), 1, "never silently run again");
    fixture.model.then(says("done"));
    let path = format!(
        "/resume/{}",
        asked["pending"][0]["request_id"].as_str().unwrap()
    );
    let (_, done) = binary
        .post(
            &path,
            &json!({"action": "respond", "result": "it was paid"}),
        )
        .await;
    assert_eq!(done["status"], "Completed", "{done}");
    assert_eq!(fixture.tool.ledger().len(), 1);
}
