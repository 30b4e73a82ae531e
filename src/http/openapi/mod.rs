//! The `OpenAPI` 3.1 document of the API, made from the operations and the wire types. This module
//! adds what their derives cannot express: members that a response always has, discriminators of
//! variants, the problems of each operation, and examples, which are written by the same code as
//! the responses.

mod constraints;
pub(crate) mod event_schema;
mod links;
pub(crate) mod sample;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;

use crate::http::pages::sign_in::cookie;
use crate::http::server::operation::{AuthClass, Op};
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::event::{
    CaughtUpEvent, MessageResetEvent, OutputTextDeltaEvent, ToolCallArgumentsDeltaEvent,
    ToolCallNamedEvent,
};
use crate::http::wire::problem::ProblemDocument;
use crate::http::wire::request::InterventionRequest;
use crate::http::wire::task::AgentTask;

/// The document's summary of the service.
const WHAT: &str = "Runs AI-agent tasks and stops them at the point where a human must agree.";

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
        MessageResetEvent
    )),
    tags(
        (name = "tasks", description = "One conversation of one agent for one user"),
        (name = "requests", description = "Questions to humans, and their answers"),
        (name = "agents", description = "Who is there"),
        (name = "sign-in", description = "The browser's door: a key becomes a session"),
        (name = "service", description = "The service itself; no key is needed")
    )
)]
struct Document;

/// The document as indented JSON, always the same for the same code.
#[must_use]
pub fn openapi_json() -> String {
    let mut text = serde_json::to_string_pretty(&document()).unwrap_or_default();
    text.push('\n');
    text
}

/// The document.
pub(crate) fn document() -> Value {
    let mut routes = OpenApiRouter::with_openapi(Document::openapi());
    let mut problems = BTreeMap::new();
    for (op, methods) in crate::http::operations() {
        problems.insert(op.id, op);
        routes = routes.routes(methods);
    }
    let mut document = serde_json::to_value(routes.into_openapi()).unwrap_or_default();
    put(
        &mut document,
        &["security"],
        json!([{ "bearer": [] }, { "cookie": [] }]),
    );
    let bearer = json!({ "type": "http", "scheme": "bearer", "description": "A key of the operator's `auth.api_keys`." });
    put(
        &mut document,
        &["components", "securitySchemes", "bearer"],
        bearer,
    );
    let cookie = json!({
        "type": "apiKey", "in": "cookie", "name": cookie::NAME,
        "description": "A browser's session, which `POST /sign-in` begins. `Authorization` beats it. Over https the name begins \
                        with `__Host-`, or with `__Secure-` where `public_url` has a path."
    });
    put(
        &mut document,
        &["components", "securitySchemes", "cookie"],
        cookie,
    );
    put(
        &mut document,
        &["info", "description"],
        json!(format!("{WHAT}\n\n{}", constraints::ABOUT)),
    );
    event_schema::describe(&mut document);
    for (method, operation) in every_operation(&mut document) {
        let id = operation
            .get("operationId")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        if let Some(op) = problems.get(id.as_str()) {
            if method == "get" && op.auth == AuthClass::Key {
                put_way_in(operation);
            }
            finish(operation, op);
            constraints::describe(operation, op.id);
            links::describe(operation, op.id);
        }
    }
    if let Some(schemas) = document
        .pointer_mut("/components/schemas")
        .and_then(Value::as_object_mut)
    {
        event_schema::add(schemas);
        constraints::add(schemas);
        for (name, schema) in schemas.iter_mut() {
            complete(name, schema);
        }
        tag(schemas);
        examples(schemas);
    }
    document
}

