//! Writes the request body: the prompt as Chat Completions messages and functions.

use serde_json::{Map, Value, json};

use crate::model::arguments::sendable_arguments;
use crate::model::ids::{CallIds, tool_name};
use crate::model::protocol::{BodyParts, EarlierThinking, RequestMode};
use crate::model::{AnswerCall, OfferedTool, data_about_the_user, user_content};
use crate::task::item::{Part, PartType};
use crate::task::transcript::Message;

/// The maximum number of characters of a call's id that `OpenAI` accepts in Chat Completions. The
/// ids of the Responses API may be longer.
const MAX_ID_CHARS: usize = 40;

/// Returns the request body.
pub(super) fn body(parts: &BodyParts<'_>) -> Value {
    let prompt = parts.prompt;
    let mut body = parts.common_members();
    if parts.mode == RequestMode::StreamedWithUsage {
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    let mut messages = Vec::with_capacity(prompt.messages.len() + 1);
    if let Some(system) = &prompt.system {
        messages.push(json!({"role": "system", "content": system}));
    }
    let mut ids = CallIds::with_max_chars(MAX_ID_CHARS);
    for message in &prompt.messages {
        match message {
            Message::User { context, parts } => {
                let about = data_about_the_user(context.as_ref());
                messages.extend(about.map(|about| json!({"role": "user", "content": about})));
                let content = user_content(parts, content_part);
                messages.push(json!({"role": "user", "content": content}));
            }
            Message::Assistant { raw, text, calls } => {
                messages.push(assistant_message(
                    raw,
                    text.as_deref(),
                    calls,
                    &mut ids,
                    parts.earlier_thinking,
                ));
            }
            Message::Result {
                provider_id,
                content,
                ..
            } => {
                let id = ids.sent_id(provider_id);
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
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

fn content_part(part: &Part) -> Value {
    match part.content_type {
        PartType::Text => json!({"type": "text", "text": part.content}),
        PartType::Image => json!({"type": "image_url", "image_url": {"url": part.content}}),
    }
}

fn function_definition(tool: &OfferedTool) -> Value {
    let function = tool.describe(json!({"name": tool.name, "parameters": tool.object_schema()}));
    json!({"type": "function", "function": function})
}

/// Converts a turn into an assistant message. Each element of `calls` holds the id of a call, the
/// name of the tool, and the arguments. `raw` is the provider's own JSON of the turn:
///
/// - If `raw` is a message of this protocol, it is sent back. [`correct_call`] replaces the parts
///   that an endpoint would refuse. A `function_call`, which old endpoints send, becomes an element
///   of `tool_calls`.
/// - If `raw` is null, the message is built from `text` and `calls`, with their stored ids. A turn
///   of this protocol has no `raw` if its message can be rebuilt (see [`is_derivable`]). A turn of
///   any protocol has none if its JSON was nested too deeply to be stored.
/// - Any other `raw` came through another protocol, because the agent's model has changed. The
///   message is built from `text` and `calls`, with corrected ids.
///
/// If the endpoint refused earlier thinking, a message of this protocol is also built from `text`
/// and `calls`, because thinking may be in any other member.
fn assistant_message(
    raw: &Value,
    text: Option<&str>,
    calls: &[(String, String, String)],
    ids: &mut CallIds,
    earlier_thinking: EarlierThinking,
) -> Value {
    let own = raw
        .as_object()
        .filter(|raw| is_own_message(raw, calls.len()));
    let stored_ids = calls.iter().map(|(id, ..)| id.as_str());
    if own.is_some() || raw.is_null() {
        ids.start_turn_with_stored_ids(stored_ids);
    } else {
        ids.start_turn(stored_ids);
    }
    let kept = own.filter(|_| earlier_thinking == EarlierThinking::Included);
    let mut message = match kept.cloned() {
        Some(message) if calls.is_empty() => message_without_calls(message, text),
        Some(message) if call_count(&message) > 0 => message,
        Some(mut message) => {
            message.remove("function_call");
            rebuilt_message(message, text, calls)
        }
        None => rebuilt_message(Map::new(), text, calls),
    };
    message.entry("role").or_insert_with(|| json!("assistant"));
    let sent = message
        .get_mut("tool_calls")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten();
    for (sent, call) in sent.zip(calls) {
        if let Some(members) = sent.as_object_mut() {
            correct_call(members, call, ids);
        }
    }
    Value::Object(message)
}

/// Corrects a message without calls: adds missing content, and removes an empty list of calls. Some
/// endpoints answer with such a message, but refuse it in a request.
fn message_without_calls(
    mut message: Map<String, Value>,
    text: Option<&str>,
) -> Map<String, Value> {
    let is_empty = message.get("content").is_none_or(Value::is_null)
        && message.get("refusal").is_none_or(Value::is_null);
    if is_empty {
        message.insert("content".to_owned(), json!(text.unwrap_or_default()));
    }
    let calls = message.get("tool_calls").and_then(Value::as_array);
    if calls.is_some_and(Vec::is_empty) {
        message.remove("tool_calls");
    }
    message
}

/// Replaces the parts of a call that an endpoint would refuse, and keeps everything else as
/// received:
///
/// - The id becomes the id from `ids`, which the call's result has, too.
/// - A missing `type` becomes `function`.
/// - If the model called a tool that was never offered, its name may have characters or a length
///   that an endpoint refuses. Such a name becomes a valid name.
/// - Arguments that are not a JSON object become an empty object.
fn correct_call(
    members: &mut Map<String, Value>,
    (id, name, arguments): &(String, String, String),
    ids: &CallIds,
) {
    members.insert("id".to_owned(), json!(ids.sent_id(id)));
    members.entry("type").or_insert_with(|| json!("function"));
    if let Some(function) = members.get_mut("function").and_then(Value::as_object_mut) {
        function.insert("name".to_owned(), json!(tool_name(name)));
        // Some endpoints send the arguments as an object, and accept it in a request.
        let sent = function.get("arguments");
        if !sent.is_some_and(Value::is_object) {
            let arguments = sent.and_then(Value::as_str).unwrap_or(arguments);
            let arguments = json!(sendable_arguments(arguments));
            function.insert("arguments".to_owned(), arguments);
        }
    }
}

/// Returns whether `raw` can be rebuilt exactly from the parsed `text` and `calls`. If so, `raw`
/// need not be stored.
pub(super) fn is_derivable(raw: &Value, text: Option<&str>, calls: &[AnswerCall]) -> bool {
    let calls = calls.iter().cloned();
    let calls = calls.map(|call| (call.provider_id, call.name, call.arguments_text));
    let rebuilt = rebuilt_message(Map::new(), text, &calls.collect::<Vec<_>>());
    raw.as_object() == Some(&rebuilt)
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
) -> Map<String, Value> {
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
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Prompt;

    fn call(id: &str) -> (String, String, String) {
        (id.to_owned(), "pay".to_owned(), "{}".to_owned())
    }

    fn sent(raw: &Value, text: Option<&str>, calls: &[(String, String, String)]) -> Value {
        let mut ids = CallIds::with_max_chars(MAX_ID_CHARS);
        assistant_message(raw, text, calls, &mut ids, EarlierThinking::Included)
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
        let rebuilt = sent(&Value::Null, None, &[call("a")]);
        assert_eq!(rebuilt, sent(&plain, None, &[call("a")]));
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
        let calls = [call("ours"), call("b")];
        let mut expected = raw.clone();
        expected["tool_calls"][0]["id"] = json!("ours");
        assert_eq!(sent(&raw, None, &calls), expected);
        assert_eq!(sent(&expected, None, &calls), expected);
    }

    #[test]
    fn name_that_no_endpoint_accepts_is_sent_as_a_valid_one() {
        let long = "x".repeat(65);
        for (name, sent_name) in [
            ("multi_tool_use.parallel", "multi_tool_use_parallel"),
            ("ro ", "ro_"),
            ("[secret KEY]", "_secret_KEY_"),
            ("", "unnamed"),
            (long.as_str(), &long[1..]),
        ] {
            let function = json!({"name": name, "arguments": "{ }"});
            let own = json!({"role": "assistant", "content": null, "x": 1,
                "tool_calls": [{"id": "a", "x": 1, "function": function}]});
            let calls = [("a".to_owned(), name.to_owned(), "{ }".to_owned())];
            let mut expected = own.clone();
            expected["tool_calls"][0]["type"] = json!("function");
            expected["tool_calls"][0]["function"]["name"] = json!(sent_name);
            assert_eq!(sent(&own, None, &calls), expected);
            let rebuilt = sent(&Value::Null, None, &calls);
            let function = &rebuilt["tool_calls"][0]["function"];
            assert_eq!(function["name"], sent_name);
        }
    }

    #[test]
    fn arguments_that_are_no_object_are_sent_back_as_an_empty_one() {
        for (stored, text, expected) in [
            (json!("{\"x\":\"1"), "{\"x\":\"1", json!("{}")),
            (json!("[1]"), "[1]", json!("{}")),
            (Value::Null, "", json!("{}")),
            (
                json!("{ \"n\": 1.50 }"),
                "{ \"n\": 1.50 }",
                json!("{ \"n\": 1.50 }"),
            ),
            (json!({"n": 1}), "{\"n\":1}", json!({"n": 1})),
        ] {
            let own = json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "pay", "arguments": stored}}]});
            let calls = [("a".to_owned(), "pay".to_owned(), text.to_owned())];
            let function = sent(&own, None, &calls)["tool_calls"][0]["function"].clone();
            assert_eq!(function["arguments"], expected, "{text}");
            let rebuilt = sent(&Value::Null, None, &calls);
            let function = &rebuilt["tool_calls"][0]["function"];
            assert_eq!(function["arguments"], json!(sendable_arguments(text)));
        }
    }

    #[test]
    fn turn_of_another_protocol_is_rewritten() {
        let foreign = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "pay"}]});
        for raw in [foreign, Value::Null, json!("text"), json!({})] {
            assert_eq!(
                sent(&raw, Some("so"), &[call("t")]),
                json!({"role": "assistant", "content": "so", "tool_calls": [
                    {"id": "t", "type": "function", "function": {"name": "pay", "arguments": "{}"}}]})
            );
        }
    }

    #[test]
    fn long_id_is_cut_in_call_and_result_only_if_another_protocol_wrote_it() {
        let long = format!("call:{}", "x".repeat(295));
        let own = json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": long, "type": "function", "function": {"name": "pay", "arguments": "{}"}}]});
        let short = format!("call_{}", "x".repeat(35));
        for (raw, id) in [
            (json!({"type": "message"}), short.as_str()),
            (json!({"type": "response"}), short.as_str()),
            (own, long.as_str()),
            (Value::Null, long.as_str()),
        ] {
            let prompt = Prompt {
                system: None,
                messages: vec![
                    Message::Assistant {
                        raw,
                        text: None,
                        calls: vec![call(&long)],
                    },
                    Message::Result {
                        provider_id: long.clone(),
                        name: "pay".to_owned(),
                        content: "paid".to_owned(),
                        succeeded: true,
                    },
                ],
                tools: Vec::new(),
                turn: 1,
            };
            let request = body(&BodyParts {
                prompt: &prompt,
                model: "m",
                extra: &Map::new(),
                mode: RequestMode::Unstreamed,
                earlier_thinking: EarlierThinking::Included,
            });
            let messages = &request["messages"];
            assert_eq!(messages[0]["tool_calls"][0]["id"], id);
            assert_eq!(messages[1]["tool_call_id"], id);
        }
    }

    #[test]
    fn legacy_function_call_is_sent_back_as_a_tool_call() {
        let raw = json!({"role": "assistant", "content": null, "x": 1, "function_call": {"name": "pay", "arguments": "{}"}});
        assert_eq!(
            sent(&raw, None, &[call("ours")]),
            json!({"role": "assistant", "content": null, "x": 1, "tool_calls": [
                {"id": "ours", "type": "function", "function": {"name": "pay", "arguments": "{}"}}]})
        );
    }

    #[test]
    fn empty_answer_is_sent_back_as_an_empty_text_without_an_empty_list_of_calls() {
        let raw = json!({"role": "assistant", "content": null, "reasoning": "hm"});
        assert_eq!(
            sent(&raw, Some(""), &[]),
            json!({"role": "assistant", "content": "", "reasoning": "hm"})
        );
        let no_calls = json!({"role": "assistant", "content": "so", "tool_calls": []});
        assert_eq!(
            sent(&no_calls, Some("so"), &[]),
            json!({"role": "assistant", "content": "so"})
        );
        let refusal = json!({"role": "assistant", "content": null, "refusal": "no"});
        assert_eq!(sent(&refusal, Some("no"), &[]), refusal);
    }
}
