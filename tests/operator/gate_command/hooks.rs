//! Tests each row of the table of answers in `docs/gate.md`, for both coding agents.

use serde_json::{Value, json};

use super::{ServedGate, before, begin, gate, on_blocking_thread, permission, run, text};
use crate::support::forwarder::Forwarder;
use crate::support::until;

const HOSTS: [&str; 2] = ["claude-code", "codex"];

/// Runs a hook and answers its request as Bob. Returns the output of the hook.
async fn decided(
    service: &ServedGate,
    host: &str,
    command: &str,
    decision: Value,
) -> std::process::Output {
    let child = begin(
        service.gate(&["hook", host], "30s"),
        before(&format!("{host}-{command}"), command)
            .to_string()
            .as_bytes(),
    );
    let waits = on_blocking_thread(move || child.wait_with_output().unwrap());
    let (output, _) = tokio::join!(waits, service.decide(&decision));
    output
}

#[test]
fn call_that_a_rule_allows_is_left_to_the_host_and_reported() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let service = ServedGate::start("optional");
    for host in HOSTS {
        let output = service.hook(host, &[], &before(host, "ls"), "5s");
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(0), ""),
            "{}",
            text(&output.stderr)
        );
        let mut after = before(host, "ls");
        after["hook_event_name"] = json!("PostToolUse");
        after["tool_response"] = json!({"stdout": host});
        let output = service.hook(host, &[], &after, "5s");
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    }
    let output = service.hook("claude-code", &["--final"], &before("final", "ls"), "5s");
    assert_eq!(permission(&output)["permissionDecision"], "allow");
    let mut after = before("final", "ls");
    after["hook_event_name"] = json!("PostToolUse");
    after["tool_response"] = json!({"stdout": "left out"});
    let output = service.hook("claude-code", &["--no-content"], &after, "5s");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    let late = runtime.block_on(service.items("late_result"));
    assert_eq!(late.len(), 3, "{late:?}");
    let late = late.iter().map(Value::to_string).collect::<String>();
    assert!(HOSTS.iter().all(|host| late.contains(host)), "{late}");
    assert!(!late.contains("left out"), "{late}");
}