/// Adds the redirect to sign-in for a browser without key and session.
fn put_way_in(operation: &mut Map<String, Value>) {
    let way_in = json!({
        "description": "Nobody is signed in, and `Accept` prefers `text/html`: to the page that takes a key",
        "headers": { "Location": { "description": "`/sign-in?next=…`", "schema": { "type": "string" } } }
    });
    if let Some(responses) = operation
        .get_mut("responses")
        .and_then(Value::as_object_mut)
    {
        responses.insert("303".to_owned(), way_in);
    }
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

/// Adds the operation's problems and its authentication, and removes `null` from its parameters,
/// which no client can send.
fn finish(operation: &mut Map<String, Value>, op: &Op) {
    if matches!(op.auth, AuthClass::Open | AuthClass::Health) {
        operation.insert("security".to_owned(), json!([]));
    }
    for parameter in operation
        .get_mut("parameters")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(schema) = parameter.get_mut("schema") {
            without_null(schema);
        }
    }
    optional_body(operation);
    response_headers(operation);
    let mut words: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in common(op.auth).iter().chain(op.problems) {
        let found = words.entry(code.status().as_u16()).or_default();
        if !found.contains(code) {
            found.push(*code);
        }
    }
    let Some(responses) = operation
        .get_mut("responses")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    for (status, codes) in words {
        responses.insert(status.to_string(), response(&codes));
    }
    for response in responses.values_mut() {
        let id = json!({
            "description": "The id of this HTTP request", "schema": { "type": "string", "format": "uuid" }
        });
        put(response, &["headers", "X-Request-Id"], id);
    }
}

/// Adds the headers of a success that respond to a header of the request.
fn response_headers(operation: &mut Map<String, Value>) {
    let headers = [
        ("Prefer", "Preference-Applied", "What of `Prefer` was done"),
        (
            "Idempotency-Key",
            "Idempotency-Replayed",
            "`true` when an earlier POST with the same key did it",
        ),
    ];
    let parameters = operation
        .get("parameters")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let Some(responses) = operation
        .get_mut("responses")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    for (request, response, description) in headers {
        if !parameters
            .iter()
            .any(|parameter| parameter.get("name").and_then(Value::as_str) == Some(request))
        {
            continue;
        }
        for success in responses
            .values_mut()
            .filter(|response| response.get("content").is_some())
        {
            let header = json!({ "description": description, "schema": { "type": "string" } });
            put(success, &["headers", response], header);
        }
    }
}

/// An optional body may be empty but not `null`.
fn optional_body(operation: &mut Map<String, Value>) {
    let Some(body) = operation.get_mut("requestBody") else {
        return;
    };
    let schema = body.pointer_mut("/content/application~1json/schema");
    let named = schema
        .as_ref()
        .and_then(|schema| schema.pointer("/oneOf/0/$ref"))
        .cloned();
    if let (Some(schema), Some(named)) = (schema, named) {
        *schema = json!({ "$ref": named });
        put(body, &["required"], json!(false));
    }
}

/// The problems of every operation of this class.
fn common(auth: AuthClass) -> &'static [Code] {
    match auth {
        AuthClass::Key | AuthClass::Out => &[
            Code::BadRequest,
            Code::Unauthorized,
            Code::Forbidden,
            Code::TooMany,
            Code::Internal,
            Code::Unavailable,
        ],
        AuthClass::Open => &[Code::BadRequest, Code::Forbidden, Code::Internal],
        AuthClass::Health => &[Code::Internal],
    }
}

fn response(codes: &[Code]) -> Value {
    let words: Vec<String> = codes
        .iter()
        .map(|code| format!("`{}`", code.as_str()))
        .collect();
    let titles: Vec<&str> = codes.iter().map(|code| code.title()).collect();
    let mut response = json!({
        "description": format!("{}: {}", words.join(", "), titles.join(", ")),
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } }
    });
    let has = |code| codes.contains(&code);
    if has(Code::Unauthorized) {
        put(
            &mut response,
            &["headers", "WWW-Authenticate"],
            json!({ "description": "`Bearer`", "schema": { "type": "string" } }),
        );
    }
    if has(Code::TooMany) || has(Code::Unavailable) {
        put(
            &mut response,
            &["headers", "Retry-After"],
            json!({ "description": "Seconds until it is worth trying again", "schema": { "type": "integer" } }),
        );
    }
    response
}

fn without_null(schema: &mut Value) {
    let Some(members) = schema.as_object_mut() else {
        return;
    };
    if let Some(Value::Array(kinds)) = members.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [only] = kinds.as_slice() {
            let only = only.clone();
            members.insert("type".to_owned(), only);
        }
    }
}

