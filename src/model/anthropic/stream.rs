//! Reads a streamed answer: events that begin a message, fill the message's blocks one by one, and
//! end the message. Invariant: the blocks equal the blocks of an unstreamed answer. A stream
//! without the event that ends the message gives no answer. The emitted pieces add up to the
//! answer's texts.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::reply::{ExactBlock, ReceivedBlock, ReceivedMessage};
use super::turn::has_type;
use crate::model::clean::{Cleaner, StreamCleaner};
use crate::model::problem::classify_error;
use crate::model::protocol::{
    AttemptOutcome, MAX_CALLS, PieceEmitter, StreamReader, StreamState, byte_length, retryable,
    too_many_calls,
};
use crate::net::sse::SseEvent;
use crate::task::text::{InvalidEscape, replace_escapes};

pub(in crate::model) struct MessageStreamReader {
    cleaner: Cleaner,
    message: ReceivedMessage,
    /// The blocks that have not ended. Maps the `index` of each block in the endpoint's events to
    /// the block's position in `blocks`.
    open_blocks: BTreeMap<u64, usize>,
    /// The blocks in the order in which they began.
    blocks: Vec<PartialBlock>,
    call_count: usize,
    text_cleaner: StreamCleaner,
    has_ended: bool,
    held_bytes: usize,
}

struct PartialBlock {
    members: Map<String, Value>,
    start_input: Option<String>,
    /// The JSON text of a call's `input`, as far as deltas have added it.
    input: String,
    /// The index of the call among the answer's calls, and the cleaner for the pieces of the call's
    /// arguments. `None` if the block is not a call.
    call: Option<(usize, StreamCleaner)>,
}

impl MessageStreamReader {
    /// Stores token counts. Each count is the total so far, so a later count replaces an earlier
    /// count.
    fn store_usage(&mut self, usage: Option<&Value>) {
        for (name, count) in usage.and_then(Value::as_object).into_iter().flatten() {
            if !count.is_null() {
                self.message.usage.insert(name.clone(), count.clone());
            }
        }
    }

    fn begin_block(
        &mut self,
        index: u64,
        block: Value,
        input: Option<String>,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<(), AttemptOutcome> {
        let is_call = has_type(&block, "tool_use");
        let is_text = has_type(&block, "text");
        let Value::Object(mut members) = block else {
            return Err(retryable(UNREADABLE));
        };
        if self.open_blocks.insert(index, self.blocks.len()).is_some() {
            return Err(retryable(UNREADABLE));
        }
        if is_call && self.call_count == MAX_CALLS {
            return Err(too_many_calls());
        }
        let call = is_call.then(|| {
            members.remove("input");
            let name = self.cleaner.text(
                members
                    .get("name")
                    .and_then(Value::as_str)
                    .unwrap_or_default(),
            );
            let call = self.call_count;
            self.call_count += 1;
            emitter.call_name(call, &name);
            (call, self.cleaner.arguments_stream())
        });
        if let (true, Some(text)) = (is_text, members.get("text").and_then(Value::as_str)) {
            emitter.text(&self.text_cleaner.push(text));
        }
        self.blocks.push(PartialBlock {
            members,
            start_input: input,
            input: String::new(),
            call,
        });
        Ok(())
    }

    fn add_delta(
        &mut self,
        index: u64,
        delta: &Map<String, Value>,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<(), AttemptOutcome> {
        let block = self
            .open_blocks
            .get(&index)
            .and_then(|at| self.blocks.get_mut(*at))
            .ok_or_else(|| retryable(UNREADABLE))?;
        let str = |member: &str| delta.get(member).and_then(Value::as_str);
        self.held_bytes = self
            .held_bytes
            .saturating_add(delta.values().map(byte_length).sum());
        match str("type") {
            Some("input_json_delta") => {
                let piece = str("partial_json").unwrap_or_default();
                block.input.push_str(piece);
                if let Some((call, cleaner)) = &mut block.call {
                    emitter.arguments(*call, &cleaner.push(piece));
                }
            }
            Some("citations_delta") => {
                let citation = delta.get("citation").cloned().unwrap_or_default();
                merge(&mut block.members, "citations", &json!([citation]));
            }
            kind => {
                if kind == Some("text_delta") {
                    emitter.text(&self.text_cleaner.push(str("text").unwrap_or_default()));
                }
                for (name, more) in delta.iter().filter(|(name, _)| *name != "type") {
                    merge(&mut block.members, name, more);
                }
            }
        }
        Ok(())
    }

    /// Ends a block. If no delta added input to a call, the call takes its arguments from the event
    /// that began its block.
    fn end_block(&mut self, at: usize, emitter: &mut PieceEmitter<'_>) {
        let Some(block) = self.blocks.get_mut(at) else {
            return;
        };
        if let Some((call, cleaner)) = &mut block.call {
            if block.input.is_empty() {
                block.input = block
                    .start_input
                    .take()
                    .filter(|input| input != "null")
                    .unwrap_or_else(|| "{}".to_owned());
                emitter.arguments(*call, &cleaner.push(&block.input));
            }
            emitter.arguments(*call, &cleaner.finish());
        } else if !block.input.is_empty() {
            // The block is a call of a tool that the provider runs itself. This service does not
            // run the call, but sends the block back with the turn, so the block needs its `input`.
            let input = serde_json::from_str(&replace_escapes(
                &block.input,
                InvalidEscape::LoneSurrogates,
            ));
            block
                .members
                .insert("input".to_owned(), input.unwrap_or_else(|_| json!({})));
        }
    }
}

/// The problem text if an event lacks a member or does not fit the preceding events. The client
/// then repeats the attempt.
const UNREADABLE: &str = "its answer cannot be read";

fn block_index(event: &Map<String, Value>) -> Result<u64, AttemptOutcome> {
    event
        .get("index")
        .and_then(Value::as_u64)
        .ok_or_else(|| retryable(UNREADABLE))
}

/// Returns the exact text of the `input` in a call's start event.
fn first_input(data: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Start<'a> {
        #[serde(borrow)]
        content_block: ExactBlock<'a>,
    }
    let start: Start<'_> = serde_json::from_str(data).ok()?;
    start
        .content_block
        .input
        .map(|input| input.get().to_owned())
}

/// Merges a delta into a member: a text is appended to a text, a list to a list, and any other
/// value replaces the member. This rule also fits delta types that the endpoint may add later.
fn merge(members: &mut Map<String, Value>, name: &str, more: &Value) {
    match (members.get_mut(name), more) {
        (Some(Value::String(text)), Value::String(more)) => text.push_str(more),
        (Some(Value::Array(list)), Value::Array(more)) => list.extend(more.iter().cloned()),
        (Some(known), more) => *known = more.clone(),
        (None, more) => {
            members.insert(name.to_owned(), more.clone());
        }
    }
}

impl StreamReader for MessageStreamReader {
    fn new(cleaner: &Cleaner) -> Self {
        Self {
            cleaner: cleaner.clone(),
            message: ReceivedMessage::default(),
            open_blocks: BTreeMap::new(),
            blocks: Vec::new(),
            call_count: 0,
            text_cleaner: cleaner.text_stream(),
            has_ended: false,
            held_bytes: 0,
        }
    }

