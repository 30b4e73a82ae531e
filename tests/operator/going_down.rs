//! SIGTERM, whatever is under way.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::time::{Duration, Instant};

use super::served::{Folder, Served};
use crate::support::model::{FakeModel, calls};
use crate::support::tool::FakeTool;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn waiting_clients_are_answered_and_a_running_call_may_end() {
    let (model, tool, folder) = (FakeModel::start().await, FakeTool::start().await, Folder::new());
    let yaml = format!(
        "models: {{ m: {{ provider: openai, model: x, base_url: '{}' }} }}
agents: {{ a: {{ model: m, tools: [pay] }} }}
tools: {{ pay: {{ http: {{ url: '{}/pay' }} }} }}
policy: [ {{ name: all, tools: [pay], decide: allow }} ]
server: {{ wait: 300s }}
",
        model.base_url, tool.url
    );
    let mut served = Served::start(folder.path(), &yaml, &[]);
    model.then(calls(&[("pay", "{}")]));
    tool.close();
    let pid = served.pid();
    let began = Instant::now();
    let (answer, ()) = tokio::join!(served.task("pay"), async {
        tool.reached(1).await;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    });
    assert_eq!(answer["status"], "Running", "who waits is answered: {answer}");
    tool.open();
    assert_eq!(served.process.wait().unwrap().code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(25), "it did not wait for its time to be over");

    let again = Served::start(folder.path(), &yaml, &[]);
    model.otherwise(|_| crate::support::model::says("done"));
    let path = format!("/v1/tasks/{}", answer["task_id"].as_str().unwrap());
    let mut task = json!(null);
    while task["status"] != "Completed" {
        task = serde_json::from_str(&again.get(&path).await).unwrap();
        assert_ne!(task["status"], "Paused", "its result was kept: {task}");
    }
    assert_eq!(tool.ledger().len(), 1, "it did not run again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_service_takes_its_commands_with_it_and_does_not_run_them_again() {
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
    model.then(calls(&[("sh", r#"{"command": "exec 9>life; echo up >&9; sleep 600 & sleep 600"}"#)]));
    let task = served.task("go").await;
    let mut life = BufReader::new(File::open(life).unwrap());
    let mut said = String::new();
    life.read_line(&mut said).unwrap();
    assert_eq!(said, "up\n");
    served.process.kill().unwrap();
    served.process.wait().unwrap();
    assert_eq!(life.read_to_string(&mut said).unwrap(), 0, "everybody who held the pipe is gone");

    let again = Served::start(folder.path(), &yaml, &variables).bearer("alice-key-0123456789");
    let path = format!("/v1/tasks/{}", task["task_id"].as_str().unwrap());
    let mut seen = json!(null);
    while seen["status"] != "Paused" {
        seen = serde_json::from_str(&again.get(&path).await).unwrap();
        assert!(seen["status"] == "Running" || seen["status"] == "Paused", "{seen}");
    }
    assert_eq!(seen["pending"][0]["kind"], "reconcile", "nobody knows what it did: {seen}");
}
