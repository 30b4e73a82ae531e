//! The request body: the prompt as items. Invariant: the items of the model's earlier turns go back
//! in their order, each call before its output.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::item::Item;
use super::turn::{assistant, item};
use crate::model::ids::Ids;
use crate::model::protocol::{Manner, Thoughts};
use crate::model::{OfferedTool, Prompt, data_about_the_user};
use crate::task::item::{Part, PartType};
use crate::task::transcript::Message;

#[derive(Serialize)]
struct Body {
    #[serde(flatten)]
    rest: Map<String, Value>,
    input: Vec<Item>,
}

/// Writes the request body; `extra` holds further members from the configuration.
///
/// # Errors
/// When the body cannot be written as JSON, which no prompt is known to cause.
pub(super) fn body(
    prompt: &Prompt,
    model: &str,
    extra: &Map<String, Value>,
    manner: Manner,
    thoughts: Thoughts,
) -> serde_json::Result<String> {
    let mut rest = extra.clone();
    let mut set = |name: &str, value: Value| rest.insert(name.to_owned(), value);
    set("model", json!(model));
    set("store", json!(false));
    if thoughts == Thoughts::Kept {
        set("include", json!(["reasoning.encrypted_content"]));
    }
    if manner != Manner::Whole {
        set("stream", json!(true));
    }
    if let Some(system) = prompt
        .system
        .as_ref()
        .filter(|system| !system.trim().is_empty())
    {
        set("instructions", json!(system));
    }
    if !prompt.tools.is_empty() {
        set("tools", prompt.tools.iter().map(function).collect());
    }
    serde_json::to_string(&Body {
        rest,
        input: input(&prompt.messages, thoughts),
    })
}

fn input(conversation: &[Message], thoughts: Thoughts) -> Vec<Item> {
    let mut input = Vec::new();
    let mut ids = Ids::default();
    for said in conversation {
        match said {
            Message::User { context, parts } => {
                let about = context.as_ref().filter(|context| !context.is_empty());
                input.extend(about.map(|context| {
                    item([("role", "user"), ("content", &data_about_the_user(context))])
                }));
                input.push(user(parts));
            }
            Message::Assistant { raw, text, calls } => {
                ids.begin(calls.iter().map(|(id, ..)| id.as_str()));
                input.extend(assistant(raw, text.as_deref(), calls, &ids, thoughts));
            }
            Message::Result {
                provider_id,
                content,
                ..
            } => input.push(item([
                ("type", "function_call_output"),
                ("call_id", &ids.of(provider_id)),
                ("output", content),
            ])),
        }
    }
    input
}

/// Converts the parts of a user message: a single text into a string, which every endpoint accepts,
/// anything else into a list of parts.
fn user(parts: &[Part]) -> Item {
    let content = match parts {
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
                PartType::Text => json!({"type": "input_text", "text": part.content}),
                PartType::Image => {
                    json!({"type": "input_image", "image_url": part.content, "detail": "auto"})
                }
            })
            .collect(),
    };
    let members = [("role", json!("user")), ("content", content)];
    Item::new(Map::from_iter(
        members.map(|(name, value)| (name.to_owned(), value)),
    ))
}

/// Describes a tool as a function with `strict: false`, because `strict` functions, the API's
/// default, may not have optional members.
fn function(tool: &OfferedTool) -> Value {
    let mut parameters = tool.parameters.as_object().cloned().unwrap_or_default();
    parameters.entry("type").or_insert_with(|| json!("object"));
    parameters.entry("properties").or_insert_with(|| json!({}));
    let mut function =
        json!({"type": "function", "name": tool.name, "parameters": parameters, "strict": false});
    if let (Some(members), false) = (function.as_object_mut(), tool.description.is_empty()) {
        members.insert("description".to_owned(), json!(tool.description));
    }
    function
}
