//! Runs `examples/refunds/` command by command, as the example's README says, with the example's
//! payment service. The test replaces the model's endpoint, the database and the ports, and nothing
//! else.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use super::served_binary::Folder;
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::postgres::database;

/// A shell and its child processes, which are killed when the value is dropped.
struct Shell {
    process: Child,
    _output: Box<dyn std::any::Any>,
    /// The text that follows the awaited words in the same output line.
    said: String,
}

impl Shell {
    /// Starts a script, and waits until the script has printed `words` on standard output or on
    /// standard error.
    fn until(words: &str, script: &str, folder: &Path, variables: &[(&str, &str)]) -> Self {
        let mut command = shell(script, folder, variables);
        let mut process = command
            .process_group(0)
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (out, err) = (
            process.stdout.take().unwrap(),
            process.stderr.take().unwrap(),
        );
        // The words may come on standard output or on standard error, so a thread reads each of the
        // two. Both stay open for as long as the process runs.
        let (told, heard) = std::sync::mpsc::channel();
        let (other, wanted) = (told.clone(), words.to_owned());
        let reader = |from: Box<dyn std::io::Read + Send>,
                      told: std::sync::mpsc::Sender<String>| {
            std::thread::spawn(move || {
                for line in BufReader::new(from).lines().map_while(Result::ok) {
                    let _ = told.send(line);
                }
            })
        };
        let readers = (reader(Box::new(out), told), reader(Box::new(err), other));
        let mut lines = Vec::new();
        let said = loop {
            let line = heard
                .recv()
                .unwrap_or_else(|_| panic!("it ended without `{wanted}`: {lines:#?}"));
            if let Some((_, rest)) = line.split_once(wanted.as_str()) {
                break rest.to_owned();
            }
            lines.push(line);
        };
        Self {
            process,
            _output: Box::new((readers, heard)),
            said,
        }
    }

    fn address(&self) -> String {
        let (_, rest) = self.said.split_once("127.0.0.1:").unwrap();
        format!(
            "127.0.0.1:{}",
            rest.chars()
                .take_while(char::is_ascii_digit)
                .collect::<String>()
        )
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let _ = self.process.wait();
    }
}

/// Returns the command of a shell that stops at the first failing command and finds `holdpoint` in
/// its `PATH`.
fn shell(script: &str, folder: &Path, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new("sh");
    let program = Path::new(env!("CARGO_BIN_EXE_holdpoint")).parent().unwrap();
    let path = [
        program.as_os_str().to_owned(),
        std::env::var_os("PATH").unwrap(),
    ]
    .join(OsStr::new(":"));
    command
        .args(["-e", "-c", script])
        .env_clear()
        .env("PATH", path)
        .envs(variables.iter().copied());
    command.current_dir(folder).stdin(Stdio::null());
    command
}

fn run(script: &str, folder: &Path) -> Value {
    let done = shell(script, folder, &[]).output().unwrap();
    assert!(
        done.status.success(),
        "{script}\n{}",
        String::from_utf8_lossy(&done.stderr)
    );
    serde_json::from_slice(&done.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&done.stdout)))
}

#[tokio::test(flavor = "multi_thread")]
async fn example_runs_as_its_readme_says_from_a_held_refund_to_the_payment() {
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/refunds");
    let (folder, model, database) = (Folder::new(), FakeModel::start().await, database().await);
    for file in ["holdpoint.yaml", "refunds.py"] {
        std::fs::copy(example.join(file), folder.file(file)).unwrap();
    }
    let readme = std::fs::read_to_string(example.join("README.md")).unwrap();
    let blocks: Vec<&str> = readme
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split_once("```").expect("the end of a block").0)
        .collect();
    let [pays, exports, serves, asks, approves] = blocks.as_slice() else {
        panic!("five blocks: {blocks:#?}")
    };

    let payer = Shell::until("refunds are paid at", pays, folder.path(), &[("PORT", "0")]);
    let refunds = format!("http://{}", payer.address());
    let ours = exports
        .replace(
            "postgres://holdpoint@localhost/holdpoint",
            &format!("'{}'", database.url),
        )
        .replace("sk-...", "sk-of-the-operator-0123");
    assert!(
        ours.contains(&database.url) && ours.contains("sk-of-the-operator"),
        "{ours}"
    );
    let around = [
        ("OPENAI_BASE_URL", model.base_url.as_str()),
        ("REFUNDS_URL", refunds.as_str()),
        ("HOLDPOINT_SERVER__LISTEN", "127.0.0.1:0"),
    ];
    let service = Shell::until(
        "listening",
        &format!("{ours}{serves}"),
        folder.path(),
        &around,
    );
    let here = |script: &str| script.replace("127.0.0.1:8080", &service.address());

    let refund = |amount: &str| {
        calls(&[(
            "refund_payment",
            &format!(r#"{{"order": 17, "amount": {amount}}}"#),
        )])
    };
    model
        .then(refund("120"))
        .then(text_answer("Refund R-1 is paid."));
    let held = run(&here(asks), folder.path());
    assert_eq!(
        (&held["status"], &held["user_id"]),
        (&json!("Paused"), &json!("alice")),
        "{held}"
    );
    let request = &held["pending"][0];
    assert_eq!(
        request["tool_calls"][0]["summary"],
        "Refund 120 for order 17"
    );
    let approves = here(approves).replace("REQUEST_ID", request["request_id"].as_str().unwrap());
    let refused = run(&approves.replace("BOB", "ALICE"), folder.path());
    assert_eq!(
        (&refused["status"], &refused["code"]),
        (&json!(403), &json!("forbidden")),
        "{refused}"
    );
    let done = run(&approves, folder.path());
    assert_eq!(
        (&done["status"], &done["output"]),
        (&json!("Completed"), &json!("Refund R-1 is paid.")),
        "{done}"
    );
    let result = model.sent()[1]["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()["content"]
        .clone();
    let result: Value = serde_json::from_str(result.as_str().unwrap()).unwrap();
    assert_eq!(result, json!({"refund": "R-1", "amount": 120, "order": 17}));

    model
        .then(refund("12"))
        .then(text_answer("Refund R-2 is paid."));
    let small = run(&here(asks), folder.path());
    assert_eq!(
        small["status"], "Completed",
        "small refunds run without approval: {small}"
    );
    let again = run(&approves, folder.path());
    assert_eq!(again["code"], "already_decided", "{again}");
    assert!(
        model.sent()[3].to_string().contains("R-2"),
        "two refunds were paid, none twice"
    );
}
