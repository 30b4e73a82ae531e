//! Checks the decision that an accepted answer stores, as the service shows it.

use serde_json::{Value, json};

use super::super::request_kinds::{
    Question, TOKEN, each_has_one_result, filled_in, items, last_tool_results, request, results_of,
};
use super::EDITED;
use super::taken_answers::Taken;
use crate::support::test_app::TestApp;

pub fn decision(question: &Question, taken: &Taken, at: &Value) -> Value {
    let result = if taken.answer.ends_with("result") {
        json!({"by": "hand"})
    } else {
        Value::Null
    };
    let response = match (taken.kind, taken.answer) {
        ("credentials", "respond response") => json!({"email": null, "token": null}),
        (kind, "respond response") => filled_in(kind),
        _ => Value::Null,
    };
    let arguments = if taken.action == "edit" {
        json!({"order": 17, "amount": 1.5})
    } else {
        Value::Null
    };
    let own = if taken.action == "respond" && taken.answer != "respond response" {
        json!({"by": "hand"})
    } else {
        Value::Null
    };
    json!({
        "action": taken.action, "by": "alice", "via": null, "door": "key", "at": at, "reason": null, "then": taken.then, "remember": null,
        "response": response, "result": result,
        "decisions": {question.call.as_str(): {"action": taken.action, "by": "alice", "via": null, "door": "key", "at": at, "reason": null,
            "arguments": arguments, "result": own, "remember": null}},
    })
}

pub async fn is_stored(app: &TestApp, question: &Question, taken: &Taken) {
    let about = format!("{} {}", taken.kind, taken.answer);
    let after = request(app, &question.id).await;
    assert_eq!(after["status"], "resumed", "{about}: {after}");
    assert_eq!(
        (&after["can_decide"], &after["allowed_actions"]),
        (&json!(false), &json!([])),
        "{about}"
    );
    let expected = decision(question, taken, &after["decision"]["at"]);
    assert_eq!(after["decision"], expected, "{about}");
    let own = after["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .find(|call| call["needs_decision"] == true)
        .unwrap();
    assert_eq!(own["decision"]["action"], taken.action, "{about}: {own}");
    assert_eq!(
        (&after["digest"], &own["arguments_text"]),
        (
            &question.request["digest"],
            &question.request["tool_calls"][0]["arguments_text"]
        )
    );

    let journal = items(app, &question.task).await;
    let decided: Vec<_> = journal
        .iter()
        .filter(|item| item["type"] == "decision" && item["request_id"] == question.id.as_str())
        .collect();
    assert_eq!(decided.len(), 1, "{about}: {journal:#?}");
    assert_eq!(decided[0]["decision"], expected, "{about}");
    let results = results_of(&journal, &question.call);
    assert_eq!(results.len(), 1, "{about}: {journal:#?}");
    assert_eq!(
        results[0]["outcome"], taken.outcome,
        "{about}: {}",
        results[0]
    );
    let content = results[0]["content"].as_str().unwrap();
    assert!(content.contains(taken.says), "{about}: {content}");
    each_has_one_result(&journal);
    if taken.status == "Completed" {
        let shown = last_tool_results(app);
        assert_eq!(shown.len(), 1, "{about}: {shown:?}");
        assert!(shown[0].ends_with(content), "{about}: {shown:?}");
        assert_eq!(
            shown[0].contains(EDITED),
            taken.action == "edit",
            "{about}: {shown:?}"
        );
    }
    let all = format!("{after} {} {:?}", Value::from(journal), app.model.sent());
    assert!(!all.contains(TOKEN), "{about}: a login is never shown");
}
