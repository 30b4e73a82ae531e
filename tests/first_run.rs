//! Tests the first run of the program in an empty folder without a configuration. The test runs the
//! commands that the service prints, exactly as they are printed. The README shows the same
//! commands.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

/// A running demonstration. Dropping the value kills its processes.
pub struct Demonstration {
    process: Child,
    output: BufReader<ChildStdout>,
    pub commands: Vec<String>,
}

impl Demonstration {
    fn start(folder: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdpoint"));
        command
            .args(["serve", "--listen", "127.0.0.1:0"])
            .env_clear()
            .current_dir(folder);
        Self::serve(&mut command)
    }

    /// Starts a command that serves the demonstration. Returns once the demonstration has printed
    /// its commands.
    pub fn serve(command: &mut Command) -> Self {
        let mut process = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut output = BufReader::new(process.stdout.take().expect("its output"));
        let commands = output
            .by_ref()
            .lines()
            .map_while(Result::ok)
            .map(|line| line.trim().to_owned());
        let commands = commands
            .filter(|line| line.starts_with("curl "))
            .take(2)
            .collect();
        Self {
            process,
            output,
            commands,
        }
    }

    /// Returns the host and port of the demonstration, from the commands that it printed.
    fn address(&self) -> &str {
        let command = self.commands.first().expect("it printed a command");
        let (_, rest) = command.split_once("http://").expect("with an address");
        rest.split_once('/').expect("and a path").0
    }
}

impl Drop for Demonstration {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let _ = self.process.wait();
        // Waits until no process of the group holds the output open.
        let _ = std::io::copy(&mut self.output, &mut std::io::sink());
    }
}

#[test]
fn printed_commands_lead_from_a_task_to_its_end_across_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = Demonstration::start(folder.path());
    let paused = json(&run(&first.commands[0]));
    assert_eq!(paused["status"], "Paused", "{paused}");
    let request = paused["pending"][0]["request_id"]
        .as_str()
        .expect("a request")
        .to_owned();
    let url = format!("http://{}/resume/{request}/approve", first.address());
    assert_eq!(paused["pending"][0]["approval_url"], url);

    kill_process(Pid::from_child(&first.process), Signal::TERM).expect("a signal");
    assert_eq!(
        first.process.wait().expect("an end").code(),
        Some(0),
        "SIGTERM is an ordinary end"
    );

    let second = Demonstration::start(folder.path());
    let completed = json(&run(&second.commands[1].replace("REQUEST_ID", &request)));
    assert_eq!(completed["status"], "Completed", "{completed}");
    assert_eq!(completed["task_id"], paused["task_id"]);
    assert!(
        completed["output"]
            .as_str()
            .is_some_and(|output| output.contains("120")),
        "{completed}"
    );
}

#[test]
fn readme_of_the_repository_and_of_the_packages_show_the_printed_commands() {
    let folder = tempfile::tempdir().expect("a folder");
    let demonstration = Demonstration::start(folder.path());
    assert_eq!(
        demonstration.commands.len(),
        2,
        "{:?}",
        demonstration.commands
    );
    for page in ["README.md", "packaging/README.md"] {
        let readme = fs::read_to_string(root().join(page)).expect("a README");
        for command in &demonstration.commands {
            let shown = command.replace(demonstration.address(), "127.0.0.1:8080");
            assert!(
                readme.lines().any(|line| line == shown),
                "{page} does not show: {shown}"
            );
        }
    }
}

#[test]
fn documented_commands_for_slow_models_work_as_shown() {
    let page = fs::read_to_string(root().join("docs/api.md")).expect("docs/api.md");
    let (_, section) = page
        .split_once("\nA model may take longer than the wait.")
        .expect("the section");
    let commands: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("curl "))
        .take(2)
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    let demonstration = Demonstration::start(folder.path());
    let here = |command: &str| command.replace("127.0.0.1:8080", demonstration.address());

    let accepted = run(&here(commands[0]));
    let (head, body) = accepted.split_once("\r\n\r\n").expect("a head and a body");
    let head = head.to_ascii_lowercase();
    let location = format!("\nlocation: http://{}/v1/tasks/", demonstration.address());
    assert!(
        head.starts_with("http/1.1 202 ") && head.contains(&location),
        "{head}"
    );
    assert!(head.contains("\npreference-applied: "), "{head}");
    let task = json(body);
    let waited = json(&run(
        &here(commands[1]).replace("TASK_ID", task["task_id"].as_str().expect("an id"))
    ));
    assert_eq!(
        (&waited["task_id"], &waited["status"]),
        (&task["task_id"], &Value::from("Paused")),
        "{waited}"
    );
}

pub fn run(command: &str) -> String {
    let done = Command::new("sh")
        .args(["-c", command])
        .output()
        .expect("a shell");
    assert!(
        done.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8(done.stdout).expect("text")
}

pub fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
