//! Reads an answer: the `message` of its first choice and the members around it. `Answer::raw`
//! keeps the message with its unknown members. If the message can be rebuilt exactly from the
//! parsed answer, `Answer::raw` is null instead. A missing member is tolerated if the meaning of
//! the answer is clear without it; otherwise the answer is rejected.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::request::is_derivable;
use crate::model::clean::Cleaner;
use crate::model::problem::{classify_error, is_non_empty};
use crate::model::protocol::{AttemptOutcome, MAX_CALLS, retryable, too_many_calls};
use crate::model::usage::read_usage;
use crate::model::{Answer, AnswerCall};
use crate::task::item::FinishReason;
use crate::task::text::{InvalidEscape, replace_escapes};

pub(super) fn read(body: &str, cleaner: &Cleaner) -> AttemptOutcome {
    let readable = replace_escapes(body, InvalidEscape::LoneSurrogates);
    let Ok(Value::Object(mut reply)) = serde_json::from_str::<Value>(&readable) else {
        return retryable("its answer is not complete JSON");
    };
    let choice = match reply
        .get_mut("choices")
        .and_then(Value::as_array_mut)
        .and_then(|all| {
            let first = all.iter().position(is_first).unwrap_or(0);
            all.get_mut(first)
        }) {
        Some(Value::Object(choice)) => Some(std::mem::take(choice)),
        Some(_) | None => None,
    };
    let error_places = [Some(&reply), choice.as_ref()];
    if let Some(error) = error_places
        .into_iter()
        .flatten()
        .find_map(|object| object.get("error").filter(|error| is_non_empty(error)))
    {
        return classify_error(error, cleaner);
    }
    let Some(mut choice) = choice else {
        return retryable("its answer holds no choice");
    };
    let finish = choice.remove("finish_reason");
    if finish.as_ref().is_some_and(Value::is_null) {
        return retryable("its answer ended without a finish_reason");
    }
    let Some(Value::Object(message)) = choice.remove("message") else {
        return retryable("its answer holds no message");
    };
    if message
        .get("tool_calls")
        .and_then(Value::as_array)
        .is_some_and(|calls| calls.len() > MAX_CALLS)
    {
        return too_many_calls();
    }
    let Some(calls) = calls(&message, Some(body), cleaner) else {
        return unreadable();
    };
    let finish = finish.as_ref().and_then(Value::as_str);
    answer(message, calls, finish, reply.get("usage"), cleaner)
}

/// Returns whether a choice is the first of its answer by `index`. An endpoint may write several
/// choices in any order.
pub(super) fn is_first(choice: &Value) -> bool {
    choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0
}

/// Builds the answer. If the endpoint failed to finish the message, rejects it; a retry may help.
pub(super) fn answer(
    message: Map<String, Value>,
    calls: Vec<AnswerCall>,
    finish: Option<&str>,
    usage: Option<&Value>,
    cleaner: &Cleaner,
) -> AttemptOutcome {
    if finish.is_some_and(is_failure) {
        return ended_in_error();
    }
    let text = Answer::text_beside(&calls, cleaner.text(&text(&message)));
    let raw = raw(message, &calls, cleaner);
    AttemptOutcome::Answered(Box::new(Answer {
        raw: if is_derivable(&raw, text.as_deref(), &calls) {
            Value::Null
        } else {
            raw
        },
        text,
        finish_reason: finish_reason(finish, !calls.is_empty()),
        usage: read_usage(
            usage.and_then(Value::as_object),
            &["prompt_tokens"],
            "completion_tokens",
            Some("total_tokens"),
        ),
        calls,
    }))
}

/// Returns whether a `finish_reason` (of `OpenRouter`, `DeepSeek`, Z.ai or Gemini) says that the
/// endpoint failed to finish the message.
pub(super) fn is_failure(finish: &str) -> bool {
    let finish = finish.to_ascii_lowercase();
    ["abort", "error", "network_error"].contains(&finish.as_str())
        || finish == "insufficient_system_resource"
        || finish.starts_with("function_call_filter")
        || finish.ends_with("malformed_function_call")
}

pub(super) fn ended_in_error() -> AttemptOutcome {
    retryable("its answer ended in an error")
}

pub(super) fn unreadable() -> AttemptOutcome {
    retryable("its tool_calls cannot be read")
}

/// Returns the text of a message: its content, or its refusal if the content is empty.
pub(super) fn text(message: &Map<String, Value>) -> String {
    let content = text_of(message.get("content"));
    if content.is_empty() {
        text_of(message.get("refusal").filter(|refusal| refusal.is_string()))
    } else {
        content
    }
}

