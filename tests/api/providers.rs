//! Tests of model providers: a task that was held goes on with the same provider, or with another
//! provider.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions;
use crate::support::fake_messages::{self, FakeMessages};
use crate::support::test_app::{On, REFUNDS, TestApp, refunds};

const THOUGHT: &str = "Order 17 \u{2260} order 71.\n\tSo: 120.50 \u{1F600}";
const SIGNATURE: &str = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk=";
const REDACTED: &str = "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyI=";
const ARGUMENTS: &str = "{ \"order\": 17,\n  \"amount\": 120.50 }";

/// Returns the configuration of a refund agent whose model has an endpoint of Anthropic's Messages
/// protocol. The owner of a task decides its requests.
fn yaml(messages: &FakeMessages) -> String {
    let openai = r#"provider: openai, base_url: "{model}", model: fake"#;
    assert!(REFUNDS.contains(openai));
    let anthropic = format!(
        r#"provider: anthropic, base_url: "{}", model: claude-fake"#,
        messages.base_url
    );
    refunds("{ owner: true }").replace(openai, &anthropic)
}

/// Creates a task whose model has thought and whose refund is held. Returns the ids of the task and
/// of the request.
async fn held(app: &TestApp, fake: &FakeMessages) -> (String, String) {
    let redacted = (
        json!({"type": "redacted_thinking", "data": REDACTED}),
        Vec::new(),
    );
    let call = fake_messages::calls("toolu_01", "refund", ARGUMENTS);
    fake.then(
        &[
            fake_messages::thinks(THOUGHT, SIGNATURE),
            redacted,
            fake_messages::text_block("On it."),
            call,
        ],
        "tool_use",
    );
    let reply = app.owner().create_task("Pay it back.").await;
    reply.assert_status(201, "Paused");
    assert_eq!(
        reply.str("/pending/0/tool_calls/0/arguments_text"),
        ARGUMENTS
    );
    (reply.str("/task_id"), reply.str("/pending/0/request_id"))
}

#[apply(on_both)]
async fn model_thinking_before_a_pause_is_sent_back_byte_for_byte(on: On) {
    let fake = FakeMessages::start().await;
    let mut app = TestApp::with(on, &yaml(&fake)).await;
    let (_, request) = held(&app, &fake).await;
    app.restart().await;
    fake.then(&[fake_messages::text_block("Paid.")], "end_turn");
    let done = app.owner().approve(&request).await;
    done.assert_completed("Paid.");
    assert_eq!(done.body["usage"]["prompt_tokens"], 20);
    assert_eq!(
        app.tool.ledger()[0].body,
        ARGUMENTS,
        "the bytes the model wrote are the bytes run"
    );

    let [first, second] = &fake.sent()[..] else {
        panic!("two requests")
    };
    assert_eq!(first.headers["x-api-key"], "sk-model-key-0123456789");
    assert_eq!(first.headers["anthropic-version"], "2023-06-01");
    assert_eq!(first.body()["system"], "You handle refunds.");
    assert_eq!(first.body()["max_tokens"], 16384);
    assert_eq!(
        first.body()["messages"],
        json!([{"role": "user", "content": [{"type": "text", "text": "Pay it back."}]}])
    );
    assert_eq!(first.body()["tools"].as_array().unwrap().len(), 4);
    assert!(
        second.text.contains(&format!("\"input\":{ARGUMENTS}")),
        "{}",
        second.text
    );
    let said = second.body()["messages"].clone();
    assert_eq!(
        said[1]["content"],
        json!([
            {"type": "thinking", "thinking": THOUGHT, "signature": SIGNATURE},
            {"type": "redacted_thinking", "data": REDACTED},
            {"type": "text", "text": "On it."},
            {"type": "tool_use", "id": "toolu_01", "name": "refund", "input": {"order": 17, "amount": 120.5}},
        ])
    );
    assert_eq!(said[2]["content"][0]["tool_use_id"], "toolu_01");
    assert_eq!(said[2]["content"][0].get("is_error"), None);
    app.stop().await;
}

