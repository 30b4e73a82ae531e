//! Tests of the memory that the HTTP request of a proposal (an ask) holds while it waits, over REST
//! and over MCP. Also tests that a held call needs no Tokio task if no client waits for it.

use holdpoint::task::id::TaskId;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use super::{AGENT, ask_as, gate, refund, yaml};
use crate::support::allocator::{allocated_bytes, assert_grows_less_than};
use crate::support::test_app::{On, TestApp};
use crate::support::{eventually, raw_http, until};

/// The number of waiting proposals in a test, below the limit of 20 pending calls of a user.
const ASKS: usize = 16;
/// The maximum number of bytes that a proposal may hold while it waits. A proposal actually holds
/// 31 KiB over REST and 21 KiB over MCP. The two buffers of its connection have 16 KiB of these.
const MAX_HELD_BYTES: usize = 40 * 1024;
/// The length of the rule's reason to hold the calls. In memory, the `TaskSession` of a call and
/// the request about the call contain the reason several times. A waiting proposal that kept the
/// session or the request would exceed [`MAX_HELD_BYTES`].
const REASON_BYTES: usize = 32 * 1024;
/// The number of headers in addition to those that a request needs. hyper accepts at most 100
/// headers. The table of the headers and the buffer with their text have 29 KiB. A waiting proposal
/// that kept them would exceed [`MAX_HELD_BYTES`].
const MORE_HEADERS: usize = 93;

/// Starts a service with the gate `refunds` that holds large refunds for a long reason.
async fn service() -> TestApp {
    let reason = "x".repeat(REASON_BYTES);
    let yaml = yaml("").replace("Refunds above 20 need a look.", &reason);
    TestApp::with(On::Sqlite, &yaml).await
}

/// Returns a POST of Alice's agent that waits for five minutes.
fn request(path: &str, body: &Value) -> String {
    let body = body.to_string();
    let more: Vec<String> = (0..MORE_HEADERS)
        .map(|number| format!("x-{number}: {number}\r\n"))
        .collect();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {AGENT}\r\n\
         content-type: application/json\r\nprefer: wait=300\r\ncontent-length: {}\r\n{}\r\n{body}",
        body.len(),
        more.concat()
    )
}

/// Proposes a call in the session `session`. Returns the connection as soon as the proposal waits.
async fn waiting_ask(app: &TestApp, path: &str, session: &str, body: &Value) -> TcpStream {
    let stream = raw_http::send(&app.url(), request(path, body).as_bytes()).await;
    let tasks = format!("/v1/tasks?agent=refunds&session_id={session}");
    let stored = async || {
        let listed = app.owner().get(&tasks).await;
        let id = listed.body["tasks"][0]["task_id"].as_str();
        id.map(|id| id.parse::<TaskId>().unwrap())
    };
    let task = eventually("the call is stored", stored).await;
    // A proposal subscribes to the commits of its task when it begins to wait.
    until("the ask waits", async || app.store().is_listened_to(task)).await;
    stream
}

/// Proposes a first call, which fills the caches of the service and of the test. Then proposes
/// [`ASKS`] calls, each as soon as the previous proposal waits. `body` returns the body for a
/// session. Returns the connections of all proposals. Also returns the number of allocated bytes
/// between the first proposal and the others.
async fn waiting_asks(
    app: &TestApp,
    path: &str,
    body: impl Fn(&str) -> Value,
) -> (Vec<TcpStream>, usize) {
    let mut streams = Vec::with_capacity(1 + ASKS);
    streams.push(waiting_ask(app, path, "first", &body("first")).await);
    let before = allocated_bytes();
    for number in 0..ASKS {
        let session = format!("s{number}");
        streams.push(waiting_ask(app, path, &session, &body(&session)).await);
    }
    (streams, before)
}

/// Waits until the proposals hold at most [`MAX_HELD_BYTES`] each.
async fn assert_little_is_held(before: usize) {
    assert_grows_less_than(before, ASKS * (MAX_HELD_BYTES + 1)).await;
}

#[tokio::test]
async fn ask_that_waits_over_rest_holds_neither_its_session_nor_its_request() {
    let app = service().await;
    let proposal = |session: &str| {
        let arguments = json!({"order": 17, "amount": 120});
        json!({"tool": "refund", "arguments": arguments, "session_id": session})
    };
    let (streams, before) = waiting_asks(&app, "/v1/gate/calls", proposal).await;
    assert_little_is_held(before).await;
    drop(streams);
    app.stop().await;
}

#[tokio::test]
async fn ask_that_waits_over_mcp_holds_neither_its_session_nor_its_request() {
    let app = service().await;
    let message = |session: &str| {
        let meta = json!({"holdpoint/session": session});
        let arguments = json!({"order": 17, "amount": 120});
        let params = json!({"name": "refund", "arguments": arguments, "_meta": meta});
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    };
    let (streams, before) = waiting_asks(&app, "/mcp/refunds", message).await;
    for stream in &streams {
        // Waits for the beginning of the event stream.
        stream.readable().await.unwrap();
    }
    assert_little_is_held(before).await;
    drop(streams);
    app.stop().await;
}

/// The service runs in the test's runtime, so the test can count the service's Tokio tasks. Only a
/// Tokio task can wait for a Tokio timer, so a held call without a Tokio task has no timer either.
#[tokio::test]
async fn held_call_whose_asker_has_left_needs_no_tokio_task() {
    let app = gate(On::Sqlite, "").await;
    let hold = async |amount: u32| {
        // The test counts Tokio tasks, and an open connection has Tokio tasks of its own. So each
        // connection is closed after its response.
        let actor = app.actor(AGENT).header("connection", "close");
        let reply = ask_as(actor, &refund(amount), 0).await;
        assert_eq!(reply.str("/decision"), "pending", "{}", reply.text);
    };
    let alive = || Handle::current().metrics().num_alive_tasks();
    hold(100).await;
    let before = alive();
    for amount in (101..).take(ASKS) {
        hold(amount).await;
    }
    until("no task is left", async || alive() <= before).await;
    app.stop().await;
}
