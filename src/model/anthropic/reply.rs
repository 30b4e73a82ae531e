//! Reads the blocks, the stop reason and the token counts of a whole or streamed answer.
//! `Answer::raw` keeps unknown blocks and members. Invariant: streaming does not change the parsed
//! answer. A call's arguments are the exact bytes that the model wrote, except for secrets and
//! U+0000.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::turn::{has_type, is_thinking};
use crate::model::Answer;
use crate::model::clean::Cleaner;
use crate::model::problem::{classify_error, is_non_empty};
use crate::model::protocol::{AttemptOutcome, MAX_CALLS, retryable, too_many_calls};
use crate::model::usage::read_usage;
use crate::task::item::FinishReason;
use crate::task::text::{InvalidEscape, replace_escapes};

/// The members of `usage` that count the prompt. Tokens that the model read from the cache or wrote
/// to the cache count as prompt tokens.
const PROMPT_COUNTS: [&str; 3] = [
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
];

/// A message as received, not redacted yet.
#[derive(Debug, Default)]
pub(super) struct ReceivedMessage {
    pub(super) blocks: Vec<ReceivedBlock>,
    /// The stop reason; `None` if the endpoint sent none. A message without a stop reason is
    /// incomplete.
    pub(super) stop_reason: Option<String>,
    /// The endpoint's explanation of a refusal, in words.
    pub(super) explanation: Option<String>,
    pub(super) usage: Map<String, Value>,
}

#[derive(Debug, PartialEq)]
pub(super) struct ReceivedBlock {
    /// All members of the block, except for the `input` of a call.
    pub(super) members: Map<String, Value>,
    /// The exact text of a call's `input`; `None` if the block is not a call.
    pub(super) arguments: Option<String>,
}

/// The exact text of a block's `input`.
#[derive(Deserialize)]
pub(super) struct ExactBlock<'a> {
    #[serde(borrow)]
    pub(super) input: Option<&'a RawValue>,
}

pub(super) fn read_unstreamed(body: &str, cleaner: &Cleaner) -> AttemptOutcome {
    let readable = replace_escapes(body, InvalidEscape::LoneSurrogates);
    let Ok(Value::Object(mut reply)) = serde_json::from_str::<Value>(&readable) else {
        return retryable("its answer is not complete JSON");
    };
    if let Some(error) = reply.get("error").filter(|error| is_non_empty(error)) {
        return classify_error(error, cleaner);
    }
    let Some(Value::Array(blocks)) = reply.remove("content") else {
        return retryable("its answer holds no content");
    };
    // `readable` has U+FFFD in place of the escapes of lone surrogates, so the inputs come from the
    // original body. If the original body cannot be parsed, they come from `readable`.
    let Some(exact_inputs) = exact_inputs(body)
        .or_else(|| exact_inputs(&readable))
        .filter(|exact_inputs| exact_inputs.len() == blocks.len())
    else {
        return retryable("its answer cannot be read");
    };
    let blocks = blocks
        .into_iter()
        .zip(exact_inputs)
        .map(|(block, input)| ReceivedBlock::new(block, input));
    let Some(blocks) = blocks.collect() else {
        return retryable("its content is not made of blocks");
    };
    let mut message = ReceivedMessage {
        blocks,
        ..ReceivedMessage::default()
    };
    if let Some(Value::Object(usage)) = reply.remove("usage") {
        message.usage = usage;
    }
    message.set_stop_reason(&Value::Object(reply));
    message.answer(cleaner)
}

/// Returns the exact text of each block's `input`; `None` if the body cannot be read.
fn exact_inputs(body: &str) -> Option<Vec<Option<&str>>> {
    #[derive(Deserialize)]
    struct Reply<'a> {
        #[serde(borrow)]
        content: Vec<ExactBlock<'a>>,
    }
    let reply: Reply<'_> = serde_json::from_str(body).ok()?;
    Some(
        reply
            .content
            .into_iter()
            .map(|block| block.input.map(RawValue::get))
            .collect(),
    )
}

impl ReceivedBlock {
    /// Builds a block with the exact text of its `input`; `None` if the block is not an object.
    pub(super) fn new(block: Value, input: Option<&str>) -> Option<Self> {
        let is_call = has_type(&block, "tool_use");
        let Value::Object(mut members) = block else {
            return None;
        };
        let arguments = is_call.then(|| {
            members.remove("input");
            input
                .filter(|input| *input != "null")
                .unwrap_or("{}")
                .to_owned()
        });
        Some(Self { members, arguments })
    }
}

