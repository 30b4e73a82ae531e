//! Tests of proposals at a gate: the calls that a rule allows, holds or denies; whether the service
//! or the caller runs a call; and the callers that may ask.

mod askers;
mod decisions;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::{
    AGENT, CAROLS_AGENT, ask, ask_as, ask_in_text, assert_call, bash, call_summary, expected, gate,
    items, refund, types, yaml,
};
use crate::api::approval_cycle::on_both;
use crate::support::fake_chat_completions::text_answer;
use crate::support::test_app::{On, TestApp};

#[apply(on_both)]
async fn allowed_call_of_the_service_runs_and_its_result_is_answered(on: On) {
    let app = gate(on, "").await;
    let call = ask(&app, &refund(5), 10).await;
    assert_call(&call, 200, "allow", "settled", "succeeded");
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
    let task = app.owner().task(&call.str("/task_id")).await;
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
    assert_call(&denied, 200, "deny", "settled", "denied");
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
    assert_call(&inside, 200, "deny", "settled", "invalid");
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
    assert_call(&call, 202, "pending", "pending", Value::Null);
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
async fn gate_call_takes_no_message_and_is_listed_by_its_gate_only(on: On) {
    let app = gate(on, "").await;
    let held = ask(&app, &refund(120), 0).await;
    let path = format!("/v1/tasks/{}", held.str("/task_id"));
    for (verb, body) in [("messages", json!({"input": "x"})), ("retry", json!({}))] {
        let refused = app.owner().post(&format!("{path}/{verb}"), &body).await;
        let refused = refused.about(&verb);
        refused.assert_code(409, "not_a_conversation");
        refused.assert_text(409, "/task_status", "Paused");
    }
    assert_eq!(app.owner().get("/v1/tasks").await.count("tasks"), 0);
    let of_gate = app.owner().get("/v1/tasks?agent=refunds").await;
    assert_eq!(of_gate.count("tasks"), 1);
    let id = held.str("/task_id");
    for (page, shown) in [
        ("/tasks", false),
        ("/tasks?status=Paused", false),
        ("/tasks?agent=refunds", true),
    ] {
        let page_text = app.owner().accept_html().get(page).await.text;
        assert_eq!(page_text.contains(&id), shown, "{page}");
        assert!(page_text.contains(r#"<option value="refunds""#), "{page}");
    }
    let canceled = app.owner().hit(&format!("{path}/cancel")).await;
    assert_eq!(canceled.str("/status"), "Canceled");
    let look = app
        .actor(AGENT)
        .get(&format!("/v1/gate/calls/{}", held.str("/task_id")))
        .await;
    assert_call(&look, 200, "deny", "settled", "canceled");
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
        refused
            .about(&body)
            .assert_text(422, "/errors/0/pointer", place);
    }
    let empty = ask(&app, &json!({}), 0).await;
    empty.assert_text(422, "/errors/0/pointer", "/tool");
    empty.assert_text(422, "/errors/1/pointer", "");
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
    let task = app.owner().create_task("Look it up.").await.str("/task_id");
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
    let page = app.owner().accept_html().get("/tasks").await.text;
    assert!(
        page.contains(&task) && !page.contains(&held.str("/task_id")),
        "{page}"
    );
    let shown = app
        .approver()
        .accept_html()
        .request(&held.str("/request/request_id"))
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
    assert_call(&held, 202, "pending", "pending", Value::Null);
    assert_eq!(held.str("/request/kind"), "approval");
    app.stop().await;
}
