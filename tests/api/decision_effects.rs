//! Tests of the effects of a decision. An edited call runs with exactly the bytes of the edit. A
//! rejection also refuses repeats of the call until the user's next message.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{On, TestApp};

#[apply(on_both)]
async fn edited_arguments_are_what_runs_and_what_the_model_is_told(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    app.model.then(text_answer("ok"));
    let text = r#"{"amount":20.10,"order":17}"#;
    let body = format!(
        r#"{{"decisions":{{"{}":{{"action":"edit","arguments":{text}}}}}}}"#,
        held.call
    );
    let done = app
        .owner()
        .bytes(&format!("/resume/{}", held.request), body.into_bytes())
        .await;
    done.assert_status(200, "Completed");
    let ledger = app.tool.ledger();
    assert_eq!(ledger.len(), 1);
    assert_eq!(
        (
            ledger[0].body.as_str(),
            ledger[0].header("holdpoint-decided-by")
        ),
        (text, "alice")
    );
    let request = app.owner().request(&held.request).await;
    assert_eq!(
        request.body["tool_calls"][0]["arguments_text"], r#"{"order": 17, "amount": 120}"#,
        "the request keeps its arguments"
    );
    let told = app.model.sent().last().unwrap().to_string();
    assert!(
        told.contains("20.10"),
        "the model is told which bytes ran: {told}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn rejected_call_stays_rejected_until_the_users_next_message(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    // The model repeats the rejected call with the arguments spelled differently. Then the
    // model makes a different call.
    app.model
        .then(calls(&[("refund", r#"{"amount":120.0,"order":17}"#)]))
        .then(calls(&[("refund", r#"{"order":17,"amount":121}"#)]));
    let no = json!({"action": "reject", "then": "continue", "reason": "wrong customer"});
    let next = app.owner().answer(&held.request, &no).await;
    next.assert_status(200, "Paused");
    assert_eq!(next.count("pending"), 1);
    assert_eq!(
        next.body["pending"][0]["tool_calls"][0]["arguments"]["amount"], 121,
        "only the new call is asked about"
    );
    let items = app
        .owner()
        .get(&format!("/v1/tasks/{}/items?limit=200", held.task))
        .await;
    let results: Vec<&Value> = items.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item["type"] == "tool_result")
        .collect();
    assert_eq!(results.len(), 2, "{}", items.text);
    for result in results {
        assert_eq!(result["outcome"], "rejected");
        assert!(
            result["content"]
                .as_str()
                .unwrap()
                .contains("wrong customer"),
            "{result}"
        );
    }
    app.model
        .then(calls(&[("refund", r#"{"order":17,"amount":120}"#)]));
    let message = json!({"input": "I am sure, ask again", "supersede": true});
    let asked = app.owner().message(&held.task, &message).await;
    assert_eq!(
        asked.body["pending"][0]["tool_calls"][0]["arguments"]["amount"], 120,
        "{}",
        asked.text
    );
    assert!(app.tool.ledger().is_empty());
    app.stop().await;
}
