//! Tests of unstreamed answers of the Responses protocol.

use std::sync::Arc;

use super::*;
use crate::secret::{Redactor, Secret};

fn read(body: &str) -> AttemptOutcome {
    let key = Secret::new("sk-very-secret".to_owned());
    read_unstreamed(body, &Cleaner(Arc::new(Redactor::new([("KEY", &key)]))))
}

fn answered(body: &str) -> Answer {
    match read(body) {
        AttemptOutcome::Answered(answer) => *answer,
        AttemptOutcome::Retry(why, _)
        | AttemptOutcome::RetrySimpler(why, _)
        | AttemptOutcome::Failed(why) => panic!("{why}"),
    }
}

fn of(items: &[&str]) -> Answer {
    answered(&format!(
        r#"{{"status":"completed","output":[{}]}}"#,
        items.join(",")
    ))
}

fn call(id: &str, arguments: &str) -> String {
    json!({"type": "function_call", "call_id": id, "name": "pay", "arguments": arguments})
        .to_string()
}

fn text_item(text: &str) -> String {
    json!({"type": "message", "content": [{"type": "output_text", "text": text}]}).to_string()
}

#[test]
fn finish_reason_is_read_and_calls_are_kept_beside_any_reason() {
    let (call, text) = (call("a", "{}"), text_item("Hi"));
    let refusal = r#"{"type":"message","content":[{"type":"refusal","refusal":"no"}]}"#;
    let cut = r#"{"type":"message","status":"incomplete","content":[]}"#;
    for (items, end, read) in [
        (vec![text.as_str()], r#""completed""#, FinishReason::Stop),
        (
            vec![call.as_str()],
            r#""completed""#,
            FinishReason::ToolCalls,
        ),
        (
            vec![refusal, call.as_str()],
            r#""completed""#,
            FinishReason::ContentFilter,
        ),
        (
            vec![call.as_str()],
            r#""incomplete","incomplete_details":{"reason":"max_output_tokens"}"#,
            FinishReason::Length,
        ),
        (
            vec![call.as_str()],
            r#""incomplete","incomplete_details":{"reason":"content_filter"}"#,
            FinishReason::ContentFilter,
        ),
        (
            vec![call.as_str()],
            r#""incomplete","incomplete_details":{"reason":"steered"}"#,
            FinishReason::Other,
        ),
        (vec![call.as_str()], r#""incomplete""#, FinishReason::Other),
        (
            vec![cut, call.as_str()],
            r#""completed""#,
            FinishReason::Other,
        ),
    ] {
        let body = format!(r#"{{"status":{end},"output":[{}]}}"#, items.join(","));
        let answer = answered(&body);
        assert_eq!(answer.finish_reason, read, "{body}");
        assert_eq!(
            answer.calls.len(),
            usize::from(items.contains(&call.as_str()))
        );
    }
}

#[test]
fn cached_and_reasoning_tokens_are_counted_once() {
    let usage = |usage: &str| {
        let body = format!(r#"{{"status":"completed","output":[],"usage":{usage}}}"#);
        let used = answered(&body).usage;
        (
            used.prompt_tokens,
            used.completion_tokens,
            used.total_tokens,
        )
    };
    let all = r#"{"input_tokens":20,"input_tokens_details":{"cached_tokens":15},"output_tokens":9,
        "output_tokens_details":{"reasoning_tokens":8},"total_tokens":29}"#;
    assert_eq!(usage(all), (20, 9, 29));
    assert_eq!(usage(r#"{"input_tokens":3,"output_tokens":-4}"#), (3, 0, 3));
    assert_eq!(usage("null"), (0, 0, 0));
}

#[test]
fn token_count_that_is_too_large_is_bounded() {
    let usage =
        json!({"input_tokens": i64::MAX, "output_tokens": i64::MAX, "total_tokens": i64::MAX});
    let body = json!({"status": "completed", "output": [], "usage": usage});
    let used = answered(&body.to_string()).usage;
    let most = i64::from(u32::MAX);
    assert_eq!(
        [
            used.prompt_tokens,
            used.completion_tokens,
            used.total_tokens
        ],
        [most; 3]
    );
}

#[test]
fn items_are_kept_as_they_came_and_redacted_only_where_they_hold_a_secret() {
    let exact = r#"{ "type":"reasoning", "n":1.50, "encrypted_content":"gAA\u002f", "n":1.5 }"#;
    let secret = r#"{"type":"reasoning","summary":[{"text":"sk-very-secret\u0000"}],"id":"rs_2"}"#;
    let clear = r#"{"id":"rs_2","summary":[{"text":"[secret KEY]�"}],"type":"reasoning"}"#;
    let arguments = r#"{"k":"sk-very\u002dsecret"}"#;
    let answer = of(&[exact, secret, &call("a", arguments), &call("b", "{ }")]);
    let items = answer.raw["items"].as_array().unwrap();
    assert_eq!(items[0], exact);
    assert_eq!(items[1], clear);
    assert_eq!(items[2], call("a", r#"{"k":"[secret KEY]"}"#));
    assert_eq!(items[3], call("b", "{ }"));
    assert!(answer.calls[0].holds_secret && !answer.calls[1].holds_secret);
}

#[test]
fn text_is_that_of_all_messages_and_unknown_items_and_parts_are_kept_unseen() {
    let odd = r#"{"type":"message","content":[{"type":"later","text":"x"},{"type":"output_text","text":"b"}]}"#;
    let later = r#"{"type":"computer_call","content":[{"type":"output_text","text":"no"}]}"#;
    let answer = of(&[&text_item("a"), later, odd]);
    assert_eq!(answer.text.as_deref(), Some("ab"));
    assert_eq!(answer.raw["items"].as_array().unwrap().len(), 3);
    assert_eq!(of(&[]).text.as_deref(), Some(""));
    assert_eq!(of(&[&call("a", "{}")]).text, None);
}

#[test]
fn call_with_an_equal_or_missing_id_is_read() {
    let bare = r#"{"type":"function_call","name":"pay"}"#;
    let answer = of(&[&call("a", "{}"), &call("a", "{}"), bare]);
    let calls: Vec<_> = answer
        .calls
        .iter()
        .map(|call| (call.provider_id.as_str(), call.arguments_text.as_str()))
        .collect();
    assert_eq!(calls, [("a", "{}"), ("a", "{}"), ("", "")]);
}

#[test]
fn unusable_answer_is_retried_and_an_error_in_its_place_may_be_final() {
    for (body, why) in [
        ("", "its answer is not complete JSON"),
        ("[]", "its answer is not complete JSON"),
        (
            r#"{"status":"completed","output":[{"ty"#,
            "its answer is not complete JSON",
        ),
        (r#"{"output":[]}"#, "its answer has not ended"),
        (
            r#"{"status":"in_progress","output":[]}"#,
            "its answer has not ended",
        ),
        (
            r#"{"status":"queued","output":[]}"#,
            "its answer has not ended",
        ),
        (
            r#"{"status":"failed","error":null}"#,
            "it failed and gave no reason",
        ),
        (r#"{"status":"completed"}"#, "its answer holds no output"),
        (
            r#"{"status":"completed","output":[7]}"#,
            "its answer cannot be read",
        ),
        (
            r#"{"status":"completed","output":[{"type":"function_call","arguments":{}}]}"#,
            "its answer cannot be read",
        ),
    ] {
        assert!(
            matches!(read(body), AttemptOutcome::Retry(said, None) if said == why),
            "{body}"
        );
    }
    let error = |code: &str| {
        read(
            &json!({"status": "failed", "output": [], "error": {"code": code, "message": "m"}})
                .to_string(),
        )
    };
    for code in ["server_error", "rate_limit_exceeded", "later"] {
        assert!(matches!(error(code), AttemptOutcome::Retry(..)), "{code}");
    }
    for code in [
        "invalid_prompt",
        "image_too_large",
        "insufficient_quota",
        "400",
    ] {
        assert!(matches!(error(code), AttemptOutcome::Failed(_)), "{code}");
    }
}
