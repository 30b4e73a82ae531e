//! Adds the parts of an operation that `utoipa::path` cannot express: problems, authentication, and
//! headers of responses.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::event_schema::STREAMING_POSTS;
use super::{parameters_mut, put, text_header};
use crate::http::api::{mcp, tasks};
use crate::http::pages::link;
use crate::http::server::operation::{AuthClass, Op};
use crate::http::server::problem::Code;

/// Adds the response that redirects a browser with neither key nor session to the sign-in page.
pub(super) fn add_sign_in_redirect(operation: &mut Map<String, Value>) {
    let redirect = json!({
        "description": "The browser has no key and no session: the sign-in page (where `Accept` prefers `text/html`)",
        "headers": { "Location": text_header("`/sign-in?next=…`") }
    });
    if let Some(responses) = operation.get_mut("responses") {
        put(responses, &["303"], redirect);
    }
}

/// The headers with which a key that has `act_as` speaks for another user. Each entry has the name,
/// the description, and the constraint.
const ACT_AS_HEADERS: [(&str, &str, &str); 2] = [
    (
        "Holdpoint-User",
        "The user for whom the key speaks. The operation is then this user's. Only a key with \
        `act_as` may send this header; a session may not.",
        "1 to 128 visible characters in NFC, without blanks and commas",
    ),
    (
        "Holdpoint-Groups",
        "The groups of the user in `Holdpoint-User`, separated by commas. Without this header, \
        the user has no groups.",
        "names of 1 to 128 visible characters, beside `Holdpoint-User`",
    ),
];

/// Adds the components of the headers in `ACT_AS_HEADERS`.
pub(super) fn add_act_as_headers(document: &mut Value) {
    for (name, description, constraint) in ACT_AS_HEADERS {
        let header = json!({
            "name": name, "in": "header", "required": false, "description": description,
            "schema": { "type": "string", "x-constraint": constraint }
        });
        put(document, &["components", "parameters", name], header);
    }
}

/// Adds references to the headers in `ACT_AS_HEADERS` to the operation's parameters.
fn take_act_as_headers(operation: &mut Map<String, Value>) {
    let references = ACT_AS_HEADERS
        .map(|(name, _, _)| json!({ "$ref": format!("#/components/parameters/{name}") }));
    let parameters = operation.entry("parameters").or_insert_with(|| json!([]));
    if let Some(parameters) = parameters.as_array_mut() {
        parameters.extend(references);
    }
}

/// Adds the operation's problems, its authentication and the headers of its responses. Removes
/// `null` from the types of the operation's parameters, because a client cannot send `null` in a
/// path, a query or a header.
pub(super) fn complete(operation: &mut Map<String, Value>, op: &Op) {
    match op.auth {
        AuthClass::Key | AuthClass::SignOut => take_act_as_headers(operation),
        AuthClass::Open | AuthClass::Link | AuthClass::Gateway | AuthClass::Health => {
            operation.insert("security".to_owned(), json!([]));
        }
    }
    for parameter in parameters_mut(operation) {
        if let Some(kind) = parameter.pointer_mut("/schema/type") {
            without_null(kind);
        }
    }
    optional_body(operation);
    let is_prefer = |parameter: &mut Value| parameter.get("name") == Some(&json!("Prefer"));
    let takes_prefer = parameters_mut(operation).any(is_prefer);
    let Some(responses) = responses_mut(operation) else {
        return;
    };
    add_problems(responses, op);
    if op.id == mcp::OP.id {
        // A problem that is sent as a JSON-RPC error has the status 200 and keeps its header
        // `Retry-After`. No response of this operation has `Preference-Applied`.
        put_retry_after(responses.entry("200").or_insert(Value::Null));
    } else {
        response_headers(responses, op, takes_prefer);
    }
    for response in responses.values_mut() {
        let id = json!({
            "description": "The id of this HTTP request", "schema": { "type": "string", "format": "uuid" }
        });
        put(response, &["headers", "X-Request-Id"], id);
        if op.auth == AuthClass::Link {
            let noindex = text_header("`noindex`");
            put(response, &["headers", "X-Robots-Tag"], noindex);
        }
    }
}

fn responses_mut(operation: &mut Map<String, Value>) -> Option<&mut Map<String, Value>> {
    operation.get_mut("responses")?.as_object_mut()
}

