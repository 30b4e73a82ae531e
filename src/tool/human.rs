//! The three tools with which an agent asks a human: the texts that a model reads, and the question
//! that each call asks. The engine performs the calls.
//!
//! Invariant: the form in which a person enters a credential shows only the operator's words. The
//! agent's words are in [`Question::text`], [`Question::details`] and the agent's own form, which
//! is flat and asks for no secret. No error quotes a value that a person entered.

mod form;
pub(crate) mod server_form;

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::catalog::{CatalogEntry, definition_digest};
use super::schema::CompiledSchema;
use crate::task::request::RequestKind;
use crate::task::request_kind::HumanKind;
use crate::task::tool_spec::{Effect, ToolKind, ToolSpec};

pub(crate) use self::form::names_secret;

/// A credential that an agent may ask for, as described to the model and the person who is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The credential's name in the configuration. The model passes it as the argument `service` of
    /// `request_credentials`.
    pub name: String,
    /// The purpose of the credential, in the operator's words.
    pub description: String,
    pub fields: Vec<ServiceField>,
    /// How long the credential is kept at most; `None` if it is kept until the task ends.
    pub expires_in: Option<Duration>,
    /// The tools that receive the credential, such as `comment_ticket: POST https://jira.acme.com`.
    pub receivers: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceField {
    pub name: String,
    /// The JSON Schema `format` of the text; `None` if any text fits.
    pub format: Option<String>,
    /// The label of the field, in the operator's words.
    pub description: String,
}

/// The question that a call puts to a person.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    pub kind: RequestKind,
    /// The agent's own words: its question, the action to confirm, or the reason for asking for a
    /// credential. `None` if the agent gives no reason.
    pub text: Option<String>,
    /// The call's arguments that are neither in `text` nor in `form`; `None` if there are none.
    pub details: Option<Value>,
    /// The JSON Schema of the answer.
    pub form: Option<Value>,
}

/// Returns the catalog entry of the tool that asks this kind of question. `None` if the kind has no
/// tool, or if the kind is `Credentials` and `services` is empty.
#[must_use]
pub(crate) fn catalog_entry(kind: RequestKind, services: &[Service]) -> Option<CatalogEntry> {
    let human = kind.properties().human?;
    let parameters = parameters(human, services)?;
    let schema = CompiledSchema::closed(&parameters).ok()?;
    let (kind_of_tool, effect, target) = (ToolKind::Human, Effect::ReadOnly, "human");
    // A person who enters a credential agrees to the credential's fields and receivers, so the
    // tool's definition covers these fields and receivers.
    let service_definitions: Vec<Value> = if human == HumanKind::Credentials {
        let fields = |service: &Service| {
            let fields = service
                .fields
                .iter()
                .map(|field| (field.name.clone(), json!(field.format)));
            fields.collect::<Map<_, _>>()
        };
        let services = services.iter();
        services
            .map(|one| json!({"name": one.name, "fields": fields(one), "receivers": one.receivers}))
            .collect()
    } else {
        Vec::new()
    };
    let definition = definition_digest(&json!({
        "kind": kind_of_tool, "target": target, "effect": effect.as_str(), "parameters": parameters, "services": service_definitions,
    }));
    let spec = ToolSpec {
        name: human.tool().to_owned(),
        description: description(human, services),
        parameters,
        effect,
        kind: kind_of_tool,
        target: target.to_owned(),
        summary: None,
        timeout: Duration::ZERO,
        needs: Vec::new(),
        definition,
    };
    Some(CatalogEntry::without_tool(spec, schema))
}

