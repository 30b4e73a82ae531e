//! Describes HTTP responses that contain no usable JSON-RPC answer. Invariant: no description
//! contains a header's value.

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName};

use super::client::McpOutcome;
use super::content::NO_RESULT;

/// Whether this status may come from a gateway, which does not know whether the server executed the
/// request.
pub(super) fn is_gateway(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT
    )
}

/// The error text for an event stream without an answer to the call.
pub(super) const STREAM_ENDED: &str = "the event stream ended without an answer that can be read";

/// Returns the outcome of a call if its response contains no JSON-RPC answer that counts. An error
/// with a gateway's status does not count, nor does a result without a success status. `status` is
/// the status of the response, `is_event_stream` says whether its body was an event stream, and
/// `headers` are the headers of the request.
pub(super) fn status_outcome(
    status: StatusCode,
    is_event_stream: bool,
    headers: &HeaderMap,
) -> McpOutcome {
    let text = || format!("The call failed: {}.", refusal(status, headers));
    if is_gateway(status) {
        McpOutcome::Unknown(format!("a gateway answered {}", status.as_u16()))
    } else if status.is_success() && is_event_stream {
        McpOutcome::Unknown(STREAM_ENDED.to_owned())
    } else if status.is_success() {
        McpOutcome::Unknown(NO_RESULT.to_owned())
    } else if status.is_server_error() {
        McpOutcome::Suspect(text())
    } else {
        McpOutcome::Failed(text())
    }
}

/// Returns the reason why a request failed, by the status of the response. For 401 and 403, the
/// reason has the names of the request's `headers`, without their values.
pub(super) fn refusal(status: StatusCode, headers: &HeaderMap) -> String {
    let code = status.as_u16();
    let names = headers.keys().map(in_title_case);
    let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
    match (code, names.as_slice()) {
        (401 | 403, []) => {
            format!("the server answered {code}, and no header for it is configured")
        }
        (401 | 403, _) => format!(
            "the server answered {code} to the headers {}",
            names.join(", ")
        ),
        (300..=399, _) => format!("the server answered {code}, which is not followed"),
        (200..=299, _) => NO_RESULT.to_owned(),
        _ => format!("the server answered {code}"),
    }
}

/// Returns the name of a header as it is usually written, for example `Authorization`. A
/// `HeaderName` has only lower case letters.
fn in_title_case(name: &HeaderName) -> String {
    let parts = name.as_str().split('-').map(|part| {
        let mut part = part.to_owned();
        if let Some(first) = part.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        part
    });
    parts.collect::<Vec<_>>().join("-")
}
