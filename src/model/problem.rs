//! Finds the error text in an endpoint's answer, wherever the endpoint puts it, and decides which
//! part of the request the error blames.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::clean::Cleaner;
use super::protocol::AttemptOutcome;
use super::retry;
use crate::task::text::{InvalidEscape, replace_escapes};

/// Error types of `OpenAI` and Anthropic for which a retry is useless.
const FINAL_ERROR_TYPES: [&str; 6] = [
    "authentication_error",
    "billing_error",
    "invalid_request_error",
    "not_found_error",
    "permission_error",
    "request_too_large",
];

/// Error codes of `OpenAI` for which a retry is useless, in addition to all codes that begin with
/// `invalid_` or `image_`.
const FINAL_ERROR_CODES: [&str; 11] = [
    "bio_policy",
    "context_length_exceeded",
    "cyber_policy",
    "data_residency_mismatch",
    "empty_image_file",
    "failed_to_download_image",
    "insufficient_quota",
    "misalignment_policy_violation",
    "model_not_found",
    "unsupported_image_media_type",
    "unsupported_parameter",
];

/// Returns the error text in a body: the provider's message, or the body itself if the body is not
/// JSON. Returns an empty text for an HTML page.
pub(super) fn error_text_in(body: &str) -> String {
    match serde_json::from_str::<Value>(&replace_escapes(body, InvalidEscape::LoneSurrogates)) {
        Ok(Value::Array(errors)) => errors.first().map(message_of).unwrap_or_default(),
        Ok(body_json) => message_of(&body_json),
        Err(_) if body.trim_start().starts_with('<') => String::new(),
        Err(_) => body.to_owned(),
    }
}

/// Returns whether an error text has a word that begins with `stream`. A word that only contains
/// `stream`, such as `upstream` or `livestream`, does not count.
pub(super) fn mentions_streaming(error_text: &str) -> bool {
    let text = error_text.to_ascii_lowercase();
    text.match_indices("stream").any(|(at, _)| {
        let before = text.get(..at).unwrap_or_default();
        !before.ends_with(char::is_alphabetic)
    })
}

/// Returns whether a refusal names the parameter `stream` or `stream_options`, either in the member
/// `param` of its error or in its error text.
pub(super) fn names_stream_parameter(body: &str, error_text: &str) -> bool {
    let body_json = serde_json::from_str::<Value>(body).unwrap_or_default();
    let error = body_json.get("error").unwrap_or(&body_json);
    let parameter = error.get("param").and_then(Value::as_str);
    let parameter = parameter.and_then(|path| path.split('.').next());
    matches!(parameter, Some("stream" | "stream_options"))
        || STREAM_PARAMETER
            .as_ref()
            .is_some_and(|named| named.is_match(error_text))
}

/// Finds the name of a parameter in an error text. The word `stream` is such a name only in
/// quotation marks, at the beginning before `:`, or before `=`, because it is also an ordinary
/// word.
static STREAM_PARAMETER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r#"\bstream_options\b|["'`]stream["'`]|^stream:|\bstream ?="#).ok()
});

/// Returns whether a member has a value that is not empty. Some endpoints send an empty `error`
/// together with an answer.
pub(super) fn is_non_empty(member: &Value) -> bool {
    match member {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::Array(_) => true,
    }
}

/// Classifies an error inside a 200 answer or a stream. The outcome is `Failed` if the error blames
/// the request. Otherwise (overload, a timeout, a server error, or an unknown kind), the outcome is
/// `Retry`, because the endpoint accepted the request before it reported the error.
pub(super) fn classify_error(error: &Value, cleaner: &Cleaner) -> AttemptOutcome {
    let member = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
    let (code, kind) = (member("code"), member("type"));
    let status = status_of(error).filter(|code| (400..600).contains(code));
    let blames_request = match status {
        Some(status) => (400..500).contains(&status) && !retry::is_retryable(status),
        None => {
            FINAL_ERROR_TYPES.contains(&kind)
                || FINAL_ERROR_CODES.contains(&code)
                || code.starts_with("invalid_")
                || code.starts_with("image_")
        }
    };
    let text = cleaner.problem(&message_of(error));
    let why = format!("it reported an error: {text}");
    if blames_request {
        AttemptOutcome::Failed(why.into())
    } else {
        AttemptOutcome::Retry(why.into(), None)
    }
}

