//! Tests of agents that call agents, as a client sees them. One fake model answers for all agents.
//! An agent's input is a JSON list of the agent's turns; each turn is a text or a list of calls.
//! If an agent calls a sub-agent, the argument `task` of the call is such a list, too.

mod client_view;
mod config_changes;
mod credentials;
mod decision_orders;
mod endings;
mod execution;
mod grants;
mod limits;
mod offered_tools;
mod people;
mod questions;
mod races;
mod random_trees;
mod rejections;
mod rules;
mod sessions;

use serde_json::{Value, json};

use super::request_kinds::items;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ACCOUNTS, On, Reply, TestApp};

/// The configuration of a supervisor with three sub-agents: an analyst, a clerk and a scribe. The
/// analyst and the clerk may call each other at any depth. The scribe keeps its conversation
/// between calls. A POST waits for a minute, because a slow machine may need long for a large tree.
/// `{more}` is replaced by rules that come before all others.
const TREES: &str = r#"
server: { wait: 60s }
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
  comment:
    parameters: { type: object, properties: { text: { type: string } } }
    http: { method: POST, url: "{tool}/comment", headers: { Authorization: "Bearer {{credential:jira.token}}" } }
agents:
  supervisor:
    description: Leads.
    model: main
    instructions: You are supervisor.
    tools: [lookup, refund, comment]
    human: [guidance, confirmation, credentials]
    sub_agents: [analyst, clerk, { agent: scribe, session: true }]
  analyst:
    description: Answers questions from the data.
    model: main
    instructions: You are analyst.
    tools: [lookup, refund, lose, count, comment]
    human: [guidance, confirmation, credentials]
    sub_agents: [clerk, { agent: scribe, session: true }]
  clerk:
    description: Does what is to be done.
    model: main
    instructions: You are clerk.
    tools: [lookup, refund, lose, count, comment]
    human: [guidance, confirmation, credentials]
    sub_agents: [analyst]
  scribe: { description: Remembers., model: main, instructions: You are scribe., tools: [lookup, refund] }
default_agent: supervisor
policy:
{more}  - { name: reads, tools: [lookup], decide: allow }
  - { name: posts, tools: [lose, comment], decide: allow }
  - { name: small, tools: [refund], when: "args.amount <= 20.0", decide: allow }
  - { name: finance, tools: [refund], when: "args.amount > 500.0", decide: hold, approvers: { groups: [finance] } }
  - { name: held, tools: [refund], decide: hold, reason: Refunds need a look. }
"#;

/// Starts a service with the agents of [`TREES`]; the rules in `more` come before the other rules.
pub(super) async fn trees(on: On, more: &str) -> TestApp {
    with(on, more, |yaml| yaml).await
}

/// Like `trees`, but `change` changes the configuration.
async fn with(on: On, more: &str, change: impl Fn(String) -> String) -> TestApp {
    let app = TestApp::with(on, &yaml(more, change)).await;
    app.model.otherwise(scripted_answer);
    app
}

/// Like `trees`, but with a long timeout for tools, so that a test can act while a call is in
/// flight.
async fn patient(on: On) -> TestApp {
    with(on, "", |yaml| yaml.replace("timeout: 5s", "timeout: 30s")).await
}

fn yaml(more: &str, change: impl Fn(String) -> String) -> String {
    change(TREES.replace("{more}", more)) + ACCOUNTS
}

/// Returns a function that changes a configuration so that `agent` has these limits.
fn limited(agent: &'static str, limits: &'static str) -> impl Fn(String) -> String {
    move |yaml| {
        let line = format!("instructions: You are {agent}.\n");
        assert!(yaml.contains(&line));
        yaml.replace(&line, &format!("{line}    limits: {{ {limits} }}\n"))
    }
}

