//! Tests of proposals at a gate: the calls that a rule allows, holds or denies; whether the service
//! or the caller runs a call; and the callers that may ask.

use std::time::{Duration, Instant};

use holdpoint::task::change::ASKER_UNTIL_DELIVERED;
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::{
    AGENT, CAROLS_AGENT, ask, ask_as, ask_by_key, ask_in_text, bash, call_summary, decide,
    expected, gate, items, refund, types, until_asker, yaml,
};
use crate::api::approval_cycle::on_both;
use crate::support::fake_chat_completions::text_answer;
use crate::support::test_app::{On, TestApp};

#[apply(on_both)]
async fn allowed_call_of_the_service_runs_and_its_result_is_answered(on: On) {
    let app = gate(on, "").await;
    let call = ask(&app, &refund(5), 10).await;
    assert_eq!(
        call_summary(&call),
        expected(200, "allow", "settled", "succeeded"),
        "{}",
        call.text
    );
    assert_eq!(
        call.body["result"],
        json!({"outcome": "succeeded", "content": "{\"ok\":true}", "http_status": 200})
    );
    assert_eq!(
        (
            app.tool.count(),
            call.str("/rule"),
            call.body["permit"].clone()
        ),
        (1, "small".to_owned(), Value::Null)
    );
    let items = items(&app, &call).await;
    assert_eq!(
        types(&items),
        [
            "task_status",
            "user_message",
            "assistant_message",
            "judged",
            "tool_started",
            "tool_result",
            "task_status"
        ]
    );
    assert_eq!(
        (&items[2]["finish_reason"], &items[2]["turn"]),
        (&json!("gate"), &json!(1))
    );
    let task = app
        .owner()
        .get(&format!("/v1/tasks/{}", call.str("/task_id")))
        .await;
    assert_eq!(
        (
            &task.body["status"],
            &task.body["output"],
            &task.body["usage"]["model_calls"],
            &task.body["session_id"]
        ),
        (
            &json!("Completed"),
            &json!("{\"ok\":true}"),
            &json!(0),
            &json!("gate")
        )
    );
    app.stop().await;
}

