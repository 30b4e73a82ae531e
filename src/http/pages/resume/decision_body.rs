//! Reads a person's answer to a request from the body of a POST. A body with any mistake is
//! refused. This module checks the structure of the body; the engine checks whether the request's
//! kind and rule allow the answer. Arguments, results and form values are kept as JSON text, so
//! that numbers keep every digit.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::engine::{CallReply, DecisionBody, DecisionInput, DetailCode};
use crate::http::server::fields::{Errors, Fields, pointer};
use crate::http::server::json::{member, members};
use crate::http::server::problem::Problem;
use crate::secret::Secret;
use crate::task::decision::{Action, Then};
use crate::task::grant::{GrantRequest, GrantScope};
use crate::task::units::parse_duration;

const MAX_REASON_BYTES: usize = 4 * 1024;

/// Reads the answer in a body. `text` is the JSON text of `body`, and `path_action` is the action
/// in the path, if any.
///
/// # Errors
/// Fails with `invalid` if the body has a mistake. The problem lists every mistake.
pub(crate) fn read(
    body: Value,
    text: &[u8],
    path_action: Option<Action>,
) -> Result<DecisionInput, Problem> {
    Fields::read(body, |fields, errors| {
        let digest = fields.text("digest", errors);
        let body = match path_action {
            Some(action) => read_whole(action, fields, text, errors),
            None => read_answer(fields, text, errors)?,
        };
        Some(DecisionInput { digest, body })
    })
}

fn read_answer(fields: &mut Fields, text: &[u8], errors: &mut Errors) -> Option<DecisionBody> {
    let (action, decisions) = (fields.take("action"), fields.take("decisions"));
    match (action, decisions) {
        (Some(word), None) => {
            let known = [
                Action::Approve,
                Action::Reject,
                Action::Respond,
                Action::Retry,
            ];
            let found = action_among(&known, &word);
            if found.is_none() {
                let detail = if word.as_str() == Some(Action::Edit.as_str()) {
                    DecisionBody::per_call_hint(Action::Edit)
                } else {
                    "`approve`, `reject`, `respond` or `retry`".to_owned()
                };
                errors.add(&fields.pointer("action"), detail);
            }
            found.map(|action| read_whole(action, fields, text, errors))
        }
        (None, Some(decisions)) => {
            let text = member(text, "decisions").unwrap_or_default();
            read_per_call(
                decisions,
                text.as_bytes(),
                &fields.pointer("decisions"),
                errors,
            )
        }
        (None, None) => {
            errors.add("", "`action` or `decisions`");
            None
        }
        (Some(_), Some(_)) => {
            errors.add(&fields.pointer("action"), "no `action` beside `decisions`");
            None
        }
    }
}

fn action_among(known: &[Action], word: &Value) -> Option<Action> {
    let mut known = known.iter().copied();
    known.find(|action| word.as_str() == Some(action.as_str()))
}

fn read_whole(
    action: Action,
    fields: &mut Fields,
    text: &[u8],
    errors: &mut Errors,
) -> DecisionBody {
    let reason = fields.text_within("reason", MAX_REASON_BYTES, errors);
    let then = read_then(action, fields, errors);
    let remember = read_remember(action, fields, errors);
    let (mut response, mut result) = (None, None);
    if action == Action::Respond {
        // A `result` of `null` is a value; a `response` of `null` counts as absent.
        response = fields
            .take("response")
            .and_then(|_| member(text, "response"))
            .map(Secret::new);
        result = fields.raw("result").and_then(|_| member(text, "result"));
        if response.is_some() == result.is_some() {
            errors.add(
                &fields.pointer("response"),
                "exactly one of `response` and `result`",
            );
        }
    }
    DecisionBody::Whole {
        action,
        reason,
        then,
        response,
        result,
        remember,
    }
}

