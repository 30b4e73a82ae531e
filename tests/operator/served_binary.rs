//! Runs the program on a configuration file in a temporary folder.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::fake_chat_completions::FakeModel;
use crate::support::fake_tool::FakeTool;
use crate::support::http_client;
use crate::support::test_app::Reply;

/// The arguments that serve the configuration file on a free port.
pub const SERVE: [&str; 5] = [
    "serve",
    "--config",
    "holdpoint.yaml",
    "--listen",
    "127.0.0.1:0",
];

/// `holdpoint serve`. Dropping the value kills the process.
pub struct Served {
    pub process: Child,
    pub address: String,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
    client: reqwest::Client,
    key: Option<&'static str>,
}

impl Served {
    /// Writes the configuration file, serves it on a free port, and returns once the service
    /// listens.
    pub fn start(folder: &Path, yaml: &str, variables: &[(&str, &str)]) -> Self {
        std::fs::write(folder.join("holdpoint.yaml"), yaml).unwrap();
        Self::with(folder, &SERVE, variables)
    }

    /// Like `start`, but in a process with these soft and hard limits of open files.
    pub fn limited(folder: &Path, yaml: &str, soft: u32, hard: u32) -> Self {
        std::fs::write(folder.join("holdpoint.yaml"), yaml).unwrap();
        let program = env!("CARGO_BIN_EXE_holdpoint");
        let serve = format!(
            "ulimit -Sn {soft}; ulimit -Hn {hard}; exec '{program}' serve --config holdpoint.yaml --listen 127.0.0.1:0"
        );
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &serve]);
        Self::spawn(shell, folder, &[], "listening")
    }

    /// Like `start`, but in a process that inherits an ignored SIGCHLD.
    pub fn ignoring_sigchld(folder: &Path, yaml: &str, variables: &[(&str, &str)]) -> Self {
        std::fs::write(folder.join("holdpoint.yaml"), yaml).unwrap();
        let mut program = Command::new("/usr/bin/env");
        program
            .args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_holdpoint")])
            .args(SERVE);
        Self::spawn(program, folder, variables, "listening")
    }

    /// Like `start`, but in a process that may not read the memory of other processes, also if the
    /// tests run as root.
    pub fn without_tracing(folder: &Path, yaml: &str, variables: &[(&str, &str)]) -> Self {
        std::fs::write(folder.join("holdpoint.yaml"), yaml).unwrap();
        let holdpoint = env!("CARGO_BIN_EXE_holdpoint");
        let mut program = Command::new(holdpoint);
        if rustix::process::geteuid().is_root() {
            program = Command::new("/usr/bin/setpriv");
            let capabilities = "-sys_ptrace,-perfmon,-sys_admin";
            program.args(["--bounding-set", capabilities, holdpoint]);
        }
        program.args(SERVE);
        Self::spawn(program, folder, variables, "listening")
    }

    pub fn with(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_holdpoint"));
        program.args(arguments);
        Self::spawn(program, folder, variables, "listening")
    }

    /// Writes the configuration file, and serves it on a free port with the database at this URL.
    /// Returns once the service listens, although it may not be ready yet.
    pub fn starting(folder: &Path, yaml: &str, database_url: &str) -> Self {
        std::fs::write(folder.join("holdpoint.yaml"), yaml).unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_holdpoint"));
        program.args(["serve", "--listen", "127.0.0.1:0"]);
        let variables = [("HOLDPOINT_DATABASE__URL", database_url)];
        Self::spawn(program, folder, &variables, "the service listens")
    }

    /// Runs the command. Returns once a line of the log has `words` and, after them, the address of
    /// the service.
    fn spawn(mut command: Command, folder: &Path, variables: &[(&str, &str)], words: &str) -> Self {
        let mut process = command
            .env_clear()
            .envs(variables.iter().copied())
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let mut address = None;
        while address.is_none() {
            let line = log
                .next()
                .unwrap_or_else(|| panic!("it ended: {:?}", lines.lock().unwrap()))
                .unwrap();
            let (_, rest) = line.split_once(words).unwrap_or_default();
            address = rest.split("127.0.0.1:").nth(1).map(|port| {
                format!(
                    "127.0.0.1:{}",
                    port.chars()
                        .take_while(char::is_ascii_digit)
                        .collect::<String>()
                )
            });
            lines.lock().unwrap().push(line);
        }
        let kept = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in log.map_while(Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        Self {
            process,
            address: address.unwrap(),
            lines,
            reader: Some(reader),
            client: http_client(),
            key: None,
        }
    }

    /// Makes all later requests carry this key.
    pub fn bearer(mut self, key: &'static str) -> Self {
        self.key = Some(key);
        self
    }

    pub async fn get(&self, path: &str) -> String {
        self.send(self.client.get(format!("http://{}{path}", self.address)))
            .await
    }

    /// Returns the status of a GET, or 0 if there is no answer.
    pub async fn status(&self, path: &str) -> u16 {
        let reply = self
            .client
            .get(format!("http://{}{path}", self.address))
            .send()
            .await;
        reply.map_or(0, |reply| reply.status().as_u16())
    }

    pub async fn post(&self, path: &str, body: &Value) -> Value {
        let request = self.client.post(format!("http://{}{path}", self.address));
        let request = request
            .header("content-type", "application/json")
            .body(body.to_string());
        serde_json::from_str(&self.send(request).await).unwrap()
    }

    /// Sends any request, with these headers and no others. Redirects are not followed.
    pub async fn exchange(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Reply {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self
            .client
            .request(method, format!("http://{}{path}", self.address))
            .body(body.into());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Reply::read(request.send().await.unwrap()).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> String {
        let request = if let Some(key) = self.key {
            request.bearer_auth(key)
        } else {
            request
        };
        request.send().await.unwrap().text().await.unwrap()
    }

    /// Creates a task. Returns the answer to the POST, which the service sends once the task waits
    /// or has ended.
    pub async fn task(&self, input: &str) -> Value {
        self.post("/v1/tasks", &json!({"input": input})).await
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub async fn approve(&self, task: &Value) -> Value {
        let url = task["pending"][0]["request_id"]
            .as_str()
            .unwrap_or_else(|| panic!("no request: {task}"));
        self.post(&format!("/resume/{url}"), &json!({"action": "approve"}))
            .await
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    pub fn terminate(&mut self) -> ExitStatus {
        kill_process(self.pid(), Signal::TERM).unwrap();
        self.process.wait().unwrap()
    }

    pub fn kill(&mut self) {
        kill_process(self.pid(), Signal::KILL).unwrap();
        self.process.wait().unwrap();
    }

    /// Returns the whole log. Must be called after the process has ended.
    pub fn log(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.lines.lock().unwrap().join("\n")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a model and a tool for the service, and makes a folder for its files.
pub async fn fakes() -> (FakeModel, FakeTool, Folder) {
    let (model, tool) = (FakeModel::start().await, FakeTool::start().await);
    (model, tool, Folder::new())
}

pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Returns the contents of the files of the `SQLite` database in this folder.
    pub fn database_files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.to_string_lossy().contains("holdpoint.db"))
            .map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned())
            .collect()
    }
}
