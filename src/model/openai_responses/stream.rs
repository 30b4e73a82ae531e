//! Reads a streamed answer: events that begin items, extend them and end them, and a last event
//! that ends the response. Invariant: the answer has the items as their end events contain them,
//! whatever the deltas said; without the end event of the response there is no answer; the emitted
//! pieces add up to the answer's texts.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::item::Item;
use super::reply::{self, End, Said, reported, unreadable};
use crate::model::clean::{Cleaner, Mend, Passing, mended};
use crate::model::problem::is_said;
use crate::model::protocol::{Attempt, CALLS, Progress, Reading, Telling, again, too_many_calls};
use crate::net::sse::Event;

/// A response in progress.
pub(in crate::model) struct Stream {
    cleaner: Cleaner,
    /// By the endpoint's `output_index`; `None` until the item has ended.
    items: BTreeMap<u64, Option<Item>>,
    /// The calls in the order in which they began, each with its item's `output_index`.
    calls: Vec<(u64, Call)>,
    /// The emitted text before redaction. `passing` redacts it.
    text: String,
    passing: Passing,
    end: Option<(End, Option<Value>)>,
    held: usize,
}

/// How much of a call has been emitted.
struct Call {
    /// Empty until the name is emitted.
    name: String,
    /// The emitted arguments, before redaction.
    arguments: String,
    passing: Passing,
}

impl Call {
    fn new(cleaner: &Cleaner) -> Self {
        Self {
            name: String::new(),
            arguments: String::new(),
            passing: cleaner.passing_arguments(),
        }
    }

    /// Emits the name of the call at this index, once the name is known.
    fn tell_name(&mut self, at: usize, name: &str, cleaner: &Cleaner, telling: &mut Telling<'_>) {
        if self.name.is_empty() && !name.is_empty() {
            name.clone_into(&mut self.name);
            telling.named(at, &cleaner.text(name));
        }
    }

    fn tell_more(&mut self, at: usize, more: &str, telling: &mut Telling<'_>) {
        self.arguments.push_str(more);
        telling.arguments(at, &self.passing.push(more));
    }
}

/// The exact text of the objects in an event.
#[derive(Deserialize)]
struct Exact<'a> {
    #[serde(borrow)]
    item: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
}

impl Stream {
    pub(super) fn new(cleaner: &Cleaner) -> Self {
        Self {
            cleaner: cleaner.clone(),
            items: BTreeMap::new(),
            calls: Vec::new(),
            text: String::new(),
            passing: cleaner.passing_text(),
            end: None,
            held: 0,
        }
    }

    fn take(&mut self, data: &str, telling: &mut Telling<'_>) -> Result<Progress, Attempt> {
        let Ok(Value::Object(event)) = serde_json::from_str::<Value>(data) else {
            return Err(again("an event of its answer is not JSON"));
        };
        let str = |name: &str| event.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = str("type");
        match kind {
            "response.output_item.added" => self.begins(&event, data, telling)?,
            "response.output_item.done" => self.is_done(&event, data, telling)?,
            "response.output_text.delta" | "response.refusal.delta" => {
                self.hold(str("delta"));
                self.say(str("delta"), telling);
            }
            "response.function_call_arguments.delta" => {
                let index = place(&event)?;
                self.hold(str("delta"));
                if let Some((at, call)) = call(&mut self.calls, index)
                    && !call.name.is_empty()
                {
                    call.tell_more(at, str("delta"), telling);
                }
            }
            "response.completed" | "response.incomplete" | "response.failed" => {
                self.ends(kind, event.get("response"), data)?;
                return Ok(Progress::Ended);
            }
            _ => {
                let error = event.get("error").filter(|error| is_said(error));
                if kind == "error" || (kind.is_empty() && error.is_some()) {
                    let event = Value::Object(event.clone());
                    return Err(reported(error.unwrap_or(&event), &self.cleaner));
                }
                // Events of other items, and event types added later.
            }
        }
        Ok(Progress::GoesOn)
    }

    fn hold(&mut self, text: &str) {
        self.held = self.held.saturating_add(text.len());
    }

    fn say(&mut self, more: &str, telling: &mut Telling<'_>) {
        self.text.push_str(more);
        telling.text(&self.passing.push(more));
    }

    fn begins(
        &mut self,
        event: &Map<String, Value>,
        data: &str,
        telling: &mut Telling<'_>,
    ) -> Result<(), Attempt> {
        let index = place(event)?;
        let item = exact(data, |exact| exact.item)
            .and_then(Item::read)
            .ok_or_else(unreadable)?;
        if self.items.insert(index, None).is_some() {
            return Err(unreadable());
        }
        self.hold(data);
        self.named(index, &item, telling)
    }

    /// Takes an item that has ended. Its begin event may be missing: some endpoints send only ended
    /// items.
    fn is_done(
        &mut self,
        event: &Map<String, Value>,
        data: &str,
        telling: &mut Telling<'_>,
    ) -> Result<(), Attempt> {
        let index = place(event)?;
        let item = exact(data, |exact| exact.item)
            .and_then(Item::read)
            .ok_or_else(unreadable)?;
        self.hold(data);
        self.named(index, &item, telling)?;
        if let (Some((at, call)), Some(arguments)) =
            (call(&mut self.calls, index), item.arguments())
            && let Some(rest) = arguments.strip_prefix(call.arguments.as_str())
            && !call.name.is_empty()
        {
            call.tell_more(at, rest, telling);
        }
        match self.items.insert(index, Some(item)) {
            None | Some(None) => Ok(()),
            Some(Some(_)) => Err(unreadable()),
        }
    }