fn status_of(error: &Value) -> Option<u16> {
    let code = error.get("code").or_else(|| error.get("status"))?;
    code.as_u64()
        .or_else(|| code.as_str()?.parse().ok())?
        .try_into()
        .ok()
}

fn message_of(error: &Value) -> String {
    if let Some(text) = error.as_str() {
        return text.to_owned();
    }
    let members = ["error", "message", "detail", "code", "type"];
    let text = members
        .iter()
        .filter_map(|name| error.get(name))
        .find(|found| is_non_empty(found))
        .map(|found| match found {
            Value::Object(_) => message_of(found),
            Value::String(text) => text.clone(),
            Value::Array(errors) => text_of_list(errors),
            Value::Null | Value::Bool(_) | Value::Number(_) => found.to_string(),
        })
        .unwrap_or_default();
    // `OpenRouter` adds the answer of the endpoint to which it has passed the request.
    match error.pointer("/metadata/raw").and_then(Value::as_str) {
        Some(raw) if !raw.is_empty() => format!("{text}: {raw}"),
        Some(_) | None => text,
    }
}

/// Returns a list of errors as JSON. The `input` of an error is left out: it is the refused part of
/// the request, which may be long.
fn text_of_list(errors: &[Value]) -> String {
    let mut errors = errors.to_vec();
    for error in errors.iter_mut().filter_map(Value::as_object_mut) {
        error.remove("input");
    }
    Value::Array(errors).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_text_is_found_wherever_a_provider_puts_it() {
        for (body, text) in [
            (r#"{"error":{"message":"too long","type":"x"}}"#, "too long"),
            (r#"{"error":"plain"}"#, "plain"),
            (r#"[{"error":{"message":"listed"}}]"#, "listed"),
            (r#"{"message":"bare"}"#, "bare"),
            (
                r#"{"error":{"message":"failed","metadata":{"raw":"Invalid `signature`"}}}"#,
                "failed: Invalid `signature`",
            ),
            (
                r#"{"message":{"detail":[{"loc":["body"],"input":"hm"}]}}"#,
                r#"[{"loc":["body"]}]"#,
            ),
            ("upstream down", "upstream down"),
            ("<html>page</html>", ""),
            ("{}", ""),
        ] {
            assert_eq!(error_text_in(body), text, "{body}");
        }
    }

    #[test]
    fn word_that_only_contains_stream_does_not_mention_streaming() {
        for text in [
            "stream error",
            "Streaming is off",
            "no 'stream'",
            "x: streams",
        ] {
            assert!(mentions_streaming(text), "{text}");
        }
        for text in [
            "Upstream timeout",
            "the downstream service",
            "a 'livestream'",
            "",
        ] {
            assert!(!mentions_streaming(text), "{text}");
        }
    }

    #[test]
    fn stream_parameter_is_named_by_param_or_as_a_name_in_the_error_text() {
        for (body, named) in [
            (
                r#"{"error":{"message":"verify to stream","param":"stream"}}"#,
                true,
            ),
            (
                r#"{"error":{"message":"no","param":"stream_options.include_usage"}}"#,
                true,
            ),
            (r#"{"message":"no","param":"stream"}"#, true),
            (
                r#"{"error":{"message":"Unknown parameter: 'stream_options'."}}"#,
                true,
            ),
            (
                r#"{"detail":[{"loc":["body","stream"],"msg":"extra"}]}"#,
                true,
            ),
            (r#"{"error":{"message":"stream: Extra inputs"}}"#, true),
            (
                "Unrecognized request argument supplied: stream_options",
                true,
            ),
            ("stream=true is not supported", true),
            (
                r#"{"error":{"message":"stream error","param":null}}"#,
                false,
            ),
            (r#"{"error":{"message":"no","param":"messages.0"}}"#, false),
            ("Error in stream: reset", false),
            ("Invalid value 'livestream'", false),
        ] {
            let found = names_stream_parameter(body, &error_text_in(body));
            assert_eq!(found, named, "{body}");
        }
    }
}