/// Reads `remember`, which asks for a standing decision together with an approval.
fn read_remember(action: Action, fields: &mut Fields, errors: &mut Errors) -> Option<GrantRequest> {
    let pointer = fields.pointer("remember");
    let value = fields.take("remember")?;
    if action != Action::Approve {
        errors.add(&pointer, "`remember` only beside `approve`");
        return None;
    }
    let mut members = Fields::from_value(value, &pointer, errors)?;
    let scope = members.take("for");
    let scope = scope.as_ref().and_then(Value::as_str);
    let scope = scope.and_then(GrantScope::parse);
    if scope.is_none() {
        errors.add(&members.pointer("for"), "`task` or `owner`");
    }
    let time = members.take("expires_in");
    let time = time
        .as_ref()
        .and_then(Value::as_str)
        .and_then(parse_duration);
    let time = time.filter(|time| !time.is_zero());
    if time.is_none() {
        let detail = "a time longer than 0, such as `30m` or `4h`";
        errors.add(&members.pointer("expires_in"), detail);
    }
    members.finish(errors);
    Some(GrantRequest {
        scope: scope?,
        expires_in: time?,
    })
}

fn read_then(action: Action, fields: &mut Fields, errors: &mut Errors) -> Option<Then> {
    let word = fields.take("then")?;
    let found = match word.as_str() {
        Some("continue") => Some(Then::Continue),
        Some("cancel") => Some(Then::Cancel),
        Some("cancel_root") => Some(Then::CancelRoot),
        Some(_) | None => None,
    };
    if action != Action::Reject {
        errors.add(&fields.pointer("then"), DetailCode::ThenWithoutReject);
    } else if found.is_none() {
        errors.add(
            &fields.pointer("then"),
            "`continue`, `cancel` or `cancel_root`",
        );
    }
    found
}

fn read_per_call(
    decisions: Value,
    text: &[u8],
    at: &str,
    errors: &mut Errors,
) -> Option<DecisionBody> {
    let Value::Object(decisions) = decisions else {
        errors.add(at, "an object: one answer by `tool_call_id`");
        return None;
    };
    if decisions.is_empty() {
        errors.add(at, DetailCode::AnswerRequired);
    }
    let (mut answers, mut texts) = (BTreeMap::new(), members(text));
    for (call, answer) in decisions {
        let place = pointer(at, &call);
        if place == at {
            // `pointer` returns `at` for a name that is too long for a pointer. A call's id is
            // never so long.
            errors.add(at, "answers by `tool_call_id`");
            continue;
        }
        let text = texts.remove(&call).unwrap_or_default();
        let Some(mut fields) = Fields::from_value(answer, &place, errors) else {
            continue;
        };
        let answer = read_call_reply(&mut fields, text.as_bytes(), errors);
        fields.finish(errors);
        if let Some(answer) = answer {
            answers.insert(call, answer);
        }
    }
    Some(DecisionBody::PerCall(answers))
}

fn read_call_reply(fields: &mut Fields, text: &[u8], errors: &mut Errors) -> Option<CallReply> {
    let word = fields.take("action").unwrap_or_default();
    let known = [
        Action::Approve,
        Action::Reject,
        Action::Edit,
        Action::Respond,
    ];
    let Some(action) = action_among(&known, &word) else {
        errors.add(&fields.pointer("action"), DetailCode::CallAction);
        return None;
    };
    let reason = fields.text_within("reason", MAX_REASON_BYTES, errors);
    let then = read_then(action, fields, errors);
    let remember = read_remember(action, fields, errors);
    let (mut arguments, mut result) = (None, None);
    if action == Action::Edit {
        let replacement = fields.take("arguments").filter(Value::is_object);
        arguments = replacement.and_then(|_| member(text, "arguments"));
        if arguments.is_none() {
            errors.add(&fields.pointer("arguments"), DetailCode::ObjectReplacement);
        }
    }
    if action == Action::Respond {
        result = fields.raw("result").and_then(|_| member(text, "result"));
        if result.is_none() {
            errors.add(&fields.pointer("result"), "the result");
        }
    }
    Some(CallReply {
        action,
        reason,
        then,
        arguments,
        result,
        remember,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
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
            read_whole(Action::Reject, Some(Then::CancelRoot))
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
        assert_eq!(answers["b"].then, Some(Then::Continue));
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
        let DecisionBody::Whole { result, .. } =
            super::read(body, text.as_bytes(), None).unwrap().body
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
            (json!({"action": "approve", "then": "continue"}), "/then"),
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
    }
}
