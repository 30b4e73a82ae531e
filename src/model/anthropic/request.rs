//! Writes the request body: the prompt as messages of content blocks.
//!
//! Invariant: the endpoint accepts the form of the body. A refusal would block a stored
//! conversation for good, because each later request contains the same messages. The model's own
//! blocks go back unchanged where the endpoint accepts them. If the arguments of a call are a JSON
//! object, the call keeps their exact text (see [`Block::call`]). The id of a call is unique, and
//! the call's result has the same id.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::turn::turn_blocks;
use crate::model::arguments::object_text;
use crate::model::ids::CallIds;
use crate::model::protocol::{BodyParts, EarlierThinking};
use crate::model::{OfferedTool, data_about_the_user};
use crate::task::item::{Part, PartType};
use crate::task::transcript::Message;

/// The default of `max_tokens`, which the endpoint requires. A configured thinking budget
/// (`thinking.budget_tokens`) is added to the default, because thinking also uses up `max_tokens`.
pub(super) const DEFAULT_MAX_TOKENS: u64 = 16_384;

/// The placeholder for an empty text, which the endpoint would refuse.
const EMPTY_TEXT_PLACEHOLDER: &str = "(empty)";

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Block {
    /// A block that is not a call, or a call whose arguments are not a JSON object.
    Plain(Value),
    Call {
        #[serde(flatten)]
        rest: Map<String, Value>,
        /// The exact text of the arguments.
        input: Box<RawValue>,
    },
}

impl Block {
    /// Builds a call block from the members `rest` and the member `input`. If `arguments` is the
    /// text of a JSON object, `input` is that text, with escapes of lone surrogates replaced.
    /// Otherwise `input` is `{}`, and the stored result of the call tells the model that the
    /// arguments were wrong.
    pub(super) fn call(mut rest: Map<String, Value>, arguments: &str) -> Self {
        let text = object_text(arguments);
        if let Some(input) = text.and_then(|text| RawValue::from_string(text.into_owned()).ok()) {
            rest.remove("input");
            Self::Call { rest, input }
        } else {
            rest.insert("input".to_owned(), json!({}));
            Self::Plain(Value::Object(rest))
        }
    }

    /// Builds a text block; `None` for a blank text, which the endpoint refuses.
    pub(super) fn text(text: &str) -> Option<Self> {
        (!text.trim().is_empty()).then(|| Self::Plain(json!({"type": "text", "text": text})))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    User,
    Assistant,
}

#[derive(Debug, Serialize)]
struct OutgoingMessage {
    role: Role,
    content: Vec<Block>,
}

#[derive(Serialize)]
struct Body {
    #[serde(flatten)]
    rest: Map<String, Value>,
    messages: Vec<OutgoingMessage>,
}

/// Writes the request body.
///
/// # Errors
/// Fails if the body cannot be written as JSON. No known prompt causes this.
pub(super) fn body(parts: &BodyParts<'_>) -> serde_json::Result<String> {
    let (prompt, earlier_thinking) = (parts.prompt, parts.earlier_thinking);
    let mut rest = parts.common_members();
    let budget = rest
        .get("thinking")
        .and_then(|thinking| thinking.get("budget_tokens"))
        .and_then(Value::as_u64);
    rest.entry("max_tokens")
        .or_insert_with(|| json!(DEFAULT_MAX_TOKENS.saturating_add(budget.unwrap_or(0))));
    if earlier_thinking == EarlierThinking::Omitted
        && rest
            .get("thinking")
            .is_some_and(|thinking| thinking.get("type") == Some(&json!("enabled")))
    {
        // With a fixed thinking budget, the endpoint requires that the last turn begins with a
        // thinking block. This request leaves out thinking blocks, so the member `thinking` is
        // removed.
        rest.remove("thinking");
    }
    if let Some(system) = parts.instructions() {
        rest.insert("system".to_owned(), json!(system));
    }
    if !prompt.tools.is_empty() {
        rest.insert("tools".to_owned(), prompt.tools.iter().map(tool).collect());
    }
    serde_json::to_string(&Body {
        rest,
        messages: messages(&prompt.messages, earlier_thinking),
    })
}

/// Converts the conversation into messages of alternating roles. The results of a turn's calls and
/// the user text that follows the results form one message.
fn messages(conversation: &[Message], earlier_thinking: EarlierThinking) -> Vec<OutgoingMessage> {
    let mut messages = Vec::new();
    let mut ids = CallIds::default();
    for message in conversation {
        match message {
            Message::User { context, parts } => {
                let about = data_about_the_user(context.as_ref());
                let about = about.and_then(|about| Block::text(&about));
                let mut content: Vec<_> = parts.iter().filter_map(part).collect();
                if content.is_empty() {
                    content.extend(Block::text(EMPTY_TEXT_PLACEHOLDER));
                }
                append_blocks(&mut messages, Role::User, about.into_iter().chain(content));
            }
            Message::Assistant { raw, text, calls } => {
                ids.start_turn(calls.iter().map(|(id, ..)| id.as_str()));
                append_blocks(
                    &mut messages,
                    Role::Assistant,
                    turn_blocks(raw, text.as_deref(), calls, &ids, earlier_thinking),
                );
            }
            Message::Result {
                provider_id,
                content,
                succeeded,
                ..
            } => {
                append_blocks(
                    &mut messages,
                    Role::User,
                    [result(&ids.sent_id(provider_id), content, *succeeded)],
                );
            }
        }
    }
    messages
}

/// Adds blocks to the last message if its role is `role`. Otherwise adds them as a new message.
/// Adds nothing if there are no blocks, because the endpoint refuses an empty message.
fn append_blocks(
    messages: &mut Vec<OutgoingMessage>,
    role: Role,
    blocks: impl IntoIterator<Item = Block>,
) {
    let mut blocks = blocks.into_iter().peekable();
    if blocks.peek().is_none() {
        return;
    }
    match messages.last_mut() {
        Some(last) if last.role == role => last.content.extend(blocks),
        Some(_) | None => messages.push(OutgoingMessage {
            role,
            content: blocks.collect(),
        }),
    }
}

fn part(part: &Part) -> Option<Block> {
    match part.content_type {
        PartType::Text => Block::text(&part.content),
        PartType::Image => Some(Block::Plain(
            json!({"type": "image", "source": source(&part.content)}),
        )),
    }
}

/// Returns an image source: the bytes of a `data:` URI, or a URL that the endpoint fetches.
fn source(content: &str) -> Value {
    let data = content
        .split_once(':')
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("data"));
    let data = data.and_then(|(_, rest)| rest.split_once(','));
    match data {
        Some((kind, data)) => {
            let media_type = kind
                .split(';')
                .next()
                .unwrap_or_default()
                .to_ascii_lowercase();
            json!({"type": "base64", "media_type": media_type, "data": data})
        }
        None => json!({"type": "url", "url": content}),
    }
}

