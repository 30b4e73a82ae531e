//! Tests `holdpoint gate`: the hooks of coding agents and the calls of scripts, against a real
//! service and against servers that fail.

mod calls;
mod hooks;
mod sabotage;

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

use super::served_binary::{Folder, Served};

const AGENT: &str = "agent-key-0123456789";
/// The key with which Alice reads the calls of Alice's agent.
const ALICE: &str = "alice-key-0123456789";
const BOB: &str = "bob-key-0123456789ab";

const YAML: &str = r#"
models: { m: { provider: openai, model: x, base_url: "http://127.0.0.1:9/v1" } }
agents: { a: { model: m } }
tools:
  Bash: { description: A shell., external: {}, parameters: { type: object, properties: { command: { type: string } }, required: [command] } }
  Look: { description: A file., effect: read_only, external: {}, parameters: { type: object, properties: { path: { type: string } } } }
  Run: { description: A command of ours., shell: { env: [PATH] } }
gates:
  coding: { description: A coding agent., tools: [Bash, Look, Run], report: {report} }
policy:
  - { name: ours, tools: [Look, Run], decide: allow }
  - { name: quick, tools: [Bash], when: 'args.command == "ls"', decide: allow }
  - { name: never, tools: [Bash], when: 'args.command == "rm"', decide: deny, reason: Not this one. }
  - { name: careful, tools: [Bash], decide: hold, approvers: { groups: [ops] }, allow: [approve, reject, edit, respond] }
auth:
  api_keys:
    - { user: alice, tenant: acme, key: "agent-key-0123456789", may: [gate] }
    - { user: alice, tenant: acme, key: "alice-key-0123456789", may: [read] }
    - { user: bob, tenant: acme, groups: [ops], key: "bob-key-0123456789ab", may: [read, decide] }
"#;

struct ServedGate {
    served: Served,
    folder: Folder,
}

impl ServedGate {
    fn start(report: &str) -> Self {
        let folder = Folder::new();
        let yaml = YAML.replace("{report}", report);
        let served = Served::start(folder.path(), &yaml, &[]).bearer(BOB);
        Self { served, folder }
    }

    fn url(&self) -> String {
        format!("http://{}", self.served.address)
    }

    fn gate(&self, arguments: &[&str], wait: &str) -> Command {
        gate(self.folder.path(), &self.url(), arguments, wait)
    }

    /// Runs `holdpoint gate hook` for the coding agent `host`, with `input` on the command's
    /// standard input. The command waits for at most `wait`.
    fn hook(&self, host: &str, options: &[&str], input: &Value, wait: &str) -> Output {
        let arguments = [&["hook", host], options].concat();
        run(self.gate(&arguments, wait), input.to_string().as_bytes())
    }

    async fn decide(&self, body: &Value) -> Value {
        let request = self.open().await;
        let id = request["request_id"].as_str().unwrap();
        let headers = [
            ("authorization", &*format!("Bearer {BOB}")),
            ("content-type", "application/json"),
            ("prefer", "wait=0"),
        ];
        let path = format!("/resume/{id}");
        let reply = self
            .served
            .exchange("POST", &path, &headers, body.to_string())
            .await;
        assert!(reply.status < 300, "{}", reply.text);
        request
    }

    async fn open(&self) -> Value {
        loop {
            let list: Value = serde_json::from_str(&self.served.get("/v1/requests").await).unwrap();
            if let Some(request) = list.pointer("/requests/0") {
                return request.clone();
            }
            crate::support::pause().await;
        }
    }

    /// Waits until the service has closed each connection that its client has closed. Until then, a
    /// proposal of a killed process may still be waiting in the service.
    async fn has_noticed_gone_clients(&self) {
        let (_, port) = self.served.address.rsplit_once(':').unwrap();
        let service = format!("0100007F:{:04X}", port.parse::<u16>().unwrap());
        // The fields are a number, the local address, the remote address and the state. In the
        // states 04 and 05 (FIN_WAIT), the client has closed the connection and the service has
        // not.
        let is_half_closed = |line: &str| {
            let mut fields = line.split_whitespace().skip(2);
            fields.next() == Some(service.as_str()) && matches!(fields.next(), Some("04" | "05"))
        };
        loop {
            let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
            if !connections.lines().any(is_half_closed) {
                return;
            }
            crate::support::pause().await;
        }
    }

    /// Returns the items of this type from the journals of all calls so far.
    async fn items(&self, kind: &str) -> Vec<Value> {
        let authorization = format!("Bearer {ALICE}");
        let read = async |path: &str| {
            let headers = [("authorization", &*authorization)];
            let reply = self.served.exchange("GET", path, &headers, "").await;
            assert_eq!(reply.status, 200, "{}", reply.text);
            reply.body
        };
        let tasks = read("/v1/tasks?agent=coding").await;
        let mut found = Vec::new();
        for task in tasks["tasks"].as_array().unwrap() {
            let id = task["task_id"].as_str().unwrap();
            let items = read(&format!("/v1/tasks/{id}/items")).await;
            let items = items["items"].as_array().unwrap().clone();
            found.extend(items.into_iter().filter(|item| item["type"] == kind));
        }
        found
    }
}

/// Returns the command `holdpoint gate …`. Its environment has the variables of the gate and no
/// others.
fn gate(folder: &Path, url: &str, arguments: &[&str], wait: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdpoint"));
    command
        .arg("gate")
        .args(arguments)
        .env_clear()
        .env("HOLDPOINT_URL", url)
        .env("HOLDPOINT_KEY", AGENT)
        .env("HOLDPOINT_GATE", "coding")
        .env("HOLDPOINT_WAIT", wait)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn begin(mut command: Command, input: &[u8]) -> Child {
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A failed write is ignored: a process that refuses its input may exit, and so close the pipe,
    // before it has read the whole input.
    let _ = stdin.write_all(input);
    child
}

fn run(command: Command, input: &[u8]) -> Output {
    begin(command, input).wait_with_output().unwrap()
}

/// Returns the input of a `PreToolUse` hook, in the form that Claude Code and Codex both use.
fn before(usage: &str, command: &str) -> Value {
    json!({
        "session_id": "5f3c-session", "transcript_path": "/t.jsonl", "cwd": "/work", "permission_mode": "default",
        "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_use_id": usage, "tool_input": {"command": command},
    })
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns the permission in the hook's answer. Asserts that the exit code is 0.
fn permission(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let told = &told["hookSpecificOutput"];
    assert_eq!(told["hookEventName"], "PreToolUse");
    told.clone()
}

/// Runs `work` on a thread that it may block.
async fn on_blocking_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}
