//! Reads a streamed answer: events that begin, extend and end items, and a last event that ends the
//! response. Invariant: each item of the answer is taken from the event that ends the item, or from
//! the last event if the item has no such event. An item is never taken from its deltas. A stream
//! without the last event gives no answer. The emitted pieces add up to the answer's texts.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::item::ResponseItem;
use super::reply::{self, ReceivedResponse, ResponseEnd, unreadable};
use crate::model::clean::{Cleaner, StreamCleaner};
use crate::model::problem::{classify_error, is_non_empty};
use crate::model::protocol::{
    AttemptOutcome, MAX_CALLS, PieceEmitter, StreamReader, StreamState, retryable, too_many_calls,
};
use crate::net::sse::SseEvent;
use crate::task::text::{InvalidEscape, replace_escapes};

pub(in crate::model) struct ResponseStreamReader {
    cleaner: Cleaner,
    /// The items by the endpoint's `output_index`; the value is `None` until the item has ended.
    items: BTreeMap<u64, Option<ResponseItem>>,
    /// The calls in the order in which they began, each with its item's `output_index`.
    calls: Vec<(u64, EmittedCall)>,
    /// The text so far, unredacted. `text_cleaner` redacts each piece of it before the piece is
    /// emitted.
    text: String,
    text_cleaner: StreamCleaner,
    end: Option<(ResponseEnd, Option<Value>)>,
    held_bytes: usize,
}

struct EmittedCall {
    /// The name as received; empty until the name is emitted. The emitted name is redacted.
    name: String,
    /// The arguments so far, unredacted.
    arguments: String,
    arguments_cleaner: StreamCleaner,
}

impl EmittedCall {
    fn new(cleaner: &Cleaner) -> Self {
        Self {
            name: String::new(),
            arguments: String::new(),
            arguments_cleaner: cleaner.arguments_stream(),
        }
    }

    /// Emits the name of the call at this index, once the name is known.
    fn emit_name(
        &mut self,
        at: usize,
        name: &str,
        cleaner: &Cleaner,
        emitter: &mut PieceEmitter<'_>,
    ) {
        if self.name.is_empty() && !name.is_empty() {
            name.clone_into(&mut self.name);
            emitter.call_name(at, &cleaner.text(name));
        }
    }

    fn emit_arguments(&mut self, at: usize, more: &str, emitter: &mut PieceEmitter<'_>) {
        self.arguments.push_str(more);
        emitter.arguments(at, &self.arguments_cleaner.push(more));
    }
}

/// The exact text of the objects `item` and `response` in an event.
#[derive(Deserialize)]
struct ExactTexts<'a> {
    #[serde(borrow)]
    item: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
}

