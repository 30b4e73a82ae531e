//! Writes the request body: the prompt as items. Invariant: the items of the model's earlier turns
//! are sent back in their order, and each call comes before its output.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::item::ResponseItem;
use super::turn::{text_item, turn_items};
use crate::model::ids::CallIds;
use crate::model::protocol::{BodyParts, EarlierThinking};
use crate::model::{OfferedTool, data_about_the_user, user_content};
use crate::task::item::{Part, PartType};
use crate::task::transcript::Message;

#[derive(Serialize)]
struct Body {
    #[serde(flatten)]
    rest: Map<String, Value>,
    input: Vec<ResponseItem>,
}

/// Writes the request body.
///
/// # Errors
/// Fails if the body cannot be written as JSON. No known prompt causes this.
pub(super) fn body(parts: &BodyParts<'_>) -> serde_json::Result<String> {
    let (prompt, earlier_thinking) = (parts.prompt, parts.earlier_thinking);
    let mut rest = parts.common_members();
    let mut set = |name: &str, value: Value| rest.insert(name.to_owned(), value);
    set("store", json!(false));
    if earlier_thinking == EarlierThinking::Included {
        set("include", json!(["reasoning.encrypted_content"]));
    }
    if let Some(system) = parts.instructions() {
        set("instructions", json!(system));
    }
    if !prompt.tools.is_empty() {
        set(
            "tools",
            prompt.tools.iter().map(function_definition).collect(),
        );
    }
    serde_json::to_string(&Body {
        rest,
        input: input(&prompt.messages, earlier_thinking),
    })
}

fn input(conversation: &[Message], earlier_thinking: EarlierThinking) -> Vec<ResponseItem> {
    let mut input = Vec::new();
    let mut ids = CallIds::default();
    for message in conversation {
        match message {
            Message::User { context, parts } => {
                let about = data_about_the_user(context.as_ref());
                input.extend(about.map(|about| text_item([("role", "user"), ("content", &about)])));
                input.push(user_item(parts));
            }
            Message::Assistant { raw, text, calls } => {
                ids.start_turn(calls.iter().map(|(id, ..)| id.as_str()));
                input.extend(turn_items(
                    raw,
                    text.as_deref(),
                    calls,
                    &ids,
                    earlier_thinking,
                ));
            }
            Message::Result {
                provider_id,
                content,
                ..
            } => input.push(text_item([
                ("type", "function_call_output"),
                ("call_id", &ids.sent_id(provider_id)),
                ("output", content),
            ])),
        }
    }
    input
}

fn user_item(parts: &[Part]) -> ResponseItem {
    let content = user_content(parts, |part| match part.content_type {
        PartType::Text => json!({"type": "input_text", "text": part.content}),
        PartType::Image => {
            json!({"type": "input_image", "image_url": part.content, "detail": "auto"})
        }
    });
    let members = [("role", json!("user")), ("content", content)];
    ResponseItem::new(Map::from_iter(
        members.map(|(name, value)| (name.to_owned(), value)),
    ))
}

/// Describes a tool as a function with `strict: false`. By default, the API treats a function as
/// `strict`, and a `strict` function may not have optional members.
fn function_definition(tool: &OfferedTool) -> Value {
    let parameters = tool.object_schema();
    let function =
        json!({"type": "function", "name": tool.name, "parameters": parameters, "strict": false});
    tool.describe(function)
}
