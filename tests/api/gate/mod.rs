//! Tests of calls at a gate over HTTP: an agent proposes a call, gets its permit once, reports its
//! outcome, and finds the call again.

mod asks;
mod equal_calls;
mod grants;
mod memory;
mod outcomes;
mod pre_invoke_hooks;
pub(super) mod rights;
mod stolen_keys;

use holdpoint::task::time::Time;
use serde_json::{Value, json};

use crate::support::test_app::{ACCOUNTS, Actor, On, REFUNDS, Reply, TestApp};

/// The key of Alice's agent.
pub const AGENT: &str = "agent-key-0123456789";
/// The key of an agent of Carol, another user of the same tenant.
pub(super) const CAROLS_AGENT: &str = "carol-agent-key-012345";
/// The key of an agent of another tenant's user who is called Alice, too.
pub(super) const NAMESAKES_AGENT: &str = "namesake-key-01234567";

const KEYS: &str = r#"
    - { user: alice, tenant: acme, groups: [support], key: "agent-key-0123456789", may: [gate] }
    - { user: carol, tenant: acme, key: "carol-agent-key-012345", may: [gate, read] }
    - { user: alice, tenant: other, groups: [support], key: "namesake-key-01234567", may: [gate] }
"#;

/// A gate with the refund tools and with two tools whose calls the caller runs itself.
const GATE: &str = "
gates:
  refunds:
    description: Refunds of agents.
    tools: [lookup, tag, refund, forbidden, Bash, Read]
    {settings}
";

const TOOLS: &str = r#"
  Bash: { description: A shell., external: {}, summary: "Run {command}", parameters: { type: object, properties: { command: { type: string } }, required: [command] } }
  Read: { description: A file., effect: read_only, external: {}, parameters: { type: object, properties: { path: { type: string } } } }
agents:"#;

const RULES: &str = r#"
  - { name: files, tools: [Read], decide: allow }
  - { name: quick, tools: [Bash], when: "args.command == \"ls\"", decide: allow }
"#;

pub fn yaml(settings: &str) -> String {
    let base = REFUNDS.replace("{approvers}", "{ groups: [finance] }");
    let base = base.replacen("\nagents:", TOOLS, 1);
    let accounts = ACCOUNTS.trim_end().to_owned() + KEYS;
    base + RULES + &GATE.replace("{settings}", settings) + &accounts
}

/// Starts a service with the gate `refunds`; `settings` are further lines of the gate's
/// configuration.
pub(super) async fn gate(on: On, settings: &str) -> TestApp {
    TestApp::with(on, &yaml(settings)).await
}

pub fn refund(amount: u32) -> Value {
    json!({"tool": "refund", "arguments": {"order": 17, "amount": amount}})
}

pub fn bash(command: &str) -> Value {
    json!({"tool": "Bash", "arguments": {"command": command}})
}

/// Proposes a call as Alice's agent and waits at most `seconds` seconds for the reply.
pub(super) async fn ask(app: &TestApp, body: &Value, seconds: u32) -> Reply {
    ask_as(app.actor(AGENT), body, seconds).await
}

pub(super) async fn ask_as(actor: Actor<'_>, body: &Value, seconds: u32) -> Reply {
    let actor = actor.prefer(&format!("wait={seconds}"));
    actor.post("/v1/gate/calls", body).await
}

/// Proposes a call as Alice's agent, with `key` as its idempotency key.
pub(super) async fn ask_by_key(app: &TestApp, key: &str, body: &Value, seconds: u32) -> Reply {
    let actor = app.actor(AGENT).keyed(key);
    ask_as(actor, body, seconds).await
}

/// Decides the open request of a call as Bob, the approver; `verb` is `approve` or `reject`.
pub(super) async fn decide(app: &TestApp, call: &Reply, verb: &str) -> Reply {
    decide_as(app.approver(), call, verb).await
}

/// Decides the open request of a call as `actor`; `verb` is `approve` or `reject`.
pub(super) async fn decide_as(actor: Actor<'_>, call: &Reply, verb: &str) -> Reply {
    let path = format!("/resume/{}/{verb}", call.str("/request/request_id"));
    let reply = actor.prefer("wait=0").hit(&path).await;
    assert!(reply.status < 300, "{}", reply.text);
    reply
}

/// Answers the open request of a call as `actor`, without waiting for the end of the call.
pub(super) async fn answer_as(actor: Actor<'_>, call: &Reply, body: &Value) -> Reply {
    let request = call.str("/request/request_id");
    let reply = actor.prefer("wait=0").answer(&request, body).await;
    assert!(reply.status < 300, "{}", reply.text);
    reply
}

/// Proposes a call as Alice's agent, with `body` as the bytes of the HTTP body.
pub(super) async fn ask_in_text(app: &TestApp, body: &str) -> Reply {
    let actor = app.actor(AGENT);
    actor.bytes("/v1/gate/calls", body.into()).await
}

/// Returns the status, the decision, the state and the outcome in a reply.
pub fn call_summary(reply: &Reply) -> (u16, String, String, Value) {
    (
        reply.status,
        reply.str("/decision"),
        reply.str("/state"),
        reply.body["outcome"].clone(),
    )
}

pub fn expected(
    status: u16,
    decision: &str,
    state: &str,
    outcome: impl Into<Value>,
) -> (u16, String, String, Value) {
    (
        status,
        decision.to_owned(),
        state.to_owned(),
        outcome.into(),
    )
}

/// Asserts the status, the decision, the state and the outcome in a reply.
#[track_caller]
pub(super) fn assert_call(
    reply: &Reply,
    status: u16,
    decision: &str,
    state: &str,
    outcome: impl Into<Value>,
) {
    let call = expected(status, decision, state, outcome);
    assert_eq!(call_summary(reply), call, "{}", reply.text);
}

/// Waits until `is` accepts the stored `asker_until` of a call's task: the time until which the
/// client that asks about the call counts as present.
pub(super) async fn until_asker(app: &TestApp, call: &Reply, is: impl Fn(Time) -> bool) {
    let id = call.str("/task_id").parse().unwrap();
    let is_expected = async || {
        let row = app.store().task(id).await.unwrap().unwrap();
        row.asker_until.is_some_and(&is)
    };
    crate::support::until("the presence of the asker is as expected", is_expected).await;
}

pub(super) async fn items(app: &TestApp, call: &Reply) -> Vec<Value> {
    let path = format!("/v1/tasks/{}/items", call.str("/task_id"));
    let reply = app.owner().get(&path).await;
    reply.body["items"].as_array().cloned().unwrap_or_default()
}

pub(super) fn types(items: &[Value]) -> Vec<&str> {
    items
        .iter()
        .filter_map(|item| item["type"].as_str())
        .collect()
}
