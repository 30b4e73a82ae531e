//! Constraints on a client's input that the types of the OpenAPI document cannot express. A schema
//! condition states that exactly one of two members must be set. `x-constraint` states every other
//! constraint in words. Invariant: if the service refuses a value that the schema allows, an
//! `x-constraint` gives the reason.

use serde_json::{Map, Value, json};

use super::{parameters_mut, put};

pub(crate) const CONSTRAINT_DESCRIPTION: &str = "`x-constraint` states in words a constraint beyond the schema. A value that violates it is refused: \
    with 422 in a body or a query, with 400 in a header or as the number of an event, and with 403, 404, 409 or 410 if a report \
    or a decision does not fit the state of its gate call or request, or the caller's rights. A JSON body has at most \
    100,000 values (else 422) and 64 levels (else 400). No text has U+0000.";

/// Returns the constraints on members of bodies, by component and member.
fn member_constraints() -> Value {
    let action = "one of the request's `allowed_actions`";
    let remember = "where `remember` of each of these calls offers it, by a key or a session: a scope of its `for`";
    json!({
        "CreateTask": {
            "agent": "the name of an agent that is open to the caller (`list_agents`)",
            "user_context": "at most 16 KiB of JSON",
            "metadata": "at most 16 KiB of JSON",
        },
        "SendMessage": { "user_context": "at most 16 KiB of JSON" },
        "ResendDeliveries": {
            "since": "a time before the end of the year 9999",
            "target": "the name of a receiver in the configuration or in the list of deliveries",
        },
        "NewMessageItem": {
            "content": "of an image: a base64 `data:` URI of png, jpeg, gif or webp, or an `https:` URL",
        },
        "ApproveDecision": { "action": action, "remember": remember },
        "ApproveCall": { "remember": remember },
        "ApproveBody": { "remember": remember },
        "NewRemember": { "expires_in": "more than 0, and `most` of the offer at most" },
        "RejectDecision": { "action": action },
        "NewGateCall": {
            "gate": "the name of a gate that is open to the caller (`get_me`); it may be left out only if exactly one gate is",
            "tool": "at most 256 bytes of UTF-8",
            "context": "at most 16 KiB of UTF-8",
            "metadata": "at most 16 KiB of JSON",
        },
        "ReportGateOutcome": {
            "task_id": "the task of a call of the caller for which a permit was given",
            "key": "the key of a call of the caller for which a permit was given",
            "attempt": "the number of the last attempt",
            "content": "at most 1 MiB",
        },
        "RespondDecision": {
            "action": action,
            "response": "what the request's `form` asks for, where its kind is answered with a form",
            "result": "a result that the tool's `form` takes, where the request's kind is answered with one",
        },
        "RetryDecision": { "action": action },
        "PerCallDecision": {
            "decisions": "by `tool_call_id`: calls of an approval that need a decision, each answered with one \
                of its `allowed_actions`; new arguments fit the tool's `parameters`, and one `then` holds for all",
        },
    })
}

/// The constraint on every member with the name `reason`. A schema can limit only the number of
/// characters, not the number of bytes.
const REASON_CONSTRAINT: &str = "at most 4096 bytes of UTF-8";

/// Returns the constraints on parameters, by operation and parameter. The operation `*` stands for
/// every operation with such a parameter.
fn parameter_constraints() -> Value {
    json!({
        "*": {
            "cursor": "`next_cursor` of an earlier answer",
            "Last-Event-ID": "the number of an existing event",
        },
        "stream_task_events": { "after": "the number of an existing event" },
        "post_mcp_message": {
            "MCP-Protocol-Version": "a revision that the gate speaks; a request of the revision 2026-07-28 names it in `_meta` too (`io.modelcontextprotocol/protocolVersion`), beside `io.modelcontextprotocol/clientCapabilities` (an object); where both name a revision, it is the same",
            "Mcp-Method": "in the revision 2026-07-28: the `method` of the body",
            "Mcp-Name": "in the revision 2026-07-28: the `name` of the called tool in the body",
        },
    })
}

/// Returns the constraints on whole operations, by operation: each takes only requests that allow
/// its action.
fn operation_constraints() -> Value {
    json!({
        "approve_request": "a request whose `allowed_actions` have `approve`",
        "reject_request": "a request whose `allowed_actions` have `reject`",
    })
}