fn description(kind: HumanKind, services: &[Service]) -> String {
    match kind {
        HumanKind::Guidance => {
            "Ask a human a question and wait for the answer. Use it when what is wanted is unclear, when several ways \
             are open and the choice is not yours, or when you are stuck. Not for passwords, keys or other secrets."
                .to_owned()
        }
        HumanKind::Confirmation => {
            "Ask a human to confirm something before you go on, and wait for a yes or a no. The answer is advice: a call \
             that needs an approval is held for one all the same."
                .to_owned()
        }
        HumanKind::Credentials => {
            let list: Vec<String> = services
                .iter()
                .map(|service| match service.description.trim() {
                    "" => format!("`{}`", service.name),
                    description => format!("`{}` ({description})", service.name),
                })
                .collect();
            format!(
                "Ask a human for the login of a service, so that your tools can use it. You are told that it was given, \
                 never what it is. Services: {}.",
                list.join(", ")
            )
        }
    }
}

fn parameters(kind: HumanKind, services: &[Service]) -> Option<Value> {
    let text = |description: &str| json!({"type": "string", "description": description});
    let needed =
        |description: &str| json!({"type": "string", "minLength": 1, "description": description});
    // Models often write a single text where a list is meant.
    let texts = |description: &str| json!({"type": ["array", "string"], "items": {"type": "string"}, "description": description});
    let (properties, required) = match kind {
        HumanKind::Guidance => {
            let form = json!({
                "type": "object", "additionalProperties": true,
                "description": form::DESCRIPTION,
            });
            let properties = json!({
                "question": needed("The question, so that somebody who has not followed the conversation understands it."),
                "context": text("What one has to know to answer it."),
                "attempted_approaches": texts("What you have tried already."),
                "options": texts("Answers to choose from, if there are some."),
                "form": form,
            });
            (properties, "question")
        }
        HumanKind::Confirmation => {
            let properties = json!({
                "action": needed("What you are about to do, precisely."),
                "reason": text("Why."),
                "risks": texts("What could go wrong."),
                "alternatives": texts("What could be done instead."),
            });
            (properties, "action")
        }
        HumanKind::Credentials => {
            let names: Vec<&str> = services
                .iter()
                .map(|service| service.name.as_str())
                .collect();
            if names.is_empty() {
                return None;
            }
            let service =
                json!({"type": "string", "enum": names, "description": "Whose login is needed."});
            (
                json!({"service": service, "reason": text("What it is needed for.")}),
                "service",
            )
        }
    };
    Some(
        json!({"type": "object", "properties": properties, "required": [required], "additionalProperties": false}),
    )
}

/// Returns the question that a call asks. The arguments must have been checked against the schema.
///
/// # Errors
/// Fails if the call is invalid. The error is the reason, which never quotes a value.
pub(crate) fn question(
    kind: RequestKind,
    args: &Value,
    services: &[Service],
) -> Result<Question, String> {
    let Some(human) = kind.properties().human else {
        return Err("no tool asks this kind of question".to_owned());
    };
    let (text, details, form) = match human {
        HumanKind::Guidance => {
            let mut details = Map::new();
            copy_argument(args, "context", &mut details);
            for name in ["attempted_approaches", "options"] {
                copy_texts(args, name, &mut details);
            }
            let form = match args.get("form").filter(|form| !form.is_null()) {
                Some(own) => form::from_agent(own)?,
                None => form::text_answer(),
            };
            let question = required_text(args, "question")?;
            (Some(question), non_empty(details), form)
        }
        HumanKind::Confirmation => {
            let mut details = Map::new();
            copy_argument(args, "reason", &mut details);
            for name in ["risks", "alternatives"] {
                copy_texts(args, name, &mut details);
            }
            let action = required_text(args, "action")?;
            (Some(action), non_empty(details), form::confirmation())
        }
        HumanKind::Credentials => {
            let name = args.get("service").and_then(Value::as_str);
            let service = services
                .iter()
                .find(|service| Some(service.name.as_str()) == name);
            let service =
                service.ok_or("`service` is not one of the services that can be asked for")?;
            let details = json!({"service": service.name});
            let reason = required_text(args, "reason").ok();
            (reason, Some(details), credential_form(service))
        }
    };
    Ok(Question {
        kind,
        text,
        details,
        form: Some(form),
    })
}

