//! Tests of the rights to the operations of a gate. Each kind of key is tried at each operation. A
//! refused request must write nothing.

use holdpoint::task::time::Time;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::{AGENT, CAROLS_AGENT, NAMESAKES_AGENT, ask, ask_as, bash, refund, until_asker, yaml};
use crate::api::approval_cycle::on_both;
use crate::api::mcp_gate::{newest, older, post_as};
use crate::support::test_app::{ALICE, Actor, OPS, OTHER, On, Reply, TestApp};
use crate::support::until;

pub(in crate::api) const READS: &str = "alice-reads-01234567";
pub(in crate::api) const CREATES: &str = "alice-creates-012345";
pub(in crate::api) const DECIDES: &str = "alice-decides-012345";
pub(in crate::api) const ADMIN: &str = "admin-key-0123456789";
pub(in crate::api) const ADMINS_AGENT: &str = "admin-agent-01234567";
/// Further keys of the configuration.
pub(in crate::api) const NARROW: &str = r#"    - { user: alice, tenant: acme, groups: [support], key: "alice-reads-01234567", may: [read] }
    - { user: alice, tenant: acme, groups: [support], key: "alice-creates-012345", may: [create] }
    - { user: alice, tenant: acme, groups: [support], key: "alice-decides-012345", may: [decide] }
    - { user: root, tenant: acme, key: "admin-key-0123456789", admin: true }
    - { user: root, tenant: acme, key: "admin-agent-01234567", admin: true, may: [gate] }
"#;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    /// `POST /v1/gate/calls`, of a new call.
    Propose,
    /// `GET /v1/gate/calls/{task_id}`, of a call of Alice's agent.
    Look,
    /// `POST /v1/gate/outcomes`, about a call of Alice's agent.
    Report,
    /// `POST /mcp/{gate}`, of a new call. Other messages have a test of their own.
    Mcp,
}

const OPERATIONS: [Operation; 4] = [
    Operation::Propose,
    Operation::Look,
    Operation::Report,
    Operation::Mcp,
];

/// A kind of key: its name, the key, and the status that a request with the key gets at each of
/// [`OPERATIONS`].
struct Row(&'static str, Option<&'static str>, [u16; 4]);

#[rustfmt::skip]
const TABLE: &[Row] = &[
    Row("no key",                          None,                         [401, 401, 401, 401]),
    Row("unknown key",                     Some("unknown-key-01234567"), [401, 401, 401, 401]),
    Row("key that reads",                  Some(READS),                  [403, 403, 403, 403]),
    Row("key that decides",                Some(DECIDES),                [403, 403, 403, 403]),
    Row("key that may do everything",      Some(ALICE),                  [403, 200, 403, 403]),
    Row("key of an agent",                 Some(AGENT),                  [202, 200, 200, 200]),
    Row("key that creates",                Some(CREATES),                [202, 200, 200, 200]),
    Row("another user's agent",            Some(CAROLS_AGENT),           [202, 403, 403, 200]),
    Row("another tenant's agent",          Some(NAMESAKES_AGENT),        [202, 404, 404, 200]),
    Row("another tenant's user",           Some(OTHER),                  [403, 404, 403, 403]),
    Row("admin who reads",                 Some(OPS),                    [403, 403, 403, 403]),
    Row("admin who may do everything",     Some(ADMIN),                  [403, 403, 403, 403]),
    Row("admin's agent",                   Some(ADMINS_AGENT),           [202, 403, 403, 200]),
];

/// The tasks of two calls of Alice's agent: one is held, and the agent runs the other.
struct AliceCalls {
    held: String,
    permitted: String,
}

/// Sends the request of an operation. `number` is part of the arguments of a new call, which
/// therefore equals no other call.
async fn send(actor: Actor<'_>, operation: Operation, calls: &AliceCalls, number: usize) -> Reply {
    let actor = actor.prefer("wait=0");
    let arguments = |order: usize| json!({"order": order, "amount": 120});
    match operation {
        Operation::Propose => {
            let body = json!({"tool": "refund", "arguments": arguments(100 + number)});
            actor.post("/v1/gate/calls", &body).await
        }
        Operation::Look => {
            let path = format!("/v1/gate/calls/{}", calls.held);
            actor.get(&path).await
        }
        Operation::Report => {
            let body = json!({"task_id": calls.permitted, "outcome": "succeeded"});
            actor.post("/v1/gate/outcomes", &body).await
        }
        Operation::Mcp => {
            let params = json!({"name": "refund", "arguments": arguments(200 + number)});
            let message =
                json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
            actor.post("/mcp/refunds", &message).await
        }
    }
}

/// Returns a text that changes with each commit: the counts of the rows, and the sum of the tasks'
/// versions.
pub(in crate::api) async fn stored(app: &TestApp) -> String {
    let tables = &[
        "agent_task",
        "agent_task_item",
        "intervention_request",
        "decision",
        "idempotency",
    ];
    let counts = app.database.row_counts(tables).await;
    let versions = "select cast(coalesce(sum(version), 0) as text) from agent_task";
    format!("{counts} {}", app.database.texts(versions).await.remove(0))
}

async fn until_at_rest(app: &TestApp, task: &str) {
    let task = task.parse().unwrap();
    let is_released = async || {
        let row = app.store().task(task).await.unwrap().unwrap();
        row.lease_owner.is_none()
    };
    until("no replica drives the task", is_released).await;
}

