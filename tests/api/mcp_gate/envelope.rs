//! Tests of the methods, revisions and headers of a gate's MCP server, and of its list of tools.

use reqwest::Method;
use serde_json::{Value, json};

use super::{newest, older, post, post_as, post_text, refund};
use crate::api::gate::{AGENT, CAROLS_AGENT, gate, yaml};
use crate::support::raw_http;
use crate::support::test_app::{On, TestApp};

#[tokio::test]
async fn get_and_delete_are_not_allowed() {
    let app = gate(On::Sqlite, "").await;
    for method in [Method::GET, Method::DELETE] {
        let reply = app.actor(AGENT).sent(method, "/mcp/refunds", None).await;
        assert_eq!(reply.status().as_u16(), 405);
    }
    app.stop().await;
}

#[tokio::test]
async fn message_from_a_page_of_another_origin_is_refused() {
    let app = gate(On::Sqlite, "").await;
    let own = app.url();
    for (origin, status) in [("https://evil.example", 403), (own.as_str(), 200)] {
        let actor = app.actor(AGENT).header("origin", origin);
        let reply = post_as(actor, &older("tools/call", &refund(5))).await;
        assert_eq!(reply.status, status, "{origin}: {}", reply.text);
        assert_eq!(app.tool.count(), usize::from(status == 200), "{origin}");
    }
    app.stop().await;
}

