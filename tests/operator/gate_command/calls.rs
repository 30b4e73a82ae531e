//! Tests `holdpoint gate call`: its exit codes, and that a command without a permit does not run.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{ServedGate, begin, on_blocking_thread, run, text};

const LS: &str = r#"{"command":"ls"}"#;
const MAKE: &str = r#"{"command":"make"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn verdicts_are_exit_codes() {
    let service = ServedGate::start("required");
    for (arguments, code, decision) in [
        (&["call", "Bash", LS][..], 0, "allow"),
        (&["call", "Bash", r#"{"command":"rm"}"#], 10, "deny"),
        (&["call", "Other", "{}"], 10, "deny"),
        (&["call", "Bash", MAKE, "--wait", "0s"], 11, "pending"),
    ] {
        let output = run(service.gate(arguments, "5s"), b"");
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(told["decision"], decision);
    }
    for arguments in [
        &["call"][..],
        &["call", "Bash", "{"],
        &["call", "Bash", "[]"],
        &["call", "Bash", LS, "--wait", "x"],
        &["call", "Bash", LS, "--session", "a b"],
    ] {
        let output = run(service.gate(arguments, "5s"), b"");
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
    }
    let spaced = run(
        service.gate(&["call", "Bash", "-"], "5s"),
        b"{ \"command\" : \"ls\" }\n",
    );
    let told: Value = serde_json::from_slice(&spaced.stdout).unwrap();
    assert_eq!(told["arguments_text"], "{ \"command\" : \"ls\" }");
}

#[tokio::test(flavor = "multi_thread")]
async fn command_runs_once_it_is_approved_and_its_exit_is_reported() {
    let service = ServedGate::start("required");
    let command = [
        "call",
        "Bash",
        MAKE,
        "--key",
        "ci-1",
        "--",
        "sh",
        "-c",
        "echo \"built $IDEMPOTENCY_KEY\"; exit 3",
    ];
    let held = run(
        service.gate(
            &[
                &["call", "Bash", MAKE, "--key", "ci-1", "--wait", "0s"],
                &command[5..],
            ]
            .concat(),
            "0s",
        ),
        b"",
    );
    assert_eq!((held.status.code(), text(&held.stdout)), (Some(11), ""));
    let child = begin(service.gate(&command, "30s"), b"");
    service.decide(&json!({"action": "approve"})).await;
    let ran = on_blocking_thread(move || child.wait_with_output().unwrap()).await;
    assert_eq!(ran.status.code(), Some(3), "{}", text(&ran.stderr));
    assert!(
        text(&ran.stdout).starts_with("built 0"),
        "{}",
        text(&ran.stdout)
    );
    let results = service.items("tool_result").await;
    assert_eq!(
        (
            results.len(),
            &results[0]["outcome"],
            &results[0]["content"]
        ),
        (1, &json!("failed"), &json!("exit code 3"))
    );
    // The permit has been used, so the same command with the same key runs nothing.
    let again = run(service.gate(&command, "2s"), b"");
    assert_eq!(
        (again.status.code(), text(&again.stdout)),
        (Some(2), ""),
        "{}",
        text(&again.stderr)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn command_that_is_denied_changed_or_missing_does_not_run() {
    let service = ServedGate::start("required");
    let denied = run(
        service.gate(
            &["call", "Bash", r#"{"command":"rm"}"#, "--", "echo", "ran"],
            "5s",
        ),
        b"",
    );
    assert_eq!((denied.status.code(), text(&denied.stdout)), (Some(10), ""));
    // Runs the same command twice. The first run has reported the outcome of its call, so the
    // second run makes a new call.
    for _ in 0..2 {
        let ran = run(
            service.gate(&["call", "Bash", LS, "--", "echo", "ran"], "5s"),
            b"",
        );
        assert_eq!(
            (ran.status.code(), text(&ran.stdout)),
            (Some(0), "ran\n"),
            "{}",
            text(&ran.stderr)
        );
    }
    let missing = run(
        service.gate(&["call", "Bash", LS, "--", "/nowhere/program"], "5s"),
        b"",
    );
    assert_eq!(missing.status.code(), Some(2));
    let child = begin(
        service.gate(&["call", "Bash", MAKE, "--", "echo", "ran"], "30s"),
        b"",
    );
    let request = service.open().await;
    let call = request["tool_calls"][0]["tool_call_id"].as_str().unwrap();
    let edit = json!({"action": "edit", "arguments": {"command": "make x"}});
    service.decide(&json!({"decisions": {call: edit}})).await;
    let changed = on_blocking_thread(move || child.wait_with_output().unwrap()).await;
    assert_eq!(
        (changed.status.code(), text(&changed.stdout)),
        (Some(2), ""),
        "{}",
        text(&changed.stderr)
    );
    let results = service.items("tool_result").await;
    let failed = results
        .iter()
        .filter(|result| result["outcome"] == "failed")
        .count();
    assert_eq!(failed, 2, "{results:?}");
}

/// Without the refusal, the command runs, but the service does not know the key of its report.
#[test]
fn key_with_a_space_or_a_wrong_length_is_refused_before_the_command_runs() {
    let service = ServedGate::start("required");
    let long = "k".repeat(256);
    for key in ["k ", " k", "", &long] {
        let named = ["call", "Bash", LS, "--key", key, "--", "echo", "ran"];
        let ran = run(service.gate(&named, "5s"), b"");
        let stderr = text(&ran.stderr);
        assert_eq!(
            (ran.status.code(), text(&ran.stdout)),
            (Some(2), ""),
            "{stderr}"
        );
        assert!(stderr.contains("--key"), "{stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn command_whose_end_cannot_be_read_has_an_unknown_outcome() {
    let service = ServedGate::start("required");
    let asked = service.gate(&["call", "Bash", MAKE, "--", "echo", "ran"], "30s");
    // The process inherits the ignored signal, so its wait for the command fails.
    let variables = asked.get_envs();
    let mut command = Command::new("/usr/bin/env");
    command
        .arg("--ignore-signal=CHLD")
        .arg(asked.get_program())
        .args(asked.get_args())
        .env_clear()
        .envs(variables.filter_map(|(name, value)| Some((name, value?))))
        .current_dir(service.folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = begin(command, b"");
    service.decide(&json!({"action": "approve"})).await;
    let ran = on_blocking_thread(move || child.wait_with_output().unwrap()).await;
    let stderr = text(&ran.stderr);
    assert_eq!(
        (ran.status.code(), text(&ran.stdout)),
        (Some(2), "ran\n"),
        "{stderr}"
    );
    assert!(stderr.contains("its end is not known"), "{stderr}");
    let results = service.items("tool_result").await;
    let is_failed = |result: &Value| result["outcome"] == "failed";
    assert!(!results.iter().any(is_failed), "{results:?}");
    assert_eq!(service.open().await["kind"], "reconcile");
}

#[tokio::test(flavor = "multi_thread")]
async fn persons_result_is_printed_in_place_of_running_the_command() {
    let service = ServedGate::start("required, run_within: 1s");
    // The permit of the first call ends without a report.
    let first = ["call", "Bash", MAKE, "--key", "ci-1"];
    let child = begin(service.gate(&first, "30s"), b"");
    service.decide(&json!({"action": "approve"})).await;
    on_blocking_thread(move || child.wait_with_output().unwrap()).await;
    let respond = json!({"action": "respond", "result": "Built by hand."});
    let question = service.decide(&respond).await;
    assert_eq!(question["kind"], "reconcile", "{question}");
    // The second call is never started.
    let other = r#"{"command":"make x"}"#;
    let second = ["call", "Bash", other, "--key", "ci-2"];
    let held = run(service.gate(&second, "0s"), b"");
    assert_eq!(held.status.code(), Some(11), "{}", text(&held.stderr));
    let request = service.open().await;
    let id = request["tool_calls"][0]["tool_call_id"].as_str().unwrap();
    service.decide(&json!({"decisions": {id: respond}})).await;
    for (named, code) in [(first, 2), (second, 10)] {
        let command = [&named[..], &["--", "echo", "ran"]].concat();
        let ran = run(service.gate(&command, "30s"), b"");
        let stderr = text(&ran.stderr);
        assert_eq!(
            (ran.status.code(), text(&ran.stdout)),
            (Some(code), ""),
            "{stderr}"
        );
        assert!(stderr.trim_end().ends_with(" Built by hand."), "{stderr}");
        assert!(!stderr.contains("runs this tool itself"), "{stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_call_without_a_permit_or_a_good_result_is_no_success() {
    let service = ServedGate::start("required");
    let call = |arguments: &[&str]| run(service.gate(&[&["call"], arguments].concat(), "5s"), b"");
    for (key, command, code) in [("k-1", "exit 7", 7), ("k-2", "exit 0", 0)] {
        let named = ["Bash", LS, "--key", key];
        let ran = call(&[&named[..], &["--", "sh", "-c", command]].concat());
        assert_eq!(ran.status.code(), Some(code), "{}", text(&ran.stderr));
        let repeated = call(&[&named[..], &["--", "echo", "ran"]].concat());
        let again = call(&named);
        for output in [&repeated, &again] {
            let stderr = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{stderr}");
            let names_success = stderr.contains("This call has already run and succeeded.");
            assert_eq!(names_success, code == 0, "{stderr}");
        }
        assert_eq!(text(&repeated.stdout), "");
        let told: Value = serde_json::from_slice(&again.stdout).unwrap();
        assert_eq!(
            (&told["decision"], &told["permit"]),
            (&json!("allow"), &Value::Null)
        );
    }
    // The service itself runs the calls of its tool `Run`, so no command follows the arguments.
    for (arguments, code) in [
        (r#"{"command":"exit 0"}"#, 0),
        (r#"{"command":"exit 3"}"#, 2),
    ] {
        let ours = call(&["Run", arguments]);
        assert_eq!(ours.status.code(), Some(code), "{}", text(&ours.stderr));
        let told: Value = serde_json::from_slice(&ours.stdout).unwrap();
        assert_eq!(told["decision"], "allow", "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn command_of_a_call_that_is_only_counted_runs_without_a_report() {
    let service = ServedGate::start("required, record: held");
    let ran = run(
        service.gate(&["call", "Look", "{}", "--", "echo", "ran"], "5s"),
        b"",
    );
    assert_eq!(
        (ran.status.code(), text(&ran.stdout), text(&ran.stderr)),
        (Some(0), "ran\n", "")
    );
    assert_eq!(service.items("tool_started").await.len(), 0);
}

#[test]
fn command_that_is_killed_is_one_warning_of_an_unknown_outcome() {
    let mut service = ServedGate::start("required");
    let killed = ["call", "Bash", LS, "--", "sh", "-c", "kill -9 $$"];
    let ran = run(service.gate(&killed, "5s"), b"");
    assert_eq!((ran.status.code(), text(&ran.stderr)), (Some(137), ""));
    assert!(service.served.terminate().success());
    let log = service.served.log();
    let warnings: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("tool call") && line.contains("WARN"))
        .collect();
    assert_eq!(warnings.len(), 1, "{log}");
    let asked = "the outcome of a tool call is unknown; a person is asked";
    assert!(warnings[0].contains(asked), "{log}");
}