    /// Registers the call of `item` if it is new, and emits its name. Does nothing if `item` is not
    /// a call.
    fn named(&mut self, index: u64, item: &Item, telling: &mut Telling<'_>) -> Result<(), Attempt> {
        if !item.is_call() {
            return Ok(());
        }
        if call(&mut self.calls, index).is_none() {
            if self.calls.len() == CALLS {
                return Err(Attempt::Failed(too_many_calls()));
            }
            self.calls.push((index, Call::new(&self.cleaner)));
        }
        if let Some((at, call)) = call(&mut self.calls, index) {
            call.tell_name(at, item.str("name"), &self.cleaner, telling);
        }
        Ok(())
    }

    /// Ends the response. An item without an end event is taken from the response's `output`.
    fn ends(&mut self, kind: &str, response: Option<&Value>, data: &str) -> Result<(), Attempt> {
        let response = response.and_then(Value::as_object).ok_or_else(unreadable)?;
        // Some endpoints announce a cut response as completed.
        let status = match response.get("status").and_then(Value::as_str) {
            Some(cut @ ("incomplete" | "failed" | "cancelled")) => cut,
            Some(_) | None => kind.strip_prefix("response.").unwrap_or(kind),
        };
        let end = End::read(status, response, &self.cleaner)?;
        let text = exact(data, |exact| exact.response).unwrap_or_default();
        for (index, item) in (0..).zip(reply::output(text).unwrap_or_default()) {
            let slot = self.items.entry(index).or_default();
            if slot.is_none() {
                *slot = Some(Item::read(item).ok_or_else(unreadable)?);
            }
        }
        self.end = Some((end, response.get("usage").cloned()));
        Ok(())
    }

    /// Emits the rest of the answer's texts. If the texts do not begin with the emitted pieces,
    /// voids the pieces and emits the whole texts.
    fn tell_rest(&mut self, said: &Said, telling: &mut Telling<'_>) {
        let text = said.text();
        let called: Vec<_> = said.items.iter().filter(|item| item.is_call()).collect();
        let is_beginning = self.calls.len() <= called.len()
            && text.starts_with(&self.text)
            && self.calls.iter().zip(&called).all(|((_, call), item)| {
                let arguments = item.arguments().unwrap_or_default();
                (call.name.is_empty() || call.name == item.str("name"))
                    && arguments.starts_with(&call.arguments)
            });
        if !is_beginning {
            telling.reset();
            self.text.clear();
            self.passing = self.cleaner.passing_text();
            self.calls.clear();
        }
        let rest = text.get(self.text.len()..).unwrap_or_default();
        telling.text(&self.passing.push(rest));
        telling.text(&self.passing.finish());
        self.calls
            .resize_with(called.len(), || (0, Call::new(&self.cleaner)));
        for (at, ((_, call), item)) in self.calls.iter_mut().zip(called).enumerate() {
            if call.name.is_empty() {
                telling.named(at, &self.cleaner.text(item.str("name")));
            }
            let arguments = item.arguments().unwrap_or_default();
            let rest = arguments.get(call.arguments.len()..).unwrap_or_default();
            call.tell_more(at, rest, telling);
            telling.arguments(at, &call.passing.finish());
        }
    }
}

fn call(calls: &mut [(u64, Call)], index: u64) -> Option<(usize, &mut Call)> {
    let all = calls.iter_mut().enumerate();
    all.rev()
        .find(|(_, (place, _))| *place == index)
        .map(|(at, (_, call))| (at, call))
}

fn place(event: &Map<String, Value>) -> Result<u64, Attempt> {
    event
        .get("output_index")
        .and_then(Value::as_u64)
        .ok_or_else(unreadable)
}

/// Returns the exact text of one object in an event. `of` selects the object.
fn exact<'a>(data: &'a str, of: impl Fn(Exact<'a>) -> Option<&'a RawValue>) -> Option<&'a str> {
    of(serde_json::from_str(data).ok()?).map(RawValue::get)
}

impl Reading for Stream {
    fn event(&mut self, event: &Event, telling: &mut Telling<'_>) -> Result<Progress, Attempt> {
        let data = event.data.trim();
        // Some endpoints send the end marker of Chat Completions, too.
        if data.is_empty() || data == "[DONE]" {
            return Ok(Progress::GoesOn);
        }
        self.take(&mended(data, Mend::LoneSurrogates), telling)
    }

    fn held(&self) -> usize {
        self.held
    }

    fn finish(mut self, telling: &mut Telling<'_>) -> Attempt {
        let Some((end, usage)) = self.end.take() else {
            return again("its answer was cut off");
        };
        let items = std::mem::take(&mut self.items).into_values();
        let Some(items) = items.collect() else {
            return again("its answer ended within an item");
        };
        let said = Said { items, end, usage };
        self.tell_rest(&said, telling);
        said.answer(&self.cleaner)
    }
}

#[cfg(test)]
mod tests;
