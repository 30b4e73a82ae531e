//! Reads an answer out of a body. What a request's kind and rule do not take is the engine's to refuse; here a body is
//! only read, and read whole: what cannot be understood never becomes an answer.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::engine::{Answer, AnswerBody};
use crate::http::fields::{Errors, Fields, pointer};
use crate::http::problem::Problem;
use crate::task::decision::{Action, CallAnswer, Then};

/// How large a reason may be.
const REASON: usize = 4 * 1024;

/// The answer in a body; `in_path` is the action that the path names.
///
/// # Errors
/// Every place that does not fit.
pub fn read(body: Value, in_path: Option<Action>) -> Result<Answer, Problem> {
    let mut errors = Errors::default();
    let answer = Fields::of(body, "", &mut errors).and_then(|mut fields| {
        let digest = fields.text("digest", &mut errors);
        let body = match in_path {
            Some(action) => Some(whole(action, &mut fields, &mut errors)),
            None => said(&mut fields, &mut errors),
        };
        fields.finish(&mut errors);
        Some(Answer { digest, body: body? })
    });
    match answer {
        Some(answer) if errors.0.is_empty() => Ok(answer),
        Some(_) | None => Err(Problem::invalid(&errors.0)),
    }
}

fn said(fields: &mut Fields, errors: &mut Errors) -> Option<AnswerBody> {
    let (action, decisions) = (fields.take("action"), fields.take("decisions"));
    match (action, decisions) {
        (Some(word), None) => {
            let known = [Action::Approve, Action::Reject, Action::Respond, Action::Retry];
            let found = known.into_iter().find(|action| word.as_str() == Some(action.as_str()));
            if found.is_none() {
                errors.add(&fields.pointer("action"), "`approve`, `reject`, `respond` or `retry`");
            }
            found.map(|action| whole(action, fields, errors))
        }
        (None, Some(decisions)) => per_call(decisions, &fields.pointer("decisions"), errors),
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

fn whole(action: Action, fields: &mut Fields, errors: &mut Errors) -> AnswerBody {
    let reason = fields.text_within("reason", REASON, errors);
    let then = then(action, fields, errors);
    let (mut response, mut result) = (None, None);
    if action == Action::Respond {
        // `null` is a result like any other; a form that is filled in with nothing is not an answer.
        response = fields.take("response");
        result = fields.raw("result");
        if response.is_some() == result.is_some() {
            errors.add(&fields.pointer("response"), "exactly one of `response` and `result`");
        }
    }
    AnswerBody::Whole { action, reason, then, response, result }
}

fn then(action: Action, fields: &mut Fields, errors: &mut Errors) -> Option<Then> {
    let word = fields.take("then")?;
    let found = match word.as_str() {
        Some("continue") => Some(Then::Continue),
        Some("cancel") => Some(Then::Cancel),
        Some("cancel_root") => Some(Then::CancelRoot),
        Some(_) | None => None,
    };
    if action != Action::Reject {
        errors.add(&fields.pointer("then"), "`then` only beside `reject`");
    } else if found.is_none() {
        errors.add(&fields.pointer("then"), "`continue`, `cancel` or `cancel_root`");
    }
    found
}

fn per_call(decisions: Value, at: &str, errors: &mut Errors) -> Option<AnswerBody> {
    let Value::Object(decisions) = decisions else {
        errors.add(at, "an object: one answer by `tool_call_id`");
        return None;
    };
    if decisions.is_empty() {
        errors.add(at, "at least one answer");
    }
    let mut answers = BTreeMap::new();
    for (call, answer) in decisions {
        let place = pointer(at, &call);
        let Some(mut fields) = Fields::of(answer, &place, errors) else { continue };
        let answer = one_call(&mut fields, errors);
        fields.finish(errors);
        if let Some(answer) = answer {
            answers.insert(call, answer);
        }
    }
    Some(AnswerBody::PerCall(answers))
}

fn one_call(fields: &mut Fields, errors: &mut Errors) -> Option<(CallAnswer, Option<Then>)> {
    let word = fields.take("action");
    let known = [Action::Approve, Action::Reject, Action::Edit, Action::Respond];
    let Some(action) = known.into_iter().find(|action| word.as_ref().and_then(Value::as_str) == Some(action.as_str()))
    else {
        errors.add(&fields.pointer("action"), "`approve`, `reject`, `edit` or `respond`");
        return None;
    };
    let reason = fields.text_within("reason", REASON, errors);
    let then = then(action, fields, errors);
    let (mut arguments, mut result) = (None, None);
    if action == Action::Edit {
        arguments = fields.take("arguments").filter(Value::is_object);
        if arguments.is_none() {
            errors.add(&fields.pointer("arguments"), "an object: the full replacement");
        }
    }
    if action == Action::Respond {
        result = fields.raw("result");
        if result.is_none() {
            errors.add(&fields.pointer("result"), "the result");
        }
    }
    Some((CallAnswer { action, reason, arguments, result }, then))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn places(body: Value) -> Vec<String> {
        let problem = read(body, None).unwrap_err();
        let errors = problem.members["errors"].as_array().unwrap().clone();
        errors.iter().map(|error| error["pointer"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_form_of_answer_is_read() {
        let whole = |action, then| AnswerBody::Whole { action, reason: None, then, response: None, result: None };
        let body = |body| read(body, None).unwrap().body;
        assert_eq!(body(json!({"action": "approve"})), whole(Action::Approve, None));
        assert_eq!(
            body(json!({"action": "reject", "then": "cancel_root"})),
            whole(Action::Reject, Some(Then::CancelRoot))
        );
        assert_eq!(body(json!({"action": "retry", "reason": null})), whole(Action::Retry, None));
        assert_eq!(read(json!({}), Some(Action::Approve)).unwrap().body, whole(Action::Approve, None));
        let AnswerBody::Whole { result, .. } = body(json!({"action": "respond", "result": null})) else { panic!() };
        assert_eq!(result, Some(Value::Null));
        assert_eq!(read(json!({"action": "approve", "digest": "d"}), None).unwrap().digest.as_deref(), Some("d"));
        let AnswerBody::PerCall(answers) = body(json!({"decisions": {
            "a": {"action": "approve"}, "b": {"action": "reject", "reason": "no", "then": "continue"},
            "c": {"action": "edit", "arguments": {"x": 1}}, "d": {"action": "respond", "result": "done"}}}))
        else {
            panic!()
        };
        assert_eq!(answers.len(), 4);
        assert_eq!(answers["b"].1, Some(Then::Continue));
        assert_eq!(answers["c"].0.arguments, Some(json!({"x": 1})));
    }

    #[test]
    fn what_cannot_be_understood_is_no_answer() {
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
            (json!({"action": "approve", "decisions": {"a": {"action": "reject"}}}), "/action"),
            (json!({"action": "approve", "then": "continue"}), "/then"),
            (json!({"action": "reject", "then": "stop"}), "/then"),
            (json!({"action": "reject", "then": 1}), "/then"),
            (json!({"action": "approve", "reason": 1}), "/reason"),
            (json!({"action": "approve", "reason": "x".repeat(4097)}), "/reason"),
            (json!({"action": "approve", "digest": 1}), "/digest"),
            (json!({"action": "approve", "arguments": {}}), "/arguments"),
            (json!({"action": "approve", "result": 1}), "/result"),
            (json!({"action": "approve", "response": {}}), "/response"),
            (json!({"action": "respond"}), "/response"),
            (json!({"action": "respond", "response": {}, "result": 1}), "/response"),
            (json!({"decisions": {}}), "/decisions"),
            (json!({"decisions": []}), "/decisions"),
            (json!({"decisions": {"a": "approve"}}), "/decisions/a"),
            (json!({"decisions": {"a": {}}}), "/decisions/a/action"),
            (json!({"decisions": {"a": {"action": "retry"}}}), "/decisions/a/action"),
            (json!({"decisions": {"a": {"action": "edit"}}}), "/decisions/a/arguments"),
            (json!({"decisions": {"a": {"action": "edit", "arguments": "x"}}}), "/decisions/a/arguments"),
            (json!({"decisions": {"a": {"action": "respond"}}}), "/decisions/a/result"),
            (json!({"decisions": {"a": {"action": "approve", "then": "continue"}}}), "/decisions/a/then"),
            (json!({"decisions": {"a": {"action": "approve", "arguments": {}}}}), "/decisions/a/arguments"),
            (json!({"decisions": {"a": {"action": "approve"}}, "reason": "x"}), "/reason"),
            (json!({"approve": true}), ""),
        ] {
            assert_eq!(places(body.clone()).first().map(String::as_str), Some(expected), "{body}");
        }
        assert!(read(json!({"action": "approve"}), Some(Action::Approve)).is_err());
        assert!(read(json!({"then": "continue"}), Some(Action::Approve)).is_err());
    }
}
