//! Tests of the API document. Clients are generated from this document, and people use the document
//! to try the service out. `support/api_contract.rs` checks every HTTP reply that a test gets
//! against the document.

use serde_json::{Value, json};

use crate::support::test_app::{On, TestApp};

const DEMONSTRATION: &str = include_str!("../../src/config/demo.yaml");

fn document() -> Value {
    serde_json::from_str(&holdpoint::http::openapi::openapi_json()).unwrap()
}

#[test]
fn post_operations_declare_no_stream_and_one_success_type_each() {
    let document = document();
    let mut streams = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            if responses
                .values()
                .any(|response| response["content"]["text/event-stream"].is_object())
            {
                streams.push(format!("{method} {path}"));
            }
            // Successful responses have at most one content type, so a generated client needs one
            // return type.
            let types = responses
                .iter()
                .filter(|(status, _)| status.starts_with('2'));
            let types: std::collections::BTreeSet<_> = types
                .flat_map(|(_, response)| response["content"].as_object().into_iter().flatten())
                .map(|(kind, _)| kind)
                .collect();
            assert!(types.len() <= 1, "{method} {path}: {types:?}");
        }
    }
    assert_eq!(
        streams,
        ["get /v1/events", "get /v1/tasks/{task_id}/events"]
    );
}

fn examples(component: &str) -> Vec<Value> {
    let found = document()["components"]["schemas"][component]["examples"]
        .as_array()
        .cloned();
    found.unwrap_or_else(|| panic!("{component} has no example"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn examples_of_bodies_do_what_they_say_on_the_demonstration() {
    let app = TestApp::with(On::Sqlite, DEMONSTRATION).await;
    let user = app.anonymous();
    let [create] = &examples("CreateTask")[..] else {
        panic!("one")
    };
    let mut done = Vec::new();
    for (suffix, component) in [
        ("", "ApproveDecision"),
        ("", "RejectDecision"),
        ("/approve", "ApproveBody"),
        ("/reject", "RejectBody"),
    ] {
        for example in examples(component) {
            let task = user.post("/v1/tasks", create).await;
            task.assert_status(201, "Paused");
            let path = format!("/resume/{}{suffix}", task.str("/pending/0/request_id"));
            let decided = user.post(&path, &example).await;
            decided.about(&component).assert_status(200, "Completed");
            done.push(task.str("/task_id"));
        }
    }
    let [message] = &examples("SendMessage")[..] else {
        panic!("one")
    };
    let sent = user
        .post(&format!("/v1/tasks/{}/messages", done[0]), message)
        .await;
    sent.assert_status(200, "Completed");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sign_in_form_without_a_key_is_refused_with_and_without_accounts() {
    let with = TestApp::start(On::Sqlite).await;
    let without = TestApp::with(On::Sqlite, DEMONSTRATION).await;
    for app in [with, without] {
        for (form, place) in [("", "/key"), ("next=%2Fdocs", "/key"), ("key=x&then=y", "")] {
            let body = Some(("application/x-www-form-urlencoded", form.to_owned()));
            let reply = app
                .anonymous()
                .send(reqwest::Method::POST, "/sign-in", body)
                .await;
            assert_eq!(
                (reply.status, &reply.body["errors"][0]["pointer"]),
                (422, &json!(place)),
                "{form}: {}",
                reply.text
            );
        }
        app.stop().await;
    }
}
