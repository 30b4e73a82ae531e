//! Runs the shell blocks of each page in order, in an empty folder, as a reader would. A command
//! `holdpoint serve` or `cargo run` starts the service, and the other commands send HTTP requests
//! to it.
//!
//! The test fills in the placeholders of a command. `TASK_ID` is the last task that a command's
//! output named. `REQUEST_ID`, `TOOL_CALL_ID` and `DIGEST` are taken from the first open request of
//! that task. If a page's commands need a service and none of them starts one, the commands are run
//! against the demonstration.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use super::configurations::accepts;
use super::{Block, blocks, pages, read, root, variables};

/// The address of the service that the documentation shows.
const SHOWN_ADDRESS: &str = "127.0.0.1:8080";
/// A command that creates a task with an open request. It is run before a command that needs an
/// open request, if none is open.
const REFUND: &str = r#"curl -s http://127.0.0.1:8080/v1/tasks -H 'Content-Type: application/json' -d '{"input": "Please refund 120 for order 17"}'"#;
/// The command that runs all tests. This test does not run it, because it would run this test
/// again.
const ALL_TESTS: &str = "scripts/test";

/// A simulated reader, who runs the commands of one page.
struct Reader {
    folder: tempfile::TempDir,
    /// The environment variables of the commands, including those that a command exported.
    environment: Vec<(String, String)>,
    service: Option<Service>,
    task_id: Option<String>,
}

/// A running service. It is killed when this value is dropped.
struct Service {
    process: Child,
    address: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let _ = self.process.wait();
    }
}