/// The components of request bodies: their types say which members are optional.
const SENT: &[&str] = &[
    "CreateTask",
    "SendMessage",
    "NewMessageItem",
    "ApproveDecision",
    "RejectDecision",
    "RespondDecision",
    "RetryDecision",
    "PerCallDecision",
    "ApproveCall",
    "RejectCall",
    "EditCall",
    "RespondCall",
    "ApproveBody",
    "RejectBody",
    "SignIn",
    "Problem",
];

/// Marks every member of a response's component as required.
fn complete(name: &str, schema: &mut Value) {
    if SENT.contains(&name) {
        return;
    }
    let names: Vec<Value> = match schema.get("properties").and_then(Value::as_object) {
        Some(properties) => properties.keys().map(|name| json!(name)).collect(),
        None => return,
    };
    put(schema, &["required"], Value::Array(names));
}

/// Gives the member that tells variants apart a constant in each variant, or an enum of the values
/// it has there.
fn tag(schemas: &mut Map<String, Value>) {
    let mut tags: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for schema in schemas.values() {
        let Some(discriminator) = schema.get("discriminator") else {
            continue;
        };
        let member = discriminator
            .get("propertyName")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        for (word, target) in discriminator
            .get("mapping")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let component = target
                .as_str()
                .unwrap_or_default()
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned();
            tags.entry((component, member.clone()))
                .or_default()
                .push(word.clone());
        }
    }
    for ((component, member), words) in tags {
        if let ([word], Some(schema)) = (words.as_slice(), schemas.get_mut(&component)) {
            put(schema, &["properties", &member, "const"], json!(word));
        }
    }
}

/// Sets a member, and creates the objects on the way to it.
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

/// Adds the examples to their components.
fn examples(schemas: &mut Map<String, Value>) {
    for (name, examples) in all_examples() {
        if let Some(schema) = schemas.get_mut(name) {
            put(schema, &["examples"], Value::Array(examples));
        }
    }
}

