//! Checks that every form of answer is read, and that an answer with a mistake is refused with the
//! pointer of the mistake.

use super::*;
use crate::task::decision::Consequence;
use crate::task::grant::GrantScope;
use serde_json::json;

fn read(body: Value, path_action: Option<Action>) -> Result<DecisionInput, Problem> {
    let text = body.to_string();
    super::read(body, text.as_bytes(), path_action)
}

fn places(body: Value) -> Vec<String> {
    let errors = read(body, None).unwrap_err().errors;
    errors.into_iter().map(|error| error.pointer).collect()
}

#[test]
fn every_form_of_answer_is_read() {
    let read_whole = |action, then| DecisionBody::Whole {
        action,
        reason: None,
        then,
        response: None,
        result: None,
        remember: None,
    };
    let body = |body| read(body, None).unwrap().body;
    assert_eq!(
        body(json!({"action": "approve"})),
        read_whole(Action::Approve, None)
    );
    assert_eq!(
        body(json!({"action": "reject", "then": "cancel_root"})),
        read_whole(Action::Reject, Some(Consequence::CancelRoot))
    );
    assert_eq!(
        body(json!({"action": "retry", "reason": null})),
        read_whole(Action::Retry, None)
    );
    assert_eq!(
        read(json!({}), Some(Action::Approve)).unwrap().body,
        read_whole(Action::Approve, None)
    );
    let DecisionBody::Whole { result, .. } = body(json!({"action": "respond", "result": null}))
    else {
        panic!()
    };
    assert_eq!(result.as_deref(), Some("null"));
    assert_eq!(
        read(json!({"action": "approve", "digest": "d"}), None)
            .unwrap()
            .digest
            .as_deref(),
        Some("d")
    );
    let DecisionBody::PerCall(answers) = body(json!({"decisions": {
        "a": {"action": "approve"}, "b": {"action": "reject", "reason": "no", "then": "continue"},
        "c": {"action": "edit", "arguments": {"x": 1}}, "d": {"action": "respond", "result": "done"}}}))
    else {
        panic!()
    };
    assert_eq!(answers.len(), 4);
    assert_eq!(answers["b"].then, Some(Consequence::Continue));
    assert_eq!(answers["c"].arguments.as_deref(), Some(r#"{"x":1}"#));
}

#[test]
fn remember_is_read_whole_or_refused() {
    let wish = |body| match read(body, None).map(|input| input.body) {
        Ok(DecisionBody::Whole { remember, .. }) => Ok(remember),
        Ok(DecisionBody::PerCall(replies)) => Ok(replies["a"].remember),
        Err(problem) => Err(problem.errors[0].pointer.clone()),
    };
    let hour = GrantRequest {
        scope: GrantScope::Task,
        expires_in: std::time::Duration::from_hours(1),
    };
    let said = json!({"for": "task", "expires_in": "1h"});
    for (body, expected) in [
        (
            json!({"action": "approve", "remember": said}),
            Ok(Some(hour)),
        ),
        (
            json!({"decisions": {"a": {"action": "approve", "remember": said}}}),
            Ok(Some(hour)),
        ),
        (json!({"action": "approve", "remember": null}), Ok(None)),
        (
            json!({"action": "reject", "remember": said}),
            Err("/remember"),
        ),
        (
            json!({"decisions": {"a": {"action": "edit", "arguments": {}, "remember": said}}}),
            Err("/decisions/a/remember"),
        ),
        (
            json!({"action": "approve", "remember": true}),
            Err("/remember"),
        ),
        (
            json!({"action": "approve", "remember": {"for": "session", "expires_in": "1h"}}),
            Err("/remember/for"),
        ),
        (
            json!({"action": "approve", "remember": {"for": "task"}}),
            Err("/remember/expires_in"),
        ),
        (
            json!({"action": "approve", "remember": {"for": "task", "expires_in": "0h"}}),
            Err("/remember/expires_in"),
        ),
        (
            json!({"action": "approve", "remember": {"for": "task", "expires_in": "1h", "uses": 9}}),
            Err("/remember/uses"),
        ),
    ] {
        assert_eq!(
            wish(body.clone()),
            expected.map_err(str::to_owned),
            "{body}"
        );
    }
}

#[test]
fn edited_arguments_and_results_keep_every_digit() {
    let text = r#"{"decisions": {"c": {"action": "edit", "arguments": {"x": 1.10, "y": 12345678901234567890123}},
            "d\u0061": {"action": "respond", "result": [1E2, "a b"]}}}"#;
    let body = crate::http::server::json::parse(text.as_bytes()).unwrap();
    let DecisionBody::PerCall(answers) = super::read(body, text.as_bytes(), None).unwrap().body
    else {
        panic!()
    };
    assert_eq!(
        answers["c"].arguments.as_deref(),
        Some(r#"{"x":1.10,"y":12345678901234567890123}"#)
    );
    assert_eq!(answers["da"].result.as_deref(), Some(r#"[1E2,"a b"]"#));
    let text = r#"{"action": "respond", "result": 12345678901234567890123}"#;
    let body = crate::http::server::json::parse(text.as_bytes()).unwrap();
    let DecisionBody::Whole { result, .. } = super::read(body, text.as_bytes(), None).unwrap().body
    else {
        panic!()
    };
    assert_eq!(result.as_deref(), Some("12345678901234567890123"));
}

#[test]
fn answer_below_a_name_that_is_too_long_is_refused_without_the_name() {
    for name in ["n".repeat(1024 * 1024), "~".repeat(1000)] {
        let answer = json!({"action": "edit", "x": 1, "y": 2});
        let places = places(json!({"decisions": {name: answer}}));
        assert_eq!(places, ["/decisions"]);
    }
}

#[test]
fn body_that_cannot_be_understood_is_no_answer() {
    for (body, expected) in [
        (json!({}), ""),
        (json!([]), ""),
        (json!("approve"), ""),
        (json!(null), ""),
        (json!({"action": null}), ""),
        (json!({"action": "Approve"}), "/action"),
        (json!({"action": "aprove"}), "/action"),
        (json!({"action": "mixed"}), "/action"),
        (json!({"action": "edit"}), "/action"),
        (json!({"action": ["approve"]}), "/action"),
        (json!({"action": true}), "/action"),
        (
            json!({"action": "approve", "decisions": {"a": {"action": "reject"}}}),
            "/action",
        ),
        (json!({"action": "approve", "decisions": null}), "/action"),
        (
            json!({"action": null, "decisions": {"a": {"action": "reject"}}}),
            "/action",
        ),
        (json!({"action": "approve", "then": "continue"}), "/then"),
        (json!({"action": "approve", "then": null}), "/then"),
        (json!({"action": "reject", "remember": null}), "/remember"),
        (json!({"action": "reject", "then": "stop"}), "/then"),
        (json!({"action": "reject", "then": 1}), "/then"),
        (json!({"action": "approve", "reason": 1}), "/reason"),
        (
            json!({"action": "approve", "reason": "x".repeat(4097)}),
            "/reason",
        ),
        (json!({"action": "approve", "digest": 1}), "/digest"),
        (json!({"action": "approve", "arguments": {}}), "/arguments"),
        (json!({"action": "approve", "result": 1}), "/result"),
        (json!({"action": "approve", "response": {}}), "/response"),
        (json!({"action": "respond"}), "/response"),
        (
            json!({"action": "respond", "response": {}, "result": 1}),
            "/response",
        ),
        (json!({"decisions": {}}), "/decisions"),
        (json!({"decisions": []}), "/decisions"),
        (json!({"decisions": {"a": "approve"}}), "/decisions/a"),
        (json!({"decisions": {"a": {}}}), "/decisions/a/action"),
        (
            json!({"decisions": {"a": {"action": "retry"}}}),
            "/decisions/a/action",
        ),
        (
            json!({"decisions": {"a": {"action": "edit"}}}),
            "/decisions/a/arguments",
        ),
        (
            json!({"decisions": {"a": {"action": "edit", "arguments": "x"}}}),
            "/decisions/a/arguments",
        ),
        (
            json!({"decisions": {"a": {"action": "respond"}}}),
            "/decisions/a/result",
        ),
        (
            json!({"decisions": {"a": {"action": "approve", "then": "continue"}}}),
            "/decisions/a/then",
        ),
        (
            json!({"decisions": {"a": {"action": "edit", "arguments": {}, "then": null}}}),
            "/decisions/a/then",
        ),
        (
            json!({"decisions": {"a": {"action": "reject", "remember": null}}}),
            "/decisions/a/remember",
        ),
        (
            json!({"decisions": {"a": {"action": "approve", "arguments": {}}}}),
            "/decisions/a/arguments",
        ),
        (
            json!({"decisions": {"a": {"action": "approve"}}, "reason": "x"}),
            "/reason",
        ),
        (json!({"approve": true}), ""),
    ] {
        assert_eq!(
            places(body.clone()).first().map(String::as_str),
            Some(expected),
            "{body}"
        );
    }
    assert!(read(json!({"action": "approve"}), Some(Action::Approve)).is_err());
    assert!(read(json!({"then": "continue"}), Some(Action::Approve)).is_err());
    assert!(read(json!({"then": null}), Some(Action::Approve)).is_err());
    assert!(read(json!({"remember": null}), Some(Action::Reject)).is_err());
}
