//! Tests of the model's prompts: before the model is called again, each tool call of a turn has
//! exactly one result, in the order of the calls.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{On, TestApp};

const SAFE: (&str, &str) = ("lookup", r#"{"order":1}"#);
const HELD: (&str, &str) = ("refund", r#"{"order":1,"amount":50}"#);

/// Returns the tool results after the last `assistant` message of a prompt, in order: (call id,
/// content).
fn results(body: &Value) -> Vec<(String, String)> {
    let messages = body["messages"].as_array().unwrap();
    let turn = messages
        .iter()
        .rposition(|message| message["role"] == "assistant")
        .unwrap();
    messages[turn + 1..]
        .iter()
        .inspect(|message| assert_eq!(message["role"], "tool"))
        .map(|message| {
            (
                message["tool_call_id"].as_str().unwrap().to_owned(),
                message["content"].as_str().unwrap().to_owned(),
            )
        })
        .collect()
}

#[apply(on_both)]
async fn every_call_of_a_turn_has_one_result_in_order(on: On) {
    let app = TestApp::start(on).await;
    let turns: [Vec<(&str, &str)>; 3] = [
        vec![HELD],
        vec![SAFE, HELD, SAFE],
        vec![SAFE, HELD, HELD, SAFE, SAFE, HELD, SAFE, SAFE],
    ];
    for turn in turns {
        for action in [
            json!({"action": "approve"}),
            json!({"action": "reject", "then": "continue", "reason": "not now"}),
        ] {
            let before = (app.model.sent().len(), app.tool.ledger().len());
            app.model.then(calls(&turn)).then(text_answer("ok"));
            let task = app.owner().create_task("go").await;
            assert_eq!(task.str("/status"), "Paused", "{}", task.text);
            assert_eq!(
                task.count("pending"),
                1,
                "one request for all of equal terms"
            );
            let shown = task.body["pending"][0]["tool_calls"].as_array().unwrap();
            assert_eq!(shown.len(), turn.len(), "all calls of the turn are shown");
            for (call, (name, _)) in shown.iter().zip(&turn) {
                assert_eq!(call["needs_decision"], *name == "refund");
            }
            assert_eq!(
                app.tool.ledger().len(),
                before.1,
                "nothing of the turn runs while it is open"
            );
            let done = app
                .owner()
                .answer(&task.str("/pending/0/request_id"), &action)
                .await;
            assert_eq!(done.str("/status"), "Completed", "{}", done.text);
            let sent = app.model.sent();
            assert_eq!(sent.len(), before.0 + 2);
            let results = results(sent.last().unwrap());
            let ids: Vec<_> = results.iter().map(|(id, _)| id.clone()).collect();
            assert_eq!(
                ids,
                (0..turn.len())
                    .map(|place| format!("call_{place}"))
                    .collect::<Vec<_>>()
            );
            let rejected = action["action"] == "reject";
            for ((name, _), (_, content)) in turn.iter().zip(&results) {
                assert_eq!(
                    content.contains("not now"),
                    rejected && *name == "refund",
                    "{content}"
                );
            }
            let expected = turn
                .iter()
                .filter(|(name, _)| *name == "lookup" || !rejected)
                .count();
            assert_eq!(app.tool.ledger().len() - before.1, expected);
        }
    }
    app.stop().await;
}

#[apply(on_both)]
async fn provider_call_ids_that_repeat_or_are_missing_are_made_unique(on: On) {
    let app = TestApp::start(on).await;
    let mut twice = calls(&[SAFE, SAFE, SAFE]);
    twice["choices"][0]["message"]["tool_calls"][1]["id"] = json!("call_0");
    twice["choices"][0]["message"]["tool_calls"][2]["id"] = json!("");
    app.model
        .then(calls(&[SAFE]))
        .then(twice)
        .then(text_answer("ok"));
    let done = app.owner().create_task("go").await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let last = app.model.sent().pop().unwrap();
    let messages = last["messages"].as_array().unwrap();
    let turns: Vec<_> = messages
        .iter()
        .filter(|message| message["role"] == "assistant")
        .collect();
    let asked: Vec<_> = turns[1]["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["id"].as_str().unwrap().to_owned())
        .collect();
    let answered: Vec<_> = results(&last).into_iter().map(|(id, _)| id).collect();
    assert_eq!(asked, answered);
    assert_eq!(
        asked
            .iter()
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        3,
        "unique within the answer"
    );
    assert_eq!(asked[0], "call_0", "the provider's own where it can be");
    app.stop().await;
}

#[apply(on_both)]
async fn providers_turn_is_sent_back_unchanged_with_the_system_prompt_once(on: On) {
    let app = TestApp::start(on).await;
    let mut turn = calls(&[HELD]);
    turn["choices"][0]["message"]["content"] = json!("I will refund it.");
    turn["choices"][0]["message"]["reasoning_signature"] = json!({"opaque": [1, 2.5, "x"]});
    let message = turn["choices"][0]["message"].clone();
    app.model.then(turn).then(text_answer("ok"));
    let body = json!({
        "items": [{"content_type": "text", "content": "see"}, {"content_type": "image", "content": "https://example.com/a.png"}],
        "user_context": {"locale": "de"}, "metadata": {"secret": "for us"}
    });
    let task = app.owner().post("/v1/tasks", &body).await;
    app.owner()
        .approve(&task.str("/pending/0/request_id"))
        .await;
    let sent = app.model.sent().pop().unwrap();
    let messages = sent["messages"].as_array().unwrap();
    assert_eq!(
        messages
            .iter()
            .filter(|message| message["role"] == "system")
            .count(),
        1
    );
    assert_eq!(
        messages[0],
        json!({"role": "system", "content": "You handle refunds."})
    );
    assert!(messages.contains(&message), "{sent}");
    assert!(sent.to_string().contains("locale") && !sent.to_string().contains("for us"));
    assert!(sent.to_string().contains("https://example.com/a.png"));
    assert_eq!(sent["tools"].as_array().unwrap().len(), 4);
    app.stop().await;
}

#[apply(on_both)]
async fn truncated_answer_runs_none_of_its_calls(on: On) {
    let app = TestApp::start(on).await;
    let mut cut = calls(&[SAFE]);
    cut["choices"][0]["finish_reason"] = json!("length");
    app.model.then(cut).then(text_answer("ok"));
    let done = app.owner().create_task("go").await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    assert!(app.tool.ledger().is_empty());
    app.stop().await;
}

#[apply(on_both)]
async fn model_failure_after_a_tool_ran_loses_nothing(on: On) {
    let app = TestApp::start(on).await;
    app.model
        .then(calls(&[("refund", r#"{"order":1,"amount":5}"#)]))
        .then_fails(400);
    let failed = app.owner().create_task("go").await;
    failed.assert_status(201, "Failed");
    assert_eq!(failed.str("/error/code"), "model_failed");
    let path = format!("/v1/tasks/{}", failed.str("/task_id"));
    assert_eq!(
        app.owner()
            .hit(&format!("{path}/cancel"))
            .await
            .str("/code"),
        "task_final"
    );
    app.model.then(text_answer("ok"));
    let done = app.owner().hit(&format!("{path}/retry")).await;
    done.assert_status(200, "Completed");
    assert_eq!(app.tool.ledger().len(), 1, "no finished call runs again");
    assert_eq!(
        app.owner().hit(&format!("{path}/retry")).await.str("/code"),
        "task_not_failed"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn unknown_outcome_opens_a_reconcile_request_and_is_never_repeated_silently(on: On) {
    let app = TestApp::start(on).await;
    app.tool.answers(502, "bad gateway");
    app.model
        .then(calls(&[("refund", r#"{"order":1,"amount":5}"#), SAFE]));
    let task = app.owner().create_task("go").await;
    assert_eq!(task.str("/pending/0/kind"), "reconcile", "{}", task.text);
    assert_eq!(task.body["pending"][0]["approval_url"], Value::Null);
    assert!(task.body["pending"][0]["details"]["problem"].is_string());
    assert_eq!(
        app.tool.ledger().len(),
        1,
        "the calls after an unknown outcome wait"
    );
    app.tool.answers(200, "ok");
    app.model.then(text_answer("ok"));
    let path = format!("/resume/{}", task.str("/pending/0/request_id"));
    assert_eq!(
        app.owner().hit(&format!("{path}/approve")).await.status,
        422
    );
    let done = app.owner().post(&path, &json!({"action": "retry"})).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let ledger = app.tool.ledger();
    assert_eq!(
        ledger
            .iter()
            .map(|execution| execution.uri.as_str())
            .collect::<Vec<_>>(),
        ["/refund", "/refund", "/lookup"]
    );
    assert_eq!(
        ledger[0].header("idempotency-key"),
        ledger[1].header("idempotency-key")
    );
    app.stop().await;
}

#[apply(on_both)]
async fn repeatable_call_is_repeated_with_the_same_key(on: On) {
    let app = TestApp::start(on).await;
    app.tool.answers(504, "");
    app.model.then(calls(&[SAFE])).then(text_answer("ok"));
    let done = app.owner().create_task("go").await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let ledger = app.tool.ledger();
    assert_eq!(ledger.len(), 3, "three attempts in all");
    assert!(ledger.iter().all(
        |execution| execution.header("idempotency-key") == ledger[0].header("idempotency-key")
    ));
    let (_, content) = results(&app.model.sent()[1]).remove(0);
    assert!(content.contains("may have"), "{content}");
    app.stop().await;
}
