//! Tests the review of MCP servers' tools by `holdpoint mcp lock`.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::holdpoint;
use super::served_binary::Folder;
use crate::support::serve;

/// Serves an MCP server of the revision 2026-07-28 with one tool. Returns the server's address.
async fn server_with(tool: &'static str, description: &'static str) -> String {
    let answer = move |message: String| async move {
        let message: Value = serde_json::from_str(&message).unwrap();
        let tool =
            json!({"name": tool, "description": description, "inputSchema": {"type": "object"}});
        let result = match message["method"].as_str().unwrap() {
            "server/discover" => {
                json!({"supportedVersions": ["2026-07-28"], "resultType": "complete"})
            }
            "tools/list" => json!({"tools": [tool], "resultType": "complete"}),
            other => panic!("{other}"),
        };
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        ([(CONTENT_TYPE, "application/json")], answer.to_string())
    };
    let address = serve(Router::new().fallback(answer)).await;
    format!("http://{address}/mcp")
}

/// Reviews the tools of two servers without a lock file, and returns the report.
fn reviewed(files: &str, mail: &str) -> String {
    let folder = Folder::new();
    let yaml = format!("mcp: {{ files: {{ url: '{files}' }}, mail: {{ url: '{mail}' }} }}\n");
    std::fs::write(folder.file("holdpoint.yaml"), yaml).unwrap();
    let review = ["mcp", "lock", "--yes", "--config", "holdpoint.yaml"];
    let reviewed = holdpoint(folder.path(), &review, &[]);
    assert_eq!(reviewed.code, Some(0), "{}", reviewed.err);
    reviewed.out
}

fn warning(tool: &str, other: &str, server: &str) -> String {
    format!("  warning  {tool}\n    A text mentions `{other}`, a tool of the server `{server}`.\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_review_warns_of_a_text_about_a_tool_of_a_server_that_comes_later_or_earlier() {
    let files = server_with("read_file", "Before send_mail is used, use this.").await;
    let mail = server_with("send_mail", "Does more than read_file does.").await;
    let text = reviewed(&files, &mail);
    for warning in [
        warning("read_file", "send_mail", "mail"),
        warning("send_mail", "read_file", "files"),
    ] {
        assert!(text.contains(&warning), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn review_warns_of_a_text_that_names_another_servers_tool_as_models_see_it() {
    let files = server_with("read_file", "Before mail_send_now is used, use this.").await;
    let mail = server_with("send.now", "Sends. Unlike files_read_file, it writes.").await;
    let text = reviewed(&files, &mail);
    for warning in [
        warning("read_file", "mail_send_now", "mail"),
        warning("send.now", "files_read_file", "files"),
    ] {
        assert!(text.contains(&warning), "{text}");
    }
}