fn required_text(args: &Value, name: &str) -> Result<String, String> {
    let text = args
        .get(name)
        .and_then(Value::as_str)
        .filter(|text| !text.trim().is_empty());
    text.map(str::to_owned)
        .ok_or_else(|| format!("`{name}` must be a text that is not empty"))
}

/// Copies an argument that is a list of texts, or a single text, as a list.
fn copy_texts(args: &Value, name: &str, details: &mut Map<String, Value>) {
    copy_argument(args, name, details);
    if let Some(single @ Value::String(_)) = details.get_mut(name) {
        *single = json!([single.take()]);
    }
}

fn copy_argument(args: &Value, name: &str, details: &mut Map<String, Value>) {
    if let Some(value) = args.get(name).filter(|value| !value.is_null()) {
        details.insert(name.to_owned(), value.clone());
    }
}

fn non_empty(details: Map<String, Value>) -> Option<Value> {
    (!details.is_empty()).then_some(Value::Object(details))
}

/// Returns the form in which a person enters a credential. The name, the descriptions and the
/// fields come from the configuration, and every field is a required text. `x-receivers` lists the
/// tools that receive the credential. `x-expires-in` is the number of seconds after which the
/// credential is deleted at the latest.
#[must_use]
pub(crate) fn credential_form(service: &Service) -> Value {
    let mut properties = Map::new();
    for field in &service.fields {
        let mut schema = Map::from_iter([
            ("type".to_owned(), json!("string")),
            ("minLength".to_owned(), json!(1)),
        ]);
        if let Some(format) = &field.format {
            schema.insert("format".to_owned(), json!(format));
        }
        if !field.description.is_empty() {
            schema.insert("description".to_owned(), json!(field.description));
        }
        properties.insert(field.name.clone(), Value::Object(schema));
    }
    let required: Vec<&str> = service
        .fields
        .iter()
        .map(|field| field.name.as_str())
        .collect();
    let mut form = json!({
        "type": "object", "title": service.name, "properties": properties, "required": required,
        "additionalProperties": false, "x-receivers": service.receivers,
    });
    if let Some(members) = form.as_object_mut() {
        if !service.description.is_empty() {
            members.insert("description".to_owned(), json!(service.description));
        }
        if let Some(time) = service.expires_in {
            members.insert("x-expires-in".to_owned(), json!(time.as_secs()));
        }
    }
    form
}

/// The order in which the system prompt names the tools.
const PROMPT_ORDER: [HumanKind; HumanKind::ALL.len()] = [
    HumanKind::Guidance,
    HumanKind::Confirmation,
    HumanKind::Credentials,
];

/// Returns the paragraph of the system prompt that says when to ask a human with the tools of
/// `kinds`; `None` if no kind in `kinds` has a tool.
#[must_use]
pub(crate) fn prompt_paragraph(kinds: &[RequestKind]) -> Option<String> {
    let lines: Vec<&str> = PROMPT_ORDER
        .into_iter()
        .filter(|kind| kinds.contains(&kind.request()))
        .map(prompt_line)
        .collect();
    (!lines.is_empty()).then(|| {
        format!(
            "You can ask a human. The conversation waits for the answer, however long it takes; a human may also \
             decline.\n{}",
            lines.join("\n")
        )
    })
}

fn prompt_line(kind: HumanKind) -> &'static str {
    match kind {
        HumanKind::Guidance => {
            "- `request_human_guidance`: when what is wanted is unclear, or a choice is not yours to make. Look with your \
             own tools first; then ask one clear question instead of guessing."
        }
        HumanKind::Confirmation => {
            "- `request_confirmation`: before a step that cannot be undone or that may not be what is wanted. A yes \
             approves no call: calls that need an approval are held for it by themselves, so do not ask for those."
        }
        HumanKind::Credentials => {
            "- `request_credentials`: when a tool says that it lacks a login. You never see what is given. Never ask for \
             passwords, keys or codes in any other way."
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_any;
