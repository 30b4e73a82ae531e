//! Reads the items, the end and the token counts of a whole or streamed answer. Invariant:
//! streaming does not change the parsed answer. An answer is rejected if the endpoint has not
//! declared that the response has ended.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::item::ResponseItem;
use crate::model::clean::Cleaner;
use crate::model::problem::{classify_error, is_non_empty};
use crate::model::protocol::{AttemptOutcome, MAX_CALLS, retryable, too_many_calls};
use crate::model::usage::read_usage;
use crate::model::{Answer, AnswerCall};
use crate::task::item::FinishReason;
use crate::task::text::{InvalidEscape, replace_escapes};

/// The `type` of the stored form of a turn.
pub(super) const STORED_TYPE: &str = "response";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseEnd {
    Completed,
    /// The response was cut off, for this reason. None of its calls may run.
    Incomplete(FinishReason),
}

impl ResponseEnd {
    /// Reads from `response` and its `status` how the response ended.
    ///
    /// # Errors
    /// Fails if the response failed or has not ended. The error is the outcome of the attempt.
    pub(super) fn read(
        status: &str,
        response: &Map<String, Value>,
        cleaner: &Cleaner,
    ) -> Result<Self, AttemptOutcome> {
        let error = response.get("error").filter(|error| is_non_empty(error));
        match (error, status) {
            (Some(error), _) => Err(classify_error(error, cleaner)),
            (None, "completed") => Ok(Self::Completed),
            (None, "incomplete") => {
                let details = response.get("incomplete_details");
                let reason = details.and_then(|details| details.get("reason"));
                Ok(Self::Incomplete(match reason.and_then(Value::as_str) {
                    Some("max_output_tokens") => FinishReason::Length,
                    Some("content_filter") => FinishReason::ContentFilter,
                    Some(_) | None => FinishReason::Other,
                }))
            }
            (None, "failed") => Err(retryable("it failed and gave no reason")),
            (None, _) => Err(retryable("its answer has not ended")),
        }
    }
}

/// An answer as received, not redacted yet.
#[derive(Debug)]
pub(super) struct ReceivedResponse {
    pub(super) items: Vec<ResponseItem>,
    pub(super) end: ResponseEnd,
    pub(super) usage: Option<Value>,
}

pub(super) fn read_unstreamed(body: &str, cleaner: &Cleaner) -> AttemptOutcome {
    let body = replace_escapes(body, InvalidEscape::LoneSurrogates);
    let Ok(Value::Object(mut response)) = serde_json::from_str::<Value>(&body) else {
        return retryable("its answer is not complete JSON");
    };
    let status = response.get("status").and_then(Value::as_str);
    let end = match ResponseEnd::read(status.unwrap_or_default(), &response, cleaner) {
        Ok(end) => end,
        Err(attempt) => return attempt,
    };
    let Some(output) = exact_output(&body) else {
        return retryable("its answer holds no output");
    };
    let Some(items) = output.into_iter().map(ResponseItem::read).collect() else {
        return unreadable();
    };
    let usage = response.remove("usage");
    ReceivedResponse { items, end, usage }.answer(cleaner)
}

/// Returns the exact text of each item of a response's `output`.
pub(super) fn exact_output(response: &str) -> Option<Vec<&str>> {
    #[derive(Deserialize)]
    struct Response<'a> {
        #[serde(borrow)]
        output: Vec<&'a RawValue>,
    }
    let response: Response<'_> = serde_json::from_str(response).ok()?;
    Some(response.output.into_iter().map(RawValue::get).collect())
}

pub(super) fn unreadable() -> AttemptOutcome {
    retryable("its answer cannot be read")
}

impl ReceivedResponse {
    /// Returns the text of all messages in the answer, refusals included.
    pub(super) fn text(&self) -> String {
        self.items
            .iter()
            .flat_map(ResponseItem::message_texts)
            .collect()
    }

    pub(super) fn answer(self, cleaner: &Cleaner) -> AttemptOutcome {
        let call_items: Vec<_> = self.items.iter().filter(|item| item.is_call()).collect();
        if call_items.len() > MAX_CALLS {
            return too_many_calls();
        }
        let calls = call_items.into_iter().map(|item| {
            Some(cleaner.call(item.str("call_id"), item.str("name"), item.arguments()?))
        });
        let Some(calls) = calls.collect::<Option<Vec<_>>>() else {
            return unreadable();
        };
        AttemptOutcome::Answered(Box::new(Answer {
            text: Answer::text_beside(&calls, cleaner.text(&self.text())),
            finish_reason: self.finish_reason(!calls.is_empty()),
            // `input_tokens` includes cached tokens, and `output_tokens` includes reasoning tokens.
            usage: read_usage(
                self.usage.as_ref().and_then(Value::as_object),
                &["input_tokens"],
                "output_tokens",
                Some("total_tokens"),
            ),
            raw: self.raw(&calls, cleaner),
            calls,
        }))
    }

    /// Returns the finish reason. The first of these rules that applies decides:
    ///
    /// 1. If the response was cut off, returns the reason for the cut.
    /// 2. If the response has a refusal, returns `ContentFilter`.
    /// 3. If an item is incomplete, returns `Other`.
    /// 4. If there are calls, returns `ToolCalls`.
    /// 5. Otherwise, returns `Stop`.
    ///
    /// The calls of a response run only if rule 4 decides.
    fn finish_reason(&self, has_calls: bool) -> FinishReason {
        match self.end {
            ResponseEnd::Incomplete(reason) => reason,
            ResponseEnd::Completed if self.items.iter().any(ResponseItem::refuses) => {
                FinishReason::ContentFilter
            }
            ResponseEnd::Completed if self.items.iter().any(ResponseItem::is_incomplete) => {
                FinishReason::Other
            }
            ResponseEnd::Completed if has_calls => FinishReason::ToolCalls,
            ResponseEnd::Completed => FinishReason::Stop,
        }
    }

    /// Returns the items as they are stored and sent back. Each item is a string with the item's
    /// JSON, so that no store reformats the JSON. Returns null if redaction leaves no valid JSON;
    /// then the turn is sent back in its parsed form.
    fn raw(&self, calls: &[AnswerCall], cleaner: &Cleaner) -> Value {
        let mut calls = calls.iter();
        let items = self.items.iter().map(|item| {
            let call = item.is_call().then(|| calls.next());
            item.stored_json(call.flatten(), cleaner)
        });
        let items: Option<Vec<_>> = items.collect();
        items.map_or(
            Value::Null,
            |items| json!({"type": STORED_TYPE, "items": items}),
        )
    }
}

#[cfg(test)]
mod tests;
