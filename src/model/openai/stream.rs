//! Reads a streamed answer: chunks whose `delta`s add up to the message. Invariant: without a
//! `finish_reason` and the end marker `[DONE]` there is no answer; the emitted pieces add up to the
//! answer.

use serde_json::{Map, Value};

use super::calls::Calls;
use super::merge;
use super::reply::{self, Said, unreadable};
use crate::model::AnswerCall;
use crate::model::clean::{Cleaner, Mend, Passing, mended};
use crate::model::problem::{broken_off, is_said};
use crate::model::protocol::{Attempt, CALLS, Progress, Reading, Telling, again, too_many_calls};
use crate::net::sse::Event;

/// The end marker of a stream.
const DONE: &str = "[DONE]";

/// An answer while it arrives.
pub(in crate::model) struct Streamed {
    cleaner: Cleaner,
    /// The message without its calls.
    message: Map<String, Value>,
    calls: Calls,
    /// The text so far. `voice` says whether it is content or a refusal.
    text: String,
    voice: Voice,
    passing: Passing,
    finish: Option<String>,
    done: bool,
    usage: Option<Value>,
    held: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Voice {
    Content,
    Refusal,
}

impl Streamed {
    pub(super) fn new(cleaner: Cleaner) -> Self {
        Self {
            message: Map::new(),
            calls: Calls::new(cleaner.clone()),
            text: String::new(),
            voice: Voice::Refusal,
            passing: cleaner.passing_text(),
            finish: None,
            done: false,
            usage: None,
            held: 0,
            cleaner,
        }
    }

    /// Takes one choice of a chunk: its delta, its error, and its `finish_reason`.
    fn choice(
        &mut self,
        mut choice: Map<String, Value>,
        chunk: &str,
        telling: &mut Telling<'_>,
    ) -> Result<(), Attempt> {
        if let Some(error) = choice.get("error").filter(|error| is_said(error)) {
            return Err(broken_off(error, &self.cleaner));
        }
        // Some endpoints send a whole message in a single chunk.
        let delta = choice
            .remove("delta")
            .filter(Value::is_object)
            .or_else(|| choice.remove("message"));
        if let Some(Value::Object(delta)) = delta {
            self.delta(delta, chunk, telling)?;
        }
        if let Some(Value::String(finish)) = choice.remove("finish_reason").filter(is_said) {
            if finish == reply::ERROR {
                return Err(reply::ended_in_error());
            }
            self.finish = Some(finish);
        }
        Ok(())
    }

    fn delta(
        &mut self,
        mut delta: Map<String, Value>,
        chunk: &str,
        telling: &mut Telling<'_>,
    ) -> Result<(), Attempt> {
        self.fragments(delta.remove("tool_calls"), chunk, telling)?;
        let content = delta.remove("content");
        let (said, voice) = match reply::text_of(content.as_ref()) {
            said if !said.is_empty() => (said, Voice::Content),
            _ => (
                reply::text_of(delta.get("refusal").filter(|refusal| refusal.is_string())),
                Voice::Refusal,
            ),
        };
        self.say(&said, voice, telling);
        let more: usize = content
            .iter()
            .chain(delta.values())
            .filter(|value| is_said(value))
            .map(length)
            .sum();
        self.held = self.held.saturating_add(more);
        if let Some(content) = content {
            merge::content(&mut self.message, content);
        }
        merge::members(&mut self.message, delta);
        Ok(())
    }

    /// Takes the elements of a delta's `tool_calls`. `chunk` is the text of the whole chunk.
    fn fragments(
        &mut self,
        sent: Option<Value>,
        chunk: &str,
        telling: &mut Telling<'_>,
    ) -> Result<(), Attempt> {
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
        let mut anew = false;
        for (at, fragment) in sent.into_iter().enumerate() {
            let exact = exact.as_ref().and_then(|exact| exact.get(at).copied());
            anew |= self
                .calls
                .take(fragment, exact, telling)
                .ok_or_else(unreadable)?;
            if self.calls.len() > CALLS {
                return Err(Attempt::Failed(too_many_calls()));
            }
        }
        if anew {
            self.tell_anew(telling);
        }
        Ok(())
    }

