//! After the run, compares every prompt that the model received with the stored journals.

use std::collections::HashSet;

use holdpoint::task::transcript::{Message, conversation};
use serde_json::{Value, json};

use super::checker::TaskRecord;

/// Returns the conversations of these tasks as text, one for each prefix of each journal.
pub fn stored(tasks: &[TaskRecord]) -> HashSet<String> {
    let mut stored = HashSet::new();
    for record in tasks {
        let items: Vec<_> = record
            .journal
            .iter()
            .map(|(item, _)| item.clone())
            .collect();
        stored.extend((1..=items.len()).map(|length| of_journal(&conversation(&items[..length]))));
    }
    stored
}

/// Returns an error for each prompt that equals no conversation in `stored`.
pub fn missing(prompts: &[Value], stored: &HashSet<String>) -> Vec<String> {
    let shown: HashSet<_> = prompts.iter().map(of_prompt).collect();
    shown
        .difference(stored)
        .map(|prompt| format!("a model was shown what no journal has: {prompt}"))
        .collect()
}

fn of_journal(messages: &[Message]) -> String {
    let messages = messages.iter().map(|message| match message {
        Message::User { parts, .. } => {
            json!({"user": parts.iter().map(|part| part.content.as_str()).collect::<String>()})
        }
        Message::Assistant { text, calls, .. } => json!({"text": text, "calls": calls}),
        Message::Result {
            provider_id,
            content,
            ..
        } => json!({"result": content, "of": provider_id}),
    });
    Value::from(messages.collect::<Vec<_>>()).to_string()
}

fn of_prompt(messages: &Value) -> String {
    let messages = messages
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|message| match message["role"].as_str()? {
            "user" => Some(json!({"user": user_text(message)})),
            "assistant" => {
                let call = |call: &Value| {
                    json!([
                        call["id"],
                        call["function"]["name"],
                        call["function"]["arguments"]
                    ])
                };
                let calls: Vec<_> = message["tool_calls"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(call)
                    .collect();
                Some(json!({"text": message["content"], "calls": calls}))
            }
            "tool" => Some(json!({"result": message["content"], "of": message["tool_call_id"]})),
            _ => None,
        });
    Value::from(messages.collect::<Vec<_>>()).to_string()
}

/// Returns the text of a user message, whose content is one text or several parts.
pub fn user_text(message: &Value) -> String {
    let parts = message["content"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|part| part["text"].as_str());
    message["content"]
        .as_str()
        .map_or_else(|| parts.collect(), str::to_owned)
}

#[test]
fn prompt_with_a_result_in_no_journal_is_reported_missing() {
    use holdpoint::task::id::CallId;
    use holdpoint::task::item::{
        Fact, FinishReason, Item, Outcome, Part, PartType, ToolCall, ToolResult, Turn, Usage,
    };
    use holdpoint::task::time::Time;

    let tool_call_id = CallId(uuid::Uuid::nil());
    let call = ToolCall {
        tool_call_id,
        name: "pay".into(),
        arguments_text: "{}".into(),
        holds_secret: false,
        provider_id: "call_0_0".into(),
    };
    let facts = [
        Fact::UserMessage {
            items: vec![Part {
                content_type: PartType::Text,
                content: "small 1".into(),
            }],
            user_context: None,
            by: "alice".into(),
            groups: Vec::new(),
        },
        Fact::AssistantMessage(Turn {
            turn: 1,
            text: None,
            tool_calls: vec![call],
            finish_reason: FinishReason::ToolCalls,
            usage: Usage::default(),
            raw: Value::Null,
        }),
        Fact::ToolResult(ToolResult {
            tool_call_id,
            name: "pay".into(),
            outcome: Outcome::Succeeded,
            content: "paid".into(),
            http_status: Some(200),
            suspect: false,
            reported: false,
        }),
    ];
    let items = facts.into_iter().zip(1..).map(|(fact, seq)| {
        (
            Item {
                seq,
                at: Time(0),
                fact,
            },
            seq,
        )
    });
    let task = holdpoint::task::id::TaskId(uuid::Uuid::nil());
    let record = TaskRecord {
        task,
        root: task,
        parent: None,
        status: "Running".into(),
        output: None,
        counted: (1, 0),
        journal: items.collect(),
    };
    let prompt = |result: &str| {
        json!([
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "small 1"}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "call_0_0", "type": "function",
                "function": {"name": "pay", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "call_0_0", "content": result},
        ])
    };
    let stored = stored(&[record]);
    assert_eq!(missing(&[prompt("paid")], &stored), Vec::<String>::new());
    assert_eq!(
        missing(&[prompt("paid"), prompt("paid twice")], &stored).len(),
        1
    );
}