pub(super) fn text_of(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(part).collect(),
        Some(_) | None => String::new(),
    }
}

fn part(part: &Value) -> Option<&str> {
    let text = part
        .get("text")
        .or_else(|| part.get("refusal"))
        .unwrap_or(part);
    text.as_str()
}

/// Returns the calls, in the model's order; `None` if the calls cannot be read. `body` is the JSON
/// that contains the message. Arguments that were not sent as text can be read only from `body`.
pub(super) fn calls(
    message: &Map<String, Value>,
    body: Option<&str>,
    cleaner: &Cleaner,
) -> Option<Vec<AnswerCall>> {
    let sent: Vec<(&str, &Value)> = match message.get("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(calls)) => calls
            .iter()
            .map(|call| {
                Some((
                    call.get("id").and_then(Value::as_str).unwrap_or_default(),
                    call.get("function")?,
                ))
            })
            .collect::<Option<_>>()?,
        Some(_) => return None,
    };
    let sent = match message.get("function_call") {
        Some(call @ Value::Object(_)) if sent.is_empty() => vec![("", call)],
        Some(_) | None => sent,
    };
    let all_text = sent
        .iter()
        .all(|(_, function)| is_text(function.get("arguments")));
    let exact = if all_text {
        Vec::new()
    } else {
        exact_arguments(body?)?
    };
    let calls = sent.into_iter().enumerate().map(|(at, (id, function))| {
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => "",
            Some(Value::String(text)) => text,
            Some(_) => *exact.get(at)?,
        };
        Some(
            cleaner.call(
                id,
                function
                    .get("name")
                    .and_then(Value::as_str)
                    .unwrap_or_default(),
                arguments,
            ),
        )
    });
    calls.collect()
}

/// Returns whether the arguments are absent or were sent as text, as the protocol documents.
pub(super) fn is_text(arguments: Option<&Value>) -> bool {
    matches!(arguments, None | Some(Value::Null | Value::String(_)))
}

/// Returns the original text of each call's arguments. `body` is an answer or a chunk whose
/// arguments are JSON instead of text. The validation of arguments refuses repeated members, excess
/// digits and lone surrogates. It finds them only in the original text, because a parsed [`Value`]
/// has lost them.
pub(super) fn exact_arguments(body: &str) -> Option<Vec<&str>> {
    #[derive(Deserialize)]
    struct Reply<'a> {
        #[serde(borrow)]
        choices: Vec<Choice<'a>>,
    }
    #[derive(Deserialize)]
    struct Choice<'a> {
        index: Option<u64>,
        #[serde(borrow, alias = "delta")]
        message: ReplyMessage<'a>,
    }
    #[derive(Deserialize)]
    struct ReplyMessage<'a> {
        #[serde(borrow)]
        tool_calls: Option<Vec<WireCall<'a>>>,
        #[serde(borrow)]
        function_call: Option<ReplyFunction<'a>>,
    }
    #[derive(Deserialize)]
    struct WireCall<'a> {
        #[serde(borrow)]
        function: Option<ReplyFunction<'a>>,
    }
    #[derive(Deserialize)]
    struct ReplyFunction<'a> {
        #[serde(borrow)]
        arguments: Option<&'a RawValue>,
    }
    let reply: Reply<'_> = serde_json::from_str(body).ok()?;
    let message = reply
        .choices
        .into_iter()
        .find(|choice| choice.index.unwrap_or(0) == 0)?
        .message;
    let calls = message
        .tool_calls
        .unwrap_or_default()
        .into_iter()
        .map(|call| call.function);
    let mut functions: Vec<_> = calls.collect();
    if functions.is_empty() {
        functions.push(message.function_call);
    }
    Some(
        functions
            .into_iter()
            .map(|function| {
                function
                    .and_then(|one| one.arguments)
                    .map_or("", RawValue::get)
            })
            .collect(),
    )
}

fn finish_reason(stated: Option<&str>, has_calls: bool) -> FinishReason {
    match stated.map(str::to_ascii_lowercase).as_deref() {
        // If there are calls, `stop` and a missing reason count as `tool_calls`: some endpoints
        // send `stop` together with calls, and some give no reason in an unstreamed answer.
        Some("stop" | "eos" | "eos_token" | "stop_sequence" | "end_turn") | None if has_calls => {
            FinishReason::ToolCalls
        }
        Some("stop" | "eos" | "eos_token" | "stop_sequence" | "end_turn") | None => {
            FinishReason::Stop
        }
        Some("tool_calls" | "function_call" | "tool_use") => FinishReason::ToolCalls,
        Some("length" | "max_tokens" | "model_length") => FinishReason::Length,
        Some("content_filter") => FinishReason::ContentFilter,
        // The answer may be truncated, so none of its calls runs.
        Some(_) => FinishReason::Other,
    }
}

