//! `POST /mcp/{gate}`: a gate as an MCP server over Streamable HTTP, in three revisions of the
//! protocol. The server is stateless: it opens no session, and any replica can answer any request.
//! Invariant: this service and every other program that parses the same message read the same
//! values from it. Parsers differ in the value that they read from a repeated member. So a message
//! with a repeated member is refused, unless the member is inside `arguments`. The text of
//! `arguments` is kept byte for byte.

mod call;
mod envelope;
mod json_rpc;
pub(crate) mod result;
mod stream;
pub(crate) mod tools;

use std::future::ready;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::StatusCode;
use http::header::{ACCEPT, HeaderMap};
use serde_json::{Value, json};

use self::envelope::{Incoming, Params, RpcMethod, check_headers, read, session_header};
use self::json_rpc::{RpcError, respond};
use crate::agent::{Agent, Gate};
use crate::http::Http;
use crate::http::server::accept::ranges;
use crate::http::server::body::{PostRequest, check_key};
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::params::{CheckedKeyHeader, McpHeaders};
use crate::people::Caller;
use crate::people::authorization::may_ask_at_gate;
use crate::task::mcp_revision::Revision;
use crate::task::text::as_sentence;

pub(crate) const OP: Op = Op::api(
    "post_mcp_message",
    &[Code::NotFound, Code::UnsupportedMediaType],
);

struct McpRequest<'a> {
    http: &'a Arc<Http>,
    caller: &'a Caller,
    headers: &'a HeaderMap,
    /// The value of the header `Holdpoint-Session`, if any.
    session: Option<&'a str>,
    agent: &'a Agent,
    gate: &'a Gate,
    revision: Revision,
    id: Value,
}

/// Send a message of the Model Context Protocol
///
/// The gate is an MCP server over Streamable HTTP (revisions 2025-06-18, 2025-11-25 and
/// 2026-07-28). It offers the gate's tools that the service itself runs. If the service refuses the
/// HTTP request before it parses the message, the error is a problem; every later error is a
/// JSON-RPC error. A call that waits for a person is answered as `text/event-stream`.
#[utoipa::path(
    post, path = "/mcp/{gate}", operation_id = "post_mcp_message", tag = "gate",
    params(("gate" = String, Path, description = "The name of the gate"), McpHeaders, CheckedKeyHeader),
    request_body = inline(serde_json::Map<String, Value>),
    responses(
        (status = 200, body = inline(serde_json::Map<String, Value>), description = "The JSON-RPC answer"),
        (status = 202, description = "The notification was accepted"),
        (status = 400, body = inline(serde_json::Map<String, Value>), description = "A JSON-RPC error"),
        (status = 404, body = inline(serde_json::Map<String, Value>), description = "A JSON-RPC error"),
    )
)]
pub(crate) async fn post_mcp_message(
    State(http): State<Arc<Http>>,
    PathId(gate): PathId<String>,
    mut posted: PostRequest,
) -> Result<Response, Problem> {
    let agent = open_gate(&http, &posted.caller, &gate)?;
    may_ask_at_gate(&posted.caller).map_err(Problem::forbidden)?;
    let gate = agent.gate.as_deref().ok_or_else(Problem::not_found)?;
    // An MCP client gives the key of a call in `_meta`. The header `Idempotency-Key` is not used,
    // but its form is checked.
    check_key(&posted.headers)?;
    check_accept(&posted.headers)?;
    let incoming = posted
        .read_json(&http.body_parser, |bytes| Ok(read(bytes)))
        .await?;
    posted.release_body();
    let incoming = match incoming {
        Ok(incoming) => incoming,
        Err(error) => return Ok(error.response(&Value::Null)),
    };
    let id = incoming.id.clone().unwrap_or_default();
    let headers = &posted.headers;
    let checked = check_headers(&incoming, headers)
        .and_then(|revision| Ok((revision, session_header(headers)?)));
    let (revision, session) = match checked {
        Ok(checked) => checked,
        Err(error) => return Ok(error.response(&id)),
    };
    if incoming.id.is_none() {
        handle_notification(&http, &posted.caller, &agent.name, session, &incoming);
        return Ok(StatusCode::ACCEPTED.into_response());
    }
    let request = McpRequest {
        http: &http,
        caller: &posted.caller,
        headers,
        session,
        agent: &agent,
        gate,
        revision,
        id,
    };
    let response = match request.answer(incoming) {
        Ok(response) => response,
        Err(error) => return Ok(error.response(&request.id)),
    };
    // The headers are freed before the wait, because they keep in memory the whole buffer into
    // which they were read.
    drop(posted);
    Ok(response.await)
}

