//! Tests a shutdown by SIGTERM, SIGINT and SIGHUP, and a kill, while clients wait and while calls or
//! commands are in flight.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::time::{Duration, Instant};

use macro_rules_attribute::apply;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::served_binary::{Folder, Served, fakes};
use crate::api::approval_cycle::on_both;
use crate::support::database::Database;
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::fake_tool::FakeTool;
use crate::support::test_app::On;

/// Returns a configuration with one tool at the fake endpoint. All calls of the tool are allowed.
fn paying(model: &FakeModel, tool: &FakeTool, database: &Database, effect: &str) -> String {
    format!(
        "models: {{ m: {{ provider: openai, model: x, base_url: '{}' }} }}
agents: {{ a: {{ model: m, tools: [pay] }} }}
tools: {{ pay: {{ effect: {effect}, http: {{ url: '{}/pay', timeout: 2m }} }} }}
policy: [ {{ name: all, tools: [pay], decide: allow }} ]
server: {{ wait: 300s }}
database: {{ url: '{}' }}
",
        model.base_url,
        tool.url,
        database.url()
    )
}

fn signal(served: &Served, signal: Signal) {
    kill_process(served.pid(), signal).unwrap();
}

/// Creates a task, and sends SIGTERM once the tool has received `calls` calls since its start.
/// Returns the service's answer to the POST that creates the task.
async fn stopped_during_a_call(served: &Served, tool: &FakeTool, calls: usize) -> Value {
    signaled_during_a_call(served, tool, calls, Signal::TERM).await
}

/// Like [`stopped_during_a_call`], but sends `end` in place of SIGTERM.
async fn signaled_during_a_call(
    served: &Served,
    tool: &FakeTool,
    calls: usize,
    end: Signal,
) -> Value {
    let (answer, ()) = tokio::join!(served.task("pay"), async {
        tool.reached(calls).await;
        signal(served, end);
    });
    answer
}

/// Returns whether this process ignores SIGHUP, as under `nohup`. If so, the processes that it
/// starts ignore SIGHUP, too.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap() & 1 == 1
}

/// Returns once `/readyz` reports that the service is not ready. By then, the service begins no new
/// call and no new message.
async fn not_ready(served: &Served) {
    while served.status("/readyz").await != 503 {
        crate::support::pause().await;
    }
}

async fn ended(served: &Served, task: &Value) -> Value {
    let path = format!("/v1/tasks/{}", task["task_id"].as_str().unwrap());
    loop {
        let seen: Value = serde_json::from_str(&served.get(&path).await).unwrap();
        if seen["status"] != "Running" {
            return seen;
        }
    }
}

#[apply(on_both)]
async fn sigterm_answers_waiting_clients_lets_a_call_end_and_takes_no_work(on: On) {
    let (model, tool, folder) = fakes().await;
    let database = Database::of(on).await;
    let yaml = paying(&model, &tool, &database, "once");
    let mut served = Served::start(folder.path(), &yaml, &[]);
    model.then(calls(&[("pay", "{}")]));
    tool.close();
    let answer = stopped_during_a_call(&served, &tool, 1).await;
    assert_eq!(
        answer["status"], "Running",
        "the waiting client is answered: {answer}"
    );
    not_ready(&served).await;
    assert_eq!(served.status("/healthz").await, 200, "it lives");
    let path = format!("/v1/tasks/{}", answer["task_id"].as_str().unwrap());
    let seen: Value = serde_json::from_str(&served.get(&path).await).unwrap();
    assert_eq!(
        seen["status"], "Running",
        "a new request is still answered: {seen}"
    );
    let refused = served.task("more").await;
    assert_eq!(
        (&refused["status"], &refused["code"]),
        (&json!(503), &json!("unavailable")),
        "{refused}"
    );
    let began = Instant::now();
    tool.open();
    assert_eq!(served.process.wait().unwrap().code(), Some(0));
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "it ended before its time limit"
    );
    assert_eq!(model.sent().len(), 1, "no new effect began");

    let again = Served::start(folder.path(), &yaml, &[]);
    model.otherwise(|_| text_answer("done"));
    let task = ended(&again, &answer).await;
    assert_eq!(task["status"], "Completed", "the result was kept: {task}");
    assert_eq!(tool.ledger().len(), 1, "the call did not run again");
}

