//! Tests of a user's message while requests are open. The requests are withdrawn, every call gets
//! exactly one result, and the model's next prompt has the new message.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use super::request_kinds::{
    ASKING, KINDS, Question, ask, asks, each_has_one_result, filled_in, items, request, results_of,
    since_last_turn,
};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ACCOUNTS, On, Reply, TestApp};

async fn app(on: On) -> TestApp {
    TestApp::with(on, &(ASKING.replace("{more}", "") + ACCOUNTS)).await
}

/// Sends a superseding message as the user; the model then says "I see". Asserts that the task
/// completes.
async fn supersede(app: &TestApp, task: &str) -> Reply {
    app.model.then(text_answer("I see"));
    let body = json!({"input": "never mind", "supersede": true});
    let reply = app.owner().message(task, &body).await;
    reply.assert_status(200, "Completed");
    assert_eq!(
        (&reply.body["output"], &reply.body["pending"]),
        (&json!("I see"), &json!([]))
    );
    reply
}

/// Returns each item as its type and the text that distinguishes it from other items of its type.
fn facts(items: &[Value]) -> Vec<(String, String)> {
    let word = |item: &Value, name: &str| item[name].as_str().unwrap_or_default().to_owned();
    let fact = |item: &Value| {
        let kind = word(item, "type");
        let said = match kind.as_str() {
            "task_status" => word(item, "status"),
            "tool_result" => format!("{} {}", word(item, "name"), word(item, "outcome")),
            "request_closed" => format!("{} {}", word(item, "status"), word(item, "reason")),
            _ => String::new(),
        };
        (kind, said)
    };
    items.iter().map(fact).collect()
}

/// Asserts that the items after the first `before` items are, in this order: the withdrawal of a
/// request, the results of tools in `results`, the superseding message, the model's answer and the
/// end of the task. `results` has the texts that [`facts`] returns for the results.
#[track_caller]
fn withdrawn_with(items: &[Value], before: usize, results: &[&str]) {
    let found = facts(&items[before..]);
    let found: Vec<_> = found
        .iter()
        .map(|(kind, said)| (kind.as_str(), said.as_str()))
        .collect();
    let results: Vec<_> = results.iter().map(|said| ("tool_result", *said)).collect();
    let closed = [
        ("request_closed", "withdrawn superseded"),
        ("task_status", "Running"),
    ];
    let rest = [
        ("user_message", ""),
        ("assistant_message", ""),
        ("task_status", "Completed"),
    ];
    let expected = [&closed[..], &results, &rest].concat();
    assert_eq!(found, expected, "{items:#?}");
}

/// Returns the messages after the last assistant message in the last prompt, each as (role,
/// content).
fn prompt(app: &TestApp) -> Vec<(String, String)> {
    let text = |message: &Value| {
        let content = &message["content"];
        content
            .as_str()
            .map_or_else(|| content.to_string(), str::to_owned)
    };
    since_last_turn(app)
        .iter()
        .map(|message| (message["role"].as_str().unwrap().to_owned(), text(message)))
        .collect()
}

/// Asserts that the service refuses a late answer. The refusal reports the request as withdrawn,
/// and its list of open requests is empty.
async fn is_too_late(app: &TestApp, question: &Question, kind: &str) {
    let body = match kind {
        "approval" => json!({"action": "approve"}),
        "external_result" | "reconcile" => json!({"action": "respond", "result": "late"}),
        _ => json!({"action": "respond", "response": filled_in(kind)}),
    };
    let before = items(app, &question.task).await;
    let late = app.owner().post(&question.path(), &body).await;
    late.about(&kind).assert_code(409, "request_withdrawn");
    assert_eq!(
        (late.str("/request/request_id"), late.str("/request/status")),
        (question.id.clone(), "withdrawn".into())
    );
    assert_eq!(late.body["pending"], json!([]), "{kind}");
    assert_eq!(
        items(app, &question.task).await,
        before,
        "{kind}: a refusal changed something"
    );
}

