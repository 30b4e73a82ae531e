//! Tests of a restored backup and of a promoted standby, with the real binary and its own database.
//! If the lost history may contain the run of a `once` call, the call does not run again without a
//! person's decision. If it may contain the permit of a call at a gate, the call gets no permit
//! again without such a decision.

mod gate_calls;
mod process;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use futures_util::stream::{self, StreamExt as _};
use serde_json::{Value, json};

use self::gate_calls::GateCalls;
use self::process::{Process, id};
use crate::api::gate::yaml;
use crate::support::database::Database;
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::fake_tool::FakeTool;
use crate::support::postgres::Cluster;
use crate::support::test_app::VARIABLES;
use crate::support::{http_client, repetitions};

const SLOTS: usize = 4;
/// The number of approved tasks that wait for a free slot.
const QUEUED: usize = 5;

/// The configuration's folder, the tool and the port. They outlive every process and every
/// database.
struct RestoreFixture {
    folder: tempfile::TempDir,
    tool: FakeTool,
    port: u16,
}

/// The tasks of the backup, grouped by state. `held` has each task as the service returned it.
/// Every other list has the ids of its tasks.
#[derive(Default)]
struct Tasks {
    done: Vec<String>,
    held: Vec<Value>,
    /// Tasks with two calls: the first is in flight, and the second is allowed.
    allowed: Vec<String>,
    /// Tasks with two approved calls. The first call is in flight.
    approved: Vec<String>,
    /// Tasks with one approved call that has not started.
    waiting: Vec<String>,
    /// Tasks whose model has not been asked yet.
    new: Vec<String>,
    /// Calls at a gate, whose tasks are in none of the lists.
    gate: GateCalls,
}

