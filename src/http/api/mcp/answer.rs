//! Answers of the envelope: JSON-RPC results and errors.

use axum::body::Body;
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::engine::gate::Delivery;
use crate::http::server::delivered_body::delivered_body;
use crate::http::server::edge::RenderedError;
use crate::http::server::problem::{Code, Problem};
use crate::task::mcp_revision::Revision;

/// A JSON-RPC error.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// The status of an answer that is no stream.
    pub(super) status: StatusCode,
    code: i32,
    message: String,
    data: Option<Value>,
}

impl Failure {
    /// The body is no JSON: -32700.
    pub(super) fn unreadable() -> Self {
        Self::new(StatusCode::BAD_REQUEST, -32700, "The body is not JSON")
    }

    /// The message is no request: -32600.
    pub(super) fn request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, -32600, message)
    }

    /// A parameter is missing or does not fit: -32602.
    pub(super) fn params(message: impl Into<String>) -> Self {
        Self::new(StatusCode::OK, -32602, message)
    }

    /// A header is missing, or is not equal to the body: -32020.
    pub(super) fn headers(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, -32020, message)
    }

    /// The revision is not spoken: -32022.
    pub(super) fn version(requested: &str) -> Self {
        let supported = Revision::ALL.map(Revision::as_str);
        Self {
            data: Some(json!({"supported": supported, "requested": requested})),
            ..Self::new(
                StatusCode::BAD_REQUEST,
                -32022,
                "Unsupported protocol version",
            )
        }
    }

    /// The method is not known in this revision: -32601.
    pub(super) fn unknown_method(revision: Revision) -> Self {
        let status = if revision.is_stateless() {
            StatusCode::NOT_FOUND
        } else {
            StatusCode::OK
        };
        Self::new(status, -32601, "Method not found")
    }

    /// A request of 2026-07-28 without a member of `_meta` that each request has: -32602.
    pub(super) fn incomplete(member: &str) -> Self {
        let message = format!("`_meta` has no `{member}`");
        Self::new(StatusCode::BAD_REQUEST, -32602, message)
    }

    /// The service is shutting down: -32603.
    pub(super) fn unavailable() -> Self {
        Self::refused(&Problem::unavailable())
    }

    /// A refusal of the engine.
    pub(super) fn refused(problem: &Problem) -> Self {
        let code = if matches!(problem.code, Code::Unavailable | Code::Internal) {
            -32603
        } else if problem.code == Code::TooMany {
            -32000
        } else {
            -32602
        };
        Self {
            data: Some(json!({"code": problem.code.as_str()})),
            ..Self::new(StatusCode::OK, code, problem.detail.clone())
        }
    }

    fn new(status: StatusCode, code: i32, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            data: None,
        }
    }

    /// The message as JSON.
    pub(super) fn text(&self, id: &Value) -> String {
        let error = match &self.data {
            Some(data) => json!({"code": self.code, "message": self.message, "data": data}),
            None => json!({"code": self.code, "message": self.message}),
        };
        json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()
    }

    pub(super) fn response(&self, id: &Value) -> Response {
        let mut response = json_response(Body::from(self.text(id)));
        *response.status_mut() = self.status;
        // The edge keeps the body: clients read it, whatever the status.
        response.extensions_mut().insert(RenderedError);
        response
    }
}

/// The message with this result, whose text is written as it is.
pub(super) fn message(id: &Value, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}")
}

/// The answer with this result.
pub(super) fn respond(id: &Value, result: &str, delivery: Option<Delivery>) -> Response {
    json_response(delivered_body(message(id, result).into(), delivery))
}

/// An answer in JSON.
pub(super) fn json_response(body: Body) -> Response {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
