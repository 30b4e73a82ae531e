//! Builds the `OpenAPI` 3.1 document of the API from the operations and the wire types. The
//! submodules add the parts that derive macros on those types cannot express.

mod constraints;
pub(crate) mod docs;
pub(crate) mod event_schema;
mod examples;
mod inbox_schema;
mod links;
mod operations;
pub(crate) mod sample;
mod schemas;
mod webhooks;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;

use self::constraints::CONSTRAINT_DESCRIPTION;
use crate::http::server::operation::AuthClass;
use crate::http::server::session::cookie;
use crate::http::wire::delivery::{WebhookMessage, WebhookPing};
use crate::http::wire::event::{
    CaughtUpEvent, MessageResetEvent, OutputTextDeltaEvent, ToolCallArgumentsDeltaEvent,
    ToolCallNamedEvent,
};
use crate::http::wire::inbox::{InboxEvent, InboxGoneEvent, InboxRequestEvent};
use crate::http::wire::problem::ProblemDocument;

const SUMMARY: &str = "Runs AI-agent tasks and stops them at the point where a human must agree.";

/// The description of problems that are shown as pages. It describes the pages in words. If a page
/// were a second content type of the problem responses, code generators would drop the type of the
/// JSON.
const ERROR_PAGE_DESCRIPTION: &str = "Outside `/v1` and `/mcp`, a problem is a page (`text/html`) with the same status if `Accept` \
    prefers `text/html`, and always for a GET of `/l/{token}`.";

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Holdpoint",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    components(schemas(
        ProblemDocument,
        CaughtUpEvent,
        OutputTextDeltaEvent,
        ToolCallNamedEvent,
        ToolCallArgumentsDeltaEvent,
        MessageResetEvent,
        InboxEvent,
        InboxRequestEvent,
        InboxGoneEvent,
        WebhookMessage,
        WebhookPing
    )),
    tags(
        (name = "tasks", description = "One conversation of one agent for one user"),
        (name = "requests", description = "Questions to humans, and their answers"),
        (name = "gate", description = "Calls of agents that run elsewhere and ask here before they act"),
        (name = "grants", description = "Standing decisions: approvals that also let later calls through"),
        (name = "deliveries", description = "Messages about tasks and requests, for admins and services without accounts"),
        (name = "agents", description = "The agents that a caller may use"),
        (name = "pages", description = "The pages of a person's inbox and tasks"),
        (name = "sign-in", description = "Sessions of browsers, started with a key"),
        (name = "service", description = "The service itself; no key is needed")
    )
)]
struct Document;

/// Returns the document as indented JSON. The same code always returns the same text.
#[must_use]
pub fn openapi_json() -> String {
    let mut text = serde_json::to_string_pretty(&document()).unwrap_or_default();
    text.push('\n');
    text
}

pub(crate) fn document() -> Value {
    let mut routes = OpenApiRouter::with_openapi(Document::openapi());
    let mut ops = BTreeMap::new();
    for operation in crate::http::operations() {
        ops.insert(operation.op.id, operation.op);
        routes = routes.routes((operation.documented)());
    }
    let mut document = serde_json::to_value(routes.into_openapi()).unwrap_or_default();
    describe_authentication(&mut document);
    operations::add_act_as_headers(&mut document);
    let description = format!("{SUMMARY}\n\n{CONSTRAINT_DESCRIPTION}\n\n{ERROR_PAGE_DESCRIPTION}");
    put(&mut document, &["info", "description"], json!(description));
    event_schema::describe(&mut document);
    webhooks::describe(&mut document);
    for (method, operation) in every_operation(&mut document) {
        if let Some(op) = ops.get(id_of(operation).as_str()) {
            if method == "get" && op.auth == AuthClass::Key {
                operations::add_sign_in_redirect(operation);
            }
            operations::complete(operation, op);
            constraints::describe(operation, op.id);
            links::describe(operation, op.id);
        }
    }
    if let Some(schemas) = document
        .pointer_mut("/components/schemas")
        .and_then(Value::as_object_mut)
    {
        event_schema::add(schemas);
        webhooks::add(schemas);
        constraints::add(schemas);
        for (name, schema) in schemas.iter_mut() {
            schemas::require_members(name, schema);
        }
        schemas::add_discriminators(schemas);
        examples::add(schemas);
    }
    document
}

fn describe_authentication(document: &mut Value) {
    let security = json!([{ "bearer": [] }, { "cookie": [] }]);
    put(document, &["security"], security);
    let schemes = json!({
        "bearer": { "type": "http", "scheme": "bearer", "description": "A key of the operator's `auth.api_keys`." },
        "cookie": {
            "type": "apiKey", "in": "cookie", "name": cookie::PLAIN_NAME,
            "description": "A browser's session, which `POST /sign-in` starts. `Authorization` takes precedence. Over https the name begins \
                            with `__Host-`, or with `__Secure-` where `public_url` has a path."
        }
    });
    put(document, &["components", "securitySchemes"], schemes);
}

pub(crate) fn every_operation(
    document: &mut Value,
) -> impl Iterator<Item = (&str, &mut Map<String, Value>)> {
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    paths
        .into_iter()
        .flat_map(Map::values_mut)
        .filter_map(Value::as_object_mut)
        .flat_map(Map::iter_mut)
        .filter_map(|(method, operation)| Some((method.as_str(), operation.as_object_mut()?)))
}

fn parameters_mut(operation: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    let parameters = operation.get_mut("parameters");
    let parameters = parameters.and_then(Value::as_array_mut);
    parameters.into_iter().flatten()
}

fn id_of(operation: &Map<String, Value>) -> String {
    let id = operation.get("operationId").and_then(Value::as_str);
    id.unwrap_or_default().to_owned()
}

/// Returns the name of the component to which a reference leads.
fn referenced_component(reference: &Value) -> &str {
    let name = reference.as_str().and_then(|text| text.rsplit('/').next());
    name.unwrap_or_default()
}

/// Sets the member at `path` to `new`. Creates the objects that are missing on the path.
pub(crate) fn put(value: &mut Value, path: &[&str], new: Value) {
    let Some((first, rest)) = path.split_first() else {
        *value = new;
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    if let Some(members) = value.as_object_mut() {
        put(members.entry(*first).or_insert(Value::Null), rest, new);
    }
}

/// Describes a header whose value is text.
fn text_header(description: &str) -> Value {
    json!({ "description": description, "schema": { "type": "string" } })
}

#[cfg(test)]
pub(crate) mod tests;
