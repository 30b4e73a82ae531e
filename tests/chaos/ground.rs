//! What a run stands on: a configuration file whose tools are the world's, and what is gathered when it is over.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdpoint::store::{Settings, Store};
use holdpoint::task::id::TaskId;
use holdpoint::world::SystemClock;

use super::checker::Told;
use super::people::People;
use super::process::a_moment;
use crate::support::app::ACCOUNTS;

/// Tools of every effect, rules that allow, hold, and hold for a second only.
const CONFIG: &str = r#"
server: { max_running: {running} }
models:
  main: { provider: openai, base_url: "{model}", model: fake, retries: 1 }
tools:
  lookup: { effect: read_only, http: { method: POST, url: "{world}/lookup", timeout: 2s }, parameters: &arguments { type: object, properties: { order: { type: integer }, amount: { type: integer }, mood: { type: string }, wait: { type: integer } }, required: [order, amount] } }
  tag: { effect: idempotent, http: { method: POST, url: "{world}/tag", timeout: 2s }, parameters: *arguments }
  refund: { http: { method: POST, url: "{world}/refund", timeout: 2s }, parameters: *arguments }
  short: { http: { method: POST, url: "{world}/short", timeout: 2s }, parameters: *arguments }
agents:
  billing: { description: Refunds., model: main, tools: [lookup, tag, refund, short] }
policy:
  - { name: reads, tools: [lookup, tag], decide: allow }
  - { name: small, tools: [refund], when: "args.amount <= 20", decide: allow }
  - { name: large, tools: [refund], decide: hold, approvers: { owner: true } }
  - { name: short, tools: [short], decide: hold, approvers: { owner: true }, expires_in: 1s }
"#;

/// Writes the configuration into a folder.
pub fn configure(folder: &Path, model: &str, world: &str, database: &str, running: u32) -> PathBuf {
    let arguments = CONFIG.split_once("&arguments ").unwrap().1.split(" }\n").next().unwrap();
    let yaml = CONFIG.replace("&arguments ", "").replace("*arguments", arguments);
    let yaml = yaml.replace("{model}", model).replace("{world}", world).replace("{running}", &running.to_string());
    let path = folder.join("holdpoint.yaml");
    std::fs::write(&path, format!("{yaml}{ACCOUNTS}database: {{ url: \"{database}\", max_connections: 8 }}\n"))
        .unwrap();
    path
}

/// What the service says of each task now.
pub async fn statuses(people: &People, tasks: &[String]) -> Vec<(String, String)> {
    let mut said = Vec::new();
    for task in tasks {
        let status = people.get(&format!("/v1/tasks/{task}")).await["status"].as_str().unwrap_or("lost").to_owned();
        said.push((task.clone(), status));
    }
    said
}

/// The journals, read from the database when no replica runs any more.
pub async fn journals(database: &str, statuses: Vec<(String, String)>) -> Vec<Told> {
    let settings = Settings { url: database.to_owned(), migrate: false, unsafe_ok: true, ..Settings::default() };
    let mut tries = 0;
    let store = loop {
        match Store::open(&settings, Arc::new(SystemClock)).await {
            Ok(store) => break store,
            // A process that was killed lets go of the file a moment later.
            Err(error) => assert!(tries < 200, "{error}"),
        }
        tries += 1;
        a_moment().await;
    };
    let mut told = Vec::new();
    for (task, status) in statuses {
        let task: TaskId = task.parse().unwrap();
        told.push(Told { task, status, journal: store.items(task, 0, 10_000).await.unwrap() });
    }
    store.close().await;
    told
}
