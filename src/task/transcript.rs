//! Builds the conversation that the model sees from a task's journal. In this conversation, every
//! call of a turn has exactly one result before the model's next turn. The results are in the order
//! in which the model proposed the calls.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::decision::Action;
use super::id::CallId;
use super::item::{Fact, Item, Outcome, Part, ToolCall, ToolResult, Turn};
use super::request_kind::ResponseKind;
use super::text::cut;

/// One message of the conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A message of the user.
    User {
        /// Data about the user, shown before the message.
        context: Option<BTreeMap<String, String>>,
        /// Texts and images of the message, in the user's order.
        parts: Vec<Part>,
    },
    /// A turn of the model.
    Assistant {
        /// The provider's own JSON, see [`Turn::raw`].
        raw: Value,
        /// Text of the turn, as this service parsed it.
        text: Option<String>,
        /// Calls of the turn, each as provider's id, tool name and arguments.
        calls: Vec<(String, String, String)>,
    },
    /// The result of one call. The results follow directly after the turn that proposed the calls.
    Result {
        /// Id by which the provider knows the call.
        provider_id: String,
        /// Name of the called tool.
        name: String,
        /// Text of the result, cut at 64 KiB. A cut text ends with a note.
        content: String,
        /// Whether the call succeeded, or a person supplied its result.
        succeeded: bool,
    },
}

/// Maximum size of a result that the model sees, in bytes. The note of a cut result counts, too.
const MAX_SHOWN_BYTES: usize = 64 * 1024;

/// Returns the conversation of a journal. A call without a result gets the text "There is no
/// result." This text is a placeholder that no model sees: `next_step` calls the model only after
/// every call has a result.
#[must_use]
pub fn conversation(items: &[Item]) -> Vec<Message> {
    let (results, edits) = (results(items), executed_edits(items));
    let mut messages = Vec::new();
    for item in items {
        if let Fact::UserMessage {
            items,
            user_context,
            ..
        } = &item.fact
        {
            messages.push(Message::User {
                context: user_context.clone(),
                parts: items.clone(),
            });
        }
        if let Fact::AssistantMessage(turn) = &item.fact {
            let (ids, edits) = (provider_ids(turn), &edits);
            messages.push(assistant(turn, &ids));
            messages.extend(turn.tool_calls.iter().zip(ids).map(|(call, provider_id)| {
                let result = results.get(&call.tool_call_id);
                Message::Result {
                    provider_id,
                    name: call.name.clone(),
                    content: result.map_or_else(
                        || "There is no result.".to_owned(),
                        |result| result_text(result, edits.get(&call.tool_call_id).copied()),
                    ),
                    succeeded: result.is_some_and(|result| {
                        matches!(result.outcome, Outcome::Succeeded | Outcome::Responded)
                    }),
                }
            }));
        }
    }
    messages
}

/// Returns the result of each call, as the model sees it. A late result of a call replaces the
/// call's `unknown` result, even if the late result comes first in the journal. It comes first, for
/// example, if an earlier attempt answers during a later attempt, and a cancellation of the task
/// then ends the call as `unknown`.
fn results(items: &[Item]) -> BTreeMap<CallId, &ToolResult> {
    let mut results: BTreeMap<CallId, &ToolResult> = BTreeMap::new();
    let mut late = Vec::new();
    for item in items {
        if let Fact::ToolResult(result) = &item.fact {
            results.insert(result.tool_call_id, result);
        }
        if let Fact::LateResult(result) = &item.fact {
            late.push(result);
        }
    }
    for late in late {
        if results
            .get(&late.tool_call_id)
            .is_some_and(|known| known.outcome == Outcome::Unknown)
        {
            results.insert(late.tool_call_id, late);
        }
    }
    results
}

/// Returns, for each call that ran with a person's edit, the edited arguments. A call ran with an
/// edit if the journal has a start of the call after the edit. If the API's client supplied the
/// result ([`ResponseKind::FormResult`]), the journal has no start: such a call ran with an edit if
/// the client supplied the result after the edit.
fn executed_edits(items: &[Item]) -> BTreeMap<CallId, &str> {
    let (mut changed, mut ran, mut external) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    for item in items {
        if let Fact::InterventionRequested(asked) = &item.fact
            && asked.kind.properties().response == ResponseKind::FormResult
        {
            external.extend(asked.own_calls().map(|call| call.tool_call_id));
        }
        if let Fact::Decision { decision, .. } = &item.fact {
            let responded = decision.decisions.iter().filter(|(call, answer)| {
                answer.action == Action::Respond && external.contains(call)
            });
            ran.extend(responded.filter_map(|(call, _)| Some((*call, *changed.get(call)?))));
            let edits = decision
                .decisions
                .iter()
                .filter_map(|(call, answer)| Some((*call, answer.edit.as_ref()?)));
            changed.extend(edits.map(|(call, edit)| (call, edit.arguments_text.as_str())));
        }
        if let Fact::ToolStarted { tool_call_id, .. } | Fact::SubAgentStarted { tool_call_id, .. } =
            &item.fact
            && let Some(text) = changed.get(tool_call_id)
        {
            ran.insert(*tool_call_id, *text);
        }
    }
    ran
}

/// Returns the text of a result for the model. If the call ran with a person's edit, the text
/// begins with the edited arguments, `ran_with`.
fn result_text(result: &ToolResult, ran_with: Option<&str>) -> String {
    let content = truncated(&result.content);
    match ran_with {
        Some(text) => {
            format!("[A human changed the arguments of this call. It ran with: {text}]\n{content}")
        }
        None => content,
    }
}

/// Returns the text of a journal's last result, as a model would see it; `None` if the journal has
/// no results.
#[must_use]
pub fn last_result(items: &[Item]) -> Option<String> {
    let result = items.iter().rev().find_map(|item| {
        let Fact::ToolResult(result) = &item.fact else {
            return None;
        };
        Some(result)
    })?;
    Some(result_text(
        result,
        executed_edits(items).get(&result.tool_call_id).copied(),
    ))
}

/// Returns the ids by which the provider knows a turn's calls. The ids of this service replace
/// empty and repeated ids of the provider.
fn provider_ids(turn: &Turn) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let id = |call: &ToolCall| {
        let usable = !call.provider_id.is_empty() && seen.insert(call.provider_id.clone());
        if usable {
            call.provider_id.clone()
        } else {
            call.tool_call_id.to_string()
        }
    };
    turn.tool_calls.iter().map(id).collect()
}

fn assistant(turn: &Turn, ids: &[String]) -> Message {
    Message::Assistant {
        raw: turn.raw.clone(),
        text: turn.text.clone(),
        calls: turn
            .tool_calls
            .iter()
            .zip(ids)
            .map(|(call, id)| (id.clone(), call.name.clone(), call.arguments_text.clone()))
            .collect(),
    }
}

fn truncated(content: &str) -> String {
    if content.len() <= MAX_SHOWN_BYTES {
        return content.to_owned();
    }
    let note = format!("\n[cut here: the result has {} bytes]", content.len());
    let kept = cut(content, MAX_SHOWN_BYTES.saturating_sub(note.len()));
    format!("{kept}{note}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_result_and_its_note_have_at_most_64_kib() {
        let whole = "é".repeat(MAX_SHOWN_BYTES / 2);
        assert_eq!(truncated(&whole), whole);
        let shown = truncated(&format!("{whole}é"));
        let note = "\n[cut here: the result has 65538 bytes]";
        assert!(shown.ends_with(note), "{shown}");
        assert!((MAX_SHOWN_BYTES - 1..=MAX_SHOWN_BYTES).contains(&shown.len()));
    }
}
