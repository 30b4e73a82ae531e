//! What the model is shown: the journal as a conversation. Every call of a turn has exactly one result, in the model's
//! order, before the next question.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::decision::Action;
use super::id::CallId;
use super::item::{Fact, Item, Outcome, Part, ToolCall, ToolResult, Turn};
use super::request::RequestKind;
use super::text::cut;

/// One message of the conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// The user.
    User {
        /// Data about him, shown before the message.
        context: Option<BTreeMap<String, String>>,
        /// What he said.
        parts: Vec<Part>,
    },
    /// The model.
    Assistant {
        /// The provider's own JSON, to be sent back unchanged but for the ids of calls that had to be replaced.
        raw: Value,
        /// The same, as we read it.
        text: Option<String>,
        /// Its calls: (the id the provider knows it by, name, arguments).
        calls: Vec<(String, String, String)>,
    },
    /// The result of one call, right after the turn that asked for it.
    Result {
        /// The id the provider knows the call by.
        provider_id: String,
        /// The tool.
        name: String,
        /// What came out, at most 64 KiB.
        content: String,
        /// Whether the tool did what was asked.
        succeeded: bool,
    },
}

/// How much of a result the model is shown.
const SHOWN: usize = 64 * 1024;

/// The conversation of a journal. A call that has no result yet (which `next_step` never lets a model see) says so.
#[must_use]
pub fn conversation(items: &[Item]) -> Vec<Message> {
    let (results, edits) = (results(items), edits(items));
    let mut messages = Vec::new();
    for item in items {
        if let Fact::UserMessage { items, user_context, .. } = &item.fact {
            messages.push(Message::User { context: user_context.clone(), parts: items.clone() });
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
                        |result| told(result, edits.get(&call.tool_call_id).copied()),
                    ),
                    succeeded: result
                        .is_some_and(|result| matches!(result.outcome, Outcome::Succeeded | Outcome::Responded)),
                }
            }));
        }
    }
    messages
}

/// What the model is told of each call. A late result takes the place of "unknown", whichever was written first: a call
/// may get its `unknown` when the task is canceled long after an earlier attempt answered.
fn results(items: &[Item]) -> BTreeMap<CallId, &ToolResult> {
    let mut results: BTreeMap<CallId, &ToolResult> = BTreeMap::new();
    let mut late = Vec::new();
    for item in items {
        match &item.fact {
            Fact::ToolResult(result) => {
                results.insert(result.tool_call_id, result);
            }
            Fact::LateResult(result) => late.push(result),
            Fact::TaskStatus { .. }
            | Fact::UserMessage { .. }
            | Fact::AssistantMessage(_)
            | Fact::Judged { .. }
            | Fact::InterventionRequested(_)
            | Fact::Decision { .. }
            | Fact::RequestClosed { .. }
            | Fact::ToolStarted { .. }
            | Fact::SubAgentStarted { .. } => {}
        }
    }
    for late in late {
        if results.get(&late.tool_call_id).is_some_and(|known| known.outcome == Outcome::Unknown) {
            results.insert(late.tool_call_id, late);
        }
    }
    results
}

/// The bytes that calls ran with, where a human had changed them and they were started after that, or whoever runs them
/// outside was asked for their result with them and gave it.
fn edits(items: &[Item]) -> BTreeMap<CallId, &str> {
    let (mut changed, mut ran, mut outside) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    for item in items {
        if let Fact::InterventionRequested(asked) = &item.fact
            && asked.kind == RequestKind::ExternalResult
        {
            outside.extend(asked.own_calls().map(|call| call.tool_call_id));
        }
        if let Fact::Decision { decision, .. } = &item.fact {
            let given = decision
                .decisions
                .iter()
                .filter(|(call, answer)| answer.action == Action::Respond && outside.contains(call));
            ran.extend(given.filter_map(|(call, _)| Some((*call, *changed.get(call)?))));
            let edits = decision.decisions.iter().filter_map(|(call, answer)| Some((*call, answer.edit.as_ref()?)));
            changed.extend(edits.map(|(call, edit)| (call, edit.arguments_text.as_str())));
        }
        if let Fact::ToolStarted { tool_call_id, .. } | Fact::SubAgentStarted { tool_call_id, .. } = &item.fact
            && let Some(text) = changed.get(tool_call_id)
        {
            ran.insert(*tool_call_id, *text);
        }
    }
    ran
}

/// A result as the model is told of it: also with which arguments the call ran, where they are not its own.
fn told(result: &ToolResult, ran_with: Option<&str>) -> String {
    let content = shown(&result.content);
    match ran_with {
        Some(text) => {
            format!("[A human changed the arguments of this call. It ran with: {text}]\n{content}")
        }
        None => content,
    }
}

/// The ids the provider knows a turn's calls by. Ours are unique and stand in where one is empty or repeated, also in a
/// journal that somebody else wrote.
fn provider_ids(turn: &Turn) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let id = |call: &ToolCall| {
        let usable = !call.provider_id.is_empty() && seen.insert(call.provider_id.clone());
        if usable { call.provider_id.clone() } else { call.tool_call_id.to_string() }
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

fn shown(content: &str) -> String {
    if content.len() <= SHOWN {
        return content.to_owned();
    }
    format!("{}\n[cut: the result has {} bytes, {SHOWN} are shown]", cut(content, SHOWN), content.len())
}