impl Reader {
    fn new(page: &str) -> Self {
        let mut environment = variables(&read(page));
        environment.push((
            "OPENAI_API_KEY".to_owned(),
            "sk-0123456789abcdef".to_owned(),
        ));
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            environment,
            service: None,
            task_id: None,
        }
    }

    /// Handles one block: writes the file that the block shows, or runs the block's JavaScript or
    /// shell commands.
    fn read(&mut self, block: &Block) {
        if let Some(name) = block.file_name() {
            fs::write(self.folder.path().join(name), &block.text).expect("a file");
        }
        if block.language == "js" {
            self.follow_events(block);
        }
        if !block.is_shell() {
            return;
        }
        accepts(&block.place(), "bash", &["-n"], &block.text);
        if block.is_no_run() {
            return;
        }
        for command in commands(&block.text) {
            self.run(&block.place(), &command);
        }
    }

    fn run(&mut self, place: &str, command: &str) {
        if command == ALL_TESTS {
            assert!(root().join(ALL_TESTS).is_file(), "{place}: {command}");
        } else if command.starts_with("export ") || command.starts_with(". ") {
            self.export(place, command);
        } else if command == "cargo run" {
            self.serve(place, "holdpoint");
        } else if command.starts_with("holdpoint serve") {
            self.serve(place, command);
        } else {
            self.ask(place, command);
        }
    }

    /// Runs a command that sets variables, and keeps the variables for later commands.
    fn export(&mut self, place: &str, command: &str) {
        let done = self
            .shell(&format!("set -a\n{command}\nenv"))
            .output()
            .expect("a shell");
        assert!(done.status.success(), "{place}: {command}");
        let text = String::from_utf8(done.stdout).expect("text");
        let set = text.lines().filter_map(|line| line.split_once('='));
        self.environment = set
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
    }

    fn serve(&mut self, place: &str, command: &str) {
        self.service = None;
        self.task_id = None;
        let mut process = self
            .shell(&format!("exec {command}"))
            .env("HOLDPOINT_SERVER__LISTEN", "127.0.0.1:0")
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut log = BufReader::new(process.stderr.take().expect("its log")).lines();
        let mut lines = Vec::new();
        let address = loop {
            let line = log
                .next()
                .unwrap_or_else(|| panic!("{place}: {command}\n{lines:#?}"))
                .expect("a line");
            let (_, rest) = line.split_once("listening").unwrap_or_default();
            if let Some((_, port)) = rest.split_once("127.0.0.1:") {
                let digits = port.chars().take_while(char::is_ascii_digit);
                break format!("127.0.0.1:{}", digits.collect::<String>());
            }
            lines.push(line);
        };
        std::thread::spawn(move || log.for_each(drop));
        self.service = Some(Service { process, address });
    }

    /// Runs a command to its end. Panics if the command fails or if its `curl` is answered with an
    /// error.
    fn ask(&mut self, place: &str, command: &str) {
        if command.contains(SHOWN_ADDRESS) && self.service.is_none() {
            self.serve(place, "holdpoint");
        }
        let filled = self.filled(place, command);
        let done = self.shell(&filled).output().expect("a shell");
        let (out, complaint) = (
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr),
        );
        assert!(done.status.success(), "{place}: {filled}\n{out}{complaint}");
        if let Some(id) = task_id(&out) {
            self.task_id = Some(id);
        }
    }

    /// Returns the command with the service's address in place of the shown address, and with its
    /// placeholders replaced by the ids of the reader's task.
    fn filled(&mut self, place: &str, command: &str) -> String {
        let asks = ["REQUEST_ID", "TOOL_CALL_ID", "DIGEST"]
            .iter()
            .any(|name| command.contains(name));
        let mut filled = command.replacen("curl ", "curl --fail-with-body --max-time 60 ", 1);
        if asks {
            let request = self.open_request().unwrap_or_else(|| {
                self.ask(place, REFUND);
                self.open_request()
                    .unwrap_or_else(|| panic!("{place}: no open request for {command}"))
            });
            let text = |pointer| request.pointer(pointer).and_then(Value::as_str);
            for (name, pointer) in [
                ("REQUEST_ID", "/request_id"),
                ("TOOL_CALL_ID", "/tool_calls/0/tool_call_id"),
                ("DIGEST", "/digest"),
            ] {
                filled = filled.replace(name, text(pointer).unwrap_or_default());
            }
        }
        if filled.contains("TASK_ID") {
            if self.task_id.is_none() {
                self.ask(place, REFUND);
            }
            filled = filled.replace("TASK_ID", self.task_id.as_deref().expect("a task"));
        }
        match &self.service {
            Some(service) => filled.replace(SHOWN_ADDRESS, &service.address),
            None => filled,
        }
    }

    fn open_request(&self) -> Option<Value> {
        let (service, task_id) = (self.service.as_ref()?, self.task_id.as_ref()?);
        let get = format!(
            "curl -s -H 'Prefer: wait=20' http://{}/v1/tasks/{task_id}",
            service.address
        );
        let answer = self.shell(&get).output().expect("a shell");
        let task: Value = serde_json::from_slice(&answer.stdout).ok()?;
        task.pointer("/pending/0").cloned()
    }

    /// Runs the event reader that the page shows in JavaScript. The event reader reads the events
    /// of the page's last task, which must have ended by then.
    fn follow_events(&mut self, block: &Block) {
        let place = block.place();
        let filled = self.filled(
            &place,
            &block.text.replace("taskId, key))", "'TASK_ID', ''))"),
        );
        assert_ne!(filled, block.text, "{place}: it names no task");
        let address = &self.service.as_ref().expect("a service").address;
        let here = filled.replace(
            "https://holdpoint.example.com",
            &format!("http://{address}"),
        );
        let file = self.folder.path().join("reader.mjs");
        fs::write(&file, here).expect("a file");
        let done = self.shell("node reader.mjs").output().expect("a shell");
        let out = String::from_utf8_lossy(&done.stdout);
        assert!(
            done.status.success() && out.contains("task.completed"),
            "{place}: {out}{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }

    /// Returns a shell command that runs `script` in the reader's folder. The shell has `holdpoint`
    /// in its `PATH` and stops at the first command that fails.
    fn shell(&self, script: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_holdpoint"));
        let mut path = OsString::from(program.parent().expect("its folder"));
        path.push(":");
        path.push(std::env::var_os("PATH").expect("PATH"));
        let mut command = Command::new("sh");
        command
            .args(["-e", "-c", script])
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("PATH", path)
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        if let Some(service) = &self.service {
            command
                .env("HOLDPOINT_SERVER__LISTEN", &service.address)
                .env("HOLDPOINT_URL", format!("http://{}", service.address));
        }
        command
    }
}

/// Returns the commands of a block, one for each line. A command continues on the next line after a
/// `\` or inside a quotation.
pub(super) fn commands(block: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut command = String::new();
    for line in block.lines() {
        command.push_str(line);
        if command.ends_with('\\') || command.matches('\'').count() % 2 == 1 {
            command.push('\n');
            continue;
        }
        let whole = std::mem::take(&mut command);
        if !whole.trim().is_empty() && !whole.starts_with('#') {
            commands.push(whole);
        }
    }
    assert!(command.is_empty(), "an open end: {command}");
    commands
}

/// Returns the id of the task that a command's output names. If the output also names the root
/// task, returns the id of the root task. The output is an HTTP body, an HTTP head with a body, or
/// a stream of events.
fn task_id(answer: &str) -> Option<String> {
    let body = answer
        .split_once("\r\n\r\n")
        .map_or(answer, |(_, body)| body);
    let event = || {
        answer
            .lines()
            .find_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
    };
    let value = serde_json::from_str(body).ok().or_else(event)?;
    let id = ["root_task_id", "task_id"]
        .iter()
        .find_map(|name| value[*name].as_str());
    id.map(str::to_owned)
}

#[test]
fn commands_of_the_documentation_run() {
    let mut ran = 0;
    for page in pages() {
        let mut reader = Reader::new(&page);
        for block in blocks(&page) {
            reader.read(&block);
            ran += usize::from(block.is_shell() && !block.is_no_run());
        }
    }
    assert!(ran > 20, "{ran} blocks ran: the pages have more");
}

#[test]
fn refused_command_fails_the_test_of_its_page() {
    let broken = Block {
        page: "a page".to_owned(),
        line: 1,
        language: "sh".to_owned(),
        options: String::new(),
        text: "curl -s http://127.0.0.1:8080/v1/tusks\n".to_owned(),
    };
    let failed = std::panic::catch_unwind(|| Reader::new("README.md").read(&broken));
    let said = failed.expect_err("the path does not exist");
    let said = said.downcast_ref::<String>().expect("a message");
    assert!(said.contains("not_found"), "{said}");
}

#[test]
fn commands_of_a_block_are_split_at_line_ends_outside_quotations() {
    let block = "# a comment\na 'b\nc' \\\n  d\n\ne\n";
    assert_eq!(commands(block), ["a 'b\nc' \\\n  d", "e"]);
    assert_eq!(
        task_id("HTTP/1.1 202\r\n\r\n{\"task_id\": \"t\"}").as_deref(),
        Some("t")
    );
    let event = format!(
        "id: 1\ndata: {}\n\n",
        json!({"root_task_id": "r", "task_id": "s"})
    );
    assert_eq!(task_id(&event).as_deref(), Some("r"));
}