fn all_examples() -> Vec<(&'static str, Vec<Value>)> {
    let (row, settings) = (sample::request(), sample::settings());
    let request = InterventionRequest::of(&row, &sample::approver(), &settings);
    let task = AgentTask::of(&sample::task(), &[row], &sample::caller(), &settings);
    let call = request
        .tool_calls
        .first()
        .map(|call| call.tool_call_id.clone())
        .unwrap_or_default();
    let problem = Problem::invalid_at("/input", "a string")
        .document(&settings.public_url, sample::task().task_id.0);
    let mut decisions = Map::new();
    decisions.insert(
        call,
        json!({ "action": "reject", "reason": "wrong customer" }),
    );
    vec![
        (
            "CreateTask",
            vec![json!({ "input": "Please refund 120 for order 17" })],
        ),
        (
            "SendMessage",
            vec![json!({ "input": "And tell the customer." })],
        ),
        ("ApproveDecision", vec![json!({ "action": "approve" })]),
        (
            "RejectDecision",
            vec![json!({ "action": "reject", "then": "continue", "reason": "wrong customer" })],
        ),
        (
            "RespondDecision",
            vec![json!({ "action": "respond", "response": { "answer": "Yes, both orders." } })],
        ),
        ("RetryDecision", vec![json!({ "action": "retry" })]),
        ("PerCallDecision", vec![json!({ "decisions": decisions })]),
        (
            "ApproveBody",
            vec![json!({ "reason": "checked with the customer" })],
        ),
        (
            "RejectBody",
            vec![json!({ "then": "continue", "reason": "wrong customer" })],
        ),
        ("Problem", vec![problem]),
        (
            "TaskList",
            vec![json!({ "tasks": [task], "next_cursor": null })],
        ),
        (
            "RequestList",
            vec![json!({ "requests": [request], "next_cursor": null })],
        ),
        ("AgentTask", vec![json!(task)]),
        ("InterventionRequest", vec![json!(request)]),
    ]
    .into_iter()
    .chain(event_schema::examples())
    .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A validator for one component; references resolve in the whole document.
    pub(crate) fn validator(document: &Value, component: &str) -> jsonschema::Validator {
        let mut root = document.clone();
        root["$ref"] = json!(format!("#/components/schemas/{component}"));
        root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
        jsonschema::options()
            .should_validate_formats(true)
            .build(&root)
            .unwrap()
    }

    #[test]
    fn every_example_fits_its_component() {
        let document = document();
        for (name, examples) in all_examples() {
            let validator = validator(&document, name);
            for example in examples {
                let found: Vec<String> = validator
                    .iter_errors(&example)
                    .map(|error| error.to_string())
                    .collect();
                assert!(found.is_empty(), "{name}: {found:?}");
            }
        }
    }

    #[test]
    fn answer_without_a_member_does_not_fit() {
        let document = document();
        let task = AgentTask::of(&sample::task(), &[], &sample::caller(), &sample::settings());
        let mut task = serde_json::to_value(task).unwrap();
        assert!(validator(&document, "AgentTask").is_valid(&task));
        task.as_object_mut().unwrap().remove("parent");
        assert!(!validator(&document, "AgentTask").is_valid(&task));
    }

    #[test]
    fn decision_body_variants_are_told_apart() {
        let document = document();
        let validator = validator(&document, "DecisionBody");
        assert!(validator.is_valid(&json!({ "action": "approve" })));
        assert!(
            validator
                .is_valid(&json!({ "decisions": { "x": { "action": "edit", "arguments": {} } } }))
        );
        for wrong in [
            json!({}),
            json!({ "action": "aprove" }),
            json!({ "action": "approve", "decisions": {} }),
        ] {
            assert!(!validator.is_valid(&wrong), "{wrong}");
        }
    }

    #[test]
    fn every_operation_has_one_id_and_names_its_problems() {
        let mut document = document();
        assert_eq!(document["openapi"], "3.1.0");
        let mut ids = BTreeSet::new();
        for (_, operation) in every_operation(&mut document) {
            let id = operation["operationId"].as_str().unwrap().to_owned();
            assert!(ids.insert(id.clone()), "{id} twice");
            assert!(
                operation["responses"]["500"]["content"]["application/problem+json"].is_object(),
                "{id}"
            );
        }
        let expected: BTreeSet<String> = super::super::operations()
            .iter()
            .map(|(op, _)| op.id.to_owned())
            .collect();
        assert_eq!(ids, expected);
    }

    #[test]
    fn body_that_may_be_empty_is_optional() {
        let document = document();
        let body = &document["paths"]["/resume/{request_id}/approve"]["post"]["requestBody"];
        assert_eq!(body["required"], false);
        assert_eq!(
            body["content"]["application/json"]["schema"],
            json!({"$ref": "#/components/schemas/ApproveBody"})
        );
    }

    /// Collects the places of enums and unions without a name.
    fn unnamed(at: &str, value: &Value, found: &mut Vec<String>) {
        let Some(members) = value.as_object() else {
            for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                unnamed(&format!("{at}/{index}"), value, found);
            }
            return;
        };
        let is_component = at
            .strip_prefix("/components/schemas/")
            .is_some_and(|rest| !rest.contains('/'));
        if members.get("enum").is_some_and(Value::is_array) && !is_component {
            found.push(at.to_owned());
        }
        for union in ["oneOf", "anyOf", "allOf"] {
            for variant in members
                .get(union)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                let null = variant["type"] == "null";
                if variant.get("$ref").is_none() && !null {
                    found.push(format!("{at}/{union}"));
                }
            }
        }
        for (name, value) in members {
            if name != "examples" && name != "properties" {
                unnamed(&format!("{at}/{name}"), value, found);
            }
            if name == "properties" {
                for (property, value) in value.as_object().into_iter().flatten() {
                    unnamed(&format!("{at}/properties/{property}"), value, found);
                }
            }
        }
    }

    #[test]
    fn every_enum_and_every_variant_is_a_named_component() {
        let mut found = Vec::new();
        unnamed("", &document(), &mut found);
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let text = document.to_string();
        for (at, _) in text.match_indices("#/components/schemas/") {
            let name: String = text[at + 21..].chars().take_while(|c| *c != '"').collect();
            assert!(
                document["components"]["schemas"].get(&name).is_some(),
                "{name}"
            );
        }
        assert_eq!(openapi_json(), openapi_json());
    }
}
