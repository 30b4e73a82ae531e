//! Tests of calls that the caller runs itself: the permit, its runner, and the reported outcome.

mod permits;
mod unknown_reports;

use holdpoint::task::id::TaskId;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::{
    AGENT, CAROLS_AGENT, answer_as, ask, ask_as, ask_by_key, assert_call, bash, call_summary,
    decide_as, gate, items, refund, types, yaml,
};
use crate::api::approval_cycle::on_both;
use crate::support::test_app::{On, Reply, TestApp};
use crate::support::until;

/// Reports the outcome of a call as Alice's agent.
pub(super) async fn report(app: &TestApp, body: &Value) -> Reply {
    app.actor(AGENT).post("/v1/gate/outcomes", body).await
}

async fn read_call(app: &TestApp, call: &Reply, seconds: u32) -> Reply {
    let path = format!("/v1/gate/calls/{}", call.str("/task_id"));
    let actor = app.actor(AGENT).prefer(&format!("wait={seconds}"));
    actor.get(&path).await
}

#[apply(on_both)]
async fn allowed_call_gets_a_permit_and_its_outcome_is_kept(on: On) {
    let app = gate(on, "").await;
    let call = ask_by_key(&app, "k1", &bash("ls"), 0).await;
    assert_call(&call, 200, "allow", "started", Value::Null);
    let permit = &call.body["permit"];
    assert_eq!(
        (&permit["attempt"], &permit["idempotency_key"]),
        (&json!(1), &call.body["tool_call_id"])
    );
    let left = permit["expires_in_ms"].as_u64().unwrap();
    assert!((590_000..=600_000).contains(&left), "{left}");
    assert_eq!(
        types(&items(&app, &call).await),
        [
            "task_status",
            "user_message",
            "assistant_message",
            "judged",
            "tool_started"
        ]
    );
    let body = json!({"key": "k1", "attempt": 1, "outcome": "succeeded", "content": "a.txt"});
    let done = report(&app, &body).await;
    assert_call(&done, 200, "allow", "settled", "succeeded");
    let task = app.owner().task(&call.str("/task_id")).await;
    task.assert_completed("a.txt");
    assert_eq!(report(&app, &body).await.status, 200);
    let other = report(&app, &json!({"key": "k1", "outcome": "failed"})).await;
    other.assert_code(409, "call_settled");
    assert_eq!(other.str("/call/outcome"), "succeeded");
    assert_eq!(items(&app, &call).await.len(), 7);
    app.stop().await;
}

#[apply(on_both)]
async fn read_that_waits_takes_a_slot_and_without_a_slot_it_does_not_wait(on: On) {
    let app = TestApp::with(on, &(yaml("") + "\nserver: { max_waiting: 1 }\n")).await;
    let held = ask(&app, &refund(120), 0).await;
    let task = held.str("/task_id").parse().unwrap();
    let further_clients = async {
        until("the read waits", async || app.store().is_listened_to(task)).await;
        for (seconds, applied) in [(300, ""), (0, "wait=0")] {
            let read = read_call(&app, &held, seconds).await;
            assert_call(&read, 200, "pending", "pending", Value::Null);
            assert_eq!(read.header("preference-applied"), applied);
        }
        let asked = ask(&app, &refund(130), 300).await;
        assert_call(&asked, 202, "pending", "pending", Value::Null);
    };
    tokio::select! {
        waiting = read_call(&app, &held, 300) => panic!("{}", waiting.text),
        () = further_clients => {}
    }
    app.stop().await;
}