impl ResponseStreamReader {
    fn take_event(
        &mut self,
        data: &str,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<StreamState, AttemptOutcome> {
        let Ok(Value::Object(event)) = serde_json::from_str::<Value>(data) else {
            return Err(retryable("an event of its answer is not JSON"));
        };
        let str = |name: &str| event.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = str("type");
        match kind {
            "response.output_item.added" => self.begin_item(&event, data, emitter)?,
            "response.output_item.done" => self.end_item(&event, data, emitter)?,
            "response.output_text.delta" | "response.refusal.delta" => {
                self.count_held(str("delta"));
                self.add_text(str("delta"), emitter);
            }
            "response.function_call_arguments.delta" => {
                let index = output_index(&event)?;
                self.count_held(str("delta"));
                if let Some((at, call)) = find_call(&mut self.calls, index)
                    && !call.name.is_empty()
                {
                    call.emit_arguments(at, str("delta"), emitter);
                }
            }
            "response.completed" | "response.incomplete" | "response.failed" => {
                self.end_response(kind, event.get("response"), data)?;
                return Ok(StreamState::Ended);
            }
            _ => {
                let error = event.get("error").filter(|error| is_non_empty(error));
                if kind == "error" || (kind.is_empty() && error.is_some()) {
                    let event = Value::Object(event.clone());
                    return Err(classify_error(error.unwrap_or(&event), &self.cleaner));
                }
                // All other events are ignored, including events whose types may be added later.
            }
        }
        Ok(StreamState::Open)
    }

    fn count_held(&mut self, text: &str) {
        self.held_bytes = self.held_bytes.saturating_add(text.len());
    }

    fn add_text(&mut self, more: &str, emitter: &mut PieceEmitter<'_>) {
        self.text.push_str(more);
        emitter.text(&self.text_cleaner.push(more));
    }

    fn begin_item(
        &mut self,
        event: &Map<String, Value>,
        data: &str,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<(), AttemptOutcome> {
        let (index, item) = read_item(event, data)?;
        if self.items.insert(index, None).is_some() {
            return Err(unreadable());
        }
        self.count_held(data);
        self.register_call(index, &item, emitter)
    }

    /// Takes an item that has ended. The event that begins the item may be missing: some endpoints
    /// send only ended items.
    fn end_item(
        &mut self,
        event: &Map<String, Value>,
        data: &str,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<(), AttemptOutcome> {
        let (index, item) = read_item(event, data)?;
        self.count_held(data);
        self.register_call(index, &item, emitter)?;
        if let (Some((at, call)), Some(arguments)) =
            (find_call(&mut self.calls, index), item.arguments())
            && let Some(rest) = arguments.strip_prefix(call.arguments.as_str())
            && !call.name.is_empty()
        {
            call.emit_arguments(at, rest, emitter);
        }
        match self.items.insert(index, Some(item)) {
            None | Some(None) => Ok(()),
            Some(Some(_)) => Err(unreadable()),
        }
    }

    /// If `item` is a call, adds it to `calls` if it is not there yet, and emits its name once the
    /// name is known. Ignores any other item.
    fn register_call(
        &mut self,
        index: u64,
        item: &ResponseItem,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<(), AttemptOutcome> {
        if !item.is_call() {
            return Ok(());
        }
        if find_call(&mut self.calls, index).is_none() {
            if self.calls.len() == MAX_CALLS {
                return Err(too_many_calls());
            }
            self.calls.push((index, EmittedCall::new(&self.cleaner)));
        }
        if let Some((at, call)) = find_call(&mut self.calls, index) {
            call.emit_name(at, item.str("name"), &self.cleaner, emitter);
        }
        Ok(())
    }

    /// Ends the response. If an item has no end event, the item is taken from the response's
    /// `output`.
    fn end_response(
        &mut self,
        kind: &str,
        response: Option<&Value>,
        data: &str,
    ) -> Result<(), AttemptOutcome> {
        let response = response.and_then(Value::as_object).ok_or_else(unreadable)?;
        // Some endpoints send the event `response.completed` for a response that did not complete.
        let status = match response.get("status").and_then(Value::as_str) {
            Some(cut @ ("incomplete" | "failed" | "cancelled")) => cut,
            Some(_) | None => kind.strip_prefix("response.").unwrap_or(kind),
        };
        let end = ResponseEnd::read(status, response, &self.cleaner)?;
        let text = exact(data, |exact| exact.response).unwrap_or_default();
        self.take_output(reply::exact_output(text).unwrap_or_default())?;
        self.end = Some((end, response.get("usage").cloned()));
        Ok(())
    }

    /// Takes the items of a response's `output` that no event has ended. By the protocol, an item
    /// has the same index in its events and in `output`, but some endpoints number the items of a
    /// stream differently. So if `output` has all items, its order counts, and each ended item is
    /// taken from the event that ended it. Otherwise, `output` only fills the indexes at which no
    /// item has ended.
    ///
    /// # Errors
    /// Fails if an item of `output` cannot be read, or if a call of `output` has no place, because
    /// another item has ended at its index.
    fn take_output(&mut self, output: Vec<&str>) -> Result<(), AttemptOutcome> {
        let output: Option<Vec<_>> = output.into_iter().map(ResponseItem::read).collect();
        let output = output.ok_or_else(unreadable)?;
        let found = find_ended(&self.items, &output);
        let found_count = found.iter().flatten().count();
        let ended_count = self.items.values().flatten().count();
        let begun_count = self.items.len() - ended_count;
        let output = output.into_iter().zip(found);
        if found_count == ended_count && found_count + begun_count <= output.len() {
            let mut items = std::mem::take(&mut self.items);
            let all = output.map(|(item, index)| {
                let ended = index.and_then(|index| items.remove(&index).flatten());
                Some(ended.unwrap_or(item))
            });
            self.items = (0..).zip(all).collect();
            return Ok(());
        }
        for (index, (item, _)) in (0..).zip(output).filter(|(_, (_, found))| found.is_none()) {
            match self.items.get(&index) {
                Some(Some(_)) if item.is_call() => return Err(unreadable()),
                Some(Some(_)) => {}
                Some(None) | None => {
                    self.items.insert(index, Some(item));
                }
            }
        }
        Ok(())
    }

    /// Emits the rest of the answer's texts. If the texts do not begin with the emitted pieces,
    /// voids the pieces and emits the whole texts.
    fn emit_rest(&mut self, response: &ReceivedResponse, emitter: &mut PieceEmitter<'_>) {
        let text = response.text();
        let call_items: Vec<_> = response
            .items
            .iter()
            .filter(|item| item.is_call())
            .collect();
        let is_beginning = self.calls.len() <= call_items.len()
            && text.starts_with(&self.text)
            && self.calls.iter().zip(&call_items).all(|((_, call), item)| {
                let arguments = item.arguments().unwrap_or_default();
                (call.name.is_empty() || call.name == item.str("name"))
                    && arguments.starts_with(&call.arguments)
            });
        if !is_beginning {
            emitter.reset();
            self.text.clear();
            self.text_cleaner = self.cleaner.text_stream();
            self.calls.clear();
        }
        let rest = text.get(self.text.len()..).unwrap_or_default();
        emitter.text(&self.text_cleaner.push(rest));
        emitter.text(&self.text_cleaner.finish());
        self.calls
            .resize_with(call_items.len(), || (0, EmittedCall::new(&self.cleaner)));
        for (at, ((_, call), item)) in self.calls.iter_mut().zip(call_items).enumerate() {
            if call.name.is_empty() {
                emitter.call_name(at, &self.cleaner.text(item.str("name")));
            }
            let arguments = item.arguments().unwrap_or_default();
            let rest = arguments.get(call.arguments.len()..).unwrap_or_default();
            call.emit_arguments(at, rest, emitter);
            emitter.arguments(at, &call.arguments_cleaner.finish());
        }
    }
}

/// Matches the items of a response's `output` with the ended items in `items`. Returns, for each
/// item of `output`, the index of its ended item; `None` if it has no match. No ended item is
/// matched twice. Four keys are tried, each on the items that have no match yet:
///
/// 1. The `call_id` and the content of a call.
/// 2. The type and the id.
/// 3. The type and the content, because some endpoints write a new id in each event.
/// 4. The `call_id` of a call.
fn find_ended(
    items: &BTreeMap<u64, Option<ResponseItem>>,
    output: &[ResponseItem],
) -> Vec<Option<u64>> {
    // The keys in the order in which they are tried.
    let keys: [fn(&ResponseItem) -> Option<String>; 4] = [
        |item| Some(item.call_id_key()? + &item.content_key()),
        ResponseItem::id_key,
        |item| Some(item.content_key()),
        ResponseItem::call_id_key,
    ];
    let mut found = vec![None; output.len()];
    for key in keys {
        let known: BTreeSet<u64> = found.iter().flatten().copied().collect();
        let mut ended: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (index, item) in items.iter().rev() {
            let item = item.as_ref().filter(|_| !known.contains(index));
            if let Some(key) = item.and_then(key) {
                ended.entry(key).or_default().push(*index);
            }
        }
        for (index, item) in found.iter_mut().zip(output) {
            if index.is_none() {
                *index = key(item).and_then(|key| ended.get_mut(&key)?.pop());
            }
        }
    }
    found
}

fn find_call(calls: &mut [(u64, EmittedCall)], index: u64) -> Option<(usize, &mut EmittedCall)> {
    let all = calls.iter_mut().enumerate();
    all.rev()
        .find(|(_, (place, _))| *place == index)
        .map(|(at, (_, call))| (at, call))
}

/// Returns the `output_index` and the item of an event.
fn read_item(
    event: &Map<String, Value>,
    data: &str,
) -> Result<(u64, ResponseItem), AttemptOutcome> {
    let item = exact(data, |exact| exact.item).and_then(ResponseItem::read);
    Ok((output_index(event)?, item.ok_or_else(unreadable)?))
}

fn output_index(event: &Map<String, Value>) -> Result<u64, AttemptOutcome> {
    event
        .get("output_index")
        .and_then(Value::as_u64)
        .ok_or_else(unreadable)
}

/// Returns the exact text of one object in an event. `select` selects the object.
fn exact<'a>(
    data: &'a str,
    select: impl Fn(ExactTexts<'a>) -> Option<&'a RawValue>,
) -> Option<&'a str> {
    select(serde_json::from_str(data).ok()?).map(RawValue::get)
}

impl StreamReader for ResponseStreamReader {
    fn new(cleaner: &Cleaner) -> Self {
        Self {
            cleaner: cleaner.clone(),
            items: BTreeMap::new(),
            calls: Vec::new(),
            text: String::new(),
            text_cleaner: cleaner.text_stream(),
            end: None,
            held_bytes: 0,
        }
    }

    fn read_event(
        &mut self,
        event: &SseEvent,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<StreamState, AttemptOutcome> {
        let data = event.data.trim();
        // Some endpoints also send the end marker of Chat Completions.
        if data.is_empty() || data == "[DONE]" {
            return Ok(StreamState::Open);
        }
        self.take_event(
            &replace_escapes(data, InvalidEscape::LoneSurrogates),
            emitter,
        )
    }

    fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    fn finish(mut self, emitter: &mut PieceEmitter<'_>) -> AttemptOutcome {
        let Some((end, usage)) = self.end.take() else {
            return retryable("its answer was cut off");
        };
        let items = std::mem::take(&mut self.items).into_values();
        let Some(items) = items.collect() else {
            return retryable("its answer ended within an item");
        };
        let response = ReceivedResponse { items, end, usage };
        if response.items.iter().filter(|item| item.is_call()).count() < self.calls.len() {
            // A call has begun and is not in the answer.
            return unreadable();
        }
        self.emit_rest(&response, emitter);
        response.answer(&self.cleaner)
    }
}

#[cfg(test)]
mod tests;