#[apply(on_both)]
async fn rejected_call_is_sent_to_the_provider_as_an_error_with_the_reason(on: On) {
    let fake = FakeMessages::start().await;
    let app = TestApp::with(on, &yaml(&fake)).await;
    let (_, request) = held(&app, &fake).await;
    fake.then(&[fake_messages::text_block("Then not.")], "end_turn");
    let body = json!({"action": "reject", "then": "continue", "reason": "too much"});
    let done = app.owner().answer(&request, &body).await;
    assert_eq!(done.str("/output"), "Then not.", "{}", done.text);
    let told = fake.sent()[1].body()["messages"][2]["content"][0].clone();
    assert_eq!(
        (&told["type"], &told["is_error"]),
        (&json!("tool_result"), &json!(true))
    );
    assert!(
        told["content"].as_str().unwrap().contains("too much"),
        "{told}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn conversation_goes_on_with_a_model_of_another_provider(on: On) {
    let fake = FakeMessages::start().await;
    let mut app = TestApp::with(on, &yaml(&fake)).await;
    let (task, request) = held(&app, &fake).await;
    fake.then(&[fake_messages::text_block("Paid.")], "end_turn");
    app.owner().approve(&request).await;
    let url = app.model.base_url.clone();
    app.restart_with(|yaml| {
        let anthropic = format!(r#"provider: anthropic, base_url: "{}""#, fake.base_url);
        yaml.replace(
            &anthropic,
            &format!(r#"provider: openai, base_url: "{url}""#),
        )
    })
    .await;
    app.model
        .then(fake_chat_completions::calls(&[(
            "lookup",
            r#"{"order":17}"#,
        )]))
        .then(fake_chat_completions::text_answer("It is paid."));
    let path = format!("/v1/tasks/{task}/messages");
    let reply = app.owner().post(&path, &json!({"input": "Is it?"})).await;
    assert_eq!(reply.str("/output"), "It is paid.", "{}", reply.text);
    let sent = app.model.sent()[0]["messages"].clone();
    let call = json!({"id": "toolu_01", "type": "function", "function": {"name": "refund", "arguments": ARGUMENTS}});
    assert_eq!(
        sent[2],
        json!({"role": "assistant", "content": "On it.", "tool_calls": [call]})
    );
    assert_eq!(
        (&sent[3]["role"], &sent[3]["tool_call_id"]),
        (&json!("tool"), &json!("toolu_01"))
    );
    assert_eq!(sent[4], json!({"role": "assistant", "content": "Paid."}));

    app.restart_with(|yaml| {
        let openai = format!(r#"provider: openai, base_url: "{url}""#);
        yaml.replace(
            &openai,
            &format!(r#"provider: anthropic, base_url: "{}""#, fake.base_url),
        )
    })
    .await;
    fake.then(&[fake_messages::text_block("Yes.")], "end_turn");
    let reply = app.owner().post(&path, &json!({"input": "Sure?"})).await;
    assert_eq!(reply.str("/output"), "Yes.", "{}", reply.text);
    let said = fake.sent().last().unwrap().body()["messages"].clone();
    let kinds: Vec<_> = said
        .as_array()
        .unwrap()
        .iter()
        .map(|message| kinds(&message["content"]))
        .collect();
    let expected: [&[&str]; 7] = [
        &["text"],
        &["thinking", "redacted_thinking", "text", "tool_use"],
        &["tool_result"],
        &["text"],
        &["text"],
        &["tool_use"],
        &["tool_result"],
    ];
    assert_eq!(kinds[..7], expected);
    assert_eq!(
        said[1]["content"][0],
        json!({"type": "thinking", "thinking": THOUGHT, "signature": SIGNATURE})
    );
    assert_eq!(
        said[5]["content"][0]["id"],
        said[6]["content"][0]["tool_use_id"]
    );
    app.stop().await;
}

fn kinds(content: &Value) -> Vec<&str> {
    content
        .as_array()
        .unwrap()
        .iter()
        .map(|block| block["type"].as_str().unwrap())
        .collect()
}
