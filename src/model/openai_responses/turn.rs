//! Writes an earlier turn of the model for the next request. If the turn came through this
//! protocol, its own items are sent; otherwise, or if they cannot be read, items are built from its
//! parsed form (an agent's model may change while a task waits). Invariant: a call and its output
//! share an id.

use serde_json::{Map, Value, json};

use super::item::Item;
use super::reply::STORED;
use crate::model::ids::{Ids, name};
use crate::model::protocol::Thoughts;

/// Returns the items of a turn; empty if no item of the turn may be sent. Each of `calls` is a
/// call's stored id, its tool's name and its arguments.
pub(super) fn assistant(
    raw: &Value,
    text: Option<&str>,
    calls: &[(String, String, String)],
    ids: &Ids,
    thoughts: Thoughts,
) -> Vec<Item> {
    match own(raw, calls.len()) {
        Some(items) => sent_back(items, calls, ids, thoughts),
        None => written(text, calls, ids),
    }
}

/// Returns the items of `raw`; `None` unless `raw` is a turn of this protocol with `calls` calls.
fn own(raw: &Value, calls: usize) -> Option<Vec<Item>> {
    let is_stored = raw.get("type").is_some_and(|kind| kind == STORED);
    let items = raw
        .get("items")
        .filter(|_| is_stored)
        .and_then(Value::as_array)?;
    let items: Vec<_> = items
        .iter()
        .map(|item| Item::read(item.as_str()?))
        .collect::<Option<_>>()?;
    (items.iter().filter(|item| item.is_call()).count() == calls).then_some(items)
}

fn sent_back(
    mut items: Vec<Item>,
    calls: &[(String, String, String)],
    ids: &Ids,
    thoughts: Thoughts,
) -> Vec<Item> {
    items.retain(|item| thoughts == Thoughts::Kept || !item.is_reasoning());
    // The endpoint refuses reasoning at the end of a turn, as after a cut-off while reasoning.
    while items.last().is_some_and(Item::is_reasoning) {
        items.pop();
    }
    let mut calls = calls.iter();
    let sent = items.into_iter().map(|item| {
        let call = item.is_call().then(|| calls.next());
        let mut members = item.members().clone();
        if let Some((id, tool, _)) = call.flatten() {
            members.insert("call_id".to_owned(), json!(ids.of(id)));
            members.insert("name".to_owned(), json!(name(tool)));
        }
        if thoughts == Thoughts::Left {
            // With its id, the endpoint would recognize an item that belongs to reasoning, and
            // would refuse the item without that reasoning.
            members.remove("id");
        }
        if members == *item.members() {
            item
        } else {
            Item::new(members)
        }
    });
    sent.collect()
}

fn written(text: Option<&str>, calls: &[(String, String, String)], ids: &Ids) -> Vec<Item> {
    let said = text
        .filter(|text| !text.is_empty())
        .map(|text| item([("role", "assistant"), ("content", text)]));
    let calls = calls.iter().map(|(id, tool, arguments)| {
        item([
            ("type", "function_call"),
            ("call_id", &ids.of(id)),
            ("name", &name(tool)),
            ("arguments", arguments),
        ])
    });
    said.into_iter().chain(calls).collect()
}

/// Builds an item whose members are texts.
pub(super) fn item<const N: usize>(members: [(&str, &str); N]) -> Item {
    let members = members.map(|(name, text)| (name.to_owned(), json!(text)));
    Item::new(Map::from_iter(members))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASONING: &str =
        r#"{ "type":"reasoning", "id":"rs_1","summary":[],  "encrypted_content":"gAAA\u002f=" }"#;
    const LATER: &str = r#"{"type":"web_search_call","id":"ws_1","n":1.50}"#;
    const CALL: &str = r#"{"type":"function_call","id":"fc_1","call_id":"call_1","name":"pay","arguments":"{\"a\": 1}","status":"completed"}"#;

    fn calls(calls: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
        calls
            .iter()
            .map(|(id, name, text)| ((*id).to_owned(), (*name).to_owned(), (*text).to_owned()))
            .collect()
    }

    fn sent(raw: &Value, calls: &[(String, String, String)], thoughts: Thoughts) -> String {
        let mut ids = Ids::default();
        ids.begin(calls.iter().map(|(id, ..)| id.as_str()));
        serde_json::to_string(&assistant(raw, Some("so"), calls, &ids, thoughts)).unwrap()
    }

    #[test]
    fn own_items_are_sent_back_byte_for_byte() {
        let raw = json!({"type": "response", "items": [REASONING, LATER, CALL]});
        let one = calls(&[("call_1", "pay", "{\"a\": 1}")]);
        assert_eq!(
            sent(&raw, &one, Thoughts::Kept),
            format!("[{REASONING},{LATER},{CALL}]")
        );
    }

    #[test]
    fn refused_reasoning_is_left_out_with_the_ids_that_lead_to_it() {
        let raw = json!({"type": "response", "items": [REASONING, CALL]});
        let one = calls(&[("call_1", "pay", "{\"a\": 1}")]);
        assert_eq!(
            sent(&raw, &one, Thoughts::Left),
            r#"[{"arguments":"{\"a\": 1}","call_id":"call_1","name":"pay","status":"completed","type":"function_call"}]"#
        );
    }

    #[test]
    fn turn_that_ended_in_reasoning_is_sent_without_it() {
        let raw = json!({"type": "response", "items": [REASONING]});
        assert_eq!(sent(&raw, &[], Thoughts::Kept), "[]");
    }

    #[test]
    fn replaced_id_is_sent_in_the_call() {
        let raw = json!({"type": "response", "items": [CALL, CALL]});
        let two = calls(&[
            ("call_1", "pay", "{\"a\": 1}"),
            ("ours", "pay", "{\"a\": 1}"),
        ]);
        let sent = sent(&raw, &two, Thoughts::Kept);
        assert!(sent.starts_with(&format!("[{CALL},")), "{sent}");
        assert!(sent.contains(r#""call_id":"ours""#), "{sent}");
    }

    #[test]
    fn turn_of_another_protocol_or_of_an_unknown_form_is_rewritten() {
        let one = calls(&[("call:1", "functions.pay", "{\"a\":1}")]);
        for raw in [
            Value::Null,
            json!({"role": "assistant", "tool_calls": [{"id": "call:1"}]}),
            json!({"type": "message", "content": [{"type": "tool_use", "id": "call:1"}]}),
            json!({"type": "response", "items": [REASONING]}),
            json!({"type": "response", "items": [{"type": "function_call"}]}),
            json!({"type": "response", "items": ["{\"type\":\"function_call\""]}),
            json!({"type": "response"}),
        ] {
            assert_eq!(
                sent(&raw, &one, Thoughts::Kept),
                concat!(
                    r#"[{"content":"so","role":"assistant"},"#,
                    r#"{"arguments":"{\"a\":1}","call_id":"call_1","name":"functions_pay","type":"function_call"}]"#
                ),
                "{raw}"
            );
        }
    }
}