impl ReceivedMessage {
    /// Stores the stop reason and its explanation, from the delta of a `message_delta` or from an
    /// unstreamed message. If a value is missing, the stored value is kept.
    pub(super) fn set_stop_reason(&mut self, source: &Value) {
        let str = |pointer: &str| {
            source
                .pointer(pointer)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        self.stop_reason = str("/stop_reason").or(self.stop_reason.take());
        self.explanation = str("/stop_details/explanation").or(self.explanation.take());
    }

    fn text(&self) -> String {
        self.blocks
            .iter()
            .filter(|block| block.has_type("text"))
            .filter_map(|block| block.member_text("text"))
            .collect()
    }

    /// Returns the endpoint's explanation if the model refused and wrote no text; otherwise `None`.
    pub(super) fn refusal(&self) -> Option<&str> {
        let refused = self.stop_reason.as_deref() == Some("refusal") && self.text().is_empty();
        self.explanation.as_deref().filter(|_| refused)
    }

    pub(super) fn answer(self, cleaner: &Cleaner) -> AttemptOutcome {
        let Some(stop_reason) = &self.stop_reason else {
            return retryable("its answer ended without a stop_reason");
        };
        if self
            .blocks
            .iter()
            .filter(|block| block.arguments.is_some())
            .count()
            > MAX_CALLS
        {
            return too_many_calls();
        }
        let text = self.refusal().map_or_else(|| self.text(), str::to_owned);
        let calls = self.blocks.iter().filter_map(|block| {
            let text = |name| block.member_text(name).unwrap_or_default();
            Some(cleaner.call(text("id"), text("name"), block.arguments.as_ref()?))
        });
        let calls: Vec<_> = calls.collect();
        AttemptOutcome::Answered(Box::new(Answer {
            text: Answer::text_beside(&calls, cleaner.text(&text)),
            finish_reason: finish_reason(stop_reason, !calls.is_empty()),
            usage: read_usage(Some(&self.usage), &PROMPT_COUNTS, "output_tokens", None),
            raw: raw(self.blocks, cleaner),
            calls,
        }))
    }
}

impl ReceivedBlock {
    fn has_type(&self, kind: &str) -> bool {
        self.member_text("type") == Some(kind)
    }

