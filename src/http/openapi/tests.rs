//! Tests of the whole document: examples, references, and named components.

use super::*;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::gate::WireGateCall;
use crate::http::wire::task::AgentTask;
use std::collections::BTreeSet;

/// Returns a validator for one component. References resolve in the whole document.
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
    let examples = examples::all();
    for (name, example) in examples.iter().filter_map(Value::as_object).flatten() {
        let found: Vec<String> = validator(&document, name)
            .iter_errors(example)
            .map(|error| error.to_string())
            .collect();
        assert!(found.is_empty(), "{name}: {found:?}");
    }
}

#[test]
fn message_in_brief_in_full_as_a_reminder_or_as_a_ping_fits_its_component() {
    let document = document();
    let validator = validator(&document, "WebhookMessage");
    let schemas = &document["components"]["schemas"];
    let mut message = schemas["WebhookMessage"]["examples"][0].clone();
    assert!(validator.is_valid(&message));
    for component in ["TaskEvent", "WebhookReminder", "WebhookPing"] {
        message["data"] = schemas[component]["examples"][0].clone();
        assert!(validator.is_valid(&message), "{component}");
    }
    message["data"] = json!({});
    assert!(!validator.is_valid(&message));
}

#[test]
fn answer_without_a_member_does_not_fit() {
    let document = document();
    let task = AgentTask::from_row(&sample::task(), &[], &sample::caller(), &sample::settings());
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
        validator.is_valid(&json!({ "decisions": { "x": { "action": "edit", "arguments": {} } } }))
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
        let kind = if id == "get_link_page" {
            "text/html"
        } else {
            "application/problem+json"
        };
        let content = &operation["responses"]["500"]["content"];
        assert!(content[kind].is_object(), "{id}");
    }
    let expected: BTreeSet<String> = super::super::operations()
        .iter()
        .map(|operation| operation.op.id.to_owned())
        .collect();
    assert_eq!(ids, expected);
}

#[test]
fn every_operation_names_the_problem_of_a_body_that_is_too_large() {
    let mut document = document();
    for (_, operation) in every_operation(&mut document) {
        let refused = operation["responses"]["413"].to_string();
        assert!(
            refused.contains("`too_large`"),
            "{}",
            operation["operationId"]
        );
    }
}

#[test]
fn every_operation_but_the_health_check_names_the_problem_of_a_service_that_starts() {
    let mut document = document();
    for (_, operation) in every_operation(&mut document) {
        let id = id_of(operation);
        let refused = &operation["responses"]["503"];
        let is_named = refused["headers"]["Retry-After"].is_object()
            && refused.to_string().contains("`unavailable`");
        assert_eq!(is_named, id != "get_health", "{id}");
    }
}

/// The POST operations that check the form of the `Idempotency-Key` and store no key.
const STORE_NO_KEY: [&str; 4] = ["end_grant_here", "post_mcp_message", "sign_in", "sign_out"];

#[test]
fn every_post_takes_an_idempotency_key_and_says_whether_it_stores_the_key() {
    let mut document = document();
    for (method, operation) in every_operation(&mut document) {
        let id = id_of(operation);
        let parameters = operation.get("parameters").and_then(Value::as_array);
        let mut names = parameters.into_iter().flatten().map(|found| &found["name"]);
        let takes_key = names.any(|name| name == "Idempotency-Key");
        assert_eq!(takes_key, method == "post", "{id}");
        let stores_key = takes_key && !STORE_NO_KEY.contains(&id.as_str());
        let responses = &operation["responses"];
        let refused = responses["422"].to_string();
        assert_eq!(
            refused.contains("idempotency_key_reused"),
            stores_key,
            "{id}"
        );
        for status in ["200", "201", "202", "303"] {
            let replayed = responses[status].to_string();
            assert_eq!(
                replayed.contains("Idempotency-Replayed"),
                stores_key && !responses[status].is_null(),
                "{id} {status}"
            );
        }
    }
}

#[test]
fn headers_of_the_gate_operations_describe_the_call_and_not_a_task_that_runs() {
    let document = document();
    for (path, method, header, words) in [
        (
            "/v1/gate/calls",
            "post",
            "Idempotency-Key",
            "continues the call",
        ),
        ("/v1/gate/calls", "post", "Prefer", "for the verdict"),
        (
            "/v1/gate/calls/{task_id}",
            "get",
            "Prefer",
            "decision changes",
        ),
    ] {
        let parameters = document["paths"][path][method]["parameters"].as_array();
        let mut parameters = parameters.unwrap().iter();
        let found = parameters.find(|found| found["name"] == header).unwrap();
        let description = found["description"].as_str().unwrap();
        assert!(
            description.replace('\n', " ").contains(words),
            "{description}"
        );
    }
}

