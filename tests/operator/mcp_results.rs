//! Tests that a gate hands the result of an MCP server to its client byte for byte: from the server
//! through the reviewed tool, the engine and the gate's own MCP server.

use axum::Router;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn result_of_an_mcp_server_reaches_the_client_byte_for_byte() {
    let answers = async |message: String| ([(CONTENT_TYPE, "application/json")], answer(&message));
    let server = serve(Router::new().fallback(answers)).await;
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
    // A slow answer is an event of a stream, with the same text.
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{RESULT}}}"#);
    let lines = reply.text.lines();
    let mut told = lines.map(|line| line.strip_prefix("data: ").unwrap_or(line));
    assert!(told.any(|line| line == text), "{}", reply.text);
}