    fn member_text(&self, member: &str) -> Option<&str> {
        self.members.get(member).and_then(Value::as_str)
    }
}

fn finish_reason(stop_reason: &str, has_calls: bool) -> FinishReason {
    match stop_reason {
        "end_turn" | "stop_sequence" if has_calls => FinishReason::ToolCalls,
        "end_turn" | "stop_sequence" => FinishReason::Stop,
        "tool_use" => FinishReason::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
        "refusal" => FinishReason::ContentFilter,
        // An unknown reason, or `pause_turn`. The endpoint pauses a turn for tools that the
        // provider runs. A request offers no such tools, so a paused turn is not continued.
        _ => FinishReason::Other,
    }
}

/// Returns the message as it is stored and sent back: the texts are redacted, and everything else
/// is as received. A call has no `input`, which requests take from the stored call (see
/// `Block::call`), because the model may nest it too deeply for a stored message. If redaction
/// would change a thinking block, the block is left out, because the block is signed and the change
/// would invalidate the signature.
fn raw(blocks: Vec<ReceivedBlock>, cleaner: &Cleaner) -> Value {
    let content = blocks.into_iter().filter_map(|block| {
        let sent = Value::Object(block.members);
        let kept = cleaner.json(sent.clone());
        (!is_thinking(&sent) || kept == sent).then_some(kept)
    });
    json!({"type": "message", "role": "assistant", "content": content.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::secret::{Redactor, Secret};
    use crate::task::item::Usage;

    fn read(body: &str) -> AttemptOutcome {
        read_unstreamed(
            body,
            &Cleaner(Arc::new(Redactor::new([(
                "KEY",
                &Secret::new("sk-very-secret".to_owned()),
            )]))),
        )
    }

    fn answered(body: &str) -> Answer {
        match read(body) {
            AttemptOutcome::Answered(answer) => *answer,
            AttemptOutcome::Retry(why, _)
            | AttemptOutcome::RetrySimpler(why, _)
            | AttemptOutcome::Failed(why) => {
                panic!("{why}")
            }
        }
    }

    fn message(content: &Value, stop_reason: &str) -> Answer {
        answered(&json!({"content": content, "stop_reason": stop_reason}).to_string())
    }

    #[test]
    fn finish_reason_is_read_and_calls_are_kept_beside_any_reason() {
        let call = json!([{"type": "tool_use", "id": "a", "name": "x", "input": {}}]);
        for (content, said, read) in [
            (&json!([]), "end_turn", FinishReason::Stop),
            (&json!([]), "stop_sequence", FinishReason::Stop),
            (&call, "tool_use", FinishReason::ToolCalls),
            (&call, "end_turn", FinishReason::ToolCalls),
            (&call, "max_tokens", FinishReason::Length),
            (&call, "model_context_window_exceeded", FinishReason::Length),
            (&call, "refusal", FinishReason::ContentFilter),
            (&json!([]), "pause_turn", FinishReason::Other),
        ] {
            assert_eq!(message(content, said).finish_reason, read, "{said}");
        }
    }

    #[test]
    fn cached_tokens_count_as_prompt_tokens() {
        let usage = |usage: &str| {
            let body = format!(r#"{{"content":[],"stop_reason":"end_turn","usage":{usage}}}"#);
            let Usage {
                prompt_tokens,
                completion_tokens,
                total_tokens,
            } = answered(&body).usage;
            (prompt_tokens, completion_tokens, total_tokens)
        };
        assert_eq!(
            usage(r#"{"input_tokens":1,"cache_read_input_tokens":20,"output_tokens":4}"#),
            (21, 4, 25)
        );
        assert_eq!(
            usage(r#"{"input_tokens":-1,"cache_creation_input_tokens":null,"output_tokens":"x"}"#),
            (0, 0, 0)
        );
        assert_eq!(usage("null"), (0, 0, 0));
    }

    #[test]
    fn token_count_that_is_too_large_is_bounded() {
        let usage = json!({"input_tokens": i64::MAX, "cache_read_input_tokens": i64::MAX, "output_tokens": i64::MAX});
        let most = i64::from(u32::MAX);
        assert_eq!(
            answered(
                &json!({"content": [], "stop_reason": "end_turn", "usage": usage}).to_string()
            )
            .usage,
            Usage {
                prompt_tokens: most,
                completion_tokens: most,
                total_tokens: most,
            }
        );
    }

    #[test]
    fn thinking_block_with_a_secret_or_nul_is_dropped_whole() {
        let thought =
            |text: &str| json!({"type": "thinking", "thinking": text, "signature": "c2ln"});
        let said = json!({"type": "text", "text": "The key: sk-very-secret"});
        let content = json!([
            thought("The key is sk-very-secret."),
            thought("Fine."),
            thought("a\0b"),
            said
        ]);
        assert_eq!(
            message(&content, "end_turn").raw,
            json!({"type": "message", "role": "assistant", "content":
                [thought("Fine."), {"type": "text", "text": "The key: [secret KEY]"}]})
        );
    }

    #[test]
    fn call_with_deeply_nested_arguments_keeps_the_thoughts_of_its_turn() {
        let input = (0..120).fold(json!({}), |inner, _| json!({"a": inner}));
        let thought = json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"});
        let kept = json!({"type": "tool_use", "id": "a", "name": "x"});
        let mut call = kept.clone();
        call["input"] = input.clone();
        let answer = message(&json!([thought, call]), "tool_use");
        assert_eq!(answer.calls[0].arguments_text, input.to_string());
        assert_eq!(
            answer.raw,
            json!({"type": "message", "role": "assistant", "content": [thought, kept]})
        );
    }

    #[test]
    fn unusable_answer_is_retried_and_an_error_in_its_place_may_be_final() {
        for (body, why) in [
            ("", "its answer is not complete JSON"),
            ("[]", "its answer is not complete JSON"),
            (
                "{\"content\":[{\"type\":\"te",
                "its answer is not complete JSON",
            ),
            ("{}", "its answer holds no content"),
            (
                r#"{"content":"text","stop_reason":"end_turn"}"#,
                "its answer holds no content",
            ),
            (
                r#"{"content":[7],"stop_reason":"end_turn"}"#,
                "its answer cannot be read",
            ),
            (
                r#"{"content":[],"stop_reason":null}"#,
                "its answer ended without a stop_reason",
            ),
        ] {
            assert!(
                matches!(read(body), AttemptOutcome::Retry(said, None) if said == why),
                "{body}"
            );
        }
        let error = |kind: &str| {
            read(&format!(
                r#"{{"type":"error","error":{{"type":"{kind}","message":"m"}}}}"#
            ))
        };
        assert!(matches!(
            error("overloaded_error"),
            AttemptOutcome::Retry(..)
        ));
        assert!(matches!(
            error("invalid_request_error"),
            AttemptOutcome::Failed(_)
        ));
    }
}
