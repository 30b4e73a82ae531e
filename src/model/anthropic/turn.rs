//! Writes an earlier turn of the model for the next request. A turn that came through this protocol
//! is sent with its own blocks. An agent's model may change while a task waits, so a turn may come
//! from another protocol. Such a turn is rebuilt from its parsed form.
//!
//! Invariant: the same conversation is always written in the same way, because newer models refuse
//! a thinking block once anything before the block has changed.

use serde_json::{Map, Value, json};

use super::request::Block;
use crate::model::ids::{CallIds, tool_name};
use crate::model::protocol::EarlierThinking;

/// Returns the blocks of a turn; empty if no block of the turn may be sent. Each element of `calls`
/// holds the stored id of a call, the name of the tool, and the arguments.
pub(super) fn turn_blocks(
    raw: &Value,
    text: Option<&str>,
    calls: &[(String, String, String)],
    ids: &CallIds,
    earlier_thinking: EarlierThinking,
) -> Vec<Block> {
    match own_blocks(raw, calls.len()) {
        Some(blocks) => sendable_blocks(blocks, calls, ids, earlier_thinking),
        None => rebuilt_blocks(text, calls, ids),
    }
}

/// Returns the blocks of `raw`, if `raw` is a turn of this protocol with `calls` calls.
fn own_blocks(raw: &Value, calls: usize) -> Option<&[Value]> {
    let is_message = raw.get("type").is_some_and(|kind| kind == "message");
    let blocks = raw
        .get("content")
        .filter(|_| is_message)
        .and_then(Value::as_array)?;
    (blocks
        .iter()
        .filter(|block| has_type(block, "tool_use"))
        .count()
        == calls)
        .then_some(blocks)
}

pub(super) fn has_type(block: &Value, kind: &str) -> bool {
    block.get("type").is_some_and(|found| found == kind)
}

pub(super) fn is_thinking(block: &Value) -> bool {
    has_type(block, "thinking") || has_type(block, "redacted_thinking")
}

fn sendable_blocks(
    blocks: &[Value],
    calls: &[(String, String, String)],
    ids: &CallIds,
    earlier_thinking: EarlierThinking,
) -> Vec<Block> {
    let empty = |block: &Value| {
        has_type(block, "text")
            && block
                .get("text")
                .and_then(Value::as_str)
                .is_none_or(|text| text.trim().is_empty())
    };
    let mut kept: Vec<_> = blocks
        .iter()
        .filter(|block| {
            !empty(block) && (earlier_thinking == EarlierThinking::Included || !is_thinking(block))
        })
        .collect();
    // The endpoint refuses a turn that ends with thinking. A turn that consists of thinking alone,
    // because it was cut off, becomes empty here.
    while kept.last().is_some_and(|block| is_thinking(block)) {
        kept.pop();
    }
    let mut calls = calls.iter();
    let sent = kept.into_iter().map(|block| {
        match (
            block.as_object(),
            has_type(block, "tool_use").then(|| calls.next()),
        ) {
            (Some(members), Some(Some(call))) => call_block(members.clone(), call, ids),
            (_, _) => Block::Plain(block.clone()),
        }
    });
    sent.collect()
}

fn rebuilt_blocks(
    text: Option<&str>,
    calls: &[(String, String, String)],
    ids: &CallIds,
) -> Vec<Block> {
    let members = || Map::from_iter([("type".to_owned(), json!("tool_use"))]);
    let calls = calls.iter().map(|call| call_block(members(), call, ids));
    text.and_then(Block::text)
        .into_iter()
        .chain(calls)
        .collect()
}

