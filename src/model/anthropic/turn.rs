//! Writes an earlier turn of the model for the next request. If the turn came through this
//! protocol, its own blocks are sent; otherwise blocks are built from its parsed form (an agent's
//! model may change while a task waits). Invariant: the same conversation is always written the
//! same way, because the endpoint compares the conversation with that of the previous request.

use serde_json::{Map, Value, json};

use super::request::Block;
use crate::model::ids::{Ids, name};
use crate::model::protocol::Thoughts;

/// Returns the blocks of a turn; empty if no block of the turn may be sent. Each of `calls` is a
/// call's stored id, its tool's name and its arguments.
pub(super) fn assistant(
    raw: &Value,
    text: Option<&str>,
    calls: &[(String, String, String)],
    ids: &Ids,
    thoughts: Thoughts,
) -> Vec<Block> {
    match own(raw, calls.len()) {
        Some(blocks) => sent_back(blocks, calls, ids, thoughts),
        None => written(text, calls, ids),
    }
}

/// Returns the blocks of `raw`; `None` unless `raw` is a turn of this protocol with `calls` calls.
fn own(raw: &Value, calls: usize) -> Option<&[Value]> {
    let is_message = raw.get("type").is_some_and(|kind| kind == "message");
    let blocks = raw
        .get("content")
        .filter(|_| is_message)
        .and_then(Value::as_array)?;
    (blocks.iter().filter(|block| is(block, "tool_use")).count() == calls).then_some(blocks)
}

pub(super) fn is(block: &Value, kind: &str) -> bool {
    block.get("type").is_some_and(|found| found == kind)
}

/// Whether a block is thinking, redacted or not.
pub(super) fn is_thought(block: &Value) -> bool {
    is(block, "thinking") || is(block, "redacted_thinking")
}

fn sent_back(
    blocks: &[Value],
    calls: &[(String, String, String)],
    ids: &Ids,
    thoughts: Thoughts,
) -> Vec<Block> {
    let empty = |block: &Value| {
        is(block, "text")
            && block
                .get("text")
                .and_then(Value::as_str)
                .is_none_or(|text| text.trim().is_empty())
    };
    let mut kept: Vec<_> = blocks
        .iter()
        .filter(|block| !empty(block) && (thoughts == Thoughts::Kept || !is_thought(block)))
        .collect();
    // A turn may not end with thinking, so a turn that was truncated while thinking can become
    // empty.
    while kept.last().is_some_and(|block| is_thought(block)) {
        kept.pop();
    }
    let mut calls = calls.iter();
    let sent = kept.into_iter().map(|block| {
        match (
            block.as_object(),
            is(block, "tool_use").then(|| calls.next()),
        ) {
            (Some(members), Some(Some(call))) => called(members.clone(), call, ids),
            (_, _) => Block::Plain(block.clone()),
        }
    });
    sent.collect()
}

fn written(text: Option<&str>, calls: &[(String, String, String)], ids: &Ids) -> Vec<Block> {
    let members = || Map::from_iter([("type".to_owned(), json!("tool_use"))]);
    let calls = calls.iter().map(|call| called(members(), call, ids));
    text.and_then(Block::text)
        .into_iter()
        .chain(calls)
        .collect()
}

fn called(mut members: Map<String, Value>, call: &(String, String, String), ids: &Ids) -> Block {
    let (id, tool, arguments) = call;
    members.insert("id".to_owned(), json!(ids.of(id)));
    members.insert("name".to_owned(), json!(name(tool)));
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

    fn ids(calls: &[(String, String, String)]) -> Ids {
        let mut ids = Ids::default();
        ids.begin(calls.iter().map(|(id, ..)| id.as_str()));
        ids
    }

    fn sent(
        raw: &Value,
        text: Option<&str>,
        calls: &[(String, String, String)],
        thoughts: Thoughts,
    ) -> String {
        serde_json::to_string(&assistant(raw, text, calls, &ids(calls), thoughts)).unwrap()
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
        let thoughts = r#"{"signature":"c2ln","thinking":"hm","type":"thinking"},{"data":"ZGF0YQ==","type":"redacted_thinking"}"#;
        assert_eq!(
            sent(&raw, Some("So. "), &one, Thoughts::Kept),
            format!("[{thoughts},{said},{call},{later}]")
        );
        assert_eq!(
            sent(&raw, Some("So. "), &one, Thoughts::Left),
            format!("[{said},{call},{later}]")
        );
    }

    #[test]
    fn turn_that_ended_in_thinking_is_sent_without_it() {
        let raw = json!({"type": "message", "content": [{"type": "thinking", "thinking": "hm"}]});
        assert_eq!(sent(&raw, Some(""), &[], Thoughts::Kept), "[]");
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
                sent(&raw, Some("so"), &two, Thoughts::Kept),
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
                Thoughts::Kept,
            );
            assert!(
                written.contains(&format!("\"input\":{input}")),
                "{text}: {written}"
            );
        }
    }
}
