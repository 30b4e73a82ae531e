//! Reads a streamed answer: events that begin a message, fill its blocks one by one, and end it.
//! Invariant: the blocks equal those of the unstreamed answer; without the end event there is no
//! answer; the emitted pieces add up to the answer's texts.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::reply::{Said, Spoken, reported};
use super::turn::is;
use crate::model::clean::{Cleaner, Mend, Passing, mended};
use crate::model::protocol::{Attempt, CALLS, Progress, Reading, Telling, again, too_many_calls};
use crate::net::sse::Event;

/// A message in progress.
pub(in crate::model) struct Stream {
    cleaner: Cleaner,
    said: Said,
    /// The blocks that have not ended: the endpoint's index, and the position in `blocks`.
    open: BTreeMap<u64, usize>,
    /// In the order in which the blocks began.
    blocks: Vec<Begun>,
    /// How many of `blocks` are calls.
    calls: usize,
    text: Passing,
    ended: bool,
    held: usize,
}

struct Begun {
    members: Map<String, Value>,
    /// The input in the start event, if present.
    whole: Option<String>,
    /// The input from the deltas.
    input: String,
    /// For a call: its index among the calls, and the redaction of the pieces of its arguments.
    call: Option<(usize, Passing)>,
}

impl Stream {
    pub(super) fn new(cleaner: &Cleaner) -> Self {
        let (text, cleaner) = (cleaner.passing_text(), cleaner.clone());
        let (said, open, blocks) = (Said::default(), BTreeMap::new(), Vec::new());
        Self {
            cleaner,
            said,
            open,
            blocks,
            calls: 0,
            text,
            ended: false,
            held: 0,
        }
    }

    fn take(&mut self, data: &str, telling: &mut Telling<'_>) -> Result<Progress, Attempt> {
        let readable = mended(data, Mend::LoneSurrogates);
        let Ok(Value::Object(mut event)) = serde_json::from_str::<Value>(&readable) else {
            return Err(again("an event of its answer is not JSON"));
        };
        let kind = event
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        match kind.as_str() {
            "message_start" => self.count(
                event
                    .get("message")
                    .and_then(|message| message.get("usage")),
            ),
            "content_block_start" => {
                let place = place(&event)?;
                let block = event.remove("content_block").unwrap_or_default();
                self.held = self.held.saturating_add(data.len());
                let input = is(&block, "tool_use")
                    .then(|| first_input(data).or_else(|| first_input(&readable)));
                self.begin(place, block, input.flatten(), telling)?;
            }
            "content_block_delta" => {
                let delta = event.get("delta").and_then(Value::as_object);
                self.add(
                    place(&event)?,
                    delta.ok_or_else(|| again(UNREADABLE))?,
                    telling,
                )?;
            }
            "content_block_stop" => {
                let at = self
                    .open
                    .remove(&place(&event)?)
                    .ok_or_else(|| again(UNREADABLE))?;
                self.close(at, telling);
            }
            "message_delta" => {
                self.count(event.get("usage"));
                self.said.ends(event.get("delta").unwrap_or(&Value::Null));
            }
            "message_stop" => {
                self.ended = true;
                return Ok(Progress::Ended);
            }
            "error" => {
                return Err(reported(
                    event.get("error").unwrap_or(&Value::Null),
                    &self.cleaner,
                ));
            }
            // `ping`, and event types added later.
            _ => {}
        }
        Ok(Progress::GoesOn)
    }

    /// Stores token counts. Each count is a total so far, so a later value replaces an earlier one.
    fn count(&mut self, usage: Option<&Value>) {
        for (name, count) in usage.and_then(Value::as_object).into_iter().flatten() {
            if !count.is_null() {
                self.said.usage.insert(name.clone(), count.clone());
            }
        }
    }

    fn begin(
        &mut self,
        place: u64,
        block: Value,
        input: Option<String>,
        telling: &mut Telling<'_>,
    ) -> Result<(), Attempt> {
        let is_call = is(&block, "tool_use");
        let is_text = is(&block, "text");
        let Value::Object(mut members) = block else {
            return Err(again(UNREADABLE));
        };
        if self.open.insert(place, self.blocks.len()).is_some() {
            return Err(again(UNREADABLE));
        }
        if is_call && self.calls == CALLS {
            return Err(Attempt::Failed(too_many_calls()));
        }
        let call = is_call.then(|| {
            members.remove("input");
            let name = self.cleaner.text(
                members
                    .get("name")
                    .and_then(Value::as_str)
                    .unwrap_or_default(),
            );
            let call = self.calls;
            self.calls += 1;
            telling.named(call, &name);
            (call, self.cleaner.passing_arguments())
        });
        if let (true, Some(text)) = (is_text, members.get("text").and_then(Value::as_str)) {
            telling.text(&self.text.push(text));
        }
        self.blocks.push(Begun {
            members,
            whole: input,
            input: String::new(),
            call,
        });
        Ok(())
    }