    fn read_event(
        &mut self,
        event: &SseEvent,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<StreamState, AttemptOutcome> {
        let data = &event.data;
        let readable = replace_escapes(data, InvalidEscape::LoneSurrogates);
        let Ok(Value::Object(mut event)) = serde_json::from_str::<Value>(&readable) else {
            return Err(retryable("an event of its answer is not JSON"));
        };
        let kind = event.get("type").and_then(Value::as_str);
        let kind = kind.unwrap_or_default().to_owned();
        match kind.as_str() {
            "message_start" => {
                let message = event.get("message");
                self.store_usage(message.and_then(|message| message.get("usage")));
            }
            "content_block_start" => {
                let index = block_index(&event)?;
                let block = event.remove("content_block").unwrap_or_default();
                self.held_bytes = self.held_bytes.saturating_add(data.len());
                let input = has_type(&block, "tool_use")
                    .then(|| first_input(data).or_else(|| first_input(&readable)));
                self.begin_block(index, block, input.flatten(), emitter)?;
            }
            "content_block_delta" => {
                let index = block_index(&event)?;
                let delta = event.get("delta").and_then(Value::as_object);
                let delta = delta.ok_or_else(|| retryable(UNREADABLE))?;
                self.add_delta(index, delta, emitter)?;
            }
            "content_block_stop" => {
                let at = self
                    .open_blocks
                    .remove(&block_index(&event)?)
                    .ok_or_else(|| retryable(UNREADABLE))?;
                self.end_block(at, emitter);
            }
            "message_delta" => {
                self.store_usage(event.get("usage"));
                self.message
                    .set_stop_reason(event.get("delta").unwrap_or(&Value::Null));
            }
            "message_stop" => {
                self.has_ended = true;
                return Ok(StreamState::Ended);
            }
            "error" => {
                let error = event.get("error").unwrap_or(&Value::Null);
                return Err(classify_error(error, &self.cleaner));
            }
            // `ping` events are ignored, and so are event types that Anthropic may add later.
            _ => {}
        }
        Ok(StreamState::Open)
    }

    fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    fn finish(mut self, emitter: &mut PieceEmitter<'_>) -> AttemptOutcome {
        if !self.has_ended {
            return retryable("its answer was cut off");
        }
        for at in std::mem::take(&mut self.open_blocks).into_values() {
            if self
                .blocks
                .get(at)
                .is_some_and(|block| block.call.is_some())
            {
                return retryable("its answer ended within a call");
            }
            self.end_block(at, emitter);
        }
        let received = |block: PartialBlock| ReceivedBlock {
            arguments: block.call.is_some().then_some(block.input),
            members: block.members,
        };
        let mut message = self.message;
        message.blocks = self.blocks.into_iter().map(received).collect();
        if let Some(refusal) = message.refusal() {
            emitter.text(&self.text_cleaner.push(refusal));
        }
        emitter.text(&self.text_cleaner.finish());
        message.answer(&self.cleaner)
    }
}

#[cfg(test)]
mod tests;
