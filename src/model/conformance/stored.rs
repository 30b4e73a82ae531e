//! Conversations as the journal stores them. Each protocol stores turns in a form of its own. For
//! each provider there is a conversation whose turns have the form of the provider's protocol.

use serde_json::{Value, json};

use super::cases::{result, user};
use crate::task::transcript::Message;

fn turn(raw: Value, text: Option<&str>, calls: &[(&str, &str, &str)]) -> Message {
    let calls = calls
        .iter()
        .map(|(id, name, text)| ((*id).to_owned(), (*name).to_owned(), (*text).to_owned()));
    Message::Assistant {
        raw,
        text: text.map(str::to_owned),
        calls: calls.collect(),
    }
}

pub(super) fn by_openai() -> Vec<Message> {
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let first = json!({"role": "assistant", "content": "So.", "reasoning_content": "hm",
        "tool_calls": [call("call_0", "pay", "{\"n\":1}"), call("call:1", "look.up", "oops")]});
    let second = json!({"role": "assistant", "content": null, "tool_calls": [call("call_0", "pay", "{\"n\":2}")]});
    vec![
        user("One."),
        turn(
            first,
            Some("So."),
            &[
                ("call_0", "pay", "{\"n\":1}"),
                ("call:1", "look.up", "oops"),
            ],
        ),
        result("call_0", "paid", true),
        result("call:1", "Not JSON.", false),
        turn(second, None, &[("call_0", "pay", "{\"n\":2}")]),
        result("call_0", "paid", true),
        turn(
            json!({"role": "assistant", "content": "Done."}),
            Some("Done."),
            &[],
        ),
        user("And now?"),
    ]
}

pub(super) fn by_anthropic() -> Vec<Message> {
    let thought = json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"});
    let call = |id: &str, name: &str| json!({"type": "tool_use", "id": id, "name": name});
    let first = json!({"type": "message", "role": "assistant", "content": [thought, {"type": "text", "text": "So."},
        call("toolu_0", "pay"), call("toolu_1", "look")]});
    let last = json!({"type": "message", "role": "assistant", "content": [thought, {"type": "text", "text": "Done."}]});
    vec![
        user("One."),
        turn(
            first,
            Some("So."),
            &[("toolu_0", "pay", "{\"n\":1}"), ("toolu_1", "look", "{ }")],
        ),
        result("toolu_0", "paid", true),
        result("toolu_1", "nothing", true),
        turn(last, Some("Done."), &[]),
        user("And now?"),
    ]
}

pub(super) fn by_responses() -> Vec<Message> {
    let first = json!({"type": "response", "items": [
        r#"{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"gAAA"}"#,
        r#"{"id":"msg_1","type":"message","status":"completed","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"So."}],"role":"assistant"}"#,
        r#"{"id":"fc_1","type":"function_call","status":"completed","arguments":"{\"n\":1}","call_id":"call_a","name":"pay"}"#,
        r#"{"id":"fc_2","type":"function_call","status":"completed","arguments":"{ }","call_id":"call_b","name":"look"}"#,
    ]});
    let last = json!({"type": "response", "items": [
        r#"{"id":"rs_2","type":"reasoning","summary":[],"encrypted_content":"gBBB"}"#,
        r#"{"id":"msg_2","type":"message","status":"completed","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"Done."}],"role":"assistant"}"#,
    ]});
    vec![
        user("One."),
        turn(
            first,
            Some("So."),
            &[("call_a", "pay", "{\"n\":1}"), ("call_b", "look", "{ }")],
        ),
        result("call_a", "paid", true),
        result("call_b", "nothing", true),
        turn(last, Some("Done."), &[]),
        user("And now?"),
    ]
}