/// Returns the gate `name`.
///
/// # Errors
/// `not_found` if there is no such gate, or if the gate is not open to the caller.
fn open_gate(http: &Http, caller: &Caller, name: &str) -> Result<Arc<Agent>, Problem> {
    let agent = http.engine.agents().get(name);
    let agent = agent.filter(|agent| {
        agent.gate.is_some() && agent.is_open_to(&caller.tenant, &caller.user_id, &caller.groups)
    });
    agent.cloned().ok_or_else(Problem::not_found)
}

/// Refuses a client that does not accept both JSON and event streams, because a call may be
/// answered in either format. A client without `Accept` counts as accepting both formats.
fn check_accept(headers: &HeaderMap) -> Result<(), Problem> {
    let ranges = ranges(headers, ACCEPT).map(|(name, _)| name.to_ascii_lowercase());
    let ranges: Vec<String> = ranges.collect();
    let takes = |name: &str, group: &str| {
        let wanted = [name, group, "*/*"];
        ranges.iter().any(|range| wanted.contains(&range.as_str()))
    };
    let both = takes("application/json", "application/*") && takes("text/event-stream", "text/*");
    if ranges.is_empty() || both {
        return Ok(());
    }
    Err(Problem::bad_request(
        "Accept must name application/json and text/event-stream.",
    ))
}

/// Handles a notification to a gate. A cancellation ends the wait of the request whose id it
/// contains. Other notifications are ignored. `session` is the value of the header
/// `Holdpoint-Session`, if any.
fn handle_notification(
    http: &Http,
    caller: &Caller,
    gate: &str,
    session: Option<&str>,
    incoming: &Incoming,
) {
    if incoming.method != "notifications/cancelled" {
        return;
    }
    let request = incoming.params.as_ref().ok();
    let request = request.and_then(|params| params.members.get("requestId"));
    if let Some(request) = request {
        let name = request_name(gate, session, request);
        http.waiting_asks.cancel(caller, &name);
    }
}

/// Returns the name under which a waiting request is registered, so that a cancellation finds the
/// request. The name includes `session` (the value of the header `Holdpoint-Session`), because
/// clients in different sessions may give their requests the same ids.
fn request_name(gate: &str, session: Option<&str>, id: &Value) -> String {
    let session = session.unwrap_or_default();
    format!("{gate} {session} {id}")
}

impl McpRequest<'_> {
    /// Returns the future of the response. The future of a `tools/call` waits for the gate's
    /// answer; any other future is ready at once.
    fn answer(&self, incoming: Incoming) -> Result<BoxFuture<'static, Response>, RpcError> {
        let params = incoming.params?;
        params.check_meta()?;
        let result = match RpcMethod::parse(&incoming.method, self.revision)? {
            RpcMethod::Initialize => self.initialize(&params).to_string(),
            RpcMethod::Ping => "{}".to_owned(),
            RpcMethod::Discover => self.discover().to_string(),
            RpcMethod::ListTools => self.list_tools(&params)?,
            RpcMethod::CallTool => return self.call_tool(params),
        };
        Ok(ready(respond(&self.id, &result)).boxed())
    }

    fn initialize(&self, params: &Params) -> Value {
        let requested = params.members.get("protocolVersion");
        let requested = requested.and_then(Value::as_str).and_then(Revision::parse);
        let known = requested.filter(|revision| !revision.is_stateless());
        json!({
            "protocolVersion": known.unwrap_or(Revision::November2025).as_str(),
            "capabilities": {"tools": {}},
            "serverInfo": server_info(),
            "instructions": self.instructions(),
        })
    }

    fn discover(&self) -> Value {
        json!({
            "resultType": "complete",
            "supportedVersions": Revision::ALL.map(Revision::as_str),
            "capabilities": {"tools": {}},
            "serverInfo": server_info(),
            "instructions": self.instructions(),
            "ttlMs": tools::TTL_MS,
            "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": server_info()},
        })
    }

    /// Returns the instructions for the client's model. They state the gate's purpose, and how the
    /// model gets the result of a held call.
    fn instructions(&self) -> String {
        let held = "A call that a person must approve first is answered with HELD: it has not run. \
                    Make exactly the same call again later to get its result.";
        let purpose = self.gate.description.trim();
        if purpose.is_empty() {
            held.to_owned()
        } else {
            format!("{} {held}", as_sentence(purpose))
        }
    }
}

fn server_info() -> Value {
    json!({"name": "holdpoint", "version": env!("CARGO_PKG_VERSION")})
}
