//! Tests of a conversation whose model changes its provider and changes back, for every pair of
//! providers.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions as chat;
use crate::support::fake_messages::{self, FakeMessages};
use crate::support::fake_responses::{FakeResponses, REASONED, REASONED_AGAIN};
use crate::support::test_app::{On, TestApp, refunds};

const ARGUMENTS: &str = "{ \"order\": 17,\n  \"amount\": 120.50 }";
const SIGNATURE: &str = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk=";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Provider {
    Chat,
    Responses,
    Messages,
}

use Provider::{Chat, Messages, Responses};

struct ProviderFixture {
    app: TestApp,
    responses: FakeResponses,
    messages: FakeMessages,
    now: Provider,
}

impl ProviderFixture {
    async fn with(on: On, first: Provider) -> Self {
        let yaml = refunds("{ owner: true }");
        let mut fixture = Self {
            app: TestApp::with(on, &yaml).await,
            responses: FakeResponses::start().await,
            messages: FakeMessages::start().await,
            now: Chat,
        };
        fixture.switch_to(first).await;
        fixture
    }

    fn setting(&self, provider: Provider) -> String {
        let (name, url) = match provider {
            Chat => ("openai", &self.app.model.base_url),
            Responses => ("openai_responses", &self.responses.base_url),
            Messages => ("anthropic", &self.messages.base_url),
        };
        format!(r#"provider: {name}, base_url: "{url}""#)
    }

    async fn switch_to(&mut self, provider: Provider) {
        let (before, after) = (self.setting(self.now), self.setting(provider));
        self.app
            .restart_with(|yaml| {
                assert!(yaml.contains(&before), "{yaml}");
                yaml.replace(&before, &after)
            })
            .await;
        self.now = provider;
    }

    /// Sets the next two answers of the current provider. The first has a thought (if the provider
    /// has thoughts), a text and the held call. The second has the text `Paid.`.
    fn holds_and_pays(&self) {
        match self.now {
            Chat => {
                let mut held = chat::calls(&[("refund", ARGUMENTS)]);
                held["choices"][0]["message"]["content"] = json!("On it.");
                self.app.model.then(held).then(chat::text_answer("Paid."));
            }
            Responses => {
                self.responses.then("held").then("paid");
            }
            Messages => {
                let thinks = fake_messages::thinks("Hm.", SIGNATURE);
                let held = [
                    thinks,
                    fake_messages::text_block("On it."),
                    fake_messages::calls("toolu_01", "refund", ARGUMENTS),
                ];
                self.messages
                    .then(&held, "tool_use")
                    .then(&[fake_messages::text_block("Paid.")], "end_turn");
            }
        }
    }

    fn script_text(&self) {
        match self.now {
            Chat => {
                self.app.model.then(chat::text_answer("It is paid."));
            }
            Responses => {
                self.responses.then("says");
            }
            Messages => {
                self.messages
                    .then(&[fake_messages::text_block("It is paid.")], "end_turn");
            }
        }
    }

    fn sent(&self) -> String {
        match self.now {
            Chat => self.app.model.sent().last().unwrap().to_string(),
            Responses => self.responses.sent().last().unwrap().text.clone(),
            Messages => self.messages.sent().last().unwrap().text.clone(),
        }
    }

    /// Returns the conversation in the last request to the current provider, in the same form for
    /// all providers.
    fn conversation(&self) -> Vec<String> {
        let sent: Value = serde_json::from_str(&self.sent()).unwrap();
        let said = match self.now {
            Responses => &sent["input"],
            Chat | Messages => &sent["messages"],
        };
        let of = match self.now {
            Chat => of_chat,
            Responses => of_responses,
            Messages => of_messages,
        };
        said.as_array().unwrap().iter().flat_map(of).collect()
    }

    async fn asks(&self, task: &str, text: &str) {
        self.script_text();
        let path = format!("/v1/tasks/{task}/messages");
        let reply = self.app.owner().post(&path, &json!({"input": text})).await;
        assert_eq!(reply.str("/output"), "It is paid.", "{}", reply.text);
    }
}

fn called(name: &Value, arguments: &str) -> String {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    format!("calls {} {arguments}", name.as_str().unwrap())
}

/// Returns each text of `content` with `role` before it. `content` is one text or a list of parts.
fn texts_by_role(role: &Value, content: &Value) -> Vec<String> {
    let who = role.as_str().unwrap();
    let parts = content.as_array().into_iter().flatten();
    let texts = parts.map(|part| part["text"].as_str().unwrap());
    content
        .as_str()
        .into_iter()
        .chain(texts)
        .map(|text| format!("{who} {text}"))
        .collect()
}

fn of_chat(message: &Value) -> Vec<String> {
    if message["role"] == "system" {
        return Vec::new();
    }
    if message["role"] == "tool" {
        return vec!["result".to_owned()];
    }
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls = calls.map(|call| {
        let function = &call["function"];
        called(&function["name"], function["arguments"].as_str().unwrap())
    });
    texts_by_role(&message["role"], &message["content"])
        .into_iter()
        .chain(calls)
        .collect()
}

fn of_responses(item: &Value) -> Vec<String> {
    match item["type"].as_str() {
        Some("reasoning") => Vec::new(),
        Some("function_call") => {
            vec![called(&item["name"], item["arguments"].as_str().unwrap())]
        }
        Some("function_call_output") => vec!["result".to_owned()],
        _ => texts_by_role(&item["role"], &item["content"]),
    }
}

fn of_messages(message: &Value) -> Vec<String> {
    let blocks = message["content"].as_array().unwrap().iter();
    let told = blocks.flat_map(|block| match block["type"].as_str() {
        Some("thinking") => Vec::new(),
        Some("tool_use") => vec![called(&block["name"], &block["input"].to_string())],
        Some("tool_result") => vec!["result".to_owned()],
        _ => texts_by_role(&message["role"], &json!([block])),
    });
    told.collect()
}

/// Returns the texts that only this provider puts into its turns, such as a signature. Each later
/// prompt to this provider must contain them byte for byte.
fn own(provider: Provider) -> &'static [&'static str] {
    match provider {
        Chat => &[],
        Responses => &[REASONED, REASONED_AGAIN],
        Messages => &[SIGNATURE],
    }
}