/// Returns the fake model's answer to a prompt of any agent. The user's last message is a JSON list
/// of turns, and the answer is the next turn of this list. After the last turn, the answer is the
/// agent's name and all tool results since that message.
fn scripted_answer(body: &Value) -> Value {
    let since = since_user(body);
    let Ok(turns) = serde_json::from_str::<Vec<Value>>(&text(&since[0])) else {
        return text_answer("what?");
    };
    let turn = since
        .iter()
        .filter(|message| message["role"] == "assistant")
        .count();
    match turns.get(turn) {
        Some(Value::String(text)) => text_answer(text),
        Some(Value::Array(list)) => {
            let list: Vec<_> = list
                .iter()
                .map(|call| (call[0].as_str().unwrap(), call[1].to_string()))
                .collect();
            calls(
                &list
                    .iter()
                    .map(|(name, arguments)| (*name, arguments.as_str()))
                    .collect::<Vec<_>>(),
            )
        }
        Some(_) => json!({"error": {"message": "no"}}),
        None => text_answer(&format!(
            "{}: {}",
            agent_of(body),
            results(body).join(" | ")
        )),
    }
}

/// Returns the messages of a prompt, from the user's last message on.
fn since_user(body: &Value) -> &[Value] {
    let messages = body["messages"].as_array().unwrap();
    let last = messages
        .iter()
        .rposition(|message| message["role"] == "user")
        .unwrap();
    &messages[last..]
}

fn text(message: &Value) -> String {
    let content = &message["content"];
    content.as_str().map_or_else(
        || content[0]["text"].as_str().unwrap_or_default().to_owned(),
        str::to_owned,
    )
}

/// Returns the texts of the tool results since the user's last message.
fn results(body: &Value) -> Vec<String> {
    since_user(body)
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(text)
        .collect()
}

fn agent_of(body: &Value) -> String {
    let system = text(&body["messages"][0]);
    system
        .strip_prefix("You are ")
        .unwrap()
        .split('.')
        .next()
        .unwrap()
        .to_owned()
}

fn prompts(app: &TestApp, agent: &str) -> Vec<Value> {
    app.model
        .sent()
        .into_iter()
        .filter(|body| agent_of(body) == agent)
        .collect()
}

fn call(name: &str, arguments: &Value) -> Value {
    json!([name, arguments])
}

/// Returns a call of `refund`. By default, the rules hold this call for the task's owner.
fn refund(order: u32) -> Value {
    call("refund", &json!({"order": order, "amount": 120}))
}

/// Returns a call that starts the sub-agent `agent`, and tells the sub-agent to make these turns.
pub(super) fn give(agent: &str, turns: &[Value]) -> Value {
    call(agent, &json!({"task": json!(turns).to_string()}))
}

pub(super) fn turn(list: &[Value]) -> Value {
    json!(list)
}

/// Returns the turns of an agent that makes these calls in one turn, and then says `text`.
pub(super) fn does(calls: &[Value], text: impl Into<Value>) -> [Value; 2] {
    [turn(calls), text.into()]
}

/// Returns a call that starts the sub-agent `agent`. The sub-agent makes one refund and reports it.
pub(super) fn pays(agent: &str, order: u32) -> Value {
    give(
        agent,
        &does(&[refund(order)], format!("{agent} paid {order}")),
    )
}

/// Creates a task of the supervisor with these turns, as Alice.
pub(super) async fn begin(app: &TestApp, turns: &[Value]) -> Reply {
    let reply = app.owner().create_task(&json!(turns).to_string()).await;
    assert!([201, 202].contains(&reply.status), "{}", reply.text);
    reply
}

/// Like `begin`, but does not wait for the task. Returns the id of the task.
async fn unattended(app: &TestApp, turns: &[Value]) -> String {
    let owner = app.owner().prefer("wait=0");
    let reply = owner.create_task(&json!(turns).to_string()).await;
    reply.str("/task_id")
}

/// Does the same as `begin`, and asserts that the task then waits for a person.
pub(super) async fn paused(app: &TestApp, turns: &[Value]) -> Reply {
    let reply = begin(app, turns).await;
    reply.assert_status(201, "Paused");
    reply
}

/// Does the same as `begin`, and asserts that the task completes.
async fn completed(app: &TestApp, turns: &[Value]) -> Reply {
    let reply = begin(app, turns).await;
    reply.assert_status(201, "Completed");
    reply
}

async fn task(app: &TestApp, id: &str) -> Reply {
    let reply = app.owner().task(id).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply
}

/// Waits until the task no longer runs. Returns the task.
pub(super) async fn still(app: &TestApp, id: &str) -> Reply {
    loop {
        let reply = app.owner().prefer("wait=20").task(id).await;
        reply.assert_header(200, "preference-applied", "wait=20");
        if reply.str("/status") != "Running" {
            return reply;
        }
    }
}