fn result(id: &str, content: &str, succeeded: bool) -> Block {
    let content = if content.trim().is_empty() {
        EMPTY_TEXT_PLACEHOLDER
    } else {
        content
    };
    let mut result = json!({"type": "tool_result", "tool_use_id": id, "content": content});
    if let (Some(members), false) = (result.as_object_mut(), succeeded) {
        members.insert("is_error".to_owned(), json!(true));
    }
    Block::Plain(result)
}

fn tool(tool: &OfferedTool) -> Value {
    let mut schema = tool.parameters.as_object().cloned().unwrap_or_default();
    schema.entry("type").or_insert_with(|| json!("object"));
    tool.describe(json!({"name": tool.name, "input_schema": schema}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Prompt;
    use crate::model::protocol::RequestMode;

    fn user(parts: &[&str]) -> Message {
        let part = |text: &&str| Part {
            content_type: PartType::Text,
            content: (*text).to_owned(),
        };
        Message::User {
            context: None,
            parts: parts.iter().map(part).collect(),
        }
    }

    fn written(
        messages: Vec<Message>,
        system: &str,
        extra: &Value,
        mode: RequestMode,
        earlier_thinking: EarlierThinking,
    ) -> Value {
        let prompt = Prompt {
            system: Some(system.to_owned()),
            messages,
            tools: Vec::new(),
            turn: 1,
        };
        let parts = BodyParts {
            prompt: &prompt,
            model: "m",
            extra: extra.as_object().unwrap(),
            mode,
            earlier_thinking,
        };
        serde_json::from_str(&body(&parts).unwrap()).unwrap()
    }

    #[test]
    fn max_tokens_is_sent_and_a_thinking_budget_is_added_to_it() {
        let thinking = json!({"type": "enabled", "budget_tokens": 4000});
        for (extra, max_tokens) in [
            (json!({}), 16_384),
            (json!({"max_tokens": 99}), 99),
            (json!({"thinking": thinking}), 20_384),
            (json!({"thinking": {"type": "adaptive"}}), 16_384),
            (json!({"max_tokens": 5000, "thinking": thinking}), 5000),
        ] {
            let body = written(
                Vec::new(),
                "",
                &extra,
                RequestMode::Streamed,
                EarlierThinking::Included,
            );
            assert_eq!(body["max_tokens"], max_tokens, "{extra}");
            assert_eq!(body.get("thinking"), extra.get("thinking"));
        }
    }

    #[test]
    fn request_without_thinking_blocks_has_no_fixed_thinking_budget() {
        let with = |thinking: Value| {
            written(
                Vec::new(),
                "",
                &json!({"thinking": thinking}),
                RequestMode::Streamed,
                EarlierThinking::Omitted,
            )
            .get("thinking")
            .cloned()
        };
        assert_eq!(
            with(json!({"type": "enabled", "budget_tokens": 4000})),
            None
        );
        assert_eq!(
            with(json!({"type": "adaptive"})),
            Some(json!({"type": "adaptive"}))
        );
    }

    #[test]
    fn empty_texts_are_not_sent() {
        let said = vec![user(&["", " \n", "Hi"]), user(&[" "]), user(&[])];
        let body = written(
            said,
            " ",
            &json!({"temperature": 0}),
            RequestMode::Unstreamed,
            EarlierThinking::Included,
        );
        let text = |text: &str| json!({"type": "text", "text": text});
        assert_eq!(
            body,
            json!({"model": "m", "max_tokens": 16_384, "temperature": 0, "messages": [
                {"role": "user", "content": [text("Hi"), text("(empty)"), text("(empty)")]}]})
        );
    }

    #[test]
    fn image_is_sent_as_bytes_or_as_its_url() {
        for (content, expected) in [
            (
                "DATA:image/WEBP;base64,AAAA",
                json!({"type": "base64", "media_type": "image/webp", "data": "AAAA"}),
            ),
            (
                "https://x/a,b.png",
                json!({"type": "url", "url": "https://x/a,b.png"}),
            ),
        ] {
            assert_eq!(source(content), expected);
        }
    }
}