    fn add(
        &mut self,
        place: u64,
        delta: &Map<String, Value>,
        telling: &mut Telling<'_>,
    ) -> Result<(), Attempt> {
        let block = self
            .open
            .get(&place)
            .and_then(|at| self.blocks.get_mut(*at))
            .ok_or_else(|| again(UNREADABLE))?;
        let str = |member: &str| delta.get(member).and_then(Value::as_str);
        let size = |more: &Value| {
            more.as_str()
                .map_or_else(|| more.to_string().len(), str::len)
        };
        self.held = self.held.saturating_add(delta.values().map(size).sum());
        match str("type") {
            Some("input_json_delta") => {
                let piece = str("partial_json").unwrap_or_default();
                block.input.push_str(piece);
                if let Some((call, passing)) = &mut block.call {
                    telling.arguments(*call, &passing.push(piece));
                }
            }
            Some("citations_delta") => {
                let citation = delta.get("citation").cloned().unwrap_or_default();
                merge(&mut block.members, "citations", &json!([citation]));
            }
            kind => {
                if kind == Some("text_delta") {
                    telling.text(&self.text.push(str("text").unwrap_or_default()));
                }
                for (name, more) in delta.iter().filter(|(name, _)| *name != "type") {
                    merge(&mut block.members, name, more);
                }
            }
        }
        Ok(())
    }

    /// Ends a block. A call without input deltas takes its arguments from the start event.
    fn close(&mut self, at: usize, telling: &mut Telling<'_>) {
        let Some(block) = self.blocks.get_mut(at) else {
            return;
        };
        if let Some((call, passing)) = &mut block.call {
            if block.input.is_empty() {
                block.input = block
                    .whole
                    .take()
                    .filter(|input| input != "null")
                    .unwrap_or_else(|| "{}".to_owned());
                telling.arguments(*call, &passing.push(&block.input));
            }
            telling.arguments(*call, &passing.finish());
        } else if !block.input.is_empty() {
            // The input of a tool that the provider runs itself.
            let input = serde_json::from_str(&mended(&block.input, Mend::LoneSurrogates));
            block
                .members
                .insert("input".to_owned(), input.unwrap_or_else(|_| json!({})));
        }
    }
}

/// The error for an event that does not fit the preceding ones.
const UNREADABLE: &str = "its answer cannot be read";

fn place(event: &Map<String, Value>) -> Result<u64, Attempt> {
    event
        .get("index")
        .and_then(Value::as_u64)
        .ok_or_else(|| again(UNREADABLE))
}

/// Returns the exact text of the `input` in a call's start event.
fn first_input(data: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Start<'a> {
        #[serde(borrow)]
        content_block: Block<'a>,
    }
    #[derive(serde::Deserialize)]
    struct Block<'a> {
        #[serde(borrow)]
        input: Option<&'a RawValue>,
    }
    let start: Start<'_> = serde_json::from_str(data).ok()?;
    start
        .content_block
        .input
        .map(|input| input.get().to_owned())
}

/// Merges a delta into a member: texts and lists are appended, and any other value replaces the
/// member. The rule also fits delta types that the endpoint may add later.
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

impl Reading for Stream {
    fn event(&mut self, event: &Event, telling: &mut Telling<'_>) -> Result<Progress, Attempt> {
        self.take(&event.data, telling)
    }

    fn held(&self) -> usize {
        self.held
    }

    fn finish(mut self, telling: &mut Telling<'_>) -> Attempt {
        if !self.ended {
            return again("its answer was cut off");
        }
        for at in std::mem::take(&mut self.open).into_values() {
            if self
                .blocks
                .get(at)
                .is_some_and(|block| block.call.is_some())
            {
                return again("its answer ended within a call");
            }
            self.close(at, telling);
        }
        let mut said = self.said;
        said.blocks = self.blocks.into_iter().map(Begun::whole).collect();
        if let Some(refusal) = said.refusal() {
            telling.text(&self.text.push(refusal));
        }
        telling.text(&self.text.finish());
        said.answer(&self.cleaner)
    }
}

impl Begun {
    fn whole(self) -> Spoken {
        Spoken {
            arguments: self.call.is_some().then_some(self.input),
            members: self.members,
        }
    }
}

#[cfg(test)]
mod tests;