#[tokio::test]
async fn gate_that_is_not_open_to_the_caller_is_404_like_an_unknown_gate() {
    let app = gate(On::Sqlite, "open_to: { groups: [support] }").await;
    for (method, params) in [
        ("initialize", json!({})),
        ("tools/list", json!({})),
        ("tools/call", refund(5)),
    ] {
        let message = older(method, &params);
        let closed = post_as(app.actor(CAROLS_AGENT), &message).await;
        closed.assert_code(404, "not_found");
        let open = post_as(app.actor(AGENT), &message).await;
        assert_eq!(open.status, 200, "{method}: {}", open.text);
    }
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[tokio::test]
async fn compressed_body_is_refused() {
    let app = gate(On::Sqlite, "").await;
    for (encoding, status) in [
        ("gzip", 415),
        ("br", 415),
        ("gzip, identity", 415),
        ("identity", 200),
    ] {
        let actor = app.actor(AGENT).header("content-encoding", encoding);
        let ping = older("ping", &json!({}));
        let reply = actor.post("/mcp/refunds", &ping).await;
        assert_eq!(reply.status, status, "{encoding}: {}", reply.text);
    }
    app.stop().await;
}

#[tokio::test]
async fn message_whose_client_does_not_accept_both_json_and_streams_is_refused() {
    let app = gate(On::Sqlite, "").await;
    let ping = older("ping", &json!({}));
    for (accept, status) in [
        ("application/json", 400),
        ("text/event-stream", 400),
        ("application/json, text/event-stream", 200),
        ("Application/*;q=0.5, text/*", 200),
        ("*/*", 200),
    ] {
        let actor = app.actor(AGENT).header("accept", accept);
        let reply = actor.post("/mcp/refunds", &ping).await;
        assert_eq!(reply.status, status, "{accept}: {}", reply.text);
    }
    // A client that sends no `Accept` accepts both.
    let body = ping.to_string();
    let request = format!(
        "POST /mcp/refunds HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {AGENT}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = raw_http::first_line(&app.url(), request.as_bytes()).await;
    assert_eq!(answer, "HTTP/1.1 200 OK");
    app.stop().await;
}

#[tokio::test]
async fn message_with_too_many_values_is_refused_also_if_they_are_arguments() {
    let app = gate(On::Sqlite, "").await;
    for (zeros, code) in [(99_000, None), (100_000, Some(-32600))] {
        let arguments = json!({"order": 7, "amount": 5, "zeros": vec![0; zeros]});
        let call = json!({"name": "refund", "arguments": arguments});
        let reply = post(&app, "0", &older("tools/call", &call)).await;
        let found = reply.body["error"]["code"].as_i64();
        assert_eq!(found, code, "{zeros}: {}", reply.text);
    }
    app.stop().await;
}

#[tokio::test]
async fn call_beyond_the_bound_is_told_when_to_try_again() {
    let app = gate(On::Sqlite, "max_open: 1").await;
    let call = async |amount| post(&app, "0", &older("tools/call", &refund(amount))).await;
    assert!(call(101).await.text.contains("HELD."));
    let refused = call(102).await;
    let error = &refused.body["error"];
    assert_eq!(error["code"], -32000, "{}", refused.text);
    assert_eq!(error["data"]["retry_after_ms"], 30_000, "{}", refused.text);
    refused.assert_header(200, "retry-after", "30");
    app.stop().await;
}

#[tokio::test]
async fn instructions_begin_with_the_description_as_a_sentence() {
    for description in ["Refunds of agents.", "Refunds"] {
        let yaml = yaml("").replace("Refunds of agents.", description);
        let app = TestApp::with(On::Sqlite, &yaml).await;
        let reply = post(&app, "0", &older("initialize", &json!({}))).await;
        let told = reply.str("/result/instructions");
        let purpose = description.trim_end_matches('.');
        assert!(told.starts_with(&format!("{purpose}. A call")), "{told}");
        app.stop().await;
    }
}

#[tokio::test]
async fn revision_that_is_not_spoken_is_refused_with_those_that_are() {
    let app = gate(On::Sqlite, "").await;
    let actor = app
        .actor(AGENT)
        .header("mcp-protocol-version", "2024-11-05");
    let body = Some((
        "application/json",
        older("tools/list", &json!({})).to_string(),
    ));
    let reply = actor.send(Method::POST, "/mcp/refunds", body).await;
    assert_eq!(
        (reply.status, &reply.body["error"]["code"]),
        (400, &json!(-32022))
    );
    let supported = json!(["2025-06-18", "2025-11-25", "2026-07-28"]);
    assert_eq!(
        reply.body["error"]["data"],
        json!({"supported": supported, "requested": "2024-11-05"})
    );
    for (asked, told) in [
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let message = older(
            "initialize",
            &json!({"protocolVersion": asked, "capabilities": {}}),
        );
        let reply = post(&app, "0", &message).await;
        assert_eq!(reply.body["result"]["protocolVersion"], told);
        assert!(reply.headers.get("mcp-session-id").is_none());
    }
    app.stop().await;
}

#[tokio::test]
async fn request_of_the_newest_revision_without_a_member_that_each_has_is_refused() {
    let app = gate(On::Sqlite, "").await;
    for member in ["protocolVersion", "clientCapabilities"] {
        let mut message = newest("server/discover", json!({}));
        let name = format!("io.modelcontextprotocol/{member}");
        message["params"]["_meta"]
            .as_object_mut()
            .unwrap()
            .remove(&name);
        let actor = app
            .actor(AGENT)
            .header("mcp-protocol-version", "2026-07-28");
        let actor = actor.header("mcp-method", "server/discover");
        let reply = actor.post("/mcp/refunds", &message).await;
        assert_eq!(
            (reply.status, &reply.body["error"]["code"]),
            (400, &json!(-32602)),
            "{member}"
        );
    }
    app.stop().await;
}

#[tokio::test]
async fn call_without_its_name_in_a_header_is_refused_for_that_also_without_capabilities() {
    let app = gate(On::Sqlite, "").await;
    let mut message = newest("tools/call", refund(5));
    message["params"]["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    for (name, code) in [
        (None, -32020),
        (Some("lookup"), -32020),
        (Some("refund"), -32602),
    ] {
        let mut actor = app
            .actor(AGENT)
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", "tools/call");
        if let Some(name) = name {
            actor = actor.header("mcp-name", name);
        }
        let reply = actor.post("/mcp/refunds", &message).await;
        let error = (reply.status, &reply.body["error"]["code"]);
        assert_eq!(error, (400, &json!(code)), "{name:?}");
    }
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[tokio::test]
async fn request_that_the_newest_revision_does_not_have_is_unknown_with_and_without_meta() {
    let app = gate(On::Sqlite, "").await;
    for method in ["initialize", "ping", "logging/setLevel"] {
        for message in [older(method, &json!({})), newest(method, json!({}))] {
            let actor = app
                .actor(AGENT)
                .header("mcp-protocol-version", "2026-07-28")
                .header("mcp-method", method);
            let reply = actor.post("/mcp/refunds", &message).await;
            assert_eq!(
                (reply.status, &reply.body["error"]["code"]),
                (404, &json!(-32601)),
                "{message}"
            );
        }
    }
    let notification = json!({"jsonrpc": "2.0", "method": "ping"});
    let actor = app
        .actor(AGENT)
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "ping");
    let reply = actor.post("/mcp/refunds", &notification).await;
    assert_eq!((reply.status, reply.text.as_str()), (202, ""));
    app.stop().await;
}

#[tokio::test]
async fn header_that_contradicts_the_body_is_refused() {
    let app = gate(On::Sqlite, "").await;
    let params = json!({"name": "refund", "arguments": {"order": 1, "amount": 5}});
    let message = newest("tools/call", params).to_string();
    for (version, method, name) in [
        ("2025-11-25", "tools/call", "refund"),
        ("2026-07-28", "tools/list", "refund"),
        ("2026-07-28", "Tools/Call", "refund"),
        ("2026-07-28", "tools/call", "lookup"),
        ("2026-07-28", "tools/call", ""),
    ] {
        let actor = app.actor(AGENT).header("mcp-protocol-version", version);
        let actor = actor.header("mcp-method", method).header("mcp-name", name);
        let body = Some(("application/json", message.clone()));
        let reply = actor.send(Method::POST, "/mcp/refunds", body).await;
        let error = (reply.status, &reply.body["error"]["code"]);
        assert_eq!(error, (400, &json!(-32020)), "{version} {method} {name}");
    }
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[tokio::test]
async fn message_with_two_session_headers_is_refused() {
    let app = gate(On::Sqlite, "").await;
    let mut named = refund(5);
    named["_meta"] = json!({"holdpoint/session": "s1"});
    let canceled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    for message in [
        older("tools/call", &refund(5)),
        older("tools/call", &named),
        newest("tools/call", refund(5)),
        older("ping", &json!({})),
        canceled,
    ] {
        for second in ["s1", "s2"] {
            let actor = app.actor(AGENT).header("holdpoint-session", "s1");
            let actor = actor.header("holdpoint-session", second);
            let reply = post_as(actor, &message).await;
            let error = (reply.status, &reply.body["error"]["code"]);
            assert_eq!(error, (400, &json!(-32020)), "{message} {second}");
            reply.assert_has("is sent twice");
        }
    }
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[tokio::test]
async fn arguments_and_meta_that_are_no_objects_are_refused() {
    let app = gate(On::Sqlite, "").await;
    for member in ["arguments", "_meta"] {
        for value in [Value::Null, json!([]), json!("{}"), json!(1)] {
            let mut params = refund(5);
            params[member] = value;
            let reply = post(&app, "0", &older("tools/call", &params)).await;
            let error = (reply.status, &reply.body["error"]["code"]);
            assert_eq!(error, (200, &json!(-32602)), "{params}: {}", reply.text);
            let text = format!("`{member}` must be an object");
            assert_eq!(reply.body["error"]["message"], text, "{params}");
        }
    }
    assert_eq!(app.tool.count(), 0);
    let absent = post(&app, "0", &older("tools/call", &json!({"name": "refund"}))).await;
    assert_eq!(absent.body["result"]["isError"], true, "{}", absent.text);
    let discover = older("server/discover", &json!({"_meta": null}));
    let actor = app
        .actor(AGENT)
        .header("mcp-protocol-version", "2026-07-28");
    let actor = actor.header("mcp-method", "server/discover");
    let reply = actor.post("/mcp/refunds", &discover).await;
    let error = (reply.status, &reply.body["error"]["code"]);
    assert_eq!(error, (400, &json!(-32602)), "{}", reply.text);
    app.stop().await;
}

#[tokio::test]
async fn list_names_the_tools_that_the_service_runs_with_annotations_from_their_effect() {
    let app = gate(On::Sqlite, "").await;
    let reply = post_text(&app, &older("tools/list", &json!({})).to_string()).await;
    let tools = reply.body["result"]["tools"].as_array().unwrap();
    let listed: Vec<(&str, &Value)> = tools
        .iter()
        .map(|tool| (tool["name"].as_str().unwrap(), &tool["annotations"]))
        .collect();
    let once = json!({"readOnlyHint": false, "destructiveHint": true, "idempotentHint": false});
    let idempotent =
        json!({"readOnlyHint": false, "destructiveHint": true, "idempotentHint": true});
    let read_only = json!({"readOnlyHint": true});
    let expected = [
        ("lookup", &read_only),
        ("tag", &idempotent),
        ("refund", &once),
        ("forbidden", &once),
    ];
    assert_eq!(listed, expected, "{}", reply.text);
    let external = json!({"name": "Bash", "arguments": {"command": "ls"}});
    let external = post(&app, "0", &older("tools/call", &external)).await;
    assert_eq!(external.body["error"]["code"], -32602, "{}", external.text);
    app.stop().await;
}