#[tokio::test]
async fn waits_of_one_caller_are_bounded_and_another_caller_may_wait() {
    let yaml = yaml("") + "\nserver: { max_streams_per_caller: 1 }\n";
    let app = TestApp::with(On::Sqlite, &yaml).await;
    let held = ask(&app, &refund(120), 0).await;
    let carols = ask_as(app.actor(CAROLS_AGENT), &refund(120), 0).await;
    let read_waits = async |call: &Reply| {
        let task: TaskId = call.str("/task_id").parse().unwrap();
        until("the read waits", async || app.store().is_listened_to(task)).await;
    };
    let further_clients = async {
        read_waits(&held).await;
        let asked = ask(&app, &refund(130), 1).await;
        assert_call(&asked, 202, "pending", "pending", Value::Null);
        assert_eq!(asked.header("preference-applied"), "", "it does not wait");
        let path = format!("/v1/gate/calls/{}", carols.str("/task_id"));
        let carol = app.actor(CAROLS_AGENT).prefer("wait=300");
        tokio::select! {
            read = carol.get(&path) => panic!("{}", read.text),
            () = read_waits(&carols) => {}
        }
    };
    tokio::select! {
        waiting = read_call(&app, &held, 300) => panic!("{}", waiting.text),
        () = further_clients => {}
    }
    app.stop().await;
}

