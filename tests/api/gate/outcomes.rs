//! Tests of calls that the caller runs itself: the permit, its runner, and the reported outcome.

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    AGENT, ask, ask_as, ask_by_key, bash, call_summary, decide_as, expected, gate, items, refund,
    types, yaml,
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
    let actor = app
        .actor(AGENT)
        .header("prefer", &format!("wait={seconds}"));
    actor.get(&path).await
}

#[apply(on_both)]
async fn allowed_call_gets_a_permit_and_its_outcome_is_kept(on: On) {
    let app = gate(on, "").await;
    let call = ask_by_key(&app, "k1", &bash("ls"), 0).await;
    assert_eq!(
        call_summary(&call),
        expected(200, "allow", "started", Value::Null),
        "{}",
        call.text
    );
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
    assert_eq!(
        call_summary(&done),
        expected(200, "allow", "settled", "succeeded"),
        "{}",
        done.text
    );
    let task = app
        .owner()
        .get(&format!("/v1/tasks/{}", call.str("/task_id")))
        .await;
    assert_eq!(
        (task.str("/status"), task.str("/output")),
        ("Completed".to_owned(), "a.txt".to_owned())
    );
    assert_eq!(report(&app, &body).await.status, 200);
    let other = report(&app, &json!({"key": "k1", "outcome": "failed"})).await;
    assert_eq!(
        (
            other.status,
            other.str("/code").as_str(),
            other.str("/call/outcome").as_str()
        ),
        (409, "call_settled", "succeeded"),
        "{}",
        other.text
    );
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
            assert_eq!(
                call_summary(&read),
                expected(200, "pending", "pending", Value::Null),
                "{}",
                read.text
            );
            assert_eq!(read.header("preference-applied"), applied);
        }
        let asked = ask(&app, &refund(130), 300).await;
        assert_eq!(
            call_summary(&asked),
            expected(202, "pending", "pending", Value::Null),
            "{}",
            asked.text
        );
    };
    tokio::select! {
        waiting = read_call(&app, &held, 300) => panic!("{}", waiting.text),
        () = further_clients => {}
    }
    app.stop().await;
}

