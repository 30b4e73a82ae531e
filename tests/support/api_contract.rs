//! Compares every HTTP reply that a test gets with the API document. The document must describe the
//! reply.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use jsonschema::Validator;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::test_app::Reply;

static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../openapi/openapi.json")).unwrap());
static VALIDATORS: LazyLock<Mutex<HashMap<String, &'static Validator>>> =
    LazyLock::new(Mutex::default);

/// Fails if the operation replied with a status, a content type or a body that the document does
/// not describe.
pub fn is_kept(method: &Method, path: &str, reply: &Reply) {
    let Some((name, operation)) = operation(method, path) else {
        return;
    };
    // A 404 or 405 may mean that the service does not know the path. The document need not describe
    // such a reply.
    if [405, 404].contains(&reply.status)
        && operation["responses"]
            .get(reply.status.to_string())
            .is_none()
    {
        return;
    }
    let described = &operation["responses"][reply.status.to_string()];
    let kind = reply
        .header("content-type")
        .split(';')
        .next()
        .unwrap_or_default();
    // The document describes the event stream of a gate's MCP server only in prose.
    if path.starts_with("/mcp/") && kind == "text/event-stream" {
        return;
    }
    // The document describes the event stream of a POST in prose. If the document listed a second
    // response type, generated clients would lose the type of the JSON reply.
    if *method == Method::POST && reply.status == 200 && kind == "text/event-stream" {
        let said = operation["description"].as_str().unwrap_or_default();
        assert!(
            said.contains("`Accept: text/event-stream`"),
            "{name} does not say that it streams"
        );
        return;
    }
    // For the page at `/resume/…`, the response type `text/html` in the document suffices, and so
    // does a mention of `text/html` in the operation's description.
    if *method != Method::POST
        && reply.status == 200
        && kind == "text/html"
        && path.contains("/resume/")
    {
        let page = described["content"]["text/html"].is_object();
        assert!(
            page || operation["description"]
                .as_str()
                .unwrap_or_default()
                .contains("`text/html`"),
            "{name} has no page"
        );
        return;
    }
    assert!(
        described.is_object(),
        "{name} does not say that it answers {}: {}",
        reply.status,
        reply.text
    );
    assert!(
        !reply.header("x-request-id").is_empty(),
        "{name} names no request"
    );
    let error_page = reply.status >= 400
        && kind == "text/html"
        && [
            "/resume/",
            "/l/",
            "/sign-",
            "/problems/",
            "/inbox",
            "/tasks",
            "/grants",
        ]
        .iter()
        .any(|start| path.contains(start));
    if reply.text.is_empty() || *method == Method::HEAD || error_page {
        return;
    }
    let schema = &described["content"][kind]["schema"];
    assert!(
        schema.is_object(),
        "{name} does not say that {} is {kind}",
        reply.status
    );
    let Some(component) = schema["$ref"].as_str() else {
        return;
    };
    let found: Vec<String> = validator(component)
        .iter_errors(&reply.body)
        .map(|error| error.to_string())
        .collect();
    assert!(
        found.is_empty(),
        "{name} {}: {found:?} in {}",
        reply.status,
        reply.text
    );
}

/// Fails if an event's data differs from the document's description.
pub fn is_an_event(union: &str, name: &str, data: &Value) {
    let component =
        DOCUMENT["components"]["schemas"][union]["discriminator"]["mapping"][name].as_str();
    let Some(component) = component else {
        panic!("no event is called {name}")
    };
    let found: Vec<String> = validator(component)
        .iter_errors(data)
        .map(|error| error.to_string())
        .collect();
    assert!(found.is_empty(), "{name}: {found:?} in {data}");
    assert!(is_a(union, data) && data["event"] == name, "{name}: {data}");
}

pub fn is_a(component: &str, value: &Value) -> bool {
    validator(&format!("#/components/schemas/{component}")).is_valid(value)
}

fn operation(method: &Method, path: &str) -> Option<(String, &'static Value)> {
    let method = if *method == Method::HEAD {
        "get".to_owned()
    } else {
        method.as_str().to_ascii_lowercase()
    };
    let path = path.split('?').next()?;
    let (template, item) = DOCUMENT["paths"]
        .as_object()?
        .iter()
        .find(|(template, _)| fits(template, path))?;
    Some((format!("{method} {template}"), item.get(&method)?))
}

fn fits(template: &str, path: &str) -> bool {
    let (template, path): (Vec<_>, Vec<_>) =
        (template.split('/').collect(), path.split('/').collect());
    template.len() == path.len()
        && template.iter().zip(&path).all(|(wanted, found)| {
            wanted == found || (wanted.starts_with('{') && !found.is_empty())
        })
}

/// Returns the schemas to which `reference` leads, directly or through other schemas. The validator
/// compiles these and no others, because compiling the whole document would take half of the CPU
/// time of many tests.
fn needed_schemas(reference: &str) -> Map<String, Value> {
    let all = &DOCUMENT["components"]["schemas"];
    let (mut needed, mut open) = (Map::new(), vec![reference.to_owned()]);
    while let Some(reference) = open.pop() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        if !needed.contains_key(name) {
            add_references(&all[name], &mut open);
            needed.insert(name.to_owned(), all[name].clone());
        }
    }
    needed
}

/// Adds each `$ref` in `schema`, and each schema that a discriminator names.
fn add_references(schema: &Value, references: &mut Vec<String>) {
    match schema {
        Value::String(text) if text.starts_with("#/components/schemas/") => {
            references.push(text.clone());
        }
        Value::Array(elements) => {
            for element in elements {
                add_references(element, references);
            }
        }
        Value::Object(members) => {
            for member in members.values() {
                add_references(member, references);
            }
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn validator(component: &str) -> &'static Validator {
    VALIDATORS
        .lock()
        .unwrap()
        .entry(component.to_owned())
        .or_insert_with(|| {
            let root = json!({
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "$ref": component,
                "components": {"schemas": needed_schemas(component)},
            });
            Box::leak(Box::new(
                jsonschema::options()
                    .should_validate_formats(true)
                    .build(&root)
                    .unwrap(),
            ))
        })
}
