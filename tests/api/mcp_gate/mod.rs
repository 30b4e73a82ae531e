//! Tests of a gate as an MCP server: its envelope in three revisions of MCP, and a held call from
//! its first HTTP request to its result.

mod approval_records;
mod client_timeouts;
mod continuations;
mod envelope;
mod outages;
mod settled;
mod streams;

use holdpoint::task::time::Time;
use serde_json::{Value, json};

use super::gate::{AGENT, gate};
use crate::support::test_app::{Actor, On, Reply, TestApp};

/// Posts a message as Alice's agent. Adds the headers of the revision 2026-07-28 if the message's
/// `_meta` names a revision.
async fn post(app: &TestApp, wait: &str, message: &Value) -> Reply {
    let actor = app.actor(AGENT).prefer(&format!("wait={wait}"));
    post_as(actor, message).await
}

pub(super) async fn post_as(mut actor: Actor<'_>, message: &Value) -> Reply {
    let version = &message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
    if let Some(version) = version.as_str() {
        actor = actor
            .header("mcp-protocol-version", version)
            .header("mcp-method", message["method"].as_str().unwrap());
        if let Some(name) = message["params"]["name"].as_str() {
            actor = actor.header("mcp-name", name);
        }
    }
    let mut reply = actor.post("/mcp/refunds", message).await;
    // The last message of a stream is the answer to the posted message.
    let mut lines = reply.text.lines().rev();
    if let Some(last) = lines.find_map(|line| line.strip_prefix("data: ")) {
        reply.body = serde_json::from_str(last).unwrap();
    }
    reply
}

async fn post_text(app: &TestApp, text: &str) -> Reply {
    let actor = app.actor(AGENT);
    actor.bytes("/mcp/refunds", text.into()).await
}

pub(super) fn older(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

pub(super) fn newest(method: &str, mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    older(method, &params)
}

fn refund(amount: u32) -> Value {
    json!({"name": "refund", "arguments": {"order": 17, "amount": amount}})
}

/// Calls a tool with a message of a revision before 2026-07-28.
pub(super) async fn call(app: &TestApp, wait: &str, params: &Value) -> Reply {
    post(app, wait, &older("tools/call", params)).await
}

/// Makes a call in the newest revision of MCP, with `state` as its `requestState`.
async fn with_state(app: &TestApp, state: &Value, amount: u32, wait: &str) -> Reply {
    let mut params = refund(amount);
    params["requestState"] = state.clone();
    post(app, wait, &newest("tools/call", params)).await
}

/// Returns the `requestState` in the reply to a held call, and the id of the call's task. A client
/// continues the call with the `requestState`.
fn state_of(leg: &Reply) -> (Value, String) {
    let result = &leg.body["result"];
    assert_eq!(result["resultType"], "input_required", "{}", leg.text);
    let state = result["requestState"].clone();
    let task = state.as_str().and_then(|state| state.split('.').nth(1));
    let task = task.expect("a task").to_owned();
    (state, task)
}

/// Returns the time until which a client counts as waiting for the call of this task.
async fn asker_until(app: &TestApp, task: &str) -> Option<Time> {
    let row = app.store().task(task.parse().unwrap()).await.unwrap();
    row.unwrap().asker_until
}

/// Returns the object `holdpoint/gate`, which describes a call at a gate, from a result's `_meta`.
fn about(reply: &Reply) -> &Value {
    let about = &reply.body["result"]["_meta"]["holdpoint/gate"];
    assert!(about.is_object(), "{}", reply.text);
    about
}

/// Returns the texts of a result's blocks, joined by `|`, and whether the result is an error.
pub(super) fn result_text(reply: &Reply) -> (String, bool) {
    let result = &reply.body["result"];
    let blocks = result["content"].as_array().expect("content");
    let texts: Vec<&str> = blocks
        .iter()
        .filter_map(|block| block["text"].as_str())
        .collect();
    (
        texts.join("|"),
        result["isError"].as_bool().expect("isError"),
    )
}

/// Answers a held call as Bob. `held` is the reply that shows the call; `body` is the answer to the
/// call.
async fn answer(app: &TestApp, held: &Reply, body: &Value) {
    answer_task(app, about(held)["task_id"].as_str().unwrap(), body).await;
}

/// Answers the held call of a task as Bob. `body` is the answer to the call.
async fn answer_task(app: &TestApp, task: &str, body: &Value) {
    let task = app.owner().task(task).await;
    let path = format!("/resume/{}", task.str("/pending/0/request_id"));
    let call = task.str("/pending/0/tool_calls/0/tool_call_id");
    let actor = app.approver().prefer("wait=0");
    let reply = actor.post(&path, &json!({"decisions": {call: body}})).await;
    assert!(reply.status < 300, "{}", reply.text);
}

#[tokio::test]
async fn message_that_readers_could_understand_differently_is_refused() {
    let app = gate(On::Sqlite, "").await;
    for (text, code) in [
        ("{", -32700),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"} {}"#, -32700),
        (
            "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}",
            -32700,
        ),
        ("[]", -32600),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, -32600),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1,"a":2}}"#,
            -32600,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"a":1,"a":2}}}"#,
            -32600,
        ),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"none"}"#, -32601),
    ] {
        let reply = post_text(&app, text).await;
        assert_eq!(reply.body["error"]["code"], code, "{text}: {}", reply.text);
    }
    let long = json!({"jsonrpc": "2.0", "id": "x".repeat(257), "method": "ping"}).to_string();
    let long = post_text(&app, &long).await;
    long.assert_has("at most 256 bytes");
    let inside = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"refund","arguments":{"order":1,"order":2,"amount":5}}}"#;
    let inside = post_text(&app, inside).await;
    assert_eq!(inside.body["result"]["isError"], true, "{}", inside.text);
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[tokio::test]
async fn held_call_is_told_as_held_and_its_result_comes_with_the_same_call() {
    let app = gate(On::Sqlite, "").await;
    let held = post(&app, "0", &older("tools/call", &refund(120))).await;
    assert_eq!(held.body["result"]["isError"], true, "{}", held.text);
    let about = &held.body["result"]["_meta"]["holdpoint/gate"];
    assert_eq!(about["state"], "pending");
    let request = about["request_id"].as_str().unwrap();
    app.approver().approve(request).await;
    assert_eq!(app.tool.count(), 0);
    let call = post(&app, "10", &older("tools/call", &refund(120))).await;
    assert_eq!(call.body["result"]["isError"], false, "{}", call.text);
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[tokio::test]
async fn newest_revision_needs_its_headers_and_may_come_back_nine_times() {
    let app = gate(On::Sqlite, "").await;
    let unnamed = post_text(&app, &newest("tools/list", json!({})).to_string()).await;
    let code = &unnamed.body["error"]["code"];
    assert_eq!((unnamed.status, code), (400, &json!(-32020)));
    let listed = post(&app, "0", &newest("tools/list", json!({}))).await;
    assert_eq!(listed.body["result"]["ttlMs"], 60_000, "{}", listed.text);
    let unknown = post(&app, "0", &newest("ping", json!({}))).await;
    assert_eq!(unknown.status, 404);
    let mut params = refund(120);
    params["requestState"] = json!("hp1.00000000-0000-0000-0000-000000000000.9");
    let last = post(&app, "1", &newest("tools/call", params)).await;
    last.assert_has("HELD.");
    app.stop().await;
}