async fn changes(on: On, first: Provider, then: Provider) {
    let mut fixture = ProviderFixture::with(on, first).await;
    fixture.holds_and_pays();
    let input = json!({"input": "Pay it back."});
    let held = fixture.app.owner().post("/v1/tasks", &input).await;
    assert_eq!(held.str("/status"), "Paused", "{}", held.text);
    let path = format!("/resume/{}/approve", held.str("/pending/0/request_id"));
    let done = fixture.app.owner().hit(&path).await;
    assert_eq!(done.str("/output"), "Paid.", "{}", done.text);
    let task = held.str("/task_id");

    fixture.switch_to(then).await;
    fixture.asks(&task, "Is it?").await;
    let call = format!("calls refund {}", json!({"order": 17, "amount": 120.5}));
    let mut told = vec![
        "user Pay it back.",
        "assistant On it.",
        &call,
        "result",
        "assistant Paid.",
        "user Is it?",
    ];
    assert_eq!(fixture.conversation(), told, "{first:?} to {then:?}");

    fixture.switch_to(first).await;
    fixture.asks(&task, "Sure?").await;
    told.extend(["assistant It is paid.", "user Sure?"]);
    assert_eq!(
        fixture.conversation(),
        told,
        "{first:?} to {then:?} and back"
    );
    for text in own(first) {
        assert!(fixture.sent().contains(text), "{text}: {}", fixture.sent());
    }
    fixture.app.stop().await;
}

#[apply(on_both)]
async fn conversation_begun_over_chat_completions_goes_on_with_each_provider(on: On) {
    for then in [Chat, Responses, Messages] {
        changes(on, Chat, then).await;
    }
}

#[apply(on_both)]
async fn conversation_begun_over_the_responses_api_goes_on_with_each_provider(on: On) {
    for then in [Chat, Responses, Messages] {
        changes(on, Responses, then).await;
    }
}

#[apply(on_both)]
async fn conversation_begun_over_the_messages_api_goes_on_with_each_provider(on: On) {
    for then in [Chat, Responses, Messages] {
        changes(on, Messages, then).await;
    }
}