    /// Adds to the text and emits the addition. A refusal counts as the text only while there is no
    /// content.
    fn say(&mut self, more: &str, voice: Voice, telling: &mut Telling<'_>) {
        if more.is_empty() || (self.voice, voice) == (Voice::Content, Voice::Refusal) {
            return;
        }
        if self.voice != voice && !self.text.is_empty() {
            more.clone_into(&mut self.text);
            self.voice = voice;
            return self.tell_anew(telling);
        }
        self.voice = voice;
        self.text.push_str(more);
        telling.text(&self.passing.push(more));
    }

    /// Returns the calls, and puts them into the message.
    fn with_calls(&mut self) -> Option<Vec<AnswerCall>> {
        let (calls, sent) =
            std::mem::replace(&mut self.calls, Calls::new(self.cleaner.clone())).finish()?;
        // Endpoints begin a stream with an empty content. For a message without text, an unstreamed
        // answer would have `null`.
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

    /// Returns the call in `function_call`, if there is one, and emits it at once. Old endpoints
    /// send `function_call` instead of `tool_calls`.
    fn legacy(&mut self, telling: &mut Telling<'_>) -> Option<Vec<AnswerCall>> {
        let calls = reply::calls(&self.message, None, &self.cleaner)?;
        for (at, call) in calls.iter().enumerate() {
            telling.named(at, &call.name);
            telling.arguments(at, &call.arguments_text);
        }
        Some(calls)
    }

    fn tell_anew(&mut self, telling: &mut Telling<'_>) {
        telling.reset();
        self.passing = self.cleaner.passing_text();
        telling.text(&self.passing.push(&self.text));
        self.calls.tell_anew(telling);
    }
}

/// Returns the approximate length of a value in bytes.
fn length(value: &Value) -> usize {
    if let Value::String(text) = value {
        text.len()
    } else {
        value.to_string().len()
    }
}

impl Reading for Streamed {
    fn event(&mut self, event: &Event, telling: &mut Telling<'_>) -> Result<Progress, Attempt> {
        let data = event.data.trim();
        if data == DONE {
            self.done = true;
            return Ok(Progress::Ended);
        }
        if data.is_empty() {
            return Ok(Progress::GoesOn);
        }
        let data = mended(data, Mend::LoneSurrogates);
        let chunk = serde_json::from_str::<Value>(&data);
        if event.name == "error" {
            return Err(broken_off(
                &chunk.unwrap_or_else(|_| data.into()),
                &self.cleaner,
            ));
        }
        let Ok(Value::Object(mut chunk)) = chunk else {
            return Err(again("a part of its answer is no complete JSON"));
        };
        if let Some(error) = chunk.get("error").filter(|error| is_said(error)) {
            return Err(broken_off(error, &self.cleaner));
        }
        if chunk.get("object").is_some_and(|object| object == "error") {
            return Err(broken_off(&Value::Object(chunk), &self.cleaner));
        }
        if let Some(usage @ Value::Object(_)) = chunk.remove("usage") {
            self.usage = Some(usage);
        }
        let choices = if let Some(Value::Array(choices)) = chunk.remove("choices") {
            choices
        } else {
            Vec::new()
        };
        let first = choices
            .into_iter()
            .find(|choice| choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0);
        if let Some(Value::Object(choice)) = first {
            self.choice(choice, &data, telling)?;
        }
        Ok(Progress::GoesOn)
    }

    fn held(&self) -> usize {
        self.held.saturating_add(self.calls.held())
    }

    fn finish(mut self, telling: &mut Telling<'_>) -> Attempt {
        let Some(finish) = self.finish.take() else {
            return again("its answer ended without a finish_reason");
        };
        if !self.done {
            return again("its answer ended without its end marker");
        }
        let text = reply::text(&self.message);
        if self.text != text {
            self.text = text;
            self.tell_anew(telling);
        }
        telling.text(&self.passing.finish());
        self.calls.tell_rest(telling);
        let calls = if self.calls.is_empty() {
            self.legacy(telling)
        } else {
            self.with_calls()
        };
        let Some(calls) = calls else {
            return unreadable();
        };
        reply::answer(
            Said {
                message: self.message,
                calls,
                finish: Some(finish),
                usage: self.usage,
            },
            &self.cleaner,
        )
    }
}

#[cfg(test)]
mod tests;
