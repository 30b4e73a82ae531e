//! Responses of the MCP server: JSON-RPC results and errors.

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::http::server::problem::{Code, Problem, RenderedError};
use crate::task::mcp_revision::Revision;

#[derive(Clone, Debug)]
pub(super) struct RpcError {
    /// The HTTP status of a response in JSON. An event stream always has the status 200.
    status: StatusCode,
    code: i32,
    message: String,
    data: Option<Value>,
    /// The headers of a response in JSON, such as `Retry-After`. An event stream is sent without
    /// these headers.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

impl RpcError {
    pub(super) fn parse_error() -> Self {
        Self::new(StatusCode::BAD_REQUEST, -32700, "The body is not JSON")
    }

    pub(super) fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, -32600, message)
    }

    pub(super) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(StatusCode::OK, -32602, message)
    }

    /// Builds the error -32020: a header is missing, or contradicts the body.
    pub(super) fn invalid_headers(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, -32020, message)
    }

    /// Builds the error -32022: this server does not speak the requested revision.
    pub(super) fn unsupported_version(requested: &str) -> Self {
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

    /// Builds the error -32601: the revision has no such method.
    pub(super) fn unknown_method(revision: Revision) -> Self {
        let status = if revision.is_stateless() {
            StatusCode::NOT_FOUND
        } else {
            StatusCode::OK
        };
        Self::new(status, -32601, "Method not found")
    }

    /// Builds the error -32602: a request of the revision 2026-07-28 lacks the required member
    /// `member` of `_meta`.
    pub(super) fn missing_meta(member: &str) -> Self {
        let message = format!("`_meta` has no `{member}`");
        Self::new(StatusCode::BAD_REQUEST, -32602, message)
    }

    /// Builds the error -32603: the service is shutting down.
    pub(super) fn unavailable() -> Self {
        Self::from_problem(&Problem::unavailable())
    }

    /// Builds the error for a problem. The member `data` of the error has the problem's code. It
    /// also has the time of a `Retry-After`, because an event stream is sent without this header.
    pub(super) fn from_problem(problem: &Problem) -> Self {
        let code = if matches!(problem.code, Code::Unavailable | Code::Internal) {
            -32603
        } else if problem.code == Code::TooMany {
            -32000
        } else {
            -32602
        };
        Self {
            data: Some(match retry_after_ms(problem) {
                Some(time) => json!({"code": problem.code.as_str(), "retry_after_ms": time}),
                None => json!({"code": problem.code.as_str()}),
            }),
            headers: problem.headers.clone(),
            ..Self::new(StatusCode::OK, code, problem.detail.to_string())
        }
    }

    fn new(status: StatusCode, code: i32, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            data: None,
            headers: Vec::new(),
        }
    }

    /// Returns the JSON-RPC message with this error, as JSON text.
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
        response.headers_mut().extend(self.headers.clone());
        // The marker tells `edge/` not to replace this body by a problem. MCP clients
        // expect a JSON-RPC error in the body, whatever the HTTP status is.
        response.extensions_mut().insert(RenderedError);
        response
    }
}

fn retry_after_ms(problem: &Problem) -> Option<u64> {
    let mut headers = problem.headers.iter();
    let (_, seconds) = headers.find(|(name, _)| *name == RETRY_AFTER)?;
    let seconds: u64 = seconds.to_str().ok()?.parse().ok()?;
    Some(seconds.saturating_mul(1000))
}

/// Returns the JSON-RPC message with `result`. The JSON text of `result` is kept byte for byte.
pub(super) fn result_message(id: &Value, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}")
}

pub(super) fn respond(id: &Value, result: &str) -> Response {
    json_response(result_message(id, result).into())
}

pub(super) fn json_response(body: Body) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_that_passes_says_when_to_try_again() {
        for (error, code) in [
            (RpcError::unavailable(), -32603),
            (
                RpcError::from_problem(&Problem::new(Code::TooMany, "Too many.")),
                -32000,
            ),
        ] {
            let response = error.response(&json!(1));
            assert_eq!(response.headers()[RETRY_AFTER], "1");
            let text: Value = serde_json::from_str(&error.text(&json!(1))).unwrap();
            assert_eq!(text["error"]["code"], code);
            assert_eq!(text["error"]["data"]["retry_after_ms"], 1000);
        }
        let lasting = RpcError::from_problem(&Problem::not_found());
        let response = lasting.response(&json!(1));
        assert!(!response.headers().contains_key(RETRY_AFTER));
    }
}
