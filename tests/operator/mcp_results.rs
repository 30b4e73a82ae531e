//! Tests the way of a call from a gate's own MCP server to another MCP server, and back: the client
//! gets the result byte for byte, and the server does not get the client's key.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
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

/// Answers a message as an MCP server of the revision 2026-07-28 with one tool.
fn answer(message: &str) -> String {
    let message: Value = serde_json::from_str(message).unwrap();
    let tool = json!({"name": "sum", "description": "Adds.", "inputSchema": {"type": "object"}});
    let result = match message["method"].as_str().unwrap() {
        "server/discover" => {
            json!({"supportedVersions": ["2026-07-28"], "resultType": "complete"}).to_string()
        }
        "tools/list" => json!({"tools": [tool], "resultType": "complete"}).to_string(),
        "tools/call" => RESULT.to_owned(),
        other => panic!("{other}"),
    };
    format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#,
        message["id"]
    )
}

/// Reviews the tool of an MCP server, and calls the tool at a gate. Returns the gate's reply.
async fn called(server: Router) -> String {
    let server = serve(server).await;
    let (folder, yaml) = (Folder::new(), YAML.replace("{server}", &server.to_string()));
    std::fs::write(folder.file("holdpoint.yaml"), &yaml).unwrap();
    let review = ["mcp", "lock", "--yes", "--config", "holdpoint.yaml"];
    let reviewed = holdpoint(folder.path(), &review, &[]);
    assert_eq!(reviewed.code, Some(0), "{}", reviewed.err);
    let service = Served::start(folder.path(), &yaml, &[]);
    let params = json!({"name": "up_sum", "arguments": {}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let key = format!("Bearer {AGENT}");
    let headers = [
        ("authorization", key.as_str()),
        ("content-type", "application/json"),
    ];
    let path = "/mcp/coding";
    let reply = service
        .exchange("POST", path, &headers, body.to_string())
        .await;
    reply.text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn result_of_an_mcp_server_reaches_the_client_byte_for_byte() {
    let answers = async |message: String| ([(CONTENT_TYPE, "application/json")], answer(&message));
    let reply = called(Router::new().fallback(answers)).await;
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
        let reply = ([(CONTENT_TYPE, "application/json")], answer(&message));
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