#[apply(on_both)]
async fn call_that_was_started_says_how_it_ended(on: On) {
    let app = gate(on, "").await;
    let unknown = "The outcome of the call is not known. It may have run. Do not repeat it.";
    let rejected = "It is unknown whether this call took effect. A human was asked and said not to count on it. Reason: No trace.";
    let responded = "The call was started, and a person gave its result.";
    for (session, answer, outcome, says) in [
        ("s1", Value::Null, "unknown", unknown),
        (
            "s2",
            json!({"action": "reject", "reason": "No trace."}),
            "failed",
            rejected,
        ),
        (
            "s3",
            json!({"action": "respond", "result": "It ran."}),
            "responded",
            responded,
        ),
    ] {
        let mut body = bash("ls");
        body["session_id"] = json!(session);
        let call = ask(&app, &body, 5).await;
        assert!(call.body["permit"].is_object(), "{}", call.text);
        if answer.is_null() {
            app.owner().cancel(&call.str("/task_id")).await;
        } else {
            let doubtful = report(
                &app,
                &json!({"task_id": call.str("/task_id"), "outcome": "unknown"}),
            )
            .await;
            answer_as(app.owner(), &doubtful, &answer).await;
        }
        let ended = read_call(&app, &call, 10).await;
        assert_call(&ended, 200, "allow", "settled", outcome);
        assert_eq!(ended.str("/message").as_str(), says);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn gate_without_reports_releases_a_call_and_keeps_a_report(on: On) {
    let app = gate(on, "report: optional").await;
    let call = ask_by_key(&app, "k1", &bash("ls"), 5).await;
    assert_call(&call, 200, "allow", "settled", "released");
    assert!(call.body["permit"].is_object(), "{}", call.text);
    let other = app
        .actor(AGENT)
        .keyed("k1")
        .header("holdpoint-runner", "r2");
    let other = ask_as(other, &bash("ls"), 5).await;
    assert_eq!(
        (call_summary(&other), &other.body["permit"]),
        (call_summary(&call), &Value::Null)
    );
    let done = report(
        &app,
        &json!({"key": "k1", "outcome": "succeeded", "content": "a"}),
    )
    .await;
    assert_call(&done, 200, "allow", "settled", "released");
    let again = report(
        &app,
        &json!({"key": "k1", "outcome": "succeeded", "content": "a"}),
    )
    .await;
    let conflicting = report(&app, &json!({"key": "k1", "outcome": "failed"})).await;
    assert_eq!((again.status, conflicting.status), (200, 409));
    let all = items(&app, &call).await;
    assert_eq!(
        types(&all)[4..],
        ["tool_started", "tool_result", "task_status", "late_result"]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn report_of_a_call_that_was_never_let_through_is_refused(on: On) {
    let app = gate(on, "").await;
    let held = ask(&app, &bash("make"), 0).await;
    let body = json!({"task_id": held.str("/task_id"), "outcome": "succeeded"});
    let refused = report(&app, &body).await;
    refused.assert_text(422, "/errors/0/pointer", "/task_id");
    assert_eq!(
        report(&app, &json!({"key": "gone", "outcome": "succeeded"}))
            .await
            .status,
        404
    );
    assert_eq!(
        report(&app, &json!({"task_id": "x", "outcome": "succeeded"}))
            .await
            .status,
        422
    );
    assert_eq!(
        report(&app, &json!({"outcome": "succeeded"})).await.status,
        422
    );
    app.stop().await;
}

#[apply(on_both)]
async fn report_of_a_call_that_was_settled_without_a_permit_is_refused_with_the_call(on: On) {
    let app = gate(on, "").await;
    let held = ask(&app, &bash("make"), 0).await;
    decide_as(app.owner(), &held, "reject").await;
    let rejected = ask(&app, &bash("make"), 10).await;
    assert_call(&rejected, 200, "deny", "settled", "rejected");
    let denied = ask(&app, &json!({"tool": "forbidden", "arguments": {}}), 10).await;
    let invalid = ask(&app, &json!({"tool": "Bash", "arguments": {}}), 10).await;
    let ours = ask(&app, &refund(5), 10).await;
    for (call, outcome) in [
        (rejected, "rejected"),
        (denied, "denied"),
        (invalid, "invalid"),
        (ours, "succeeded"),
    ] {
        for reported in ["succeeded", "failed", "unknown"] {
            let body = json!({"task_id": call.str("/task_id"), "outcome": reported});
            let refused = report(&app, &body).await;
            refused.assert_code(409, "call_settled");
            assert_eq!(
                (refused.str("/call/task_id"), refused.str("/call/outcome")),
                (call.str("/task_id"), outcome.to_owned()),
                "{}",
                refused.text
            );
        }
        assert!(
            items(&app, &call)
                .await
                .iter()
                .all(|item| item["type"] != "late_result")
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn content_of_one_mebibyte_is_taken_however_it_is_escaped(on: On) {
    let app = gate(on, "").await;
    let call = ask(&app, &bash("ls"), 5).await;
    let sent = async |characters: usize| {
        let (task, content) = (call.str("/task_id"), "\\u0061".repeat(characters));
        let body = format!(r#"{{"task_id":"{task}","outcome":"succeeded","content":"{content}"}}"#);
        app.actor(AGENT)
            .bytes("/v1/gate/outcomes", body.into_bytes())
            .await
    };
    let long = sent(1024 * 1024 + 1).await;
    long.assert_text(422, "/errors/0/pointer", "/content");
    let whole = sent(1024 * 1024).await;
    assert_call(&whole, 200, "allow", "settled", "succeeded");
    let all = items(&app, &call).await;
    let kept = all
        .iter()
        .find(|item| item["type"] == "tool_result")
        .unwrap();
    assert_eq!(kept["content"].as_str().unwrap().len(), 1024 * 1024);
    app.stop().await;
}

#[apply(on_both)]
async fn gate_that_records_held_calls_only_counts_allowed_read_only_calls(on: On) {
    let rule = "name: files, tools: [Read], decide: allow";
    let narrow = r#"name: files, tools: [Read], when: "args.path == \"a\"", decide: allow"#;
    let app = TestApp::with(on, &yaml("record: held").replace(rule, narrow)).await;
    let call = ask(
        &app,
        &json!({"tool": "Read", "arguments": {"path": "a"}}),
        5,
    )
    .await;
    assert_call(&call, 200, "allow", "settled", "released");
    assert!(call.body["permit"].is_object());
    assert_eq!(call.body["digest"], Value::Null, "no report is due");
    assert_eq!(read_call(&app, &call, 0).await.status, 404);
    let kept = ask(&app, &bash("ls"), 5).await;
    assert_eq!(read_call(&app, &kept, 0).await.status, 200);
    let held = ask(
        &app,
        &json!({"tool": "Read", "arguments": {"path": "b"}}),
        0,
    )
    .await;
    assert_call(&held, 202, "pending", "pending", Value::Null);
    assert_eq!(read_call(&app, &held, 0).await.status, 200);
    app.stop().await;
}
