//! Set-up and results of the chaos tests. Writes the configuration file, whose tools call the
//! process of `tool_server.rs`, and reads the journals after a run.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdpoint::secret::Secret;
use holdpoint::store::{Settings, Store, TaskFilter};
use holdpoint::task::id::TaskId;
use holdpoint::world::SystemClock;

use super::checker::TaskRecord;
use super::gate_askers::AGENT;
use super::scripted_model::Model;
use super::simulated_people::People;
use super::tool_server::ToolServer;
use crate::support::pause;
use crate::support::test_app::ACCOUNTS;

/// A configuration with tools of every effect, with rules that allow, hold, and hold for one
/// second, and with sub-agents on two levels. The sub-agent `clerk` keeps its conversation between
/// calls.
const CONFIG: &str = r#"
server: { max_running: {running} }
models:
  main: { provider: openai, base_url: "{model}", model: fake, retries: 1 }
tools:
  lookup: { effect: read_only, http: { method: POST, url: "{tool_server}/lookup", timeout: 2s }, parameters: &arguments { type: object, properties: { order: { type: integer }, amount: { type: integer }, fault: { type: string }, wait: { type: integer } }, required: [order, amount] } }
  tag: { effect: idempotent, http: { method: POST, url: "{tool_server}/tag", timeout: 2s }, parameters: *arguments }
  refund: { http: { method: POST, url: "{tool_server}/refund", timeout: 2s }, parameters: *arguments }
  short: { http: { method: POST, url: "{tool_server}/short", timeout: 2s }, parameters: *arguments }
  shell: { external: {}, parameters: *arguments }
agents:
  billing: { description: Refunds., model: main, tools: [lookup, tag, refund, short], sub_agents: [scout, { agent: clerk, session: true }], limits: &limits { max_model_calls: 200, max_tasks: 100 } }
  scout: { description: Looks around., model: main, tools: [lookup, tag, refund], sub_agents: [hand], limits: *limits }
  clerk: { description: Remembers., model: main, tools: [lookup, tag, refund], limits: *limits }
  hand: { description: Does it., model: main, tools: [lookup, tag, refund], limits: *limits }
default_agent: billing
policy:
  - { name: reads, tools: [lookup, tag], decide: allow }
  - { name: small, tools: [refund], when: "args.amount <= 20", decide: allow }
  - { name: large, tools: [refund], decide: hold, approvers: { owner: true } }
  - { name: short, tools: [short], decide: hold, approvers: { owner: true }, expires_in: 1s }
  - { name: shell, tools: [shell], decide: hold, approvers: { owner: true } }
gates:
  coding: { tools: [refund, shell], use_within: 1h, run_within: 1h, no_lasts: 0s }
"#;

/// Writes the configuration file into a folder and returns its path. `database` is a URL; `running`
/// is the number of tasks that a process runs at once.
pub fn configure(
    folder: &Path,
    model: &Model,
    tool_server: &ToolServer,
    database: &str,
    running: u32,
) -> PathBuf {
    let named = |yaml: &str, name: &str| {
        let text = yaml
            .split_once(&format!("&{name} "))
            .unwrap()
            .1
            .split(" }\n")
            .next()
            .unwrap()
            .to_owned();
        yaml.replace(&format!("&{name} "), "")
            .replace(&format!("*{name}"), &text)
    };
    let yaml = named(&named(CONFIG, "arguments"), "limits");
    let yaml = yaml
        .replace("{model}", &model.base_url)
        .replace("{tool_server}", &tool_server.url)
        .replace("{running}", &running.to_string());
    let path = folder.join("holdpoint.yaml");
    std::fs::write(
        &path,
        format!("{yaml}{ACCOUNTS}    - {{ user: alice, tenant: acme, groups: [support], key: {AGENT}, may: [gate] }}\ndatabase: {{ url: \"{database}\", max_connections: 8 }}\n"),
    )
    .unwrap();
    path
}

/// Returns the current status of each task as the service reports it, as (task id, status).
pub async fn statuses(people: &People, tasks: &[String]) -> Vec<(String, String)> {
    let mut said = Vec::new();
    for task in tasks {
        let status = people.get(&format!("/v1/tasks/{task}")).await["status"]
            .as_str()
            .unwrap_or("lost")
            .to_owned();
        said.push((task.clone(), status));
    }
    said
}

/// Reads the journals of the tasks in `statuses`, given as (task id, status), and of their
/// sub-agents' tasks. The journals are read from the database, so all replicas must have stopped.
pub async fn journals(database: &str, statuses: Vec<(String, String)>) -> Vec<TaskRecord> {
    let settings = Settings {
        url: Secret::new(database.to_owned()),
        migrate: false,
        unsafe_ok: true,
        ..Settings::default()
    };
    let mut tries = 0;
    let store = loop {
        match Store::open(&settings, Arc::new(SystemClock)).await {
            Ok(store) => break store,
            // After a kill, it takes a moment until the database file of the process is free.
            Err(error) => assert!(tries < 200, "{error}"),
        }
        tries += 1;
        pause().await;
    };
    let mut records = Vec::new();
    for (task, status) in statuses {
        let root: TaskId = task.parse().unwrap();
        let tree = TaskFilter {
            tenant: "acme".to_owned(),
            roots: vec![root],
            limit: 1_000,
            ..TaskFilter::default()
        };
        let mut rows = store.tasks(&tree).await.unwrap().rows;
        rows.retain(|row| row.task_id != root);
        let children = rows.into_iter().map(|row| {
            let status = row.status.as_str().to_owned();
            (
                row.task_id,
                row.parent,
                status,
                row.output,
                (row.busy, row.open_requests),
            )
        });
        let row = store.task(root).await.unwrap().unwrap();
        let own = (
            root,
            None,
            status,
            row.output,
            (row.busy, row.open_requests),
        );
        for (task, parent, status, output, counted) in std::iter::once(own).chain(children) {
            let journal = store.items(task, 0, 10_000).await.unwrap();
            records.push(TaskRecord {
                task,
                root,
                parent,
                status,
                output,
                counted,
                journal,
            });
        }
    }
    store.close().await;
    records
}

pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Returns a message for each kind of event that happened less often than its minimum, because a
/// run with too few such events proves nothing. `least` has each kind as (name, number of events
/// that happened, minimum).
pub fn too_few(least: &[(&str, u64, u64)]) -> Vec<String> {
    let few = least
        .iter()
        .filter(|(_, happened, wanted)| happened < wanted);
    few.map(|(what, happened, wanted)| {
        format!("vacuous: {happened} {what}, at least {wanted} are wanted")
    })
    .collect()
}