pub(crate) fn add(schemas: &mut Map<String, Value>) {
    for (component, members) in member_constraints().as_object().into_iter().flatten() {
        if let Some(schema) = schemas.get_mut(component) {
            for (member, words) in members.as_object().into_iter().flatten() {
                let path = ["properties", member.as_str(), "x-constraint"];
                put(schema, &path, words.clone());
            }
        }
    }
    for schema in schemas.values_mut() {
        if schema.pointer("/properties/reason/maxLength").is_some() {
            let words = json!(REASON_CONSTRAINT);
            put(schema, &["properties", "reason", "x-constraint"], words);
        }
    }
    if let Some(schema) = schemas.get_mut("PerCallDecision") {
        let path = ["properties", "decisions", "minProperties"];
        put(schema, &path, json!(1));
    }
    let message = one_of(("input", "string"), ("items", "array"));
    let arguments = one_of(("arguments", "object"), ("arguments_text", "string"));
    let call = one_of(("task_id", "string"), ("key", "string"));
    for (component, condition) in [
        ("CreateTask", message.clone()),
        ("SendMessage", message),
        ("RespondDecision", response_or_result()),
        ("NewGateCall", arguments),
        ("ReportGateOutcome", call),
    ] {
        let schema = schemas.get_mut(component).and_then(Value::as_object_mut);
        if let (Some(schema), Value::Object(condition)) = (schema, condition) {
            schema.extend(condition);
        }
    }
}

/// Builds the schema condition that exactly one of two members is set. `first` and `second` each
/// give the name and the JSON type of one of these members. A member that is null counts as absent.
fn one_of(first: (&str, &str), second: (&str, &str)) -> Value {
    let ((first, kind), (second, other)) = (first, second);
    json!({
        "if": { "properties": { first: { "type": kind } }, "required": [first] },
        "then": { "properties": { second: { "type": "null" } } },
        "else": { "properties": { second: { "type": other } }, "required": [second] }
    })
}

/// Builds the schema condition that exactly one of `response` and `result` is set. A `result` of
/// null counts as set.
fn response_or_result() -> Value {
    json!({
        "if": { "properties": { "response": { "type": "object" } }, "required": ["response"] },
        "then": { "not": { "required": ["result"] } },
        "else": { "required": ["result"] }
    })
}

/// Adds the constraints on the operation with the id `id`, and on the operation's parameters.
pub(crate) fn describe(operation: &mut Map<String, Value>, id: &str) {
    if let Some(words) = operation_constraints().get(id) {
        operation.insert("x-constraint".to_owned(), words.clone());
    }
    let constraints = parameter_constraints();
    for parameter in parameters_mut(operation) {
        let name = parameter.get("name").and_then(Value::as_str);
        let found = ["*", id]
            .iter()
            .find_map(|of| constraints.get(of)?.get(name?));
        if let Some(words) = found {
            put(parameter, &["schema", "x-constraint"], words.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::document;
    use crate::http::openapi::tests::validator;

    #[test]
    fn exactly_one_of_two_members_fits() {
        let document = document();
        for component in ["CreateTask", "SendMessage"] {
            let validator = validator(&document, component);
            let items = json!([{"content_type": "text", "content": "hi"}]);
            for fits in [
                json!({"input": "hi"}),
                json!({"items": items}),
                json!({"input": null, "items": items}),
            ] {
                assert!(validator.is_valid(&fits), "{component} {fits}");
            }
            let both = json!({"input": "hi", "items": items});
            for wrong in [
                json!({}),
                json!({"input": null}),
                json!({"items": null}),
                json!({"items": []}),
                both,
            ] {
                assert!(!validator.is_valid(&wrong), "{component} {wrong}");
            }
        }
        let validator = validator(&document, "RespondDecision");
        for (answer, fits) in [
            (json!({"action": "respond", "response": {}}), true),
            (json!({"action": "respond", "result": null}), true),
            (
                json!({"action": "respond", "response": null, "result": 1}),
                true,
            ),
            (json!({"action": "respond"}), false),
            (json!({"action": "respond", "response": null}), false),
            (
                json!({"action": "respond", "response": {}, "result": 1}),
                false,
            ),
        ] {
            assert_eq!(validator.is_valid(&answer), fits, "{answer}");
        }
    }

    #[test]
    fn every_constraint_is_at_an_existing_place() {
        let document = document();
        for (component, members) in member_constraints().as_object().unwrap() {
            for (member, words) in members.as_object().unwrap() {
                let property = &document["components"]["schemas"][component]["properties"][member];
                let described = [property, &property["oneOf"][0]];
                let described = described.iter().any(|at| at["description"].is_string());
                assert!(
                    property["x-constraint"] == *words && described,
                    "{component} {member}"
                );
            }
        }
        let said = document["paths"]
            .to_string()
            .matches("x-constraint")
            .count();
        let entries = |table: &Value| table.as_object().unwrap().len();
        let table = parameter_constraints();
        let parameters: usize = table.as_object().unwrap().values().map(entries).sum();
        // Eight operations (four lists and four pages) have the parameter `cursor`. So its single
        // entry in `parameter_constraints` gives eight constraints, seven more than entries.
        assert_eq!(said, parameters + 7 + entries(&operation_constraints()));
    }
}
