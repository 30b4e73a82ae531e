//! Writes an earlier turn of the model as items of the next request. If the stored items of a turn
//! belong to this protocol and can be read, the turn is sent with these items. Any other turn is
//! rebuilt from its text and calls: for example, a turn of another protocol, because an agent's
//! model may change while a task waits. Invariant: a call and its output have the same id.

use serde_json::{Map, Value, json};

use super::item::ResponseItem;
use super::reply::STORED_TYPE;
use crate::model::arguments::sendable_arguments;
use crate::model::ids::{CallIds, tool_name};
use crate::model::protocol::EarlierThinking;

/// Returns the items of a turn. The list is empty if the turn consists of reasoning alone, because
/// such a turn is not sent. Each element of `calls` holds the stored id of a call, the name of the
/// tool, and the arguments.
pub(super) fn turn_items(
    raw: &Value,
    text: Option<&str>,
    calls: &[(String, String, String)],
    ids: &CallIds,
    earlier_thinking: EarlierThinking,
) -> Vec<ResponseItem> {
    match own_items(raw, calls.len()) {
        Some(items) => sendable_items(items, calls, ids, earlier_thinking),
        None => rebuilt_items(text, calls, ids),
    }
}

/// Returns the stored items of the turn `raw`. Returns `None` if `raw` is not a turn of this
/// protocol, if an item cannot be read, or if the number of calls in the items is not `calls`.
fn own_items(raw: &Value, calls: usize) -> Option<Vec<ResponseItem>> {
    let is_stored = raw.get("type").is_some_and(|kind| kind == STORED_TYPE);
    let items = raw
        .get("items")
        .filter(|_| is_stored)
        .and_then(Value::as_array)?;
    let items: Vec<_> = items
        .iter()
        .map(|item| ResponseItem::read(item.as_str()?))
        .collect::<Option<_>>()?;
    (items.iter().filter(|item| item.is_call()).count() == calls).then_some(items)
}

fn sendable_items(
    mut items: Vec<ResponseItem>,
    calls: &[(String, String, String)],
    ids: &CallIds,
    earlier_thinking: EarlierThinking,
) -> Vec<ResponseItem> {
    items.retain(|item| earlier_thinking == EarlierThinking::Included || !item.is_reasoning());
    // The endpoint refuses a turn whose last item is reasoning. An answer that was cut off can be
    // such a turn.
    while items.last().is_some_and(ResponseItem::is_reasoning) {
        items.pop();
    }
    let mut calls = calls.iter();
    let sent = items.into_iter().map(|item| {
        let call = item.is_call().then(|| calls.next());
        let mut members = item.members().clone();
        if let Some((id, tool, arguments)) = call.flatten() {
            let arguments = sendable_arguments(arguments);
            members.insert("arguments".to_owned(), json!(arguments));
            members.insert("call_id".to_owned(), json!(ids.sent_id(id)));
            members.insert("name".to_owned(), json!(tool_name(tool)));
        }
        if earlier_thinking == EarlierThinking::Omitted {
            // The endpoint refuses an item with an id if the reasoning that preceded the item is
            // missing. The reasoning was left out above, so the id is left out, too.
            members.remove("id");
        }
        if members == *item.members() {
            item
        } else {
            ResponseItem::new(members)
        }
    });
    sent.collect()
}

fn rebuilt_items(
    text: Option<&str>,
    calls: &[(String, String, String)],
    ids: &CallIds,
) -> Vec<ResponseItem> {
    let message = text
        .filter(|text| !text.is_empty())
        .map(|text| text_item([("role", "assistant"), ("content", text)]));
    let calls = calls.iter().map(|(id, tool, arguments)| {
        text_item([
            ("type", "function_call"),
            ("call_id", &ids.sent_id(id)),
            ("name", &tool_name(tool)),
            ("arguments", &sendable_arguments(arguments)),
        ])
    });
    message.into_iter().chain(calls).collect()
}

pub(super) fn text_item<const N: usize>(members: [(&str, &str); N]) -> ResponseItem {
    let members = members.map(|(name, text)| (name.to_owned(), json!(text)));
    ResponseItem::new(Map::from_iter(members))
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

    fn sent(
        raw: &Value,
        calls: &[(String, String, String)],
        earlier_thinking: EarlierThinking,
    ) -> String {
        let mut ids = CallIds::default();
        ids.start_turn(calls.iter().map(|(id, ..)| id.as_str()));
        serde_json::to_string(&turn_items(raw, Some("so"), calls, &ids, earlier_thinking)).unwrap()
    }

    #[test]
    fn own_items_are_sent_back_byte_for_byte() {
        let raw = json!({"type": "response", "items": [REASONING, LATER, CALL]});
        let one = calls(&[("call_1", "pay", "{\"a\": 1}")]);
        assert_eq!(
            sent(&raw, &one, EarlierThinking::Included),
            format!("[{REASONING},{LATER},{CALL}]")
        );
    }

    #[test]
    fn refused_reasoning_is_left_out_with_the_ids_that_lead_to_it() {
        let raw = json!({"type": "response", "items": [REASONING, CALL]});
        let one = calls(&[("call_1", "pay", "{\"a\": 1}")]);
        assert_eq!(
            sent(&raw, &one, EarlierThinking::Omitted),
            r#"[{"arguments":"{\"a\": 1}","call_id":"call_1","name":"pay","status":"completed","type":"function_call"}]"#
        );
    }

    #[test]
    fn turn_that_ended_in_reasoning_is_sent_without_it() {
        let raw = json!({"type": "response", "items": [REASONING]});
        assert_eq!(sent(&raw, &[], EarlierThinking::Included), "[]");
    }

    #[test]
    fn replaced_id_is_sent_in_the_call() {
        let raw = json!({"type": "response", "items": [CALL, CALL]});
        let two = calls(&[
            ("call_1", "pay", "{\"a\": 1}"),
            ("ours", "pay", "{\"a\": 1}"),
        ]);
        let sent = sent(&raw, &two, EarlierThinking::Included);
        assert!(sent.starts_with(&format!("[{CALL},")), "{sent}");
        assert!(sent.contains(r#""call_id":"ours""#), "{sent}");
    }

    #[test]
    fn arguments_that_are_no_object_are_sent_back_as_an_empty_one() {
        for (stored, text) in [(json!("{\"a\":"), "{\"a\":"), (Value::Null, "")] {
            let item = json!({"type": "function_call", "id": "fc_1", "call_id": "call_1",
                "name": "pay", "arguments": stored});
            let one = calls(&[("call_1", "pay", text)]);
            for raw in [
                json!({"type": "response", "items": [item.to_string()]}),
                Value::Null,
            ] {
                let sent = sent(&raw, &one, EarlierThinking::Included);
                assert!(sent.contains(r#""arguments":"{}""#), "{raw}: {sent}");
            }
        }
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
                sent(&raw, &one, EarlierThinking::Included),
                concat!(
                    r#"[{"content":"so","role":"assistant"},"#,
                    r#"{"arguments":"{\"a\":1}","call_id":"call_1","name":"functions_pay","type":"function_call"}]"#
                ),
                "{raw}"
            );
        }
    }
}