fn call_block(
    mut members: Map<String, Value>,
    call: &(String, String, String),
    ids: &CallIds,
) -> Block {
    let (id, tool, arguments) = call;
    members.insert("id".to_owned(), json!(ids.sent_id(id)));
    members.insert("name".to_owned(), json!(tool_name(tool)));
    Block::call(members, arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(calls: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
        calls
            .iter()
            .map(|(id, name, text)| ((*id).to_owned(), (*name).to_owned(), (*text).to_owned()))
            .collect()
    }

    fn ids(calls: &[(String, String, String)]) -> CallIds {
        let mut ids = CallIds::default();
        ids.start_turn(calls.iter().map(|(id, ..)| id.as_str()));
        ids
    }

    fn sent(
        raw: &Value,
        text: Option<&str>,
        calls: &[(String, String, String)],
        earlier_thinking: EarlierThinking,
    ) -> String {
        serde_json::to_string(&turn_blocks(
            raw,
            text,
            calls,
            &ids(calls),
            earlier_thinking,
        ))
        .unwrap()
    }

    #[test]
    fn own_blocks_are_sent_back_unchanged_with_arguments_byte_for_byte() {
        let exact = "{ \"b\": 20.000000000000000001,\n \"a\": 1, \"a\": 2 }";
        let raw = json!({"type": "message", "role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "ZGF0YQ=="},
            {"type": "text", "text": " \n"},
            {"type": "text", "text": "So. ", "citations": null},
            {"type": "tool_use", "id": "toolu_1", "name": "pay", "input": {"a": 2, "b": 20.0}, "caller": {"type": "direct"}},
            {"type": "some_later_block", "x": [1]}]});
        let one = calls(&[("toolu_1", "pay", exact)]);
        let call = format!(
            r#"{{"caller":{{"type":"direct"}},"id":"toolu_1","name":"pay","type":"tool_use","input":{exact}}}"#
        );
        let said = r#"{"citations":null,"text":"So. ","type":"text"}"#;
        let later = r#"{"type":"some_later_block","x":[1]}"#;
        let earlier_thinking = r#"{"signature":"c2ln","thinking":"hm","type":"thinking"},{"data":"ZGF0YQ==","type":"redacted_thinking"}"#;
        assert_eq!(
            sent(&raw, Some("So. "), &one, EarlierThinking::Included),
            format!("[{earlier_thinking},{said},{call},{later}]")
        );
        assert_eq!(
            sent(&raw, Some("So. "), &one, EarlierThinking::Omitted),
            format!("[{said},{call},{later}]")
        );
    }

    #[test]
    fn turn_that_ended_in_thinking_is_sent_without_it() {
        let raw = json!({"type": "message", "content": [{"type": "thinking", "thinking": "hm"}]});
        assert_eq!(sent(&raw, Some(""), &[], EarlierThinking::Included), "[]");
    }

    #[test]
    fn turn_of_another_protocol_is_rewritten() {
        let two = calls(&[
            ("call:1", "functions.pay", "{\"a\":1}"),
            ("", "", "not JSON"),
        ]);
        let openai = json!({"role": "assistant", "content": "so", "tool_calls": [{"id": "call:1"}, {"id": ""}]});
        let lost = json!({"type": "message", "content": [{"type": "tool_use", "id": "call:1"}]});
        for raw in [
            openai,
            lost,
            Value::Null,
            json!("text"),
            json!({"type": "message"}),
        ] {
            assert_eq!(
                sent(&raw, Some("so"), &two, EarlierThinking::Included),
                concat!(
                    r#"[{"text":"so","type":"text"},"#,
                    r#"{"id":"call_1","name":"functions_pay","type":"tool_use","input":{"a":1}},"#,
                    r#"{"id":"call","input":{},"name":"unnamed","type":"tool_use"}]"#
                )
            );
        }
    }

    #[test]
    fn arguments_that_are_no_object_are_sent_back_as_an_empty_one() {
        for (text, input) in [
            ("", "{}"),
            ("[1]", "{}"),
            ("{\"cut\": tr", "{}"),
            ("{\"n\":1e999}", "{}"),
            (r#"{"a":"\ud800"}"#, r#"{"a":"\ufffd"}"#),
            (r#" {"a":"\ud83d\ude00"} "#, r#"{"a":"\ud83d\ude00"}"#),
        ] {
            let written = sent(
                &Value::Null,
                None,
                &calls(&[("a", "x", text)]),
                EarlierThinking::Included,
            );
            assert!(
                written.contains(&format!("\"input\":{input}")),
                "{text}: {written}"
            );
        }
    }
}
