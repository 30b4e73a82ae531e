//! Tests of tasks whose model speaks the Responses protocol.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::fake_responses::{FakeResponses, REASONED, REASONED_AGAIN};
use crate::support::test_app::{On, REFUNDS, TestApp, refunds};

const ARGUMENTS: &str = "{ \"order\": 17,\n  \"amount\": 120.50 }";

/// Starts a service with the refund agent, whose model has a Responses endpoint. A task's owner
/// decides its requests.
async fn app(on: On, fake: &FakeResponses) -> TestApp {
    let openai = r#"provider: openai, base_url: "{model}""#;
    assert!(REFUNDS.contains(openai));
    let responses = format!(
        r#"provider: openai_responses, base_url: "{}""#,
        fake.base_url
    );
    let yaml = refunds("{ owner: true }").replace(openai, &responses);
    TestApp::with(on, &yaml).await
}

fn kinds(request: &Value) -> Vec<&str> {
    let input = request["input"].as_array().unwrap();
    input
        .iter()
        .map(|item| item["type"].as_str().or(item["role"].as_str()).unwrap())
        .collect()
}

#[apply(on_both)]
async fn encrypted_reasoning_is_sent_back_byte_for_byte_over_a_restart_and_a_follow_up(on: On) {
    let fake = FakeResponses::start().await;
    let mut app = app(on, &fake).await;
    fake.then("held").then("paid").then("says");
    let held = app.owner().create_task("Pay it back.").await;
    assert_eq!(held.str("/status"), "Paused", "{}", held.text);
    assert_eq!(
        held.str("/pending/0/tool_calls/0/arguments_text"),
        ARGUMENTS
    );
    app.restart().await;
    let path = format!("/resume/{}/approve", held.str("/pending/0/request_id"));
    let done = app.owner().hit(&path).await;
    assert_eq!(done.str("/output"), "Paid.", "{}", done.text);
    assert_eq!(
        (
            &done.body["usage"]["prompt_tokens"],
            &done.body["usage"]["total_tokens"]
        ),
        (&json!(24), &json!(38))
    );
    assert_eq!(
        app.tool.ledger()[0].body,
        ARGUMENTS,
        "the bytes the model wrote are the bytes run"
    );
    app.restart().await;
    let path = format!("/v1/tasks/{}/messages", held.str("/task_id"));
    let reply = app.owner().post(&path, &json!({"input": "Is it?"})).await;
    assert_eq!(reply.str("/output"), "It is paid.", "{}", reply.text);

    let [first, second, third] = &fake.sent()[..] else {
        panic!("three requests")
    };
    assert_eq!(
        first.headers["authorization"],
        "Bearer sk-model-key-0123456789"
    );
    let body = first.body();
    assert_eq!(
        (&body["store"], &body["include"]),
        (&json!(false), &json!(["reasoning.encrypted_content"]))
    );
    assert_eq!(
        (&body["instructions"], &body["stream"]),
        (&json!("You handle refunds."), &json!(true))
    );
    assert_eq!(
        body["input"],
        json!([{"role": "user", "content": "Pay it back."}])
    );
    assert_eq!(body["tools"].as_array().unwrap().len(), 4);
    assert!(second.text.contains(REASONED), "{}", second.text);
    assert!(
        third.text.contains(REASONED) && third.text.contains(REASONED_AGAIN),
        "{}",
        third.text
    );
    let sent = second.body();
    assert_eq!(
        kinds(&sent),
        [
            "user",
            "reasoning",
            "message",
            "function_call",
            "function_call_output"
        ]
    );
    assert_eq!(sent["input"][3]["arguments"], ARGUMENTS);
    assert_eq!(
        (&sent["input"][3]["call_id"], &sent["input"][4]["call_id"]),
        (&json!("call_11"), &json!("call_11"))
    );
    let more = ["reasoning", "message", "user"];
    assert_eq!(
        kinds(&third.body()),
        [&kinds(&sent)[..], &more[..]].concat()
    );
    app.stop().await;
}

#[apply(on_both)]
async fn call_of_an_incomplete_answer_does_not_run(on: On) {
    let fake = FakeResponses::start().await;
    let app = app(on, &fake).await;
    fake.then("cut").then("says");
    let done = app.owner().create_task("Pay it back.").await;
    done.assert_completed("It is paid.");
    assert!(app.tool.ledger().is_empty());
    let sent = fake.sent()[1].body();
    assert_eq!(
        kinds(&sent),
        ["user", "reasoning", "function_call", "function_call_output"]
    );
    assert!(
        sent["input"][3]["output"]
            .as_str()
            .unwrap()
            .contains("cut off"),
        "{sent}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn images_are_sent_as_input_images(on: On) {
    let fake = FakeResponses::start().await;
    let app = app(on, &fake).await;
    fake.then("says");
    let items = json!([{"content_type": "text", "content": "See"}, {"content_type": "image", "content": "data:image/png;base64,iVBORw0KGgo="}]);
    let done = app
        .owner()
        .post("/v1/tasks", &json!({"items": items}))
        .await;
    assert_eq!(done.status, 201, "{}", done.text);
    assert_eq!(
        fake.sent()[0].body()["input"][0]["content"],
        json!([
            {"type": "input_text", "text": "See"},
            {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"},
        ])
    );
    app.stop().await;
}
