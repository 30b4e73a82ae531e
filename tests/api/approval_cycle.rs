//! Tests the main path, on SQLite and on Postgres: a task is held, a person decides, and the task
//! continues.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{On, TestApp};

/// Makes two tests of a function: one on SQLite, and one on Postgres.
macro_rules! on_both {
    ($(#[$meta:meta])* async fn $name:ident($on:ident: On $(,)?) $body:block) => {
        $(#[$meta])*
        async fn $name($on: On) $body

        mod $name {
            use $crate::support::test_app::On;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_sqlite() {
                super::$name(On::Sqlite).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_postgres() {
                super::$name(On::Postgres).await;
            }
        }
    };
}
pub(crate) use on_both;

#[apply(on_both)]
async fn held_call_runs_once_when_it_is_approved(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    assert!(
        app.tool.ledger().is_empty(),
        "nothing runs before an approval"
    );
    let call = &held.body["pending"][0]["tool_calls"][0];
    assert_eq!(call["name"], "refund");
    assert_eq!(call["arguments"], json!({"order": 17, "amount": 120}));
    assert_eq!(call["arguments_text"], r#"{"order": 17, "amount": 120}"#);
    assert_eq!(call["summary"], "Refund 120 for order 17");
    assert_eq!(call["effect"], "once");
    assert_eq!(call["target"], format!("POST {}/refund", app.tool.url));
    assert_eq!(
        (&call["verdict"], &call["rule"]),
        (&json!("hold"), &json!("large"))
    );
    assert_eq!(call["reason"], "Refunds above 20 need a look.");
    assert_eq!(
        held.body["pending"][0]["approval_url"],
        format!("{}/resume/{}/approve", app.url(), held.request)
    );

    app.model.then(text_answer("refunded"));
    let url = held.body["pending"][0]["approval_url"]
        .as_str()
        .unwrap()
        .to_owned();
    let done = app.owner().hit(&url).await;
    done.assert_status(200, "Completed");
    assert_eq!(done.body["output"], "refunded");
    assert_eq!(done.body["pending"], json!([]));
    assert_eq!(done.body["usage"]["model_calls"], 2);

    let ledger = app.tool.ledger();
    assert_eq!(ledger.len(), 1);
    assert_eq!(
        (ledger[0].method.as_str(), ledger[0].uri.as_str()),
        ("POST", "/refund")
    );
    assert_eq!(
        ledger[0].body, r#"{"order": 17, "amount": 120}"#,
        "the bytes approved are the bytes run"
    );
    assert_eq!(ledger[0].header("idempotency-key"), held.call);
    assert_eq!(ledger[0].header("holdpoint-tool-call-id"), held.call);
    assert_eq!(ledger[0].header("holdpoint-task-id"), held.task);
    assert_eq!(ledger[0].header("holdpoint-user"), "alice");
    assert_eq!(ledger[0].header("holdpoint-tenant"), "acme");
    assert_eq!(ledger[0].header("holdpoint-decided-by"), "alice");
    assert!(ledger[0].header("traceparent").starts_with("00-"));

    let request = app.owner().request(&held.request).await;
    assert_eq!(request.str("/status"), "resumed");
    assert_eq!(request.str("/decision/action"), "approve");
    assert_eq!(request.str("/decision/by"), "alice");
    let items = app.owner().items(&held.task).await;
    let types = items.texts("items", "type");
    assert_eq!(
        types,
        [
            "task_status",
            "user_message",
            "assistant_message",
            "judged",
            "intervention_requested",
            "task_status",
            "decision",
            "task_status",
            "tool_started",
            "tool_result",
            "assistant_message",
            "task_status",
        ]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn rejected_call_never_runs_and_its_task_is_canceled(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let done = app
        .owner()
        .post(
            &format!("/resume/{}/reject", held.request),
            &json!({"reason": "wrong customer"}),
        )
        .await;
    done.assert_status(200, "Canceled");
    assert!(app.tool.ledger().is_empty());
    let items = app
        .owner()
        .get(&format!("/v1/tasks/{}/items?after=6", held.task))
        .await;
    let facts: Vec<_> = items.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            (
                item["type"].as_str().unwrap(),
                item["outcome"].as_str().unwrap_or(""),
                item["status"].as_str().unwrap_or(""),
            )
        })
        .collect();
    assert_eq!(
        facts,
        [
            ("decision", "", ""),
            ("tool_result", "rejected", ""),
            ("task_status", "", "Canceled")
        ]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn rejection_with_continue_tells_the_model_and_goes_on(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    app.model.then(text_answer("then not"));
    let body = json!({"action": "reject", "then": "continue", "reason": "too much"});
    let done = app.owner().answer(&held.request, &body).await;
    done.assert_completed("then not");
    assert!(app.tool.ledger().is_empty());
    let told = app.model.sent()[1]["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .clone();
    assert_eq!(told["role"], "tool");
    assert!(
        told["content"].as_str().unwrap().contains("too much"),
        "{told}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn paused_task_survives_a_restart(on: On) {
    let mut app = TestApp::start(on).await;
    let held = app.held().await;
    app.restart().await;
    let shown = app.owner().task(&held.task).await;
    assert_eq!(shown.str("/pending/0/request_id"), held.request);
    app.model.then(text_answer("refunded"));
    let done = app.owner().approve(&held.request).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn allowed_calls_run_unasked_and_denied_ones_never(on: On) {
    let app = TestApp::start(on).await;
    app.model
        .then(calls(&[
            ("refund", r#"{"order":1,"amount":20}"#),
            ("forbidden", "{}"),
            ("lookup", r#"{"order":1}"#),
        ]))
        .then(text_answer("ok"));
    let done = app.owner().create_task("go").await;
    done.assert_status(201, "Completed");
    let ran: Vec<_> = app
        .tool
        .ledger()
        .iter()
        .map(|execution| execution.uri.clone())
        .collect();
    assert_eq!(ran, ["/refund", "/lookup"]);
    assert_eq!(app.tool.ledger()[0].header("holdpoint-decided-by"), "");
    let results: Vec<_> = app.model.sent()[1]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| message["content"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(results.len(), 3);
    assert!(results[1].contains("Not this one."), "{results:?}");
    app.stop().await;
}

#[apply(on_both)]
async fn message_to_a_completed_task_continues_the_conversation(on: On) {
    let app = TestApp::start(on).await;
    app.model
        .then(text_answer("hello"))
        .then(text_answer("again"));
    let task = app.owner().create_task("one").await;
    let path = format!("/v1/tasks/{}/messages", task.str("/task_id"));
    let done = app.owner().post(&path, &json!({"input": "two"})).await;
    done.assert_text(200, "/output", "again");
    let roles: Vec<_> = app.model.sent()[1]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["role"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"]);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_created_on_one_replica_is_approved_on_another() {
    let app = TestApp::start(On::Postgres).await;
    let other = app.replica().await;
    let held = app.held().await;
    app.model.then(text_answer("refunded"));
    let done = other.owner().approve(&held.request).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let here = app.owner().task(&held.task).await;
    assert_eq!(here.body["output"], "refunded");
    assert_eq!(app.tool.ledger().len(), 1);
    other.stop().await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anyone_may_decide_without_accounts() {
    let app = TestApp::open(On::Sqlite).await;
    app.model
        .then(calls(&[("refund", r#"{"order":1,"amount":500}"#)]))
        .then(text_answer("ok"));
    let held = app.anonymous().create_task("go").await;
    assert_eq!(held.body["user_id"], "local");
    assert_eq!(held.body["pending"][0]["can_decide"], Value::Bool(true));
    let done = app
        .anonymous()
        .approve(&held.str("/pending/0/request_id"))
        .await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    app.stop().await;
}