/// Proposes a call that is held and a call that its agent runs.
async fn alice_calls(app: &TestApp) -> AliceCalls {
    let held = ask(app, &refund(120), 0).await;
    until_asker(app, &held, |until| until == Time(0)).await;
    let permitted = ask(app, &bash("ls"), 5).await;
    let calls = AliceCalls {
        held: held.str("/task_id"),
        permitted: permitted.str("/task_id"),
    };
    for task in [&calls.held, &calls.permitted] {
        until_at_rest(app, task).await;
    }
    calls
}

#[apply(on_both)]
async fn call_and_gate_that_do_not_exist_are_404_for_a_key_without_the_right_too(on: On) {
    let app = TestApp::with(on, &(yaml("") + NARROW)).await;
    let call = ask_as(app.actor(NAMESAKES_AGENT), &refund(120), 0).await;
    let paths = [
        "/v1/gate/calls/01890000-0000-7000-8000-000000000000".to_owned(),
        format!("/v1/gate/calls/{}", call.str("/task_id")),
    ];
    for key in [READS, DECIDES] {
        for path in &paths {
            app.actor(key).get(path).await.assert_code(404, "not_found");
        }
        for (gate, status) in [("none", 404), ("refunds", 403)] {
            let message = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
            let path = format!("/mcp/{gate}");
            assert_eq!(app.actor(key).post(&path, &message).await.status, status);
        }
    }
    app.stop().await;
}

#[apply(on_both)]
async fn every_key_is_served_at_a_gate_by_its_rights_and_a_refusal_writes_nothing(on: On) {
    let app = TestApp::with(on, &(yaml("") + NARROW)).await;
    let calls = alice_calls(&app).await;
    let before = stored(&app).await;
    // The refused requests come first. A served request may write a moment after its reply,
    // and such a write would look like a write of the refused request that follows.
    for refused in [true, false] {
        for (number, Row(name, key, statuses)) in TABLE.iter().enumerate() {
            for (operation, status) in OPERATIONS.into_iter().zip(*statuses) {
                if (status >= 400) != refused {
                    continue;
                }
                let actor = key.map_or_else(|| app.anonymous(), |key| app.actor(key));
                let reply = send(actor, operation, &calls, number).await;
                assert_eq!(
                    reply.status, status,
                    "{name}, {operation:?}: {}",
                    reply.text
                );
                let is_answered = operation != Operation::Mcp || reply.body["result"].is_object();
                assert!(
                    refused || is_answered,
                    "{name}, {operation:?}: {}",
                    reply.text
                );
                if refused {
                    assert_eq!(stored(&app).await, before, "{name}, {operation:?}");
                }
            }
        }
    }
    assert_ne!(stored(&app).await, before);
    app.stop().await;
}

#[apply(on_both)]
async fn call_of_another_is_refused_without_a_read_of_its_journal(on: On) {
    let app = TestApp::with(on, &yaml("")).await;
    let calls = alice_calls(&app).await;
    for task in [&calls.held, &calls.permitted] {
        // This damage makes every read of the task's journal fail.
        let of_call = format!(
            "task_id = {} and type = 'assistant_message'",
            app.database.id(task)
        );
        let damage = format!("update agent_task_item set body = '{{' where {of_call}");
        app.database.execute(&damage).await;
    }
    for (key, status) in [(CAROLS_AGENT, 403), (NAMESAKES_AGENT, 404)] {
        for operation in [Operation::Look, Operation::Report] {
            let reply = send(app.actor(key), operation, &calls, 0).await;
            assert_eq!(reply.status, status, "{operation:?}: {}", reply.text);
        }
    }
    app.stop().await;
}

/// Returns a message of each MCP method but `tools/call`, and two notifications. None of these
/// messages changes anything.
fn quiet_messages() -> Vec<Value> {
    let empty = json!({});
    let notification = |method: &str, params: Value| {
        let mut message = older(method, &params);
        message.as_object_mut().unwrap().remove("id");
        message
    };
    vec![
        older(
            "initialize",
            &json!({"protocolVersion": "2025-11-25", "capabilities": {}}),
        ),
        older("ping", &empty),
        older("tools/list", &empty),
        newest("tools/list", json!({})),
        newest("server/discover", json!({})),
        notification("notifications/initialized", json!({})),
        notification("notifications/cancelled", json!({"requestId": 1})),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_gets_an_answer_to_an_mcp_message_by_its_rights_and_nothing_is_written() {
    let app = TestApp::with(On::Sqlite, &(yaml("") + NARROW)).await;
    let before = stored(&app).await;
    for Row(name, key, [.., status]) in TABLE {
        for message in quiet_messages() {
            let actor = key.map_or_else(|| app.anonymous(), |key| app.actor(key));
            let reply = post_as(actor, &message).await;
            let is_served = *status == 200;
            let is_request = message.get("id").is_some();
            let expected = if is_served && !is_request {
                202
            } else {
                *status
            };
            assert_eq!(reply.status, expected, "{name}, {message}: {}", reply.text);
            let is_answered = reply.body["result"].is_object();
            assert_eq!(
                is_answered,
                is_served && is_request,
                "{name}, {message}: {}",
                reply.text
            );
        }
    }
    assert_eq!(stored(&app).await, before);
    app.stop().await;
}