#[apply(on_both)]
async fn permit_is_given_to_one_runner(on: On) {
    let app = gate(on, "").await;
    let held = ask_by_key(&app, "k1", &bash("make"), 0).await;
    decide_as(app.owner(), &held, "approve").await;
    let runner = |name: &str| {
        app.actor(AGENT)
            .header("idempotency-key", "k1")
            .header("holdpoint-runner", name)
    };
    let first = ask_as(runner("r1"), &bash("make"), 5).await;
    assert_eq!(
        call_summary(&first),
        expected(200, "allow", "started", Value::Null),
        "{}",
        first.text
    );
    assert!(first.body["permit"].is_object());
    let again = ask_as(runner("r1"), &bash("make"), 5).await;
    assert_eq!(
        (call_summary(&again), again.header("idempotency-replayed")),
        (call_summary(&first), "true")
    );
    assert_eq!(
        again.body["permit"]["attempt"],
        first.body["permit"]["attempt"]
    );
    for other in [
        runner("r2"),
        app.actor(AGENT).header("idempotency-key", "k1"),
    ] {
        let refused = ask_as(other, &bash("make"), 0).await;
        refused.assert_code(409, "call_in_hand");
        let end = refused.str("/call/expires_at");
        assert_eq!(
            refused.str("/detail"),
            format!("Another runner has the permit of this call until {end}.")
        );
        assert_eq!(
            (
                refused.str("/call/state").as_str(),
                &refused.body["call"]["permit"]
            ),
            ("started", &Value::Null)
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn permit_that_runs_out_makes_a_once_call_doubtful_and_its_report_answers(on: On) {
    // `run_within` is so long that the permit is still valid when the service answers, even on
    // a busy machine.
    let app = gate(on, "run_within: 5s").await;
    let call = ask(&app, &bash("ls"), 5).await;
    assert_eq!(
        call_summary(&call),
        expected(200, "allow", "started", Value::Null),
        "{}",
        call.text
    );
    let mut now = read_call(&app, &call, 0).await;
    while now.str("/state") == "started" {
        now = read_call(&app, &call, 1).await;
    }
    assert_eq!(
        call_summary(&now),
        expected(200, "pending", "doubtful", Value::Null),
        "{}",
        now.text
    );
    assert_eq!(now.str("/request/kind"), "reconcile");
    let details = &now.body["request"]["details"];
    let problem = "The caller was given leave to run the call and reported no outcome in time.";
    assert_eq!(
        (&details["problem"], &details["replica"]),
        (&json!(problem), &json!("elsewhere")),
        "{}",
        now.text
    );
    let second = ask(&app, &bash("ls"), 0).await;
    assert_ne!(second.str("/task_id"), call.str("/task_id"));
    assert_eq!(second.str("/decision"), "pending", "{}", second.text);
    let done = report(
        &app,
        &json!({"task_id": call.str("/task_id"), "outcome": "succeeded", "content": {"n": [1]}}),
    )
    .await;
    assert_eq!(
        call_summary(&done),
        expected(200, "allow", "settled", "succeeded"),
        "{}",
        done.text
    );
    let all = items(&app, &call).await;
    let closed = all
        .iter()
        .find(|item| item["type"] == "request_closed")
        .unwrap();
    assert_eq!(closed["reason"], "answered_late");
    assert_eq!(
        all.iter()
            .find(|item| item["type"] == "tool_result")
            .unwrap()["content"],
        "{\"n\":[1]}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn unknown_report_of_a_once_call_asks_a_person_and_a_retry_needs_another_ask(on: On) {
    let app = gate(on, "").await;
    let call = ask_by_key(&app, "k1", &bash("ls"), 5).await;
    let unknown = report(&app, &json!({"key": "k1", "outcome": "unknown"})).await;
    assert_eq!(
        call_summary(&unknown),
        expected(200, "pending", "doubtful", Value::Null),
        "{}",
        unknown.text
    );
    let problem =
        "The caller was given leave to run the call and reported that its outcome is unknown.";
    assert_eq!(
        unknown.str("/request/details/problem"),
        problem,
        "{}",
        unknown.text
    );
    let path = format!("/resume/{}", unknown.str("/request/request_id"));
    let retried = app
        .owner()
        .header("prefer", "wait=0")
        .post(&path, &json!({"action": "retry"}))
        .await;
    assert!(retried.status < 300, "{}", retried.text);
    assert_eq!(read_call(&app, &call, 0).await.str("/state"), "approved");
    let second = ask_by_key(&app, "k1", &bash("ls"), 5).await;
    assert_eq!(
        (call_summary(&second), &second.body["permit"]["attempt"]),
        (expected(200, "allow", "started", Value::Null), &json!(2))
    );
    let old = report(
        &app,
        &json!({"key": "k1", "attempt": 1, "outcome": "succeeded"}),
    )
    .await;
    assert_eq!(
        (old.status, old.str("/errors/0/pointer").as_str()),
        (422, "/attempt")
    );
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
            app.owner()
                .hit(&format!("/v1/tasks/{}/cancel", call.str("/task_id")))
                .await;
        } else {
            let doubtful = report(
                &app,
                &json!({"task_id": call.str("/task_id"), "outcome": "unknown"}),
            )
            .await;
            let path = format!("/resume/{}", doubtful.str("/request/request_id"));
            let decided = app
                .owner()
                .header("prefer", "wait=0")
                .post(&path, &answer)
                .await;
            assert!(decided.status < 300, "{}", decided.text);
        }
        let ended = read_call(&app, &call, 10).await;
        assert_eq!(
            (call_summary(&ended), ended.str("/message").as_str()),
            (expected(200, "allow", "settled", outcome), says),
            "{}",
            ended.text
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn unknown_report_of_a_repeatable_call_gives_another_attempt_at_the_next_ask(on: On) {
    let app = gate(on, "").await;
    let body = json!({"tool": "Read", "arguments": {"path": "a"}});
    let call = ask_by_key(&app, "k1", &body, 5).await;
    assert_eq!(
        call_summary(&call),
        expected(200, "allow", "started", Value::Null),
        "{}",
        call.text
    );
    let given_back = report(&app, &json!({"key": "k1", "outcome": "unknown"})).await;
    assert_eq!(given_back.str("/state"), "started", "{}", given_back.text);
    for attempt in [2, 3] {
        let again = ask_by_key(&app, "k1", &body, 5).await;
        assert_eq!(
            again.body["permit"]["attempt"],
            json!(attempt),
            "{}",
            again.text
        );
        report(&app, &json!({"key": "k1", "outcome": "unknown"})).await;
    }
    let over = ask_by_key(&app, "k1", &body, 5).await;
    assert_eq!(
        call_summary(&over),
        expected(200, "allow", "settled", "failed"),
        "{}",
        over.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn first_report_of_a_call_that_the_service_gave_up_is_kept_as_a_late_result(on: On) {
    let app = gate(on, "").await;
    let body = json!({"tool": "Read", "arguments": {"path": "a"}});
    for attempt in [1, 2, 3] {
        let permitted = ask_by_key(&app, "k1", &body, 5).await;
        assert_eq!(
            permitted.body["permit"]["attempt"],
            json!(attempt),
            "{}",
            permitted.text
        );
        report(&app, &json!({"key": "k1", "outcome": "unknown"})).await;
    }
    let over = ask_by_key(&app, "k1", &body, 5).await;
    assert_eq!(
        call_summary(&over),
        expected(200, "allow", "settled", "failed"),
        "{}",
        over.text
    );
    let late = json!({"key": "k1", "attempt": 3, "outcome": "succeeded", "content": "a.txt"});
    for _ in 0..2 {
        let kept = report(&app, &late).await;
        assert_eq!(
            call_summary(&kept),
            expected(200, "allow", "settled", "failed"),
            "{}",
            kept.text
        );
    }
    let other = report(&app, &json!({"key": "k1", "outcome": "failed"})).await;
    other.assert_code(409, "call_settled");
    let all = items(&app, &over).await;
    let ends = all
        .iter()
        .filter(|item| matches!(item["outcome"].as_str(), Some("failed" | "succeeded")));
    let ends: Vec<_> = ends
        .map(|item| (item["type"].as_str(), item["content"].as_str()))
        .collect();
    let given_up = "There was no answer in 3 attempts. The call may have taken effect.";
    assert_eq!(
        ends,
        [
            (Some("tool_result"), Some(given_up)),
            (Some("late_result"), Some("a.txt"))
        ]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn unknown_report_of_a_call_with_another_outcome_is_refused(on: On) {
    let app = gate(on, "").await;
    let call = ask_by_key(&app, "k1", &bash("ls"), 5).await;
    let done = json!({"key": "k1", "outcome": "succeeded", "content": "a.txt"});
    assert_eq!(report(&app, &done).await.status, 200);
    for _ in 0..2 {
        let unknown = report(&app, &json!({"key": "k1", "outcome": "unknown"})).await;
        unknown.assert_code(409, "call_settled");
    }
    assert_eq!(report(&app, &done).await.status, 200);
    assert_eq!(items(&app, &call).await.len(), 7);
    app.stop().await;
}

#[apply(on_both)]
async fn unknown_report_of_a_released_call_is_kept_until_its_outcome_is_reported(on: On) {
    let app = gate(on, "report: optional").await;
    let call = ask_by_key(&app, "k1", &bash("ls"), 5).await;
    let unknown = json!({"key": "k1", "outcome": "unknown"});
    for _ in 0..2 {
        let kept = report(&app, &unknown).await;
        assert_eq!(
            call_summary(&kept),
            expected(200, "allow", "settled", "released"),
            "{}",
            kept.text
        );
    }
    let other = report(
        &app,
        &json!({"key": "k1", "outcome": "unknown", "content": "lost"}),
    )
    .await;
    let known = report(&app, &json!({"key": "k1", "outcome": "succeeded"})).await;
    let again = report(&app, &unknown).await;
    assert_eq!(
        (other.status, known.status, again.status),
        (409, 200, 200),
        "{} {}",
        known.text,
        again.text
    );
    let all = items(&app, &call).await;
    assert_eq!(
        types(&all)[4..],
        [
            "tool_started",
            "tool_result",
            "task_status",
            "late_result",
            "late_result"
        ]
    );
    assert_eq!(
        (&all[7]["outcome"], &all[8]["outcome"]),
        (&json!("unknown"), &json!("succeeded"))
    );
    app.stop().await;
}

#[apply(on_both)]
async fn ask_without_a_key_gets_the_attempt_that_a_person_has_approved(on: On) {
    let app = gate(on, "").await;
    let call = ask(&app, &bash("ls"), 5).await;
    assert_eq!(
        (call_summary(&call), &call.body["permit"]["attempt"]),
        (expected(200, "allow", "started", Value::Null), &json!(1))
    );
    // While the permit of a call is in use, a proposal of an equal call begins a new call.
    let beside = ask(&app, &bash("ls"), 0).await;
    assert_eq!(
        call_summary(&beside),
        expected(202, "pending", "pending", Value::Null),
        "{}",
        beside.text
    );
    assert_ne!(beside.str("/task_id"), call.str("/task_id"));
    assert!(
        beside
            .str("/reason")
            .contains("The same call is being run."),
        "{}",
        beside.text
    );
    let unknown = report(
        &app,
        &json!({"task_id": call.str("/task_id"), "outcome": "unknown"}),
    )
    .await;
    let path = format!("/resume/{}", unknown.str("/request/request_id"));
    let retried = app
        .owner()
        .header("prefer", "wait=0")
        .post(&path, &json!({"action": "retry"}))
        .await;
    assert!(retried.status < 300, "{}", retried.text);
    // Another report of the first attempt does not undo the decision `retry`. An identical
    // report would not be stored again, so the content of this report differs.
    let other =
        json!({"task_id": call.str("/task_id"), "outcome": "unknown", "content": "no answer"});
    let again = report(&app, &other).await;
    assert_eq!(
        (again.status, again.str("/state").as_str()),
        (200, "approved"),
        "{}",
        again.text
    );
    let second = ask(&app, &bash("ls"), 5).await;
    assert_eq!(
        (second.str("/task_id"), &second.body["permit"]["attempt"]),
        (call.str("/task_id"), &json!(2)),
        "{}",
        second.text
    );
    // The permit of the second attempt is in use, so this equal proposal begins a new call.
    let third = ask(&app, &bash("ls"), 0).await;
    assert_ne!(third.str("/task_id"), call.str("/task_id"));
    assert_eq!(
        (third.status, &third.body["permit"]),
        (202, &Value::Null),
        "{}",
        third.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn ask_without_a_key_gets_another_attempt_of_a_repeatable_call(on: On) {
    let all = yaml("");
    let held = all.replacen(
        "tools: [Read], decide: allow",
        "tools: [Read], decide: hold, approvers: { owner: true }",
        1,
    );
    assert_ne!(held, all);
    let app = TestApp::with(on, &held).await;
    let body = json!({"tool": "Read", "arguments": {"path": "a"}});
    let call = ask(&app, &body, 0).await;
    decide_as(app.owner(), &call, "approve").await;
    for attempt in [1, 2] {
        let permitted = ask(&app, &body, 5).await;
        assert_eq!(
            (
                permitted.str("/task_id"),
                &permitted.body["permit"]["attempt"]
            ),
            (call.str("/task_id"), &json!(attempt)),
            "{}",
            permitted.text
        );
        let given_back = report(
            &app,
            &json!({"task_id": call.str("/task_id"), "outcome": "unknown"}),
        )
        .await;
        assert_eq!(given_back.str("/state"), "started", "{}", given_back.text);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn gate_without_reports_releases_a_call_and_keeps_a_report(on: On) {
    let app = gate(on, "report: optional").await;
    let call = ask_by_key(&app, "k1", &bash("ls"), 5).await;
    assert_eq!(
        call_summary(&call),
        expected(200, "allow", "settled", "released"),
        "{}",
        call.text
    );
    assert!(call.body["permit"].is_object(), "{}", call.text);
    let other = app
        .actor(AGENT)
        .header("idempotency-key", "k1")
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
    assert_eq!(
        call_summary(&done),
        expected(200, "allow", "settled", "released"),
        "{}",
        done.text
    );
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
    assert_eq!(
        (refused.status, refused.str("/errors/0/pointer").as_str()),
        (422, "/task_id")
    );
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
    assert_eq!(
        call_summary(&rejected),
        expected(200, "deny", "settled", "rejected"),
        "{}",
        rejected.text
    );
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
            .send(
                Method::POST,
                "/v1/gate/outcomes",
                Some(("application/json", body)),
            )
            .await
    };
    let long = sent(1024 * 1024 + 1).await;
    assert_eq!(
        (long.status, long.str("/errors/0/pointer").as_str()),
        (422, "/content"),
        "{}",
        long.text
    );
    let whole = sent(1024 * 1024).await;
    assert_eq!(
        call_summary(&whole),
        expected(200, "allow", "settled", "succeeded")
    );
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
    assert_eq!(
        call_summary(&call),
        expected(200, "allow", "settled", "released"),
        "{}",
        call.text
    );
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
    assert_eq!(
        call_summary(&held),
        expected(202, "pending", "pending", Value::Null),
        "{}",
        held.text
    );
    assert_eq!(read_call(&app, &held, 0).await.status, 200);
    app.stop().await;
}
