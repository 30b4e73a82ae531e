//! An agent that can open requests of every kind, and helpers that create a task for each kind. The
//! tests of requests and decisions share this agent and these helpers.

use serde_json::{Value, json};

use crate::support::fake_chat_completions::calls;
use crate::support::test_app::{ACCOUNTS, On, Reply, TestApp};

pub const KINDS: [&str; 6] = [
    "approval",
    "guidance",
    "confirmation",
    "credentials",
    "external_result",
    "reconcile",
];

/// The token that the tests fill in as a credential. It must not appear in anything that the
/// service shows.
pub const TOKEN: &str = "jira-token-0123456789";

/// The configuration of an agent that can open requests of every kind. `{more}` is replaced by
/// rules that come before all others.
pub const ASKING: &str = r#"
models:
  main: { provider: openai, base_url: "{model}", model: fake, api_key: "${MODEL_KEY}", retries: 1 }
secrets: { keys: [ { id: k1, key: "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=" } ] }
credentials:
  jira: { description: Login of the caller's Jira., fields: { email: { format: email }, token: {} } }
tools:
  lookup: { effect: read_only, http: { method: POST, url: "{tool}/lookup" }, parameters: { type: object, properties: { order: { type: integer } } } }
  refund:
    summary: "Refund {amount} for order {order}"
    parameters: { type: object, properties: { order: { type: integer }, amount: { type: number, exclusiveMinimum: 0 } }, required: [order, amount] }
    http: { method: POST, url: "{tool}/refund", timeout: 5s }
  lose: { parameters: { type: object, properties: { order: { type: integer } } }, http: { method: POST, url: "{tool}/lose", timeout: 5s } }
  count: { description: The caller counts., parameters: { type: object, properties: { what: { type: string } } }, external: {} }
  measure:
    description: The caller measures.
    parameters: { type: object }
    external: { result: { type: object, properties: { metres: { type: number, minimum: 0 }, note: { type: string } }, required: [metres] } }
  comment:
    parameters: { type: object, properties: { text: { type: string } } }
    http: { method: POST, url: "{tool}/comment", headers: { Authorization: "Bearer {{credential:jira.token}}" } }
agents:
  billing:
    description: Asks.
    model: main
    tools: [lookup, refund, lose, count, measure, comment]
    human: [guidance, confirmation, credentials]
    limits: { max_calls: 30 }
policy:
{more}  - { name: reads, tools: [lookup], decide: allow }
  - { name: posts, tools: [lose, comment], decide: allow }
  - { name: held, tools: [refund], decide: hold, reason: Refunds need a look. }
"#;

/// Returns a rule under which requests of every kind expire after `time`. `terms` is further YAML
/// for the rule and begins with a comma.
pub fn short(time: &str, terms: &str) -> String {
    let tools =
        "request_human_guidance, request_confirmation, request_credentials, refund, count, lose";
    format!("  - {{ name: short, tools: [{tools}], decide: hold, expires_in: {time}{terms} }}\n")
}

/// Returns the tool and the JSON arguments of a call that leads to a request of this kind.
pub fn asks(kind: &str) -> (&'static str, &'static str) {
    match kind {
        "approval" => ("refund", r#"{"order":17,"amount":120}"#),
        "guidance" => (
            "request_human_guidance",
            r#"{"question":"Which shop?","options":["north","south"]}"#,
        ),
        "confirmation" => (
            "request_confirmation",
            r#"{"action":"Close the shop.","risks":["angry people"]}"#,
        ),
        "credentials" => (
            "request_credentials",
            r#"{"service":"jira","reason":"To comment."}"#,
        ),
        "external_result" => ("count", r#"{"what":"orders"}"#),
        "reconcile" => ("lose", r#"{"order":17}"#),
        _ => panic!("no kind {kind}"),
    }
}

/// Returns the values that the tests enter into the form of a request of this kind.
pub fn filled_in(kind: &str) -> Value {
    match kind {
        "confirmation" => json!({"confirmed": true, "comment": "go"}),
        "credentials" => json!({"email": "alice@acme.example", "token": TOKEN}),
        _ => json!({"answer": "north"}),
    }
}

/// An open request of a task that Alice owns.
#[derive(Clone, Debug)]
pub struct Question {
    pub task: String,
    pub id: String,
    pub call: String,
    pub digest: String,
    pub request: Value,
}

impl Question {
    /// Finds the open request of this kind in the `pending` of a task's reply.
    pub fn of(reply: &Reply, kind: &str) -> Self {
        let pending = reply.body["pending"]
            .as_array()
            .unwrap_or_else(|| panic!("{}", reply.text));
        let found = pending.iter().find(|request| request["kind"] == kind);
        let request = found
            .unwrap_or_else(|| panic!("no {kind} in {}", reply.text))
            .clone();
        let text = |pointer: &str| {
            request
                .pointer(pointer)
                .unwrap()
                .as_str()
                .unwrap()
                .to_owned()
        };
        let own = request["tool_calls"]
            .as_array()
            .unwrap()
            .iter()
            .find(|call| call["needs_decision"] == true)
            .unwrap();
        Self {
            task: text("/root_task_id"),
            id: text("/request_id"),
            call: own["tool_call_id"].as_str().unwrap().to_owned(),
            digest: text("/digest"),
            request: request.clone(),
        }
    }

    pub fn path(&self) -> String {
        format!("/resume/{}", self.id)
    }
}

/// Creates a task with one open request of this kind. If a rule first holds the call, approves the
/// call.
pub async fn ask(app: &TestApp, kind: &str) -> Question {
    app.tool.answers(
        if kind == "reconcile" { 502 } else { 200 },
        r#"{"ok":true}"#,
    );
    app.model.then(calls(&[asks(kind)]));
    let mut reply = app.owner().create_task("please").await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    if kind != "approval" && reply.body["pending"][0]["kind"] == "approval" {
        let path = format!("/resume/{}/approve", reply.str("/pending/0/request_id"));
        reply = app.owner().hit(&path).await;
    }
    app.tool.answers(200, r#"{"ok":true}"#);
    assert_eq!(reply.str("/status"), "Paused", "{}", reply.text);
    assert_eq!(reply.count("pending"), 1, "{}", reply.text);
    Question::of(&reply, kind)
}

pub async fn items(app: &TestApp, task: &str) -> Vec<Value> {
    let reply = app
        .owner()
        .get(&format!("/v1/tasks/{task}/items?limit=200"))
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.body["items"].as_array().unwrap().clone()
}

/// Returns the request as its owner sees it now.
pub async fn request(app: &TestApp, id: &str) -> Value {
    let reply = app.owner().request(id).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.body
}

pub fn results_of<'i>(items: &'i [Value], call: &str) -> Vec<&'i Value> {
    items
        .iter()
        .filter(|item| item["type"] == "tool_result" && item["tool_call_id"] == call)
        .collect()
}

/// Returns the messages after the last assistant message in the model's last prompt.
pub fn since_last_turn(app: &TestApp) -> Vec<Value> {
    let sent = app.model.sent();
    let messages = sent.last().unwrap()["messages"].as_array().unwrap();
    let mut turns = messages.rsplit(|message| message["role"] == "assistant");
    turns.next().unwrap().to_vec()
}

/// Returns the contents of the tool results after the last assistant message in the model's last
/// prompt, in order.
pub fn last_tool_results(app: &TestApp) -> Vec<String> {
    let messages = since_last_turn(app).into_iter();
    let results = messages.filter(|message| message["role"] == "tool");
    results
        .map(|message| message["content"].as_str().unwrap().to_owned())
        .collect()
}

pub fn each_has_one_result(items: &[Value]) {
    let calls = items
        .iter()
        .filter(|item| item["type"] == "assistant_message");
    for call in calls.flat_map(|item| item["tool_calls"].as_array().unwrap()) {
        let found = results_of(items, call["tool_call_id"].as_str().unwrap());
        assert_eq!(found.len(), 1, "{call}: {items:#?}");
    }
}

/// Starts a service with the agent of [`ASKING`]; the rules in `more` come before the agent's other
/// rules.
pub async fn asking(on: On, more: &str) -> TestApp {
    TestApp::with(on, &(ASKING.replace("{more}", more) + ACCOUNTS)).await
}

/// Creates a task whose model makes the calls in `turn`, each given as (tool, JSON arguments).
pub async fn begin(app: &TestApp, turn: &[(&str, &str)]) -> Reply {
    app.model.then(calls(turn));
    let reply = app.owner().create_task("go").await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    reply
}