/// Adds a response for each status of the operation's problems. If the operation itself describes a
/// JSON body for such a status, the response keeps this body as a second content type. The page of
/// a sealed link shows its problems as pages, so the responses have `text/html` instead of the JSON
/// of a problem.
fn add_problems(responses: &mut Map<String, Value>, op: &Op) {
    let mut codes_by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    let own_problems = op.problems.into_iter().flatten();
    for code in common_problems(op.auth).iter().chain(own_problems) {
        let found = codes_by_status.entry(code.status().as_u16()).or_default();
        if !found.contains(code) {
            found.push(*code);
        }
    }
    for (status, codes) in codes_by_status {
        let status = status.to_string();
        let mut response = problem_response(&codes);
        if op.id == link::show::OP.id {
            let page = json!({ "text/html": { "schema": { "type": "string" } } });
            put(&mut response, &["content"], page);
        }
        let described = responses.get(&status);
        if let Some(json) = described.and_then(|old| old.pointer("/content/application~1json")) {
            let path = ["content", "application/json"];
            put(&mut response, &path, json.clone());
        }
        responses.insert(status, response);
    }
}

/// Adds the headers of a success: `Preference-Applied` if the operation takes `Prefer`
/// (`takes_prefer`), and `Idempotency-Replayed` if the operation stores the `Idempotency-Key`. The
/// redirect after a form also has `Idempotency-Replayed`. A problem of `api/respond.rs` follows the
/// commit of the POST. It therefore has `Idempotency-Replayed`, and `Location` if the POST created
/// a task.
fn response_headers(responses: &mut Map<String, Value>, op: &Op, takes_prefer: bool) {
    // Only an operation that stores the `Idempotency-Key` can notice that a key was used before.
    let mut problems = op.problems.into_iter().flatten();
    let stores_keys = problems.any(|code| *code == Code::IdempotencyKeyReused);
    let may_fail_after_commit = STREAMING_POSTS.contains(&op.id);
    for (status, response) in responses {
        let is_success = status.starts_with('2');
        let follows_commit = may_fail_after_commit && matches!(status.as_str(), "500" | "503");
        let headers = [
            (
                follows_commit && op.id == tasks::create::OP.id,
                "Location",
                "The created task, if the POST was committed",
            ),
            (
                is_success && takes_prefer,
                "Preference-Applied",
                "The preference that was applied",
            ),
            (
                stores_keys && (is_success || follows_commit || status == "303"),
                "Idempotency-Replayed",
                "`true` when the response repeats that of an earlier POST with the same key",
            ),
        ];
        for (_, name, description) in headers.into_iter().filter(|(is_sent, ..)| *is_sent) {
            put(response, &["headers", name], text_header(description));
        }
    }
}

/// Marks a body that may be empty as optional, and removes `null` from the body's schema.
fn optional_body(operation: &mut Map<String, Value>) {
    let Some(body) = operation.get_mut("requestBody") else {
        return;
    };
    let named = body.pointer("/content/application~1json/schema/oneOf/0/$ref");
    if let Some(named) = named.cloned() {
        let schema = json!({ "$ref": named });
        put(body, &["content", "application/json", "schema"], schema);
        put(body, &["required"], json!(false));
    }
}

/// Returns the problems with which every operation of the class `auth` can respond.
fn common_problems(auth: AuthClass) -> &'static [Code] {
    match auth {
        AuthClass::Key | AuthClass::SignOut => &[
            Code::BadRequest,
            Code::Unauthorized,
            Code::Forbidden,
            Code::TooLarge,
            Code::TooMany,
            Code::Internal,
            Code::Unavailable,
        ],
        AuthClass::Link => &[
            Code::BadRequest,
            Code::Forbidden,
            Code::NotFound,
            Code::LinkExpired,
            Code::TooLarge,
            Code::Internal,
            Code::Unavailable,
        ],
        AuthClass::Open => &[
            Code::BadRequest,
            Code::Forbidden,
            Code::TooLarge,
            Code::Internal,
            Code::Unavailable,
        ],
        AuthClass::Health => &[Code::TooLarge, Code::Internal],
        AuthClass::Gateway => &[Code::Internal],
    }
}

fn problem_response(codes: &[Code]) -> Value {
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
        let bearer = text_header("`Bearer`");
        put(&mut response, &["headers", "WWW-Authenticate"], bearer);
    }
    if has(Code::TooMany) || has(Code::Unavailable) {
        put_retry_after(&mut response);
    }
    response
}

fn put_retry_after(response: &mut Value) {
    let seconds = json!({ "description": "Seconds to wait before another attempt", "schema": { "type": "integer" } });
    put(response, &["headers", "Retry-After"], seconds);
}

/// Removes `null` from the `type` of a schema.
fn without_null(kind: &mut Value) {
    if let Some(kinds) = kind.as_array_mut() {
        kinds.retain(|kind| kind != "null");
        if let [only] = kinds.as_mut_slice() {
            *kind = only.take();
        }
    }
}