/// Returns the tasks of a tree, the oldest first.
pub(super) async fn tree(app: &TestApp, root: &str) -> Vec<Value> {
    let reply = app
        .owner()
        .get(&format!("/v1/tasks?root_task_id={root}&limit=200"))
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let mut tasks = reply.body["tasks"].as_array().unwrap().clone();
    tasks.reverse();
    tasks
}

pub(super) async fn of(app: &TestApp, root: &str, agent: &str) -> Vec<Value> {
    tree(app, root)
        .await
        .into_iter()
        .filter(|task| task["agent"] == agent)
        .collect()
}

/// Returns this agent's task in a tree. Asserts that the agent has exactly one.
pub(super) async fn only(app: &TestApp, root: &str, agent: &str) -> Value {
    let mut found = of(app, root, agent).await;
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

pub(super) fn id(task: &Value) -> String {
    task["task_id"].as_str().unwrap().to_owned()
}

/// Returns the open requests that a reply lists, each as (id of the asking task, request id).
pub(super) fn open(reply: &Reply) -> Vec<(String, String)> {
    let pending = reply.body["pending"]
        .as_array()
        .unwrap_or_else(|| panic!("{}", reply.text));
    let word = |request: &Value, name: &str| request[name].as_str().unwrap().to_owned();
    pending
        .iter()
        .map(|request| (word(request, "task_id"), word(request, "request_id")))
        .collect()
}

/// Asserts that the task waits for a person, with this number of open requests.
#[track_caller]
fn assert_asks(reply: &Reply, requests: usize) {
    let found = (reply.str("/status"), open(reply).len());
    assert_eq!(found, ("Paused".to_owned(), requests), "{reply}");
}

fn typed<'i>(items: &'i [Value], kind: &str) -> Vec<&'i Value> {
    items.iter().filter(|item| item["type"] == kind).collect()
}

fn statuses(items: &[Value]) -> Vec<&str> {
    typed(items, "task_status")
        .iter()
        .map(|item| item["status"].as_str().unwrap())
        .collect()
}

/// Returns the name and the outcome of each result in a journal, in the order in which the model
/// made the calls.
fn outcomes(items: &[Value]) -> Vec<(&str, &str)> {
    let calls = typed(items, "assistant_message")
        .into_iter()
        .flat_map(|item| item["tool_calls"].as_array().unwrap());
    let results = calls.flat_map(|call| {
        super::request_kinds::results_of(items, call["tool_call_id"].as_str().unwrap())
    });
    results
        .map(|item| {
            (
                item["name"].as_str().unwrap(),
                item["outcome"].as_str().unwrap(),
            )
        })
        .collect()
}

/// Asserts the name and the outcome of each result in the journal of a task, in the order in which
/// the model made the calls.
async fn assert_outcomes(app: &TestApp, task: &str, expected: &[(&str, &str)]) {
    let journal = items(app, task).await;
    assert_eq!(outcomes(&journal), expected, "{journal:#?}");
}

/// Asserts these rules for every journal of a tree: The items' numbers have no gap. The last status
/// in the journal is the status of the task. Each call of a completed or canceled task has one
/// result. Each start of a sub-agent comes before the result of its call.
async fn assert_invariants(app: &TestApp, root: &str) {
    for task in tree(app, root).await {
        let journal = items(app, &id(&task)).await;
        assert!(
            journal
                .iter()
                .zip(1..)
                .all(|(item, seq)| item["seq"] == seq),
            "{journal:#?}"
        );
        assert_eq!(
            statuses(&journal).last(),
            task["status"].as_str().as_ref(),
            "{task:#?}"
        );
        if ["Completed", "Canceled"].contains(&task["status"].as_str().unwrap()) {
            super::request_kinds::each_has_one_result(&journal);
        }
        for start in typed(&journal, "sub_agent_started") {
            let results =
                super::request_kinds::results_of(&journal, start["tool_call_id"].as_str().unwrap());
            assert!(
                results
                    .iter()
                    .all(|result| result["seq"].as_u64() > start["seq"].as_u64()),
                "{journal:#?}"
            );
        }
    }
}
