//! Tests the way of a call from a gate's own MCP server to another MCP server, and back: the client
//! gets the result byte for byte, and the server does not get the client's key. Also tests how the
//! gate lists the server's tools, and what the metrics say about the server.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::holdpoint;
use super::served_binary::{Folder, Served};
use crate::support::serve;

const AGENT: &str = "agent-key-0123456789";

const YAML: &str = r#"
models: { m: { provider: openai, model: x, base_url: "http://127.0.0.1:9/v1" } }
agents: { a: { model: m } }
mcp: { up: { url: "http://{server}/mcp" } }
gates: { coding: { description: Sums., tools: [up_sum] } }
policy: [ { name: sums, tools: [up_sum], decide: allow } ]
auth: { api_keys: [ { user: alice, tenant: acme, key: "agent-key-0123456789", may: [gate] } ] }
"#;

/// A result that would change if it were parsed and written again: the spaces, the escapes, the
/// order of the members and the digits of the numbers would be lost.
const RESULT: &str = r#"{ "content" : [ {"type":"text","text":"caf\u00e9"} ],"n":1.0,"big":12345678901234567890123, "structuredContent":{ "b":2e0 , "a":1 } , "isError":false,"resultType":"complete","_meta":{"own":1.50} }"#;

/// Returns the definition of a tool. The server's annotations say that the tool only reads.
fn tool(name: &str, description: &str) -> Value {
    json!({
        "name": name,
        "title": "A sum",
        "description": description,
        "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "annotations": {"readOnlyHint": true},
    })
}

/// The tools that the tests review.
fn reviewed() -> Value {
    json!([tool("sum", "Adds.")])
}

/// Answers a message as an MCP server of the revision 2026-07-28 with these tools.
fn answer(message: &str, tools: &Value) -> String {
    let message: Value = serde_json::from_str(message).unwrap();
    let result = match message["method"].as_str().unwrap() {
        "server/discover" => {
            json!({"supportedVersions": ["2026-07-28"], "resultType": "complete"}).to_string()
        }
        "tools/list" => json!({"tools": tools, "resultType": "complete"}).to_string(),
        "tools/call" => RESULT.to_owned(),
        other => panic!("{other}"),
    };
    format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#,
        message["id"]
    )
}

/// Returns an MCP server that lists the reviewed tools.
fn reviewed_server() -> Router {
    let answers = async |message: String| {
        let answer = answer(&message, &reviewed());
        ([(CONTENT_TYPE, "application/json")], answer)
    };
    Router::new().fallback(answers)
}

/// Serves an MCP server, reviews its tools, and starts a service whose gate has the tool `sum`.
async fn gate_before(server: Router) -> (Folder, Served) {
    let server = serve(server).await;
    let (folder, yaml) = (Folder::new(), YAML.replace("{server}", &server.to_string()));
    std::fs::write(folder.file("holdpoint.yaml"), &yaml).unwrap();
    let review = ["mcp", "lock", "--yes", "--config", "holdpoint.yaml"];
    let reviewed = holdpoint(folder.path(), &review, &[]);
    assert_eq!(reviewed.code, Some(0), "{}", reviewed.err);
    let service = Served::start(folder.path(), &yaml, &[]);
    (folder, service)
}

/// Sends a message to the gate, and waits at most `wait` for the verdict on a call. Returns the
/// reply.
async fn send(service: &Served, method: &str, params: &Value, wait: &str) -> String {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let key = format!("Bearer {AGENT}");
    let headers = [
        ("authorization", key.as_str()),
        ("content-type", "application/json"),
        ("prefer", wait),
    ];
    let path = "/mcp/coding";
    let reply = service
        .exchange("POST", path, &headers, body.to_string())
        .await;
    reply.text
}

/// Calls the tool at a gate before this server. Returns the gate's reply.
async fn called(server: Router) -> String {
    let (_folder, service) = gate_before(server).await;
    let params = json!({"name": "up_sum", "arguments": {}});
    send(&service, "tools/call", &params, "wait=45").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn result_of_an_mcp_server_reaches_the_client_byte_for_byte() {
    let reply = called(reviewed_server()).await;
    // If the answer is slow, it arrives as an event of a stream. The event has the same text.
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{RESULT}}}"#);
    let lines = reply.lines();
    let mut told = lines.map(|line| line.strip_prefix("data: ").unwrap_or(line));
    assert!(told.any(|line| line == text), "{reply}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_of_an_agent_is_in_no_request_to_an_mcp_server() {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    let answers = move |headers: HeaderMap, message: String| {
        seen.lock().unwrap().push(format!("{headers:?} {message}"));
        let reply = (
            [(CONTENT_TYPE, "application/json")],
            answer(&message, &reviewed()),
        );
        async move { reply }
    };
    let reply = called(Router::new().fallback(answers)).await;
    assert!(reply.contains("structuredContent"), "{reply}");
    let requests = requests.lock().unwrap();
    let is_call = |request: &String| request.contains("tools/call");
    assert!(requests.iter().any(is_call), "{requests:?}");
    let has_key = |request: &String| request.contains(AGENT) || request.contains("authorization");
    assert!(!requests.iter().any(has_key), "{requests:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tool_of_an_mcp_server_is_listed_with_its_reviewed_title_and_output_schema() {
    let (_folder, service) = gate_before(reviewed_server()).await;
    let list = send(&service, "tools/list", &json!({}), "wait=0").await;
    let list: Value = serde_json::from_str(&list).unwrap();
    let listed = &list["result"]["tools"][0];
    for member in ["title", "outputSchema"] {
        assert_eq!(listed[member], reviewed()[0][member], "{list}");
    }
    let once = json!({"readOnlyHint": false, "destructiveHint": true, "idempotentHint": false});
    assert_eq!(listed["annotations"], once, "not the server's own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_show_whether_a_server_lists_its_tools_and_how_many_are_new_or_changed() {
    let tools = Arc::new(Mutex::new(Some(reviewed())));
    let present = Arc::clone(&tools);
    let answers = move |message: String| {
        let listed = present.lock().unwrap().clone();
        let (status, text) = match listed {
            Some(listed) => (StatusCode::OK, answer(&message, &listed)),
            None => (StatusCode::SERVICE_UNAVAILABLE, String::new()),
        };
        async move { (status, [(CONTENT_TYPE, "application/json")], text) }
    };
    let (_folder, service) = gate_before(Router::new().fallback(answers)).await;
    let other = json!([tool("sum", "Subtracts."), tool("product", "Multiplies.")]);
    for (session, listed, is_up, changed) in [
        ("s1", Some(reviewed()), 1, 0),
        ("s2", None, 0, 0),
        ("s3", Some(other), 1, 2),
    ] {
        *tools.lock().unwrap() = listed;
        let meta = json!({"holdpoint/session": session});
        let params = json!({"name": "up_sum", "arguments": {}, "_meta": meta});
        send(&service, "tools/call", &params, "wait=0").await;
        let metrics = service.get("/metrics").await;
        for (gauge, value) in [("server_up", is_up), ("catalogue_changed", changed)] {
            let line = format!("holdpoint_mcp_{gauge}{{server=\"up\"}} {value}");
            assert!(
                metrics.lines().any(|found| found == line),
                "{line}\n{metrics}"
            );
        }
    }
    let metrics = service.get("/metrics").await;
    let line = "holdpoint_gate_ask_seconds_count{door=\"mcp\",gate=\"coding\"} 3";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}
