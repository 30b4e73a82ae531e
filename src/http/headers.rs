//! The headers an operation reads, as the OpenAPI document shows them.

use utoipa::IntoParams;

/// Of a POST that moves a task.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "read from the headers themselves; this is what the document says of them")]
pub struct MoveHeaders {
    /// `wait=N` waits up to N seconds (300 at most) until the root task no longer runs, `respond-async` not at all.
    #[param(rename = "Prefer")]
    prefer: Option<String>,
    /// 1 to 255 visible ASCII characters: the same key, path and body does nothing more and answers alike.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 255)]
    idempotency_key: Option<String>,
}

/// Of a POST that does not wait.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "read from the headers themselves; this is what the document says of them")]
pub struct KeyHeader {
    /// 1 to 255 visible ASCII characters: the same key, path and body does nothing more and answers alike.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 255)]
    idempotency_key: Option<String>,
}

/// Of a GET that may wait.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "read from the headers themselves; this is what the document says of them")]
pub struct WaitHeader {
    /// `wait=N` waits up to N seconds (300 at most) until this task no longer runs.
    #[param(rename = "Prefer")]
    prefer: Option<String>,
}