impl RestoreFixture {
    async fn new() -> Self {
        let (model, tool) = (FakeModel::start().await, FakeTool::start().await);
        model.otherwise(|body| {
            let last = body["messages"].as_array().unwrap().last().unwrap();
            let said = if last["role"] == "tool" {
                String::new()
            } else {
                last["content"].to_string()
            };
            let [small, other] = [r#"{"order":1,"amount":5}"#, r#"{"order":2,"amount":6}"#];
            let [large, larger] = [r#"{"order":3,"amount":50}"#, r#"{"order":4,"amount":60}"#];
            match said.trim_matches(|c: char| !c.is_ascii_alphabetic()) {
                "small" => calls(&[("refund", small)]),
                "large" => calls(&[("refund", large)]),
                "two small" => calls(&[("refund", small), ("refund", other)]),
                "two large" => calls(&[("refund", large), ("refund", larger)]),
                _ => text_answer("done"),
            }
        });
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // A call must not time out while the test's tool does not answer.
        let yaml = yaml("run_within: 1h")
            .replace("{ groups: [finance] }", "{ owner: true }")
            .replace("{model}", &model.base_url)
            .replace("{tool}", &tool.url)
            .replace("timeout: 5s", "timeout: 40s");
        let text = format!(
            "{yaml}\nserver: {{ max_running: {SLOTS} }}\ndatabase: {{ acquire_timeout: 5s }}\n"
        );
        fs::write(folder.path().join("holdpoint.yaml"), text).unwrap();
        let port = super::process::free_port();
        Self { folder, tool, port }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a Postgres with an unprivileged user and a database that this user owns.
    async fn cluster(&self) -> Cluster {
        let cluster = Cluster::start(&self.path("first"), "", std::process::id());
        cluster.unprivileged("house").await;
        cluster
    }

    async fn serve(&self, database: &str, more: &[&str]) -> Process {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_holdpoint"))
            .args(["serve", "--config"])
            .arg(self.path("holdpoint.yaml"))
            .args([
                "--listen",
                &format!("127.0.0.1:{}", self.port),
                "--database-url",
                database,
            ])
            .args(more)
            .envs(VARIABLES)
            .env("HOLDPOINT_FAILPOINTS", "lease=15s")
            .stderr(log)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut process = Process {
            child,
            url: format!("http://127.0.0.1:{}", self.port),
            http: http_client(),
        };
        while process.ready().await != Some(200) {
            let log = || fs::read_to_string(self.path("log")).unwrap();
            assert!(
                process.child.try_wait().unwrap().is_none(),
                "it ended: {}",
                log()
            );
        }
        process
    }

    /// Creates tasks in every state; `held` of them wait for an approval. When this function
    /// returns, the tool no longer answers.
    async fn populate(&self, process: &Process, held: usize) -> Tasks {
        let mut tasks = Tasks {
            gate: GateCalls::populate(process).await,
            ..Tasks::default()
        };
        for _ in 0..3 {
            tasks.done.push(id(&process.task("small", 10).await));
        }
        tasks.held = stream::iter(0..held + QUEUED)
            .map(|_| process.task("large", 10))
            .buffered(4)
            .collect()
            .await;
        let two_large = [
            process.task("two large", 10).await,
            process.task("two large", 10).await,
        ];
        self.tool.close();
        let out = self.tool.ledger().len();
        for task in &two_large {
            assert_eq!(task["status"], "Paused", "{task}");
            process.answer(task, &json!({"action": "approve"}), 0).await;
            tasks.approved.push(id(task));
        }
        for _ in two_large.len()..SLOTS {
            tasks.allowed.push(id(&process.task("two small", 0).await));
        }
        self.tool.reached(out + SLOTS).await;
        for task in tasks.held.split_off(held) {
            process
                .answer(&task, &json!({"action": "approve"}), 0)
                .await;
            tasks.waiting.push(id(&task));
        }
        for _ in 0..3 {
            tasks.new.push(id(&process.task("small", 0).await));
        }
        tasks
    }

    /// Writes history that the backup does not contain: approves `cycles` tasks (first the held
    /// tasks, then new tasks), and lets all tasks complete.
    async fn go_on(&self, process: &Process, tasks: &Tasks, cycles: usize) {
        self.tool.open();
        let cycle = async |task: Option<&Value>| {
            let task = match task {
                Some(task) => task.clone(),
                None => process.task("large", 30).await,
            };
            let done = process
                .answer(&task, &json!({"action": "approve"}), 60)
                .await;
            assert_eq!(done["status"], "Completed", "{done}");
        };
        let known = tasks
            .held
            .iter()
            .map(Some)
            .chain(std::iter::repeat(None))
            .take(cycles);
        stream::iter(known).for_each_concurrent(8, cycle).await;
        for task in tasks.all() {
            assert_eq!(process.settled(&task).await["status"], "Completed");
        }
        assert!(
            self.executed().values().all(|count| *count == 1),
            "each key once so far"
        );
        assert!(self.executed().len() >= cycles);
        tasks.gate.go_on(process).await;
    }

    fn executed(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for call in self.tool.ledger() {
            *counts
                .entry(call.header("idempotency-key").to_owned())
                .or_default() += 1;
        }
        counts
    }

    /// Asserts that no call runs after the loss of the history. Then decides, and asserts that only
    /// the calls that the decisions allow run.
    async fn nothing_runs_again(&self, process: &Process, tasks: &Tasks) {
        let executed = self.executed();
        let mut now = BTreeMap::new();
        for task in tasks.all() {
            now.insert(task.clone(), process.settled(&task).await);
        }
        assert_eq!(self.executed(), executed, "nothing ran without a human");
        let pending = |task: &String| now[task]["pending"].as_array().unwrap().clone();
        for task in &tasks.done {
            assert_eq!(now[task]["status"], "Completed");
        }
        for task in &tasks.held {
            let [request] = &pending(&id(task))[..] else {
                panic!("it is still held")
            };
            assert_eq!(
                (&request["kind"], &request["digest"]),
                (&json!("approval"), &task["pending"][0]["digest"])
            );
            assert_eq!(
                request["tool_calls"][0]["warnings"][0]["code"], "may_already_have_run",
                "{request}"
            );
        }
        for task in tasks.allowed.iter().chain(&tasks.approved) {
            let requests = pending(task);
            assert!(
                requests.len() == 2
                    && requests
                        .iter()
                        .all(|request| request["kind"] == "reconcile"),
                "{requests:?}"
            );
            let started = requests
                .iter()
                .filter(|request| !request["details"]["sent_at"].is_null());
            assert_eq!(
                started.count(),
                1,
                "the first one is known to have been started: {requests:?}"
            );
        }
        for task in &tasks.waiting {
            let [request] = &pending(task)[..] else {
                panic!("it is asked about")
            };
            let details = &request["details"];
            assert_eq!(
                (&request["kind"], &details["sent_at"]),
                (&json!("reconcile"), &Value::Null)
            );
            assert!(
                details["problem"].as_str().unwrap().contains("restored"),
                "{request}"
            );
        }
        for task in &tasks.new {
            let [request] = &pending(task)[..] else {
                panic!("no rule allows it now")
            };
            let call = &request["tool_calls"][0];
            assert_eq!(
                (&request["kind"], &call["rule"]),
                (&json!("approval"), &json!("small"))
            );
            assert!(
                call["reason"].as_str().unwrap().contains("restored"),
                "{request}"
            );
        }
        self.humans_decide(process, tasks, &now, executed).await;
        tasks.gate.nothing_runs_again(process).await;
    }

    async fn humans_decide(
        &self,
        process: &Process,
        tasks: &Tasks,
        now: &BTreeMap<String, Value>,
        mut executed: BTreeMap<String, usize>,
    ) {
        let [retried, answered, rejected, canceled, ..] = &tasks.waiting[..] else {
            panic!("there are five")
        };
        for (task, answer) in [
            (retried, json!({"action": "retry"})),
            (
                answered,
                json!({"action": "respond", "result": "it was paid"}),
            ),
            (rejected, json!({"action": "reject"})),
        ] {
            assert_eq!(
                process.answer(&now[task], &answer, 30).await["status"],
                "Completed"
            );
        }
        let seen = process
            .answer(&tasks.held[0], &json!({"action": "approve"}), 30)
            .await;
        assert_eq!(seen["status"], "Completed", "{seen}");
        for task in [&now[retried], &tasks.held[0]] {
            let call = task["pending"][0]["tool_calls"][0]["tool_call_id"]
                .as_str()
                .unwrap();
            *executed.get_mut(call).unwrap() += 1;
        }
        assert_eq!(self.executed(), executed, "the two that a human let run");
        process
            .post(&format!("/v1/tasks/{canceled}/cancel"), &json!({}), 0)
            .await;
        let items = process.get(&format!("/v1/tasks/{canceled}/items")).await;
        let results: Vec<_> = items["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|i| i["type"] == "tool_result")
            .collect();
        assert_eq!(results[0]["outcome"], "unknown", "{items}");
    }
}

impl Tasks {
    fn all(&self) -> Vec<String> {
        let held: Vec<_> = self.held.iter().map(id).collect();
        [
            &self.done,
            &held,
            &self.allowed,
            &self.approved,
            &self.waiting,
            &self.new,
        ]
        .into_iter()
        .flatten()
        .cloned()
        .collect()
    }
}

fn plain(cluster: &Cluster) -> String {
    cluster.url("house").replace("postgres@", "plain@")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn base_backup_restored_after_many_cycles_runs_nothing_again() {
    let fixture = RestoreFixture::new().await;
    let cluster = fixture.cluster().await;
    let process = fixture.serve(&plain(&cluster), &[]).await;
    let tasks = fixture.populate(&process, repetitions(20, 40)).await;
    let kept = fixture.path("kept");
    cluster.backup(&kept, false);
    fixture.go_on(&process, &tasks, repetitions(30, 500)).await;
    drop(process);
    cluster.cut();
    let restored = Cluster::resume(&kept, "", std::process::id());
    let process = fixture.serve(&plain(&restored), &["--restored"]).await;
    fixture.nothing_runs_again(&process, &tasks).await;
    // A database server still runs in the folder, so this test does not delete the folder. The
    // clusters' watcher processes end the servers and remove their data.
    let _ = fixture.folder.keep();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_copy_of_a_sqlite_file_runs_nothing_again() {
    let fixture = RestoreFixture::new().await;
    let url = |name: &str| format!("sqlite://{}", fixture.path(name).display());
    let process = fixture.serve(&url("house.db"), &[]).await;
    let tasks = fixture.populate(&process, 10).await;
    let copy = format!("vacuum into '{}'", fixture.path("kept.db").display());
    Database::at(&url("house.db")).execute(&copy).await;
    fixture.go_on(&process, &tasks, repetitions(12, 30)).await;
    drop(process);
    let process = fixture.serve(&url("kept.db"), &["--restored"]).await;
    fixture.nothing_runs_again(&process, &tasks).await;
}

/// The replica keeps running while the address of its database is switched to the standby.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promoted_standby_is_recognized_by_a_running_replica_and_runs_nothing_again() {
    let fixture = RestoreFixture::new().await;
    let cluster = fixture.cluster().await;
    let socket_folder = fixture.path("socket");
    symlink(fixture.path("first"), &socket_folder).unwrap();
    let url = format!(
        "postgres://plain@{}/house",
        socket_folder.display().to_string().replace('/', "%2F")
    );
    let process = fixture.serve(&url, &[]).await;
    let tasks = fixture.populate(&process, 10).await;
    cluster.backup(&fixture.path("second"), true);
    fixture.go_on(&process, &tasks, repetitions(12, 30)).await;
    cluster.cut();
    let standby = Cluster::resume(&fixture.path("second"), "", std::process::id());
    fs::remove_file(&socket_folder).unwrap();
    symlink(fixture.path("second"), &socket_folder).unwrap();
    // The replica refuses the standby until its promotion, so the replica is not ready.
    while process.ready().await != Some(503) {}
    let (status, refused) = process
        .post("/v1/tasks", &json!({"input": "small"}), 0)
        .await;
    assert_eq!(
        (status, &refused["code"]),
        (503, &json!("unavailable")),
        "{refused}"
    );
    standby.promote();
    while process.ready().await != Some(200) {}
    fixture.nothing_runs_again(&process, &tasks).await;
    // A database server still runs in the folder, so this test does not delete the folder. The
    // clusters' watcher processes end the servers and remove their data.
    let _ = fixture.folder.keep();
}
