//! Tests the content and the signature of a message.

use std::collections::BTreeSet;

use macro_rules_attribute::apply;
use serde_json::json;

use super::{BACKEND, NEW, NotifyFixture, OLD};
use crate::api::approval_cycle::on_both;
use crate::support::api_contract;
use crate::support::fake_chat_completions::text_answer;
use crate::support::fake_receiver::Received;
use crate::support::has_word;
use crate::support::test_app::On;

const ROTATED: &str = r#"    - { name: backend, webhook: { url: "{hook}/backend", secrets: ["{new}", "{old}"], headers: { X-Tag: blue } }, tenants: [acme] }"#;
const FULL: &str = r#"    - { name: full, webhook: { url: "{hook}/full", secrets: ["{new}"], payload: full }, tenants: [acme] }"#;
const SUMMARIES: &str = r#"    - { name: more, webhook: { url: "{hook}/more", secrets: ["{new}"], summaries: true }, tenants: [acme], events: [request.created] }"#;

fn is_whole(message: &Received) {
    assert!(
        api_contract::is_a("WebhookMessage", &message.body),
        "{}",
        message.text
    );
    assert!(message.is_signed_with(NEW) && message.is_signed_with(OLD));
    assert_eq!(message.header("content-type"), "application/json");
    assert!(message.header("user-agent").starts_with("holdpoint/"));
    assert_eq!(message.header("x-tag"), "blue");
    let number = message.body["data"]["event"].as_i64().unwrap();
    let change = message.id().strip_prefix("evt_").unwrap();
    let (change, event) = change.split_once('_').unwrap();
    assert_eq!((change.len(), event), (32, number.to_string().as_str()));
}

#[apply(on_both)]
async fn message_of_each_usual_event_arrives_once_and_signed_with_every_secret(on: On) {
    let fixture = NotifyFixture::start(on, ROTATED).await;
    let task = fixture.cycle().await;
    fixture.server.reached(4).await;
    fixture.counted(&[("sent", 4), ("due", 0)]).await;
    let all = fixture.server.all();
    all.iter().for_each(is_whole);
    let kinds: BTreeSet<_> = all.iter().map(Received::kind).collect();
    let usual = [
        "request.created",
        "task.paused",
        "request.decided",
        "task.completed",
    ];
    assert_eq!((all.len(), kinds), (4, BTreeSet::from(usual)));
    assert_eq!(
        all.iter().map(Received::id).collect::<BTreeSet<_>>().len(),
        4
    );
    let events = fixture.app.owner().events(&task, None).await;
    for message in &all {
        let number = message.body["data"]["event"].as_i64().unwrap();
        let event = &events[usize::try_from(number).unwrap() - 1];
        assert_eq!(event.name.as_str(), message.kind());
        assert_eq!(event.data["at"], message.body["timestamp"]);
    }
}

#[apply(on_both)]
async fn message_in_brief_has_the_request_as_of_its_commit_and_no_argument(on: On) {
    let fixture = NotifyFixture::start(on, ROTATED).await;
    let held = fixture.app.held().await;
    fixture.server.reached(2).await;
    fixture.approve(&held).await;
    fixture.server.reached(4).await;
    let [created] = &fixture.server.of("request.created")[..] else {
        panic!("one question")
    };
    let data = &created.body["data"];
    assert_eq!(data["root_task_id"], held.task);
    assert_eq!(
        (&data["tenant"], &data["user_id"]),
        (&json!("acme"), &json!("alice"))
    );
    assert_eq!(
        (&data["agent"], &data["agent_path"]),
        (&json!("billing"), &json!(["billing"]))
    );
    assert_eq!(
        (&data["metadata"], &data["task_status"]),
        (&json!({}), &json!("Paused"))
    );
    let request = &data["request"];
    assert_eq!(
        (&request["request_id"], &request["status"]),
        (&json!(held.request), &json!("pending"))
    );
    assert_eq!(
        (&request["tools"], &request["summaries"]),
        (&json!(["refund"]), &json!(null))
    );
    assert!(!has_word(&created.text, "120"), "{}", created.text);
    let [decided] = &fixture.server.of("request.decided")[..] else {
        panic!("one answer")
    };
    let data = &decided.body["data"];
    assert_eq!(
        (&data["task_status"], &data["request"]["status"]),
        (&json!("Running"), &json!("resumed"))
    );
    assert_eq!(data["request"]["decision"]["by"], "alice");
    let [completed] = &fixture.server.of("task.completed")[..] else {
        panic!("one end")
    };
    let data = &completed.body["data"];
    assert_eq!(
        (&data["task_status"], &data["request"]),
        (&json!("Completed"), &json!(null))
    );
}

#[apply(on_both)]
async fn message_in_full_has_the_data_of_its_event(on: On) {
    let fixture = NotifyFixture::start(on, FULL).await;
    let task = fixture.cycle().await;
    fixture.server.reached(4).await;
    let events = fixture.app.owner().events(&task, None).await;
    for message in fixture.server.all() {
        let event = events
            .iter()
            .find(|event| event.name == message.kind())
            .unwrap();
        assert_eq!(message.body["data"], event.data);
        assert!(
            api_contract::is_a("WebhookMessage", &message.body),
            "{}",
            message.text
        );
    }
}

#[apply(on_both)]
async fn message_over_256_kib_is_in_brief_and_says_so(on: On) {
    let fixture = NotifyFixture::start(on, FULL).await;
    fixture.app.model.then(text_answer(&"x".repeat(257 * 1024)));
    let reply = fixture
        .app
        .owner()
        .post("/v1/tasks", &json!({"input": "hello"}))
        .await;
    assert_eq!(reply.str("/status"), "Completed");
    fixture.server.reached(1).await;
    let message = &fixture.server.all()[0];
    assert_eq!(message.body["data"]["truncated"], true);
    assert!(message.text.len() < 2048 && api_contract::is_a("WebhookMessage", &message.body));
}

#[apply(on_both)]
async fn summaries_are_in_the_messages_of_the_entry_that_asks_for_them_only(on: On) {
    let fixture = NotifyFixture::start(on, &format!("{BACKEND}\n{SUMMARIES}")).await;
    fixture.app.held().await;
    fixture.server.reached(3).await;
    for message in fixture.server.of("request.created") {
        let summaries = &message.body["data"]["request"]["summaries"];
        if message.path == "/more" {
            assert_eq!(*summaries, json!(["Refund 120 for order 17"]));
        } else {
            assert!(summaries.is_null());
        }
    }
}

#[apply(on_both)]
async fn body_of_a_message_is_the_same_whenever_it_is_sent(on: On) {
    let fixture = NotifyFixture::start(on, BACKEND).await;
    fixture.cycle().await;
    fixture.counted(&[("sent", 4)]).await;
    let first = fixture.server.all();
    let body = json!({"target": "backend", "state": "sent"});
    let reply = fixture
        .app
        .actor(crate::support::test_app::OPS)
        .post("/v1/deliveries/resend", &body)
        .await;
    assert_eq!((reply.status, reply.body), (202, json!({"count": 4})));
    fixture.server.reached(8).await;
    let second = &fixture.server.all()[4..];
    for message in first {
        let again = second
            .iter()
            .find(|again| again.id() == message.id())
            .unwrap();
        assert_eq!(again.text, message.text);
    }
}