/// Returns the message as it is stored and sent back: with redacted texts, and otherwise as
/// received. If the endpoint sent a call's arguments as text, they become the redacted
/// `arguments_text` of the same call in `calls`.
fn raw(message: Map<String, Value>, calls: &[AnswerCall], cleaner: &Cleaner) -> Value {
    let mut raw = cleaner.json(Value::Object(message));
    let sent = raw
        .get_mut("tool_calls")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten();
    for (sent, call) in sent.zip(calls) {
        if let Some(arguments @ Value::String(_)) = sent.pointer_mut("/function/arguments") {
            *arguments = Value::String(call.arguments_text.clone());
        }
    }
    raw
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::secret::{Redactor, Secret};
    use crate::task::item::Usage;

    fn cleaner() -> Cleaner {
        let key = Secret::new("sk-very-secret".to_owned());
        Cleaner(Arc::new(Redactor::new([("KEY", &key)])))
    }

    fn answered(body: &str) -> Answer {
        match read(body, &cleaner()) {
            AttemptOutcome::Answered(answer) => *answer,
            AttemptOutcome::Retry(why, _)
            | AttemptOutcome::Failed(why)
            | AttemptOutcome::RetrySimpler(why, _) => {
                panic!("{why}")
            }
        }
    }

    fn message(message: &Value, finish: &str) -> Answer {
        answered(&json!({"choices": [{"message": message, "finish_reason": finish}]}).to_string())
    }

    #[test]
    fn content_is_text_or_parts_or_a_refusal_or_nothing() {
        for (content, text) in [
            (json!({"content": "hi"}), "hi"),
            (
                json!({"content": [{"type": "text", "text": "a"}, {"type": "x"}, {"type": "text", "text": "b"}]}),
                "ab",
            ),
            (json!({"content": null, "refusal": "no"}), "no"),
            (json!({"content": null}), ""),
            (json!({}), ""),
        ] {
            assert_eq!(
                message(&content, "stop").text.as_deref(),
                Some(text),
                "{content}"
            );
        }
        let calls = json!({"content": "", "tool_calls": [{"id": "a", "function": {"name": "x", "arguments": "{}"}}]});
        assert_eq!(message(&calls, "tool_calls").text, None);
    }

    #[test]
    fn finish_reason_is_read_and_calls_are_kept_beside_stop() {
        let call =
            json!({"tool_calls": [{"id": "a", "function": {"name": "x", "arguments": "{}"}}]});
        let none = json!({"content": "x"});
        for (message_, said, read) in [
            (&none, "stop", FinishReason::Stop),
            (&call, "stop", FinishReason::ToolCalls),
            (&call, "function_call", FinishReason::ToolCalls),
            (&call, "length", FinishReason::Length),
            (&call, "content_filter", FinishReason::ContentFilter),
            (&none, "eos", FinishReason::Stop),
            (&call, "weird", FinishReason::Other),
        ] {
            assert_eq!(message(message_, said).finish_reason, read, "{said}");
        }
    }

    #[test]
    fn arguments_are_kept_byte_for_byte_also_when_sent_as_an_object() {
        let text = r#"{ "amount":  20.000000000000000001, "amount": 1, "to": "a\ud800b" }"#;
        let quoted = json!(text);
        for arguments in [text, &quoted.to_string()] {
            let body = format!(
                r#"{{"choices":[{{"finish_reason":"tool_calls","message":{{"tool_calls":[
                {{"id":"a","function":{{"name":"x","arguments":{{}}}}}},
                {{"id":7,"function":{{"name":"pay","arguments":{arguments}}}}},{{"function":{{}}}}]}}}}]}}"#
            );
            let calls = answered(&body).calls;
            assert_eq!(calls[0].arguments_text, "{}");
            assert_eq!(calls[1].arguments_text, text);
            assert_eq!(
                (calls[1].provider_id.as_str(), calls[1].name.as_str()),
                ("", "pay")
            );
            assert_eq!(
                (calls[2].name.as_str(), calls[2].arguments_text.as_str()),
                ("", "")
            );
        }
    }

    #[test]
    fn legacy_function_call_is_a_call() {
        let legacy =
            json!({"content": null, "function_call": {"name": "pay", "arguments": "{\"a\":1}"}});
        let calls = message(&legacy, "function_call").calls;
        assert_eq!(
            (calls[0].name.as_str(), calls[0].arguments_text.as_str()),
            ("pay", "{\"a\":1}")
        );
    }

    #[test]
    fn answer_holds_nothing_unstorable_and_no_secret() {
        let sent = json!({"content": "a\0 sk-very-secret", "x": ["sk-very-secret\0"], "tool_calls": [
            {"id": "i\0", "function": {"name": "n\0", "arguments": "{\"a\":\"\\u0000 sk-very-secret\"}"}}]});
        let answer = message(&sent, "tool_calls");
        let call = &answer.calls[0];
        assert_eq!(answer.text.as_deref(), Some("a\u{FFFD} [secret KEY]"));
        assert_eq!(
            (call.provider_id.as_str(), call.name.as_str()),
            ("i\u{FFFD}", "n\u{FFFD}")
        );
        assert_eq!(call.arguments_text, "{\"a\":\"\\ufffd [secret KEY]\"}");
        assert_eq!(
            answer.raw["tool_calls"][0]["function"]["arguments"],
            json!(call.arguments_text)
        );
        assert_eq!(answer.raw["x"], json!(["[secret KEY]\u{FFFD}"]));
        let lone = r#"{"choices":[{"message":{"content":"a\ud800b"},"finish_reason":"stop"}]}"#;
        assert_eq!(answered(lone).text.as_deref(), Some("a\u{FFFD}b"));
    }

    #[test]
    fn missing_usage_is_zero_and_a_missing_total_is_the_sum() {
        let with = |usage: Value| {
            let choice = json!({"message": {"content": "x"}, "finish_reason": "stop"});
            answered(&json!({"choices": [choice], "usage": usage}).to_string()).usage
        };
        let usage = |prompt_tokens, completion_tokens, total_tokens| Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens,
        };
        assert_eq!(with(Value::Null), usage(0, 0, 0));
        assert_eq!(
            with(json!({"prompt_tokens": 3, "completion_tokens": 4})),
            usage(3, 4, 7)
        );
        assert_eq!(
            with(json!({"prompt_tokens": 3, "completion_tokens": -4, "total_tokens": 9})),
            usage(3, 0, 9)
        );
    }

    #[test]
    fn token_count_that_is_too_large_is_bounded() {
        let usage = json!({"prompt_tokens": i64::MAX, "completion_tokens": i64::MAX, "total_tokens": i64::MAX});
        let choice = json!({"message": {"content": "x"}, "finish_reason": "stop"});
        let most = i64::from(u32::MAX);
        assert_eq!(
            answered(&json!({"choices": [choice], "usage": usage}).to_string()).usage,
            Usage {
                prompt_tokens: most,
                completion_tokens: most,
                total_tokens: most,
            }
        );
    }

    #[test]
    fn unusable_answer_is_retried_and_an_error_in_its_place_may_be_final() {
        for (body, again) in [
            ("", true),
            ("{\"choices\":[{\"message\":{\"content\":\"ha", true),
            ("<html>", true),
            ("[]", true),
            ("{}", true),
            (r#"{"choices":[]}"#, true),
            (r#"{"choices":[{"finish_reason":"stop"}]}"#, true),
            (
                r#"{"choices":[{"message":{"content":"cut"},"finish_reason":null}]}"#,
                true,
            ),
            (
                r#"{"choices":[{"message":{"tool_calls":{}},"finish_reason":"stop"}]}"#,
                true,
            ),
            (r#"{"error":{"message":"overloaded"}}"#, true),
            (r#"{"error":{"message":"busy","code":503}}"#, true),
            (
                r#"{"choices":[{"error":{"message":"bad","code":400},"message":{"content":""}}]}"#,
                false,
            ),
        ] {
            let found = match read(body, &cleaner()) {
                AttemptOutcome::Answered(_) => panic!("answered: {body}"),
                AttemptOutcome::Retry(..) => true,
                AttemptOutcome::Failed(_) | AttemptOutcome::RetrySimpler(..) => false,
            };
            assert_eq!(found, again, "{body}");
        }
        let empty_error = r#"{"error":{},"choices":[{"message":{"content":"x"}}]}"#;
        assert_eq!(answered(empty_error).text.as_deref(), Some("x"));
    }
}
