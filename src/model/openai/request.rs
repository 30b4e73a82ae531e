//! Writes the request body: the prompt as Chat Completions messages and functions.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::model::protocol::RequestMode;
use crate::model::{AnswerCall, OfferedTool, Prompt, data_about_the_user};
use crate::task::item::{Part, PartType};
use crate::task::transcript::Message;

/// Returns the request body. `extra` holds further members from the configuration.
pub(super) fn body(
    prompt: &Prompt,
    model: &str,
    extra: &Map<String, Value>,
    mode: RequestMode,
) -> Value {
    let mut body = extra.clone();
    body.insert("model".to_owned(), json!(model));
    if mode != RequestMode::Unstreamed {
        body.insert("stream".to_owned(), json!(true));
    }
    if mode == RequestMode::StreamedWithUsage {
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    let mut messages = Vec::with_capacity(prompt.messages.len() + 1);
    if let Some(system) = &prompt.system {
        messages.push(json!({"role": "system", "content": system}));
    }
    for message in &prompt.messages {
        match message {
            Message::User { context, parts } => {
                messages.extend(
                    context
                        .as_ref()
                        .filter(|context| !context.is_empty())
                        .map(about_the_user),
                );
                messages.push(json!({"role": "user", "content": content(parts)}));
            }
            Message::Assistant { raw, text, calls } => {
                messages.push(assistant_message(raw, text.as_deref(), calls));
            }
            Message::Result {
                provider_id,
                content,
                ..
            } => {
                messages
                    .push(json!({"role": "tool", "tool_call_id": provider_id, "content": content}));
            }
        }
    }
    body.insert("messages".to_owned(), Value::Array(messages));
    if !prompt.tools.is_empty() {
        body.insert(
            "tools".to_owned(),
            prompt.tools.iter().map(function_definition).collect(),
        );
    }
    Value::Object(body)
}

fn about_the_user(context: &BTreeMap<String, String>) -> Value {
    json!({"role": "user", "content": data_about_the_user(context)})
}

/// Returns the `content` of a message. For no parts or a single text, the content is a string,
/// which every endpoint accepts. Otherwise the content is a list of parts.
fn content(parts: &[Part]) -> Value {
    match parts {
        [] => json!(""),
        [
            Part {
                content_type: PartType::Text,
                content,
            },
        ] => json!(content),
        several => several
            .iter()
            .map(|part| match part.content_type {
                PartType::Text => json!({"type": "text", "text": part.content}),
                PartType::Image => json!({"type": "image_url", "image_url": {"url": part.content}}),
            })
            .collect(),
    }
}

fn function_definition(tool: &OfferedTool) -> Value {
    let mut function = json!({"name": tool.name, "parameters": tool.parameters});
    if let (Some(members), false) = (function.as_object_mut(), tool.description.is_empty()) {
        members.insert("description".to_owned(), json!(tool.description));
    }
    json!({"type": "function", "function": function})
}

/// Converts a turn into an assistant message. Each element of `calls` holds the id of a call, the
/// name of the tool, and the arguments. If the turn came through this protocol, the message is the
/// provider's own JSON `raw`. The ids in `calls` then replace the ids of the calls in `raw`,
/// because the results in the request name the ids in `calls`. If the agent's model has changed,
/// the turn may have come through another protocol. Such a turn is rebuilt from `text` and `calls`.
fn assistant_message(raw: &Value, text: Option<&str>, calls: &[(String, String, String)]) -> Value {
    let Some(mut message) = raw
        .as_object()
        .filter(|raw| is_own_message(raw, calls.len()))
        .cloned()
    else {
        return rebuilt_message(Map::new(), text, calls);
    };
    if calls.is_empty() {
        // Some endpoints answer without any content, but refuse such a message in a request.
        let is_empty = message.get("content").is_none_or(Value::is_null)
            && message.get("refusal").is_none_or(Value::is_null);
        if is_empty {
            message.insert("content".to_owned(), json!(text.unwrap_or_default()));
        }
        message.entry("role").or_insert_with(|| json!("assistant"));
        return Value::Object(message);
    }
    if call_count(&message) == 0 {
        message.remove("function_call");
        return rebuilt_message(message, text, calls);
    }
    message.entry("role").or_insert_with(|| json!("assistant"));
    let sent = message
        .get_mut("tool_calls")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten();
    for (call, (id, ..)) in sent.zip(calls) {
        if let Some(call) = call
            .as_object_mut()
            .filter(|call| call.get("id") != Some(&json!(id)))
        {
            call.insert("id".to_owned(), json!(id));
        }
    }
    Value::Object(message)
}

/// Returns whether `raw` can be rebuilt exactly from the parsed `text` and `calls`. If so, `raw`
/// need not be stored.
pub(super) fn is_derivable(raw: &Value, text: Option<&str>, calls: &[AnswerCall]) -> bool {
    let calls = calls.iter().cloned();
    let calls = calls.map(|call| (call.provider_id, call.name, call.arguments_text));
    *raw == rebuilt_message(Map::new(), text, &calls.collect::<Vec<_>>())
}

/// Returns whether `raw` is a message of this protocol with this many calls. The message of another
/// protocol is recognized by the value of its member `type`.
fn is_own_message(raw: &Map<String, Value>, calls: usize) -> bool {
    if raw
        .get("type")
        .is_some_and(|kind| kind == "message" || kind == "response")
    {
        return false;
    }
    let role = raw.get("role").is_none_or(|role| role == "assistant");
    let legacy = usize::from(raw.get("function_call").is_some_and(Value::is_object));
    let sent = call_count(raw);
    role && !raw.is_empty() && calls == if sent == 0 { legacy } else { sent }
}

fn call_count(message: &Map<String, Value>) -> usize {
    message
        .get("tool_calls")
        .and_then(Value::as_array)
        .map_or(0, Vec::len)
}

fn rebuilt_message(
    mut message: Map<String, Value>,
    text: Option<&str>,
    calls: &[(String, String, String)],
) -> Value {
    message.insert("role".to_owned(), json!("assistant"));
    let content = if calls.is_empty() {
        json!(text.unwrap_or_default())
    } else {
        json!(text)
    };
    message.insert("content".to_owned(), content);
    if !calls.is_empty() {
        let calls = calls.iter().map(|(id, name, arguments)| {
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        });
        message.insert("tool_calls".to_owned(), calls.collect());
    }
    Value::Object(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> (String, String, String) {
        (id.to_owned(), "pay".to_owned(), "{}".to_owned())
    }

    #[test]
    fn turn_that_has_nothing_but_its_parsed_form_is_derivable_and_sent_back_the_same() {
        let calls = [AnswerCall {
            provider_id: "a".to_owned(),
            name: "pay".to_owned(),
            arguments_text: "{}".to_owned(),
            holds_secret: false,
        }];
        let plain = json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "pay", "arguments": "{}"}}]});
        assert!(is_derivable(&plain, None, &calls));
        let sent = assistant_message(&Value::Null, None, &[call("a")]);
        assert_eq!(sent, assistant_message(&plain, None, &[call("a")]));
        let text = json!({"role": "assistant", "content": "so"});
        assert!(is_derivable(&text, Some("so"), &[]));
        for (member, value) in [
            ("refusal", Value::Null),
            ("content", json!([{"text": "so"}])),
        ] {
            let mut more = text.clone();
            more[member] = value;
            assert!(!is_derivable(&more, Some("so"), &[]), "{more}");
        }
        assert!(!is_derivable(&json!({"content": "so"}), Some("so"), &[]));
    }

    #[test]
    fn turn_is_sent_back_unchanged_except_for_replaced_ids() {
        let raw = json!({"role": "assistant", "content": null, "x_signature": {"deep": [1]},
            "tool_calls": [{"id": "", "type": "function", "x": 1, "function": {"name": "pay", "arguments": "{ }"}},
                           {"id": "b", "type": "function", "function": {"name": "pay", "arguments": "{}"}}]});
        let sent = assistant_message(&raw, None, &[call("ours"), call("b")]);
        let mut expected = raw.clone();
        expected["tool_calls"][0]["id"] = json!("ours");
        assert_eq!(sent, expected);
        assert_eq!(
            assistant_message(&expected, None, &[call("ours"), call("b")]),
            expected
        );
    }

    #[test]
    fn turn_of_another_protocol_is_rewritten() {
        let foreign = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "pay"}]});
        for raw in [foreign, Value::Null, json!("text"), json!({})] {
            assert_eq!(
                assistant_message(&raw, Some("so"), &[call("t")]),
                json!({"role": "assistant", "content": "so", "tool_calls": [
                    {"id": "t", "type": "function", "function": {"name": "pay", "arguments": "{}"}}]})
            );
        }
    }

    #[test]
    fn legacy_function_call_is_sent_back_as_a_tool_call() {
        let raw = json!({"role": "assistant", "content": null, "x": 1, "function_call": {"name": "pay", "arguments": "{}"}});
        assert_eq!(
            assistant_message(&raw, None, &[call("ours")]),
            json!({"role": "assistant", "content": null, "x": 1, "tool_calls": [
                {"id": "ours", "type": "function", "function": {"name": "pay", "arguments": "{}"}}]})
        );
    }

    #[test]
    fn empty_answer_is_sent_back_as_an_empty_text() {
        let raw = json!({"role": "assistant", "content": null, "reasoning": "hm"});
        assert_eq!(
            assistant_message(&raw, Some(""), &[]),
            json!({"role": "assistant", "content": "", "reasoning": "hm"})
        );
        let refusal = json!({"role": "assistant", "content": null, "refusal": "no"});
        assert_eq!(assistant_message(&refusal, Some("no"), &[]), refusal);
    }
}