#[apply(on_both)]
async fn denied_and_invalid_calls_run_nothing(on: On) {
    let app = gate(on, "").await;
    let denied = ask(&app, &json!({"tool": "forbidden", "arguments": {}}), 10).await;
    assert_eq!(
        call_summary(&denied),
        expected(200, "deny", "settled", "denied"),
        "{}",
        denied.text
    );
    assert_eq!(denied.str("/reason"), "Not this one.");
    for body in [
        json!({"tool": "other", "arguments": {}}),
        json!({"tool": "refund", "arguments": {"order": 17}}),
        json!({"tool": "refund", "arguments_text": "{\"order\":17,\"amount\":5,\"amount\":500}"}),
        json!({"tool": "refund", "arguments_text": "not json"}),
    ] {
        let invalid = ask(&app, &body, 10).await;
        assert_eq!(
            call_summary(&invalid),
            expected(200, "deny", "settled", "invalid"),
            "{body}: {}",
            invalid.text
        );
        assert_eq!(invalid.body["digest"], Value::Null);
    }
    // A repeated member in `arguments` is the agent's mistake, so the call is denied. A
    // repeated member elsewhere in the body is the client's mistake: 400.
    let inside = r#"{"tool":"refund","arguments":{"order":17,"amount":5,"amount":500}}"#;
    let inside = ask_in_text(&app, inside).await;
    assert_eq!(
        call_summary(&inside),
        expected(200, "deny", "settled", "invalid"),
        "{}",
        inside.text
    );
    let outside = r#"{"tool":"refund","arguments":{"order":17,"amount":5},"arguments":{}}"#;
    let outside = ask_in_text(&app, outside).await;
    outside.assert_code(400, "bad_json");
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn exact_allow_does_not_cover_a_tool_that_the_gate_does_not_list(on: On) {
    let unlisted = yaml("other_tools: judge").replacen("Bash, Read]", "Bash]", 1);
    let app = TestApp::with(on, &unlisted).await;
    let call = ask(&app, &json!({"tool": "Read", "arguments": {"path": 7}}), 0).await;
    assert_eq!(
        call_summary(&call),
        expected(202, "pending", "pending", Value::Null),
        "{}",
        call.text
    );
    assert_eq!(
        (call.body["rule"].clone(), call.str("/reason")),
        (Value::Null, "No rule matches.".to_owned())
    );
    app.stop().await;
}

#[apply(on_both)]
async fn bytes_of_the_arguments_are_kept_and_run(on: On) {
    let app = gate(on, "").await;
    let text = "{ \"order\" : 17,\"amount\":5.0 }";
    let body = format!(r#"{{"tool":"refund","arguments":  {text} }}"#);
    let call = ask_in_text(&app, &body).await;
    assert_eq!(call.str("/arguments_text"), text, "{}", call.text);
    assert_eq!(app.tool.ledger()[0].body, text);
    app.stop().await;
}

#[apply(on_both)]
async fn held_call_runs_once_for_the_asker_that_waits(on: On) {
    let app = gate(on, "").await;
    let held = ask_by_key(&app, "k1", &refund(120), 0).await;
    assert_eq!(
        call_summary(&held),
        expected(202, "pending", "pending", Value::Null),
        "{}",
        held.text
    );
    assert!(
        held.header("location")
            .ends_with(&format!("/v1/gate/calls/{}", held.str("/task_id")))
    );
    assert_eq!(
        (
            held.header("retry-after"),
            held.str("/request/status").as_str()
        ),
        ("5", "pending")
    );
    let refund_120 = refund(120);
    let waits = ask_by_key(&app, "k1", &refund_120, 30);
    let says = async {
        until_asker(&app, &held, |until| until > Time(0)).await;
        decide(&app, &held, "approve").await
    };
    let (call, _) = tokio::join!(waits, says);
    assert_eq!(
        call_summary(&call),
        expected(200, "allow", "settled", "succeeded"),
        "{}",
        call.text
    );
    assert_eq!(
        (
            call.body["by"].clone(),
            call.str("/message"),
            app.tool.count()
        ),
        (json!(["bob"]), "Approved by bob.".to_owned(), 1)
    );
    let again = ask_by_key(&app, "k1", &refund(120), 5).await;
    assert_eq!(
        (call_summary(&again), again.header("idempotency-replayed")),
        (expected(200, "allow", "settled", "succeeded"), "true")
    );
    assert_eq!(
        (again.body["result"].clone(), app.tool.count()),
        (call.body["result"].clone(), 1)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn approved_call_whose_asker_is_gone_does_not_run_until_asked_for_again(on: On) {
    let app = gate(on, "").await;
    let held = ask_by_key(&app, "k1", &refund(120), 0).await;
    decide(&app, &held, "approve").await;
    let look = app
        .actor(AGENT)
        .get(&format!("/v1/gate/calls/{}", held.str("/task_id")))
        .await;
    assert_eq!(
        call_summary(&look),
        expected(200, "pending", "approved", Value::Null),
        "{}",
        look.text
    );
    assert!(look.body["expires_at"].is_string());
    assert_eq!(app.tool.count(), 0);
    let call = ask_by_key(&app, "k1", &refund(120), 10).await;
    assert_eq!(
        (call_summary(&call), app.tool.count()),
        (expected(200, "allow", "settled", "succeeded"), 1)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn approval_of_a_call_whose_asker_is_gone_is_answered_at_once(on: On) {
    let app = TestApp::with(on, &(yaml("") + "\nserver: { wait: 60s }\n")).await;
    let held = ask_by_key(&app, "k1", &refund(120), 0).await;
    let path = format!("/resume/{}/approve", held.str("/request/request_id"));
    // With `server.wait`, a POST without `Prefer: wait` may wait up to a minute. The replies to
    // these approvals must come at once.
    for (prefer, replayed) in [("x=1", ""), ("x=1", "true"), ("wait=60", "true")] {
        let began = Instant::now();
        let approver = app
            .approver()
            .header("idempotency-key", "yes")
            .header("prefer", prefer);
        let decided = approver.hit(&path).await;
        decided.assert_status(202, "Running");
        assert_eq!(decided.header("idempotency-replayed"), replayed);
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{:?}",
            began.elapsed()
        );
    }
    let call = ask_by_key(&app, "k1", &refund(120), 10).await;
    assert_eq!(
        (call_summary(&call), app.tool.count()),
        (expected(200, "allow", "settled", "succeeded"), 1)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn approved_call_without_an_ask_expires(on: On) {
    let app = gate(on, "use_within: 200ms").await;
    let held = ask_by_key(&app, "k1", &refund(120), 0).await;
    decide(&app, &held, "approve").await;
    let path = format!("/v1/gate/calls/{}", held.str("/task_id"));
    let ended = app
        .actor(AGENT)
        .header("prefer", "wait=20")
        .get(&path)
        .await;
    assert_eq!(
        call_summary(&ended),
        expected(200, "deny", "settled", "expired"),
        "{}",
        ended.text
    );
    let items = items(&app, &ended).await;
    let result = items
        .iter()
        .find(|item| item["type"] == "tool_result")
        .unwrap();
    assert_eq!(
        result["content"],
        "Approved, but its agent did not ask for it again in time."
    );
    let again = ask_by_key(&app, "k1", &refund(120), 5).await;
    assert_eq!(
        call_summary(&again),
        expected(200, "deny", "settled", "expired")
    );
    let message =
        "The call was not run (expired): Approved, but its agent did not ask for it again in time.";
    assert_eq!(again.str("/message"), message);
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn rejected_call_is_denied_with_the_reason_and_again_without_a_question(on: On) {
    let app = gate(on, "").await;
    let held = ask(&app, &refund(120), 0).await;
    let path = format!("/resume/{}", held.str("/request/request_id"));
    let rejected = app
        .approver()
        .post(&path, &json!({"action": "reject", "reason": "Wrong order"}))
        .await;
    assert_eq!(rejected.str("/status"), "Canceled", "{}", rejected.text);
    // The client of the held call did not wait for its result. So the next equal proposal gets
    // this result, and later equal proposals begin new calls.
    let call = ask(&app, &refund(120), 5).await;
    assert_eq!(
        call_summary(&call),
        expected(200, "deny", "settled", "rejected"),
        "{}",
        call.text
    );
    assert_eq!(
        (call.str("/task_id"), call.str("/reason").as_str()),
        (held.str("/task_id"), "Wrong order"),
        "{}",
        call.text
    );
    until_asker(&app, &call, |until| until == ASKER_UNTIL_DELIVERED).await;
    let next = ask(&app, &refund(120), 5).await;
    assert_eq!(
        call_summary(&next),
        expected(200, "deny", "settled", "rejected"),
        "{}",
        next.text
    );
    assert_ne!(next.str("/task_id"), held.str("/task_id"));
    assert!(next.str("/reason").contains("Wrong order"), "{}", next.text);
    let new = ask_by_key(&app, "k2", &refund(120), 5).await;
    assert_eq!(
        call_summary(&new),
        expected(200, "deny", "settled", "rejected"),
        "{}",
        new.text
    );
    assert_ne!(new.str("/task_id"), held.str("/task_id"));
    assert!(
        new.str("/message")
            .starts_with("The call was not run (rejected): "),
        "{}",
        new.text
    );
    assert!(
        new.body["result"].is_null() && call.body["result"].is_null(),
        "it has not run: {}",
        new.text
    );
    assert_eq!(
        types(&items(&app, &new).await),
        [
            "task_status",
            "user_message",
            "assistant_message",
            "judged",
            "tool_result",
            "task_status"
        ]
    );
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn person_may_edit_or_answer_a_held_call(on: On) {
    let app = gate(on, "").await;
    let held = ask_by_key(&app, "edit", &refund(120), 0).await;
    let path = format!("/resume/{}", held.str("/request/request_id"));
    let id = held.str("/tool_call_id");
    app.approver().header("prefer", "wait=0").post(&path, &json!({"decisions": {(&id): {"action": "edit", "arguments": {"order": 17, "amount": 50}}}})).await;
    let call = ask_by_key(&app, "edit", &refund(120), 10).await;
    assert_eq!(
        call_summary(&call),
        expected(200, "allow", "settled", "succeeded"),
        "{}",
        call.text
    );
    assert_eq!(
        (call.body["edited"].clone(), call.str("/arguments_text")),
        (json!(true), app.tool.ledger()[0].body.clone())
    );
    let held = ask_by_key(&app, "answer", &refund(130), 0).await;
    let path = format!("/resume/{}", held.str("/request/request_id"));
    let id = held.str("/tool_call_id");
    app.approver()
        .post(
            &path,
            &json!({"decisions": {(&id): {"action": "respond", "result": "Paid by hand."}}}),
        )
        .await;
    let call = ask_by_key(&app, "answer", &refund(130), 10).await;
    assert_eq!(
        call_summary(&call),
        expected(200, "deny", "settled", "responded"),
        "{}",
        call.text
    );
    assert_eq!(
        (call.str("/result/content").as_str(), app.tool.count()),
        ("Paid by hand.", 1)
    );
    assert_eq!(
        call.str("/message"),
        "The call was not run: a person gave its result."
    );
    app.stop().await;
}

#[apply(on_both)]
async fn gate_is_closed_to_keys_that_decide_and_to_other_users(on: On) {
    let app = gate(on, "").await;
    for actor in [app.owner(), app.approver()] {
        let refused = ask_as(actor, &refund(5), 0).await;
        refused.assert_code(403, "forbidden");
    }
    assert_eq!(ask_as(app.anonymous(), &refund(5), 0).await.status, 401);
    let held = ask(&app, &refund(120), 0).await;
    let path = format!("/v1/gate/calls/{}", held.str("/task_id"));
    assert_eq!(app.actor(AGENT).get(&path).await.status, 200);
    assert_eq!(app.owner().get(&path).await.status, 200);
    assert_eq!(app.actor(CAROLS_AGENT).get(&path).await.status, 403);
    assert_eq!(
        app.actor(crate::support::test_app::OTHER)
            .get(&path)
            .await
            .status,
        404
    );
    let report = json!({"task_id": held.str("/task_id"), "outcome": "succeeded"});
    assert_eq!(
        app.actor(CAROLS_AGENT)
            .post("/v1/gate/outcomes", &report)
            .await
            .status,
        403
    );
    let gateless = json!({"gate": "other", "tool": "refund", "arguments": {}});
    let refused = ask(&app, &gateless, 0).await;
    assert_eq!(
        (refused.status, refused.str("/errors/0/pointer").as_str()),
        (422, "/gate")
    );
    let agents = app.owner().get("/v1/agents").await;
    assert_eq!(agents.body["agents"].as_array().unwrap().len(), 1);
    let task = app
        .owner()
        .post("/v1/tasks", &json!({"agent": "refunds", "input": "x"}))
        .await;
    assert_eq!(task.status, 422);
    app.stop().await;
}

#[apply(on_both)]
async fn key_that_may_decide_is_refused_whatever_its_body(on: On) {
    let app = gate(on, "").await;
    let bodies = [
        ("application/json", "{", 400),
        ("text/plain", "{}", 415),
        ("application/json", r#"{"zzz":1}"#, 422),
        ("text/plain", "", 422),
    ];
    for path in ["/v1/gate/calls", "/v1/gate/outcomes"] {
        for (kind, body, status) in bodies {
            let body = || Some((kind, body.to_owned()));
            let refused = app.owner().send(reqwest::Method::POST, path, body()).await;
            assert_eq!(
                (refused.status, refused.str("/code").as_str()),
                (403, "forbidden"),
                "{path}: {}",
                refused.text
            );
            let read = app
                .actor(AGENT)
                .send(reqwest::Method::POST, path, body())
                .await;
            assert_eq!(read.status, status, "{path}: {}", read.text);
        }
    }
    app.stop().await;
}

#[apply(on_both)]
async fn gate_call_takes_no_message_and_is_listed_by_its_gate_only(on: On) {
    let app = gate(on, "").await;
    let held = ask(&app, &refund(120), 0).await;
    let path = format!("/v1/tasks/{}", held.str("/task_id"));
    for (verb, body) in [("messages", json!({"input": "x"})), ("retry", json!({}))] {
        let refused = app.owner().post(&format!("{path}/{verb}"), &body).await;
        assert_eq!(
            (
                refused.status,
                refused.str("/code").as_str(),
                refused.str("/task_status").as_str()
            ),
            (409, "not_a_conversation", "Paused"),
            "{verb}"
        );
    }
    let count =
        |reply: crate::support::test_app::Reply| reply.body["tasks"].as_array().unwrap().len();
    assert_eq!(count(app.owner().get("/v1/tasks").await), 0);
    assert_eq!(count(app.owner().get("/v1/tasks?agent=refunds").await), 1);
    let id = held.str("/task_id");
    for (page, shown) in [
        ("/tasks", false),
        ("/tasks?status=Paused", false),
        ("/tasks?agent=refunds", true),
    ] {
        let page_text = app
            .owner()
            .header("accept", "text/html")
            .get(page)
            .await
            .text;
        assert_eq!(page_text.contains(&id), shown, "{page}");
        assert!(page_text.contains(r#"<option value="refunds""#), "{page}");
    }
    let canceled = app.owner().hit(&format!("{path}/cancel")).await;
    assert_eq!(canceled.str("/status"), "Canceled");
    let look = app
        .actor(AGENT)
        .get(&format!("/v1/gate/calls/{}", held.str("/task_id")))
        .await;
    assert_eq!(
        call_summary(&look),
        expected(200, "deny", "settled", "canceled")
    );
    app.stop().await;
}

#[apply(on_both)]
async fn proposals_that_do_not_fit_are_refused_and_stored_nowhere(on: On) {
    let app = gate(on, "").await;
    for (body, place) in [
        (json!({"arguments": {}}), "/tool"),
        (json!({"tool": "refund"}), ""),
        (
            json!({"tool": "refund", "arguments": {}, "arguments_text": "{}"}),
            "",
        ),
        (json!({"tool": "refund", "arguments": [1]}), "/arguments"),
        (
            json!({"tool": "refund", "arguments": {}, "context": 1}),
            "/context",
        ),
        (
            json!({"tool": "refund", "arguments": {}, "session_id": "a b"}),
            "/session_id",
        ),
        (
            json!({"tool": "refund", "arguments": {}, "metadata": []}),
            "/metadata",
        ),
        (
            json!({"tool": "refund", "arguments": {}, "attach": "yes"}),
            "/attach",
        ),
        (
            json!({"tool": "refund", "arguments": {}, "more": 1}),
            "/more",
        ),
        (
            json!({"tool": "refund", "arguments": {}, "context": "x".repeat(16 * 1024 + 1)}),
            "/context",
        ),
    ] {
        let refused = ask(&app, &body, 0).await;
        assert_eq!(
            (refused.status, refused.str("/errors/0/pointer").as_str()),
            (422, place),
            "{body}: {}",
            refused.text
        );
    }
    let bad = app.actor(AGENT).header("holdpoint-runner", "a b");
    assert_eq!(ask_as(bad, &refund(5), 0).await.status, 400);
    let count = app.owner().get("/v1/tasks?agent=refunds").await;
    assert_eq!(count.body["tasks"], json!([]));
    app.stop().await;
}

#[apply(on_both)]
async fn calls_of_a_removed_gate_are_not_among_the_tasks(on: On) {
    let mut app = gate(on, "").await;
    let mut body = refund(120);
    body["context"] = json!("The parcel broke.");
    let held = ask(&app, &body, 0).await;
    assert_eq!(ask(&app, &refund(5), 5).await.status, 200);
    app.model.then(text_answer("Done."));
    let task = app
        .owner()
        .post("/v1/tasks", &json!({"input": "Look it up."}))
        .await
        .str("/task_id");
    app.restart_with(|yaml| {
        let (start, rest) = yaml.split_once("\ngates:").unwrap();
        let (_, accounts) = rest.split_once("\nauth:").unwrap();
        format!("{start}\nauth:{accounts}")
    })
    .await;
    let list = async |query: &str| {
        let reply = app.owner().get(&format!("/v1/tasks?{query}")).await;
        let tasks = reply.body["tasks"].as_array().unwrap().clone();
        tasks
            .iter()
            .map(|task| task["task_id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    for query in ["", "limit=1"] {
        assert_eq!(list(query).await, [task.as_str()], "{query}");
    }
    assert_eq!(list("agent=refunds").await.len(), 2);
    let page = app
        .owner()
        .header("accept", "text/html")
        .get("/tasks")
        .await
        .text;
    assert!(
        page.contains(&task) && !page.contains(&held.str("/task_id")),
        "{page}"
    );
    let shown = app
        .approver()
        .header("accept", "text/html")
        .get(&format!("/resume/{}", held.str("/request/request_id")))
        .await
        .text;
    let found = [
        "class=\"arguments\"",
        "alice’s agent says (unverified)",
        "The parcel broke.",
    ]
    .map(|text| {
        shown
            .find(text)
            .unwrap_or_else(|| panic!("no {text}: {shown}"))
    });
    assert!(found.is_sorted(), "{shown}");
    app.stop().await;
}

#[apply(on_both)]
async fn pending_calls_of_a_user_are_bounded(on: On) {
    let app = gate(on, "max_open: 2").await;
    for amount in [101, 102] {
        assert_eq!(ask(&app, &refund(amount), 0).await.status, 202);
    }
    let refused = ask(&app, &refund(103), 0).await;
    refused.assert_code(429, "too_many");
    assert_eq!(refused.header("retry-after"), "30", "people decide");
    assert_eq!(ask(&app, &refund(5), 5).await.status, 200);
    assert_eq!(
        ask_as(app.actor(CAROLS_AGENT), &refund(104), 0)
            .await
            .status,
        202
    );
    app.stop().await;
}

#[apply(on_both)]
async fn unmatched_external_tool_is_held_at_a_gate(on: On) {
    let app = gate(on, "").await;
    let held = ask(&app, &bash("rm -rf /"), 0).await;
    assert_eq!(
        call_summary(&held),
        expected(202, "pending", "pending", Value::Null),
        "{}",
        held.text
    );
    assert_eq!(held.str("/request/kind"), "approval");
    app.stop().await;
}

#[apply(on_both)]
async fn without_accounts_the_one_user_asks_and_decides(on: On) {
    let all = yaml("");
    let open = all
        .split("\nauth:")
        .next()
        .unwrap()
        .replace("groups: [finance]", "owner: true");
    let app = TestApp::with(on, &open).await;
    let anonymous = || app.anonymous();
    let call = ask_as(anonymous(), &refund(5), 5).await;
    assert_eq!(
        call_summary(&call),
        expected(200, "allow", "settled", "succeeded"),
        "{}",
        call.text
    );
    app.stop().await;
}