/// Starts the service again. Asserts that the task in `answer` then completes, and that its call
/// does not run again.
async fn completes_without_a_second_call(
    folder: &Path,
    yaml: &str,
    answer: &Value,
    (model, tool): (&FakeModel, &FakeTool),
) {
    let again = Served::start(folder, yaml, &[]);
    model.otherwise(|_| text_answer("done"));
    assert_eq!(ended(&again, answer).await["status"], "Completed");
    assert_eq!(tool.ledger().len(), 1, "the call did not run again");
}

/// A terminal sends SIGINT for Ctrl-C.
#[tokio::test(flavor = "multi_thread")]
async fn sigint_answers_waiting_clients_and_lets_a_call_end() {
    let (model, tool, folder) = fakes().await;
    let database = Database::of(On::Sqlite).await;
    let yaml = paying(&model, &tool, &database, "once");
    let mut served = Served::start(folder.path(), &yaml, &[]);
    model.then(calls(&[("pay", "{}")]));
    tool.close();
    let answer = signaled_during_a_call(&served, &tool, 1, Signal::INT).await;
    assert_eq!(
        answer["status"], "Running",
        "the client is answered: {answer}"
    );
    not_ready(&served).await;
    tool.open();
    assert_eq!(served.process.wait().unwrap().code(), Some(0));
    completes_without_a_second_call(folder.path(), &yaml, &answer, (&model, &tool)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_lets_a_call_end_although_a_closed_terminal_sends_it_twice() {
    let (model, tool, folder) = fakes().await;
    let database = Database::of(On::Sqlite).await;
    let yaml = paying(&model, &tool, &database, "once");
    let mut served = Served::start(folder.path(), &yaml, &[]);
    model.then(calls(&[("pay", "{}")]));
    tool.close();
    if ignores_hangup() {
        signal(&served, Signal::HUP);
        assert_eq!(served.status("/readyz").await, 200, "SIGHUP stays ignored");
        return;
    }
    let answer = signaled_during_a_call(&served, &tool, 1, Signal::HUP).await;
    assert_eq!(
        answer["status"], "Running",
        "the client is answered: {answer}"
    );
    not_ready(&served).await;
    signal(&served, Signal::HUP);
    // After SIGHUP, a service manager may also send SIGTERM.
    signal(&served, Signal::TERM);
    assert_eq!(
        served.status("/healthz").await,
        200,
        "it waits for the call"
    );
    tool.open();
    assert_eq!(served.process.wait().unwrap().code(), Some(0));
    completes_without_a_second_call(folder.path(), &yaml, &answer, (&model, &tool)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn released_task_continues_at_once_on_another_replica() {
    let (model, tool) = (FakeModel::start().await, FakeTool::start().await);
    let (folder, other) = (Folder::new(), Folder::new());
    let database = Database::postgres().await;
    let yaml = paying(&model, &tool, &database, "once");
    let mut served = Served::start(folder.path(), &yaml, &[]);
    model.then(calls(&[("pay", "{}")]));
    tool.close();
    let answer = stopped_during_a_call(&served, &tool, 1).await;
    let other = Served::start(other.path(), &yaml, &[]);
    model.otherwise(|_| text_answer("done"));
    tool.open();
    let began = Instant::now();
    assert_eq!(ended(&other, &answer).await["status"], "Completed");
    assert!(
        began.elapsed() < Duration::from_secs(28),
        "a lease lasts 30 s: {:?}",
        began.elapsed()
    );
    assert_eq!(served.process.wait().unwrap().code(), Some(0));
    assert_eq!(tool.ledger().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_call_delays_shutdown_only_for_its_time_and_its_task_is_released() {
    let (model, tool) = (FakeModel::start().await, FakeTool::start().await);
    let (folder, other) = (Folder::new(), Folder::new());
    let database = Database::postgres().await;
    let yaml = paying(&model, &tool, &database, "idempotent");
    let mut served = Served::start(folder.path(), &yaml, &[]);
    let mut impatient = Served::start(other.path(), &yaml, &[]);
    tool.close();
    model.then(calls(&[("pay", "{}")]));
    let answer = stopped_during_a_call(&served, &tool, 1).await;
    let began = Instant::now();
    model.then(calls(&[("pay", "{}")]));
    stopped_during_a_call(&impatient, &tool, 2).await;
    not_ready(&impatient).await;
    let told = Instant::now();
    signal(&impatient, Signal::TERM);
    assert_eq!(impatient.process.wait().unwrap().code(), Some(0));
    assert!(
        told.elapsed() < Duration::from_secs(15),
        "a second SIGTERM ends it at once: {:?}",
        told.elapsed()
    );
    assert_eq!(served.process.wait().unwrap().code(), Some(0));
    let taken = began.elapsed();
    assert!(
        taken > Duration::from_secs(10) && taken < Duration::from_mins(1),
        "{taken:?}"
    );
    let third = Served::start(folder.path(), &yaml, &[]);
    model.otherwise(|_| text_answer("done"));
    tool.open();
    let began = Instant::now();
    assert_eq!(
        ended(&third, &answer).await["status"],
        "Completed",
        "a repeatable call is repeated"
    );
    assert!(
        began.elapsed() < Duration::from_secs(28),
        "a lease lasts 30 s: {:?}",
        began.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_service_ends_its_commands_and_does_not_run_them_again() {
    let (model, folder) = (FakeModel::start().await, Folder::new());
    let yaml = format!(
        "models: {{ m: {{ provider: openai, model: x, base_url: '{}' }} }}
agents: {{ a: {{ model: m, tools: [sh] }} }}
tools: {{ sh: {{ shell: {{ env: [PATH], timeout: 10m }} }} }}
policy: [ {{ name: all, tools: [sh], decide: allow }} ]
auth: {{ api_keys: [ {{ user: alice, key: alice-key-0123456789 }} ] }}
server: {{ wait: 0s }}
",
        model.base_url
    );
    let life = folder.file("life");
    rustix::fs::mkfifoat(rustix::fs::CWD, &life, rustix::fs::Mode::RWXU).unwrap();
    let variables = [("PATH", "/usr/bin:/bin")];
    let mut served = Served::start(folder.path(), &yaml, &variables).bearer("alice-key-0123456789");
    model.then(calls(&[(
        "sh",
        r#"{"command": "exec 9>life; echo up >&9; sleep 600 & sleep 600"}"#,
    )]));
    let task = served.task("go").await;
    let mut life = BufReader::new(File::open(life).unwrap());
    let mut said = String::new();
    life.read_line(&mut said).unwrap();
    assert_eq!(said, "up\n");
    served.process.kill().unwrap();
    served.process.wait().unwrap();
    assert_eq!(
        life.read_to_string(&mut said).unwrap(),
        0,
        "every process that held the pipe is gone"
    );

    let again = Served::start(folder.path(), &yaml, &variables).bearer("alice-key-0123456789");
    let path = format!("/v1/tasks/{}", task["task_id"].as_str().unwrap());
    let mut seen = json!(null);
    while seen["status"] != "Paused" {
        seen = serde_json::from_str(&again.get(&path).await).unwrap();
        assert!(
            seen["status"] == "Running" || seen["status"] == "Paused",
            "{seen}"
        );
    }
    assert_eq!(
        seen["pending"][0]["kind"], "reconcile",
        "the call's outcome is unknown: {seen}"
    );
}