#[test]
fn call_that_a_rule_denies_is_denied_with_the_reason() {
    let service = ServedGate::start("optional");
    for host in HOSTS {
        let told = permission(&service.hook(host, &[], &before(host, "rm"), "5s"));
        assert_eq!(told["permissionDecision"], "deny");
        assert!(
            told["permissionDecisionReason"]
                .as_str()
                .unwrap()
                .contains("Not this one."),
            "{told}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn call_that_a_person_answers_is_told_to_the_host() {
    let service = ServedGate::start("optional");
    let approved = decided(
        &service,
        "claude-code",
        "make",
        json!({"action": "approve"}),
    )
    .await;
    assert_eq!(
        permission(&approved),
        json!({
            "hookEventName": "PreToolUse", "permissionDecision": "allow", "permissionDecisionReason": "Approved by bob.",
        })
    );
    let approved = decided(&service, "codex", "make all", json!({"action": "approve"})).await;
    assert_eq!(approved.status.code(), Some(0));
    assert_eq!(text(&approved.stdout), "");
    for host in HOSTS {
        let command = format!("no {host}");
        let rejected = decided(
            &service,
            host,
            &command,
            json!({"action": "reject", "reason": "Not on a Friday."}),
        )
        .await;
        let told = permission(&rejected);
        assert_eq!(told["permissionDecision"], "deny");
        assert!(
            told["permissionDecisionReason"]
                .as_str()
                .unwrap()
                .contains("Not on a Friday."),
            "{told}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_and_supplied_answers_reach_the_host() {
    let service = ServedGate::start("optional");
    let decision = async |call: &Value, action: Value| {
        let id = call["tool_calls"][0]["tool_call_id"].as_str().unwrap();
        service.decide(&json!({"decisions": {id: action}})).await
    };
    for host in HOSTS {
        for action in [
            json!({"action": "edit", "arguments": {"command": "make safe"}}),
            json!({"action": "respond", "result": "It was built already."}),
        ] {
            let command = format!("{host} {}", action["action"]);
            let child = begin(
                service.gate(&["hook", host], "30s"),
                before(&command, &command).to_string().as_bytes(),
            );
            let request = service.open().await;
            decision(&request, action.clone()).await;
            let told =
                permission(&on_blocking_thread(move || child.wait_with_output().unwrap()).await);
            match (host, action["action"].as_str()) {
                ("claude-code", Some("edit")) => {
                    assert_eq!(told["permissionDecision"], "allow", "{told}");
                    assert_eq!(told["updatedInput"], json!({"command": "make safe"}));
                }
                (_, Some("edit")) => {
                    assert_eq!(told["permissionDecision"], "deny");
                    assert!(told.to_string().contains("make safe"), "{told}");
                }
                _ => {
                    assert_eq!(told["permissionDecision"], "deny");
                    assert_eq!(told["permissionDecisionReason"], "It was built already.");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn edited_call_that_a_codex_hook_denies_is_reported_as_failed() {
    let service = ServedGate::start("required");
    let child = begin(
        service.gate(&["hook", "codex"], "30s"),
        before("k", "make").to_string().as_bytes(),
    );
    let request = service.open().await;
    let id = request["tool_calls"][0]["tool_call_id"].as_str().unwrap();
    let edit = json!({"action": "edit", "arguments": {"command": "make safe"}});
    service.decide(&json!({"decisions": {id: edit}})).await;
    let output = on_blocking_thread(move || child.wait_with_output().unwrap()).await;
    assert_eq!(permission(&output)["permissionDecision"], "deny");
    assert_eq!(text(&output.stderr), "");
    let results = service.items("tool_result").await;
    assert_eq!(results.len(), 1, "{results:?}");
    assert_eq!(
        (&results[0]["outcome"], &results[0]["reported"]),
        (&json!("failed"), &json!(true))
    );
}

#[test]
fn printed_command_blocks_the_call_where_the_hook_cannot_answer() {
    let service = ServedGate::start("optional");
    for host in HOSTS {
        let output = run(service.gate(&["print", host], "70s"), b"");
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        let command = &printed["hooks"]["PreToolUse"][0]["hooks"][0]["command"];
        // In the first run, the program `holdpoint` is missing. In the second run, a signal kills
        // its process.
        for program in ["", "holdpoint() { sh -c 'kill -9 $$'; }; "] {
            let output = std::process::Command::new("/bin/sh")
                .args(["-c", &format!("{program}{}", command.as_str().unwrap())])
                .env("PATH", "/usr/bin:/bin")
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(2), "{host} {program}");
            assert!(text(&output.stderr).contains("the call is blocked"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn held_call_is_denied_at_the_end_of_the_wait_and_continued_by_the_next_ask() {
    let service = ServedGate::start("optional");
    let told = permission(&service.hook("claude-code", &[], &before("t1", "make"), "0s"));
    assert_eq!(told["permissionDecision"], "deny");
    let reason = told["permissionDecisionReason"].as_str().unwrap();
    assert!(
        reason.contains("same input") && reason.contains("http://"),
        "{reason}"
    );
    service.decide(&json!({"action": "approve"})).await;
    // The coding agent repeats the call with another id.
    let again = permission(&service.hook("claude-code", &[], &before("t2", "make"), "5s"));
    assert_eq!(again["permissionDecision"], "allow", "{again}");
    let third = permission(&service.hook("claude-code", &[], &before("t3", "make"), "0s"));
    assert_eq!(third["permissionDecision"], "deny");
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_hooks_run_one_approved_call_once() {
    let service = ServedGate::start("optional");
    let children: Vec<_> = (0..6)
        .map(|at| {
            begin(
                service.gate(&["hook", "claude-code"], "10s"),
                before(&format!("p{at}"), "make").to_string().as_bytes(),
            )
        })
        .collect();
    service.decide(&json!({"action": "approve"})).await;
    let mut allowed = 0;
    for child in children {
        let told = permission(&on_blocking_thread(move || child.wait_with_output().unwrap()).await);
        allowed += usize::from(told["permissionDecision"] == "allow");
    }
    assert_eq!(allowed, 1);
    assert_eq!(service.items("tool_started").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn hook_that_is_killed_leaves_a_question_that_starts_nothing() {
    let service = ServedGate::start("optional");
    let mut child = begin(
        service.gate(&["hook", "codex"], "30s"),
        before("k", "make").to_string().as_bytes(),
    );
    service.open().await;
    child.kill().unwrap();
    child.wait().unwrap();
    service.has_noticed_gone_clients().await;
    service.decide(&json!({"action": "approve"})).await;
    assert_eq!(service.items("tool_started").await.len(), 0);
    let again = service.hook("codex", &[], &before("k", "make"), "5s");
    assert_eq!(
        (again.status.code(), text(&again.stdout)),
        (Some(0), ""),
        "{}",
        text(&again.stderr)
    );
    assert_eq!(service.items("tool_started").await.len(), 1);
}

/// Stands for a coding agent that kills its hook at the timeout, and may then run the call.
#[tokio::test(flavor = "multi_thread")]
async fn permit_of_a_hook_that_is_killed_before_its_answer_becomes_a_question() {
    let service = ServedGate::start("required, run_within: 1s");
    let line = Forwarder::to_service(&service.url()).await;
    let arguments = ["hook", "claude-code"];
    let hook = gate(service.folder.path(), line.url(), &arguments, "30s");
    let mut child = begin(hook, before("k", "make").to_string().as_bytes());
    service.open().await;
    // The answer with the permit does not reach the hook.
    line.blackhole();
    service.decide(&json!({"action": "approve"})).await;
    let is_permitted = async || service.items("tool_started").await.len() == 1;
    until("the permit is committed", is_permitted).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let question = service.open().await;
    assert_eq!(question["kind"], "reconcile", "{question}");
    let again = permission(&service.hook("claude-code", &[], &before("k2", "make"), "0s"));
    assert_eq!(again["permissionDecision"], "deny", "{again}");
    assert_eq!(service.items("tool_started").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn persons_answer_about_a_started_call_reaches_the_host() {
    let service = ServedGate::start("required, run_within: 1s");
    for (command, answer, start, end) in [
        (
            "make",
            json!({"action": "respond", "result": "Built by hand."}),
            "Built by hand.",
            "Built by hand.",
        ),
        (
            "make all",
            json!({"action": "reject", "reason": "It hung."}),
            "There is no permit for this call. ",
            "It hung.",
        ),
    ] {
        // The permit of the approved call ends without a report.
        decided(
            &service,
            "claude-code",
            command,
            json!({"action": "approve"}),
        )
        .await;
        let question = service.decide(&answer).await;
        assert_eq!(question["kind"], "reconcile", "{question}");
        let same = before(&format!("claude-code-{command}"), command);
        let told = permission(&service.hook("claude-code", &[], &same, "30s"));
        assert_eq!(told["permissionDecision"], "deny", "{told}");
        let reason = told["permissionDecisionReason"].as_str().unwrap();
        assert!(
            reason.starts_with(start) && reason.ends_with(end),
            "{reason}"
        );
    }
    assert_eq!(service.items("tool_started").await.len(), 2);
}

#[test]
fn report_that_fails_blocks_nothing() {
    let service = ServedGate::start("optional");
    let mut after = before("unknown", "ls");
    after["hook_event_name"] = json!("PostToolUseFailure");
    after["error"] = json!("exit 1");
    let output = service.hook("claude-code", &["--no-content"], &after, "5s");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), ""));
    assert!(
        text(&output.stderr).contains("not_found"),
        "{}",
        text(&output.stderr)
    );
    let stop = run(
        service.gate(&["hook", "codex"], "5s"),
        br#"{"hook_event_name":"Stop"}"#,
    );
    assert_eq!(stop.status.code(), Some(0));
}

#[test]
fn printed_settings_run_the_hook_and_block_on_failure() {
    let service = ServedGate::start("optional");
    for host in HOSTS {
        let output = run(service.gate(&["print", host], "70s"), b"");
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        let [before, after] = ["PreToolUse", "PostToolUse"]
            .map(|event| printed["hooks"][event][0]["hooks"][0].clone());
        let report = format!("HOLDPOINT_WAIT=70s holdpoint gate hook {host}");
        let asks = before["command"].as_str().unwrap();
        assert!(
            asks.starts_with(&format!("{report} || ")) && asks.ends_with("exit 2'"),
            "{asks}"
        );
        assert_eq!(after["command"].as_str(), Some(report.as_str()));
        assert_eq!(after.get("onFailure"), None);
        assert_eq!(before["timeout"], 110);
        assert_eq!(before["onFailure"], "block");
        let fails = &printed["hooks"]["PostToolUseFailure"];
        assert_eq!(fails.is_array(), host == "claude-code");
    }
}
