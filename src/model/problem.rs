//! Finds the error text in an endpoint's answer, wherever the endpoint puts it.

use serde_json::Value;

use super::clean::Cleaner;
use super::protocol::AttemptOutcome;
use super::retry;
use crate::task::text::{InvalidEscape, replace_escapes};

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

/// Classifies an error inside a 200 answer, as gateways send it.
pub(super) fn classify_answer_error(error: &Value, cleaner: &Cleaner) -> AttemptOutcome {
    match status_of(error) {
        Some(status) if retry::is_retryable(status) => {
            AttemptOutcome::Retry(reported_error_text(error, cleaner), None)
        }
        Some(_) | None => AttemptOutcome::Failed(reported_error_text(error, cleaner)),
    }
}

/// Classifies an error in the middle of a stream. If the error blames the request, the attempt
/// fails for good. Any other error is retried, because the endpoint had accepted the request.
pub(super) fn classify_stream_error(error: &Value, cleaner: &Cleaner) -> AttemptOutcome {
    let blames_request = match status_of(error) {
        Some(status) => (400..500).contains(&status) && !retry::is_retryable(status),
        None => error
            .get("type")
            .is_some_and(|kind| kind == "invalid_request_error"),
    };
    let why = reported_error_text(error, cleaner);
    if blames_request {
        AttemptOutcome::Failed(why)
    } else {
        AttemptOutcome::Retry(why, None)
    }
}

pub(super) fn reported_error_text(error: &Value, cleaner: &Cleaner) -> String {
    format!(
        "it reported an error: {}",
        cleaner.problem(&message_of(error))
    )
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
    members
        .iter()
        .filter_map(|name| error.get(name))
        .find(|found| is_non_empty(found))
        .map(|found| match found {
            Value::Object(_) => message_of(found),
            Value::String(text) => text.clone(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => found.to_string(),
        })
        .unwrap_or_default()
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
            (r#"{"detail":[{"loc":["body"]}]}"#, r#"[{"loc":["body"]}]"#),
            ("upstream down", "upstream down"),
            ("<html>page</html>", ""),
            ("{}", ""),
        ] {
            assert_eq!(error_text_in(body), text, "{body}");
        }
    }
}
