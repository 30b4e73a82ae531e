//! Tests that a task which asks people in every way continues after restarts of the service.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{
    Question, TOKEN, asking, asks, begin, each_has_one_result, filled_in, items, last_tool_results,
};
use super::{FORM, answer, response};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{On, Reply, TestApp};

const BIG: &str = "12345678901234567890123";

/// Restarts the service, and then fills in the form of the request for guidance. Returns the reply,
/// which asks for a confirmation.
async fn fill_in_guidance(app: &mut TestApp, task: &str, filled: &Value) -> Reply {
    app.restart().await;
    let question = Question::of(&app.owner().task(task).await, "guidance");
    assert_eq!(question.request["question"], "How long?");
    assert_eq!(
        question.request["details"],
        json!({"context": "A sale.", "attempted_approaches": ["guessing"]})
    );
    assert_eq!(
        question.request["form"]["properties"]["days"],
        json!({"type": "integer", "minimum": 1})
    );
    app.model.then(calls(&[asks("confirmation")]));
    let now = answer(app, &question, &response(filled.clone())).await;
    assert_eq!(
        serde_json::from_str::<Value>(&last_tool_results(app)[0]).unwrap(),
        *filled
    );
    now
}

/// Restarts the service, and then confirms. Returns the reply, which asks for a login.
async fn confirm(app: &mut TestApp, asked: &Reply) -> Reply {
    let question = Question::of(asked, "confirmation");
    assert_eq!(question.request["question"], "Close the shop.");
    assert_eq!(
        question.request["details"],
        json!({"risks": ["angry people"]})
    );
    app.restart().await;
    app.model
        .then(calls(&[("comment", r#"{"text":"closed"}"#)]));
    let now = app
        .owner()
        .post(
            &format!("{}/approve", question.path()),
            &json!({"reason": "fine"}),
        )
        .await;
    assert_eq!(
        serde_json::from_str::<Value>(&last_tool_results(app)[0]).unwrap(),
        json!({"confirmed": true, "comment": "fine"})
    );
    now
}

/// Restarts the service, and then fills in the login. Returns the reply, which asks for the result
/// of an external call.
async fn fill_in_login(app: &mut TestApp, asked: &Reply) -> Reply {
    let question = Question::of(asked, "credentials");
    assert_eq!(
        question.request["tool_calls"][0]["name"], "comment",
        "a call that lacks its login asks for it"
    );
    assert_eq!(question.request["details"]["service"], "jira");
    assert!(app.tool.ledger().is_empty());
    app.restart().await;
    app.tool.answers(200, format!("hello {TOKEN}"));
    app.model.then(calls(&[("count", "{}")]));
    let now = answer(app, &question, &response(filled_in("credentials"))).await;
    assert_eq!(
        last_tool_results(app),
        ["hello [secret jira.token]"],
        "the echoed secret is redacted"
    );
    let ran = app.tool.ledger();
    assert_eq!(
        (ran.len(), ran[0].header("authorization")),
        (1, format!("Bearer {TOKEN}").as_str())
    );
    assert_eq!(
        ran[0].header("idempotency-key"),
        question.call,
        "that call continues"
    );
    now
}

/// Restarts the service, and then sends the result of the external call. Returns the reply, which
/// asks for an approval.
async fn send_result(app: &mut TestApp, asked: &Reply) -> Reply {
    let question = Question::of(asked, "external_result");
    app.restart().await;
    app.model.then(calls(&[asks("approval")]));
    let body = format!(r#"{{"action":"respond","result":{{"n":{BIG},"f":1.10}}}}"#);
    let now = app.owner().bytes(&question.path(), body.into_bytes()).await;
    assert_eq!(
        last_tool_results(app),
        [format!(r#"{{"n":{BIG},"f":1.10}}"#)]
    );
    now
}

/// Restarts the service, and then edits the held call. The tool fails after the call is sent, so
/// the outcome of the call is unknown. Returns the reply, which asks for the outcome.
async fn edit_call(app: &mut TestApp, asked: &Reply) -> Reply {
    let question = Question::of(asked, "approval");
    app.restart().await;
    app.tool.answers(502, "");
    app.model.then(text_answer("never asked"));
    let edit = json!({"decisions": {&question.call: {"action": "edit", "arguments": {"order": 17, "amount": 5}}}});
    let now = answer(app, &question, &edit).await;
    let ran = app.tool.ledger();
    assert_eq!(
        (
            ran.len(),
            serde_json::from_str::<Value>(&ran[1].body).unwrap()
        ),
        (2, json!({"order": 17, "amount": 5}))
    );
    now
}

/// Restarts the service, and then decides to retry the call whose outcome is unknown. Asserts that
/// the task completes.
async fn retry_call(app: &mut TestApp, asked: &Reply) {
    let question = Question::of(asked, "reconcile");
    assert_eq!(question.request["details"]["attempt"], 1);
    assert_eq!(
        question.request["tool_calls"][0]["arguments"],
        json!({"order": 17, "amount": 5}),
        "the bytes that were sent"
    );
    app.restart().await;
    app.tool.answers(200, "paid");
    let done = answer(app, &question, &json!({"action": "retry"})).await;
    done.assert_completed("never asked");
    let ran = app.tool.ledger();
    assert_eq!(ran.len(), 3);
    assert_eq!(
        (&ran[1].body, ran[1].header("idempotency-key")),
        (&ran[2].body, ran[2].header("idempotency-key"))
    );
    assert!(
        last_tool_results(app)[0].contains(r#"{"amount":5,"order":17}"#)
            && last_tool_results(app)[0].ends_with("paid"),
        "{:?}",
        last_tool_results(app)
    );
}

/// Asserts that the answers are readable in the requests and items of the task, except the login.
/// Returns the texts of the lists of requests and items.
async fn shown_answers(app: &TestApp, task: &str, filled: &Value) -> [String; 2] {
    let journal = items(app, task).await;
    each_has_one_result(&journal);
    let tree = app
        .owner()
        .get(&format!("/v1/requests?task_id={task}"))
        .await;
    assert_eq!(
        tree.texts("requests", "kind"),
        [
            "guidance",
            "confirmation",
            "credentials",
            "external_result",
            "approval",
            "reconcile"
        ]
    );
    let all = tree.body["requests"].as_array().unwrap();
    assert!(
        all.iter().all(|request| request["status"] == "resumed"),
        "{}",
        tree.text
    );
    assert_eq!(
        all[0]["decision"]["response"], *filled,
        "what was filled in stays readable"
    );
    assert_eq!(
        all[2]["decision"]["response"],
        json!({"email": null, "token": null}),
        "a login is its names"
    );
    tree.about(&"every digit stays").assert_has(BIG);
    let shown = app
        .owner()
        .get(&format!("/v1/tasks/{task}/items?limit=200"))
        .await;
    shown.assert_has(&format!(r#""n":{BIG},"f":1.10"#));
    [tree.text, shown.text]
}

/// Asserts that no file of a database on `SQLite` contains the token.
fn token_is_stored_sealed(app: &TestApp) {
    if let Some(file) = app.database.url().strip_prefix("sqlite://") {
        for file in std::fs::read_dir(std::path::Path::new(file).parent().unwrap()).unwrap() {
            let stored = std::fs::read(file.unwrap().path()).unwrap();
            assert!(
                !stored
                    .windows(TOKEN.len())
                    .any(|part| part == TOKEN.as_bytes()),
                "it is stored sealed"
            );
        }
    }
}

#[apply(on_both)]
async fn task_that_asks_in_every_way_survives_a_restart_before_each_answer(on: On) {
    let mut app = asking(on, "").await;
    let asked = begin(&app, &[("request_human_guidance", FORM)]).await;
    let task = asked.str("/task_id");
    let filled = json!({"shop": "north", "days": 3});
    let asked = fill_in_guidance(&mut app, &task, &filled).await;
    let asked = confirm(&mut app, &asked).await;
    let asked = fill_in_login(&mut app, &asked).await;
    let asked = send_result(&mut app, &asked).await;
    let asked = edit_call(&mut app, &asked).await;
    retry_call(&mut app, &asked).await;
    let [requests, shown] = shown_answers(&app, &task, &filled).await;
    for text in [requests, shown, format!("{:?}", app.model.sent())] {
        assert!(
            !text.contains(TOKEN) && !text.contains("alice@acme.example"),
            "a login is never shown"
        );
    }
    token_is_stored_sealed(&app);
    app.stop().await;
}