#[apply(on_both)]
async fn request_of_any_kind_is_withdrawn_by_the_next_message(on: On) {
    let app = app(on).await;
    for kind in KINDS {
        let question = ask(&app, kind).await;
        let before = items(&app, &question.task).await;
        let refused = app
            .owner()
            .message(&question.task, &json!({"input": "x"}))
            .await;
        refused.about(&kind).assert_code(409, "task_paused");
        assert_eq!(refused.str("/pending/0/request_id"), question.id);
        assert_eq!(
            items(&app, &question.task).await,
            before,
            "{kind}: a refusal changed something"
        );
        let ran = app.tool.ledger().len();
        supersede(&app, &question.task).await;
        let journal = items(&app, &question.task).await;
        let (tool, outcome) = (
            asks(kind).0,
            if kind == "reconcile" {
                "unknown"
            } else {
                "withdrawn"
            },
        );
        withdrawn_with(&journal, before.len(), &[&format!("{tool} {outcome}")]);
        assert_eq!(app.tool.ledger().len(), ran, "{kind}: nothing ran");
        let next = prompt(&app);
        assert_eq!(next.len(), 2, "{kind}: {next:?}");
        assert_eq!(
            next[0],
            (
                "tool".to_owned(),
                results_of(&journal, &question.call)[0]["content"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            )
        );
        assert!(
            next[1].0 == "user" && next[1].1.contains("never mind"),
            "{kind}: {next:?}"
        );
        each_has_one_result(&journal);
        let after = request(&app, &question.id).await;
        assert_eq!(
            (&after["status"], &after["decision"]),
            (&json!("withdrawn"), &Value::Null),
            "{kind}"
        );
        is_too_late(&app, &question, kind).await;
    }
    app.stop().await;
}

#[apply(on_both)]
async fn approved_and_edited_calls_that_did_not_run_are_withdrawn_too(on: On) {
    let app = app(on).await;
    app.model.then(calls(&[
        ("lookup", r#"{"order":1}"#),
        ("refund", r#"{"order":1,"amount":1}"#),
        ("refund", r#"{"order":2,"amount":2}"#),
        ("refund", r#"{"order":3,"amount":3}"#),
        ("refund", r#"{"order":4,"amount":4}"#),
    ]));
    let held = app.owner().create_task("go").await;
    let question = Question::of(&held, "approval");
    let asked = question.request["tool_calls"].as_array().unwrap();
    assert_eq!(asked.len(), 5, "all calls of the turn are shown");
    let ids: Vec<_> = asked
        .iter()
        .map(|call| call["tool_call_id"].as_str().unwrap().to_owned())
        .collect();
    let some = json!({"decisions": {
        &ids[1]: {"action": "approve"},
        &ids[2]: {"action": "edit", "arguments": {"order": 2, "amount": 22}},
        &ids[3]: {"action": "reject", "reason": "not three", "then": "continue"},
    }});
    let partly = app.owner().post(&question.path(), &some).await;
    partly.assert_status(200, "Paused");
    assert_eq!(partly.str("/pending/0/status"), "pending");
    assert_eq!(
        partly.body["pending"][0]["tool_calls"][2]["decision"]["decisions"][&ids[2]]["arguments"],
        json!({"order": 2, "amount": 22})
    );
    let paused = items(&app, &question.task).await;
    assert_eq!(
        results_of(&paused, &ids[3])[0]["outcome"],
        "rejected",
        "a rejected call has its result at once"
    );
    let before = paused.len();
    supersede(&app, &question.task).await;
    let journal = items(&app, &question.task).await;
    withdrawn_with(
        &journal,
        before,
        &[
            "lookup withdrawn",
            "refund withdrawn",
            "refund withdrawn",
            "refund withdrawn",
        ],
    );
    assert!(
        app.tool.ledger().is_empty(),
        "an approval does not outlive its turn"
    );
    each_has_one_result(&journal);
    let next = prompt(&app);
    assert_eq!(
        next.iter()
            .map(|(role, _)| role.as_str())
            .collect::<Vec<_>>(),
        ["tool", "tool", "tool", "tool", "tool", "user"]
    );
    assert!(next[3].1.contains("not three"), "{next:?}");
    assert!(
        !next[2].1.contains("22"),
        "the edited arguments did not run: {next:?}"
    );
    let after = request(&app, &question.id).await;
    assert_eq!(after["status"], "withdrawn");
    let decided: Vec<_> = after["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["decision"]["action"].clone())
        .collect();
    assert_eq!(
        decided,
        [
            Value::Null,
            json!("approve"),
            json!("edit"),
            json!("reject"),
            Value::Null
        ],
        "who decided, stays"
    );
    is_too_late(&app, &question, "approval").await;
    app.stop().await;
}

#[apply(on_both)]
async fn requests_of_every_kind_in_one_turn_are_withdrawn_together(on: On) {
    let app = app(on).await;
    let turn: Vec<_> = [
        "guidance",
        "confirmation",
        "credentials",
        "approval",
        "external_result",
    ]
    .map(asks)
    .to_vec();
    app.model.then(calls(&turn));
    let asked = app.owner().create_task("go").await;
    let open = asked.texts("pending", "kind");
    assert_eq!(
        open,
        ["guidance", "confirmation", "credentials", "approval"]
    );
    let questions: Vec<_> = open
        .iter()
        .map(|kind| (*kind, Question::of(&asked, kind)))
        .collect();
    let answered = app
        .owner()
        .post(
            &questions[0].1.path(),
            &json!({"action": "respond", "response": {"answer": "north"}}),
        )
        .await;
    assert_eq!(answered.str("/status"), "Paused", "{}", answered.text);
    let task = asked.str("/task_id");
    supersede(&app, &task).await;
    let journal = items(&app, &task).await;
    each_has_one_result(&journal);
    let results: Vec<_> = facts(&journal)
        .into_iter()
        .filter(|(kind, _)| kind == "tool_result")
        .map(|(_, said)| said)
        .collect();
    assert_eq!(
        results,
        [
            "request_human_guidance responded",
            "request_confirmation withdrawn",
            "request_credentials withdrawn",
            "refund withdrawn",
            "count withdrawn",
        ]
    );
    assert!(
        prompt(&app)[0].1.contains("north"),
        "the model gets the person's answer"
    );
    for (kind, question) in &questions[1..] {
        is_too_late(&app, question, kind).await;
    }
    let first = app
        .owner()
        .post(&questions[0].1.path(), &json!({"action": "reject"}))
        .await;
    first.assert_code(409, "already_decided");
    assert_eq!(request(&app, &questions[0].1.id).await["status"], "resumed");
    app.stop().await;
}

#[apply(on_both)]
async fn external_call_is_withdrawn_and_results_beside_it_stay(on: On) {
    let app = app(on).await;
    app.model.then(calls(&[
        ("count", r#"{"what":"a"}"#),
        ("lookup", r#"{"order":1}"#),
        ("count", r#"{"what":"b"}"#),
    ]));
    let asked = app.owner().create_task("go").await;
    assert_eq!(asked.count("pending"), 2, "{}", asked.text);
    assert_eq!(
        app.tool.ledger().len(),
        1,
        "an external call does not block the other calls"
    );
    let question = Question::of(&asked, "external_result");
    let one = app
        .owner()
        .post(&question.path(), &json!({"action": "respond", "result": 7}))
        .await;
    assert_eq!(one.str("/status"), "Paused", "{}", one.text);
    let other = Question::of(&one, "external_result");
    let before = items(&app, &question.task).await.len();
    supersede(&app, &question.task).await;
    let journal = items(&app, &question.task).await;
    withdrawn_with(&journal, before, &["count withdrawn"]);
    each_has_one_result(&journal);
    let next: Vec<_> = prompt(&app).into_iter().map(|(_, text)| text).collect();
    assert_eq!(
        (next[0].as_str(), next[1].as_str()),
        ("7", r#"{"ok":true}"#)
    );
    is_too_late(&app, &other, "external_result").await;
    app.stop().await;
}

#[apply(on_both)]
async fn started_call_becomes_unknown_and_later_calls_are_withdrawn(on: On) {
    let app = app(on).await;
    app.tool.answers(502, "");
    app.model.then(calls(&[
        ("lose", r#"{"order":1}"#),
        ("lookup", r#"{"order":1}"#),
        ("lose", r#"{"order":2}"#),
    ]));
    let asked = app.owner().create_task("go").await;
    let question = Question::of(&asked, "reconcile");
    assert_eq!(asked.count("pending"), 1, "{}", asked.text);
    let before = items(&app, &question.task).await.len();
    supersede(&app, &question.task).await;
    let journal = items(&app, &question.task).await;
    withdrawn_with(
        &journal,
        before,
        &["lose unknown", "lookup withdrawn", "lose withdrawn"],
    );
    each_has_one_result(&journal);
    assert_eq!(app.tool.ledger().len(), 1);
    is_too_late(&app, &question, "reconcile").await;
    // The tool is in quarantine: no rule lets a call of the tool run until a person has decided
    // such a call.
    app.tool.answers(200, "found");
    app.model.then(calls(&[("lose", r#"{"order":3}"#)]));
    let again = app
        .owner()
        .message(&question.task, &json!({"input": "again"}))
        .await;
    assert_eq!(
        Question::of(&again, "approval").request["tool_calls"][0]["verdict"],
        "hold",
        "{}",
        again.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn late_answer_is_told_which_request_is_pending_now(on: On) {
    let app = app(on).await;
    let question = ask(&app, "guidance").await;
    app.model.then(calls(&[asks("confirmation")]));
    let body = json!({"input": "ask otherwise", "supersede": true});
    let next = app.owner().message(&question.task, &body).await;
    let open = Question::of(&next, "confirmation");
    let late = app
        .owner()
        .post(
            &question.path(),
            &json!({"action": "respond", "response": {"answer": "x"}}),
        )
        .await;
    late.assert_code(409, "request_withdrawn");
    assert_eq!(late.str("/pending/0/request_id"), open.id);
    assert_eq!(late.count("pending"), 1);
    let done = app.owner().hit(&format!("{}/approve", open.path())).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    each_has_one_result(&items(&app, &question.task).await);
    app.stop().await;
}