#[test]
fn operation_that_takes_a_key_names_the_headers_of_a_key_that_speaks_for_others() {
    let mut document = document();
    let names = ["Holdpoint-User", "Holdpoint-Groups"];
    for name in names {
        let header = &document["components"]["parameters"][name];
        assert_eq!(
            (&header["name"], &header["required"]),
            (&json!(name), &json!(false))
        );
    }
    for (_, operation) in every_operation(&mut document) {
        let takes_key = operation.get("security").is_none();
        let parameters = operation.get("parameters").and_then(Value::as_array);
        let parameters = parameters.cloned().unwrap_or_default();
        for name in names {
            let reference = json!({ "$ref": format!("#/components/parameters/{name}") });
            let id = &operation["operationId"];
            assert_eq!(parameters.contains(&reference), takes_key, "{id} {name}");
        }
    }
}

#[test]
fn operation_on_a_link_names_its_header_and_no_problem_that_cannot_occur() {
    let document = document();
    for method in ["get", "post"] {
        let responses = document["paths"]["/l/{token}"][method]["responses"].as_object();
        for (status, response) in responses.unwrap() {
            assert!(
                response["headers"]["X-Robots-Tag"].is_object(),
                "{method} {status}"
            );
            assert_ne!(status, "429", "{method}");
            assert!(
                !response.to_string().contains("bad_json"),
                "{method} {status}"
            );
        }
    }
}

#[test]
fn message_to_an_mcp_server_names_its_headers_and_both_kinds_of_errors() {
    let document = document();
    let operation = &document["paths"]["/mcp/{gate}"]["post"];
    let parameters = operation["parameters"].as_array().unwrap();
    for name in [
        "MCP-Protocol-Version",
        "Mcp-Method",
        "Mcp-Name",
        "Holdpoint-Session",
        "Prefer",
    ] {
        let header = parameters.iter().find(|one| one["name"] == name).unwrap();
        assert_eq!(
            (&header["in"], &header["required"]),
            (&json!("header"), &json!(false))
        );
    }
    for status in ["400", "404"] {
        let content = operation["responses"][status]["content"]
            .as_object()
            .unwrap();
        let kinds: Vec<_> = content.keys().collect();
        assert_eq!(
            kinds,
            ["application/json", "application/problem+json"],
            "{status}"
        );
    }
    let success = &operation["responses"]["200"];
    assert!(success["headers"].get("Preference-Applied").is_none());
    assert!(
        success["headers"]["Retry-After"].is_object(),
        "a JSON-RPC error may be one that passes"
    );
}

#[test]
fn problem_after_a_commit_names_the_headers_of_the_commit() {
    let mut document = document();
    for (_, operation) in every_operation(&mut document) {
        let id = id_of(operation);
        let is_created = id == "create_task";
        let may_follow_commit = event_schema::STREAMING_POSTS.contains(&id.as_str());
        for status in ["500", "503"] {
            let headers = &operation["responses"][status]["headers"];
            assert_eq!(
                (
                    headers["Location"].is_object(),
                    headers["Idempotency-Replayed"].is_object()
                ),
                (is_created, may_follow_commit),
                "{id} {status}"
            );
        }
    }
}

#[test]
fn pages_of_problems_and_forms_of_requests_are_described_in_words() {
    let document = document();
    let description = document["info"]["description"].as_str().unwrap();
    assert!(description.contains("`text/html`"), "{description}");
    for action in ["", "/approve", "/reject"] {
        let operation = &document["paths"][format!("/resume/{{request_id}}{action}")]["post"];
        let description = operation["description"].as_str().unwrap();
        assert!(
            description.contains("`application/x-www-form-urlencoded`"),
            "{description}"
        );
    }
}

#[test]
fn page_of_a_list_says_that_an_empty_parameter_counts_as_left_out() {
    let document = document();
    for path in ["/inbox", "/inbox/decided", "/tasks", "/grants"] {
        let description = document["paths"][path]["get"]["description"]
            .as_str()
            .unwrap();
        assert!(description.contains("without a value"), "{description}");
    }
}

#[test]
fn problem_about_a_call_at_a_gate_has_the_whole_call() {
    let (document, settings) = (document(), sample::settings());
    let call = WireGateCall::from_call(&sample::gate_call(), &sample::caller(), &settings);
    let validator = validator(&document, "Problem");
    for (call, fits) in [(json!(call), true), (json!({}), false)] {
        let problem = Problem::new(Code::CallInHand, "x").with("call", call);
        let problem = problem.document(&settings.public_url, sample::task().task_id.0);
        assert_eq!(validator.is_valid(&json!(problem)), fits, "{problem:?}");
    }
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

/// Collects in `found` the places of enums and unions that are not named components.
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
