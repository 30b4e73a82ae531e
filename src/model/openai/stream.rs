//! Reads a streamed answer: chunks whose `delta`s add up to the message. Invariant: an answer needs
//! a `finish_reason` and the end marker `[DONE]`. The emitted pieces add up to the answer.

use serde_json::{Map, Value};

use super::calls::PartialCalls;
use super::chunk::Chunk;
use super::merge;
use super::reply::{self, unreadable};
use crate::model::AnswerCall;
use crate::model::clean::{Cleaner, StreamCleaner};
use crate::model::problem::{classify_error, is_non_empty};
use crate::model::protocol::{
    AttemptOutcome, MAX_CALLS, PieceEmitter, StreamReader, StreamState, byte_length, retryable,
    too_many_calls,
};
use crate::net::sse::SseEvent;
use crate::task::text::{InvalidEscape, replace_escapes};

const END_MARKER: &str = "[DONE]";

pub(in crate::model) struct ChatStreamReader {
    cleaner: Cleaner,
    /// The message without its calls.
    message: Map<String, Value>,
    calls: PartialCalls,
    /// The text so far. `text_source` says whether the text is content or a refusal.
    text: String,
    text_source: TextSource,
    text_cleaner: StreamCleaner,
    finish: Option<String>,
    has_end_marker: bool,
    usage: Option<Value>,
    held_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextSource {
    Content,
    Refusal,
}

impl ChatStreamReader {
    /// Takes one choice of a chunk: its delta, its error, and its `finish_reason`. `chunk` is the
    /// received text of the whole chunk. If a call's arguments were sent as JSON instead of text,
    /// their exact text is read from `chunk`.
    fn take_choice(
        &mut self,
        mut choice: Map<String, Value>,
        chunk: &str,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<(), AttemptOutcome> {
        if let Some(error) = choice.get("error").filter(|error| is_non_empty(error)) {
            return Err(classify_error(error, &self.cleaner));
        }
        // Instead of a `delta`, some endpoints send the whole `message` in a single chunk.
        let delta = choice
            .remove("delta")
            .filter(Value::is_object)
            .or_else(|| choice.remove("message"));
        if let Some(Value::Object(delta)) = delta {
            self.take_delta(delta, chunk, emitter)?;
        }
        if let Some(Value::String(finish)) = choice.remove("finish_reason").filter(is_non_empty) {
            if reply::is_failure(&finish) {
                return Err(reply::ended_in_error());
            }
            self.finish = Some(finish);
        }
        Ok(())
    }

    fn take_delta(
        &mut self,
        mut delta: Map<String, Value>,
        chunk: &str,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<(), AttemptOutcome> {
        self.take_fragments(delta.remove("tool_calls"), chunk, emitter)?;
        let content = delta.remove("content");
        let (text, text_source) = match reply::text_of(content.as_ref()) {
            text if !text.is_empty() => (text, TextSource::Content),
            _ => (
                reply::text_of(delta.get("refusal").filter(|refusal| refusal.is_string())),
                TextSource::Refusal,
            ),
        };
        self.add_text(&text, text_source, emitter);
        let more: usize = content
            .iter()
            .chain(delta.values())
            .filter(|value| is_non_empty(value))
            .map(byte_length)
            .sum();
        self.held_bytes = self.held_bytes.saturating_add(more);
        if let Some(content) = content {
            merge::content(&mut self.message, content);
        }
        merge::members(&mut self.message, delta);
        Ok(())
    }

    fn take_fragments(
        &mut self,
        sent: Option<Value>,
        chunk: &str,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<(), AttemptOutcome> {
        let sent = match sent {
            None | Some(Value::Null) => return Ok(()),
            Some(Value::Array(sent)) => sent,
            Some(_) => return Err(unreadable()),
        };
        let all_text = sent
            .iter()
            .all(|call| reply::is_text(call.pointer("/function/arguments")));
        let exact = if all_text {
            None
        } else {
            reply::exact_arguments(chunk)
        };
        let mut emitted_is_wrong = false;
        for (at, fragment) in sent.into_iter().enumerate() {
            let exact = exact.as_ref().and_then(|exact| exact.get(at).copied());
            emitted_is_wrong |= self
                .calls
                .take_fragment(fragment, exact, emitter)
                .ok_or_else(unreadable)?;
            if self.calls.len() > MAX_CALLS {
                return Err(too_many_calls());
            }
        }
        if emitted_is_wrong {
            self.emit_again(emitter);
        }
        Ok(())
    }

    /// Adds `more` to the text and emits `more`. If the text so far is a refusal and `more` is
    /// content, `more` replaces the text. If the text so far is content and `more` belongs to a
    /// refusal, `more` is ignored.
    fn add_text(&mut self, more: &str, text_source: TextSource, emitter: &mut PieceEmitter<'_>) {
        if more.is_empty()
            || (self.text_source, text_source) == (TextSource::Content, TextSource::Refusal)
        {
            return;
        }
        if self.text_source != text_source && !self.text.is_empty() {
            more.clone_into(&mut self.text);
            self.text_source = text_source;
            return self.emit_again(emitter);
        }
        self.text_source = text_source;
        self.text.push_str(more);
        emitter.text(&self.text_cleaner.push(more));
    }

    /// Moves the calls into the message and returns them in parsed form. Returns `None` if the
    /// fragments of a call had no `function`.
    fn with_calls(&mut self) -> Option<Vec<AnswerCall>> {
        let (calls, sent) =
            std::mem::replace(&mut self.calls, PartialCalls::new(self.cleaner.clone())).finish()?;
        // Endpoints begin a stream with an empty `content`, even if the message has no text. The
        // same message in an unstreamed answer has `null`, so `null` replaces the empty text here.
        if self
            .message
            .get("content")
            .is_some_and(|content| content == "")
        {
            self.message.insert("content".to_owned(), Value::Null);
        }
        self.message
            .insert("tool_calls".to_owned(), Value::Array(sent));
        Some(calls)
    }

    /// Emits the call of an old endpoint, and returns the call in a list. An old endpoint sends a
    /// single call, in `function_call` instead of `tool_calls`. The list is empty if there is no
    /// call. Returns `None` if the call cannot be read.
    fn take_legacy_call(&mut self, emitter: &mut PieceEmitter<'_>) -> Option<Vec<AnswerCall>> {
        let calls = reply::calls(&self.message, None, &self.cleaner)?;
        for (at, call) in calls.iter().enumerate() {
            emitter.call_name(at, &call.name);
            emitter.arguments(at, &call.arguments_text);
        }
        Some(calls)
    }

    fn emit_again(&mut self, emitter: &mut PieceEmitter<'_>) {
        emitter.reset();
        self.text_cleaner = self.cleaner.text_stream();
        emitter.text(&self.text_cleaner.push(&self.text));
        self.calls.emit_again(emitter);
    }
}

impl StreamReader for ChatStreamReader {
    fn new(cleaner: &Cleaner) -> Self {
        Self {
            cleaner: cleaner.clone(),
            message: Map::new(),
            calls: PartialCalls::new(cleaner.clone()),
            text: String::new(),
            text_source: TextSource::Refusal,
            text_cleaner: cleaner.text_stream(),
            finish: None,
            has_end_marker: false,
            usage: None,
            held_bytes: 0,
        }
    }

    fn read_event(
        &mut self,
        event: &SseEvent,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<StreamState, AttemptOutcome> {
        let data = event.data.trim();
        if data == END_MARKER {
            self.has_end_marker = true;
            return Ok(StreamState::Ended);
        }
        if data.is_empty() {
            return Ok(StreamState::Open);
        }
        let readable = replace_escapes(data, InvalidEscape::LoneSurrogates);
        let whole = || serde_json::from_str(&readable).unwrap_or_else(|_| Value::from(&*readable));
        if event.name == "error" {
            return Err(classify_error(&whole(), &self.cleaner));
        }
        let Ok(chunk) = serde_json::from_str::<Chunk>(&readable) else {
            return Err(retryable("a part of its answer is not complete JSON"));
        };
        if is_non_empty(&chunk.error) {
            return Err(classify_error(&chunk.error, &self.cleaner));
        }
        if chunk.object == "error" {
            return Err(classify_error(&whole(), &self.cleaner));
        }
        if chunk.usage.is_object() {
            self.usage = Some(chunk.usage);
        }
        let Value::Array(choices) = chunk.choices else {
            return Ok(StreamState::Open);
        };
        if let Some(Value::Object(choice)) = choices.into_iter().find(reply::is_first) {
            self.take_choice(choice, data, emitter)?;
        }
        Ok(StreamState::Open)
    }

    fn held_bytes(&self) -> usize {
        self.held_bytes.saturating_add(self.calls.held_bytes())
    }

    fn finish(mut self, emitter: &mut PieceEmitter<'_>) -> AttemptOutcome {
        let Some(finish) = self.finish.take() else {
            return retryable("its answer ended without a finish_reason");
        };
        if !self.has_end_marker {
            return retryable("its answer ended without its end marker");
        }
        let text = reply::text(&self.message);
        if self.text != text {
            self.text = text;
            self.emit_again(emitter);
        }
        emitter.text(&self.text_cleaner.finish());
        self.calls.emit_rest(emitter);
        let calls = if self.calls.is_empty() {
            self.take_legacy_call(emitter)
        } else {
            self.with_calls()
        };
        let Some(calls) = calls else {
            return unreadable();
        };
        let (finish, usage) = (Some(finish.as_str()), self.usage.as_ref());
        reply::answer(self.message, calls, finish, usage, &self.cleaner)
    }
}

#[cfg(test)]
mod tests;
