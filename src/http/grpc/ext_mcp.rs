//! The gRPC service `agentgateway.dev.ext_mcp.ExtMcp`: agentgateway's guardrails for MCP.
//! `CheckRequest` asks whether a request may be forwarded; the answer may replace the request's
//! parameters. `CheckResponse` reports the result of the request.

use axum::body::Body;
use bytes::Bytes;
use http::request::Parts;
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio::time::timeout_at;

use super::frames::{GrpcAnswer, GrpcCode, GrpcStatus, MAX_REPORT_BYTES};
use super::json_rpc::{RefusalReason, TOOLS_CALL, ToolCallParams, read_tool_call, with_arguments};
use super::protobuf::{Malformed, bytes_fields, entry, message, pair, put_bytes, put_number, text};
use super::{CALL_HEADER, Gateway, read_message, results};
use crate::agent::gate::RecordedCalls;
use crate::engine::gate::{GateDecision, ReportedOutcome};
use crate::people::Caller;
use crate::task::id::TaskId;

/// The field numbers of the messages, from `crates/protos/proto/ext_mcp.proto` of agentgateway at
/// commit 75b4e6ce.
mod field {
    // McpRequest, McpResponse
    pub(super) const SERVICE_NAMES: u64 = 1;
    pub(super) const METHOD: u64 = 2;
    pub(super) const METADATA_CONTEXT: u64 = 3;
    pub(super) const MCP_REQUEST: u64 = 4;
    pub(super) const MCP_RESPONSE: u64 = 4;
    pub(super) const HEADERS: u64 = 5;
    // McpRequestResult, McpResponseResult
    pub(super) const PASS: u64 = 1;
    pub(super) const MUTATED: u64 = 2;
    pub(super) const ERROR: u64 = 3;
    pub(super) const HEADER_MUTATION: u64 = 4;
    pub(super) const METADATA: u64 = 5;
    // HeaderMutation
    pub(super) const SET: u64 = 1;
    pub(super) const REMOVE: u64 = 2;
    // AuthorizationError
    pub(super) const CODE: u64 = 1;
    pub(super) const REASON: u64 = 2;
    pub(super) const MCP_ERROR: u64 = 3;
    // google.protobuf.Struct, google.protobuf.Value
    pub(super) const STRUCT_FIELDS: u64 = 1;
    pub(super) const STRING_VALUE: u64 = 3;
}

/// Values of `AuthorizationError.Code`.
const PERMISSION_DENIED: u64 = 1;
const INVALID: u64 = 3;
/// A header with the id of the call's task. A permitted call gets the same id in the header
/// [`CALL_HEADER`].
const TASK_HEADER: &str = "holdpoint-task";
/// The metadata key for the id of an attempt (see [`attempt_id`]). The answer that permits a call
/// gives agentgateway the id under this key. When agentgateway reports the call's result, it sends
/// the id back under the same key. In some configurations, it sends the value of [`CALL_HEADER`]
/// instead of the id.
const METADATA_KEY: &str = "holdpoint_call";
/// The maximum length of a reported result of a call, in bytes. A longer result is truncated.
const MAX_CONTENT_BYTES: usize = 1024 * 1024;

/// The request or response that agentgateway asks about.
#[derive(Debug, Default)]
struct CheckedMcpMessage {
    /// The names of the upstreams, at most two: a call with several is refused.
    services: Vec<String>,
    method: String,
    /// The JSON of the request's parameters, or of the response's result.
    body: Vec<u8>,
    headers: Vec<(String, Vec<u8>)>,
    /// The id of the attempt, from the metadata; `None` if the metadata have no attempt id.
    attempt: Option<String>,
}

/// Answers `CheckRequest`. Drops `message` and the headers of the request before the wait for a
/// verdict, because the wait may take minutes.
///
/// # Errors
/// Fails with a gRPC status if the request cannot be checked. agentgateway then denies the request,
/// if it is configured with `failClosed`.
pub(super) async fn check_request(
    gateway: &Gateway,
    message: Bytes,
) -> Result<GrpcAnswer, GrpcStatus> {
    let gate = gateway.gate(None)?;
    let checked = read(&message, field::MCP_REQUEST, |name| {
        gate.ext_authz.reads_header(name)
    });
    let mut checked = checked.map_err(|Malformed| GrpcStatus::malformed())?;
    drop(message);
    if checked.method != TOOLS_CALL {
        gateway.caller(&gate, &checked.headers)?;
        return Ok(if gate.ext_authz.pass_others {
            pass_without_headers().into()
        } else {
            error_result(PERMISSION_DENIED, "Only tools/call passes this gate.", None).into()
        });
    }
    let Some(service) = read_service(&checked.services) else {
        let why = "A call has one upstream, whose name has no `__` and no `_` at its end.";
        return Ok(error_result(PERMISSION_DENIED, why, None).into());
    };
    let call = match read_tool_call(&checked.body) {
        // The tool's name at the gate.
        Ok(call) => ToolCallParams {
            name: format!("{service}__{}", call.name),
            ..call
        },
        Err(RefusalReason(why)) => return Ok(error_result(INVALID, &why, None).into()),
    };
    if gateway
        .http
        .engine
        .gates()
        .runs_here(&gate.name, &call.name)
    {
        let why = "This tool is run by Holdpoint, not behind this gateway. It has not run.";
        return Ok(error_result(PERMISSION_DENIED, why, None).into());
    }
    let is_continuation = call.is_continuation();
    let headers = std::mem::take(&mut checked.headers);
    let (answer, caller) = gateway.ask(&gate, headers, call, &[]).await?;
    let call = &answer.call;
    let mutated = if call.edited {
        with_arguments(&checked.body, &call.arguments_text)
    } else {
        None
    };
    let can_pass = mutated.is_some() == call.edited;
    let permit = call.permit.as_ref();
    if let Some(permit) = permit.filter(|_| call.decision == GateDecision::Allow && can_pass) {
        return Ok(permitted_result(call.task_id, permit.attempt, mutated.as_deref()).into());
    }
    let (reason, members) = results::refusal_parts(gateway, call, &caller, is_continuation);
    Ok(GrpcAnswer {
        message: error_result(PERMISSION_DENIED, &reason, Some(&members.to_string())),
        delivery: answer.delivery,
    })
}

/// Returns the name of a call's upstream; `None` if the call does not have exactly one upstream, or
/// if the upstream's name is empty, has `__`, or has `_` at its end. With such names, two tools
/// could have one name at the gate: the tool `b` of the service `a_`, and the tool `_b` of the
/// service `a`, would both be `a___b`.
fn read_service(services: &[String]) -> Option<&str> {
    let [service] = services else { return None };
    let is_ambiguous = service.is_empty() || service.contains("__") || service.ends_with('_');
    (!is_ambiguous).then_some(service.as_str())
}

/// Builds the `McpRequestResult` that lets a call pass, with the edited parameters `mutated`, if
/// any. The headers [`CALL_HEADER`] and [`TASK_HEADER`] get the id of the task, and the metadata
/// get the id of the attempt.
fn permitted_result(task: TaskId, number: u32, mutated: Option<&[u8]>) -> Vec<u8> {
    let outcome: (u64, &[u8]) = match mutated {
        Some(params) => (field::MUTATED, params),
        None => (field::PASS, &[]),
    };
    let id = task.to_string();
    let [call_id, task_id] = [CALL_HEADER, TASK_HEADER].map(|name| pair(name, id.as_bytes()));
    let mutation = message(&[(field::SET, &call_id), (field::SET, &task_id)]);
    let attempt = attempt_id(task, number);
    let value = message(&[(field::STRING_VALUE, attempt.as_bytes())]);
    let metadata = message(&[(field::STRUCT_FIELDS, &pair(METADATA_KEY, &value))]);
    message(&[
        outcome,
        (field::HEADER_MUTATION, &mutation),
        (field::METADATA, &metadata),
    ])
}

/// Returns the id of an attempt. The id of the first attempt is the id of the task. The id of a
/// later attempt also has the number of the attempt.
fn attempt_id(task: TaskId, attempt: u32) -> String {
    if attempt < 2 {
        task.to_string()
    } else {
        format!("{task}.{attempt}")
    }
}

/// Parses the id of an attempt into the id of the task and the number of the attempt. The id of a
/// task alone gives no number: it is the id of the first attempt, but also the value of
/// [`CALL_HEADER`] for every attempt.
fn parse_attempt_id(text: &str) -> Option<(TaskId, Option<u32>)> {
    match text.split_once('.') {
        Some((task, attempt)) => Some((task.parse().ok()?, Some(attempt.parse().ok()?))),
        None => Some((text.parse().ok()?, None)),
    }
}

/// The outcome of an attempt at a call, as `CheckResponse` reports it.
struct AttemptReport {
    /// The task of the call, and the number of the attempt. Without a number, the report is about
    /// the last attempt.
    attempt: (TaskId, Option<u32>),
    outcome: ReportedOutcome,
    content: String,
}

/// Answers `CheckResponse`: stores the outcome of the attempt whose id is in the metadata. Lets the
/// response pass before the gateway's deadline, whatever becomes of the report. Otherwise, the
/// gateway would keep the result from the agent, although the call has run.
pub(super) async fn check_response(gateway: Gateway, parts: &Parts, body: Body) -> GrpcAnswer {
    let answer_by = gateway.answer_report_by();
    let begun = timeout_at(answer_by, begin_report(gateway, parts, body)).await;
    let too_late = |_| {
        let error = "The report has not arrived in time.";
        Err(GrpcStatus::new(GrpcCode::Unavailable, error))
    };
    match begun.unwrap_or_else(too_late) {
        Ok(stored) => {
            let _ = timeout_at(answer_by, stored).await;
        }
        Err(GrpcStatus(_, error)) => {
            tracing::warn!(%error, "the outcome that a gateway reported was not stored");
        }
    }
    pass_result().into()
}

/// Reads a report, and begins to store it in the background.
///
/// # Errors
/// Fails with a gRPC status if the report cannot be read.
async fn begin_report(
    gateway: Gateway,
    parts: &Parts,
    body: Body,
) -> Result<JoinHandle<()>, GrpcStatus> {
    let message = read_message(&gateway, parts, body, MAX_REPORT_BYTES).await?;
    let report = read_report(&message).map_err(|Malformed| GrpcStatus::malformed())?;
    let tracker = gateway.http.tracker.clone();
    Ok(tracker.spawn(async move {
        if let Some(report) = report {
            store(&gateway, report).await;
        }
        // The reservation of the message's memory also covers the content, so it must last until
        // the content is stored.
        drop(message);
    }))
}

/// Returns the report in a `McpResponse`; `None` if the response has no id of an attempt, or if its
/// method is not `tools/call`.
fn read_report(message: &[u8]) -> Result<Option<AttemptReport>, Malformed> {
    let checked = read(message, field::MCP_RESPONSE, |_| false)?;
    let attempt = checked.attempt.as_deref().and_then(parse_attempt_id);
    let Some(attempt) = attempt.filter(|_| checked.method == TOOLS_CALL) else {
        return Ok(None);
    };
    let result = checked.body.as_slice();
    let parsed = serde_json::from_slice::<ReportedResult>(result).ok();
    let failed = parsed.is_none_or(|result| result.is_error == Some(true));
    // Decodes up to four bytes more than are kept. A character that this cut splits then lies
    // behind the kept part.
    let (beginning, _) = result.split_at(result.len().min(MAX_CONTENT_BYTES + 4));
    let mut content = String::from_utf8_lossy(beginning).into_owned();
    content.truncate(content.floor_char_boundary(MAX_CONTENT_BYTES));
    Ok(Some(AttemptReport {
        attempt,
        outcome: if failed {
            ReportedOutcome::Failed
        } else {
            ReportedOutcome::Succeeded
        },
        content,
    }))
}

/// The member of a call's result that says whether the call has failed. The other members are not
/// parsed into values, because the values of a large result could take several times its size. A
/// result counts as failed if its `isError` has another type or is repeated.
#[derive(Deserialize)]
struct ReportedResult {
    #[serde(rename = "isError")]
    is_error: Option<bool>,
}

/// Stores a report on behalf of the owner of the call's task. If the report cannot be stored, logs a
/// warning with the reason.
async fn store(gateway: &Gateway, report: AttemptReport) {
    let (task, _) = report.attempt;
    match caller_for_report(gateway, task).await {
        Ok(Some(caller)) => {
            gateway
                .report(caller, report.attempt, report.outcome, report.content)
                .await;
        }
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(%task, %error, "the outcome that a gateway reported was not stored");
        }
    }
}

/// Returns the caller on whose behalf a report about the call of `task` is stored: the owner of the
/// task. `None` if there is no task and the gate has `record: held`: the gate may have only counted
/// the call, and no report is due.
///
/// # Errors
/// Fails if the task cannot be read or does not exist, if the call belongs to another tenant than
/// the gateway's key, if it was proposed at another gate, or if the key may not act for the owner.
/// The error is the reason.
async fn caller_for_report(gateway: &Gateway, task: TaskId) -> Result<Option<Caller>, String> {
    let gate = gateway.gate(None).map_err(|GrpcStatus(_, why)| why)?;
    let row = gateway.http.store.task(task).await;
    let Some(row) = row.map_err(|error| error.to_string())? else {
        return if gate.gate.record == RecordedCalls::Held {
            Ok(None)
        } else {
            Err("The task does not exist.".to_owned())
        };
    };
    let own = &gateway.key_caller;
    if row.tenant != own.tenant || row.agent != gate.name {
        return Err("The call is not of this tenant and gate.".to_owned());
    }
    if own.user_id.is_same_person(&row.user_id) {
        return Ok(Some(own.clone()));
    }
    let caller = gateway.caller_for_user(Some(row.user_id.as_bytes()), None);
    caller.map(Some).map_err(|GrpcStatus(_, why)| why)
}

/// Reads a message. `body` is the number of the field with the body. Keeps only the headers for
/// which `is_read` returns true, so that many headers need little memory.
fn read(
    bytes: &[u8],
    body: u64,
    is_read: impl Fn(&str) -> bool,
) -> Result<CheckedMcpMessage, Malformed> {
    let mut checked = CheckedMcpMessage::default();
    for field in bytes_fields(bytes) {
        let (number, bytes) = field?;
        match number {
            field::SERVICE_NAMES if checked.services.len() < 2 => {
                checked.services.push(text(bytes)?);
            }
            field::METHOD => checked.method = text(bytes)?,
            field::METADATA_CONTEXT => read_metadata(bytes, &mut checked)?,
            field::HEADERS => {
                let (name, value) = entry(bytes)?;
                let name = name.to_ascii_lowercase();
                // A repeated header is refused, so the first two values are enough.
                let values = checked.headers.iter().filter(|(known, _)| *known == name);
                if is_read(&name) && values.count() < 2 {
                    checked.headers.push((name, value));
                }
            }
            _ if number == body => checked.body = bytes.to_vec(),
            _ => {}
        }
    }
    Ok(checked)
}

fn read_metadata(metadata: &[u8], checked: &mut CheckedMcpMessage) -> Result<(), Malformed> {
    for field in bytes_fields(metadata) {
        let (number, field) = field?;
        if number != field::STRUCT_FIELDS {
            continue;
        }
        let (key, value) = entry(field)?;
        if key != METADATA_KEY {
            continue;
        }
        for field in bytes_fields(&value) {
            let (number, value) = field?;
            if number == field::STRING_VALUE {
                checked.attempt = Some(text(value)?);
            }
        }
    }
    Ok(())
}

fn pass_result() -> Vec<u8> {
    message(&[(field::PASS, &[])])
}

/// Returns the result that lets a request pass. The result makes agentgateway remove the headers
/// [`CALL_HEADER`] and [`TASK_HEADER`], because the client itself may have sent them.
fn pass_without_headers() -> Vec<u8> {
    let mutation = message(&[
        (field::REMOVE, CALL_HEADER.as_bytes()),
        (field::REMOVE, TASK_HEADER.as_bytes()),
    ]);
    message(&[(field::PASS, &[]), (field::HEADER_MUTATION, &mutation)])
}

fn error_result(code: u64, reason: &str, mcp_error: Option<&str>) -> Vec<u8> {
    let mut error = Vec::new();
    put_number(&mut error, field::CODE, code);
    put_bytes(&mut error, field::REASON, reason.as_bytes());
    if let Some(mcp_error) = mcp_error {
        put_bytes(&mut error, field::MCP_ERROR, mcp_error.as_bytes());
    }
    message(&[(field::ERROR, &error)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: &str = "0192f0c1-2d3e-7f00-8000-000000000001";

    #[test]
    fn headers_of_every_attempt_are_equal_and_the_metadata_name_the_attempt() {
        let count = |bytes: &[u8], text: &str| {
            let windows = bytes.windows(text.len());
            windows.filter(|found| *found == text.as_bytes()).count()
        };
        let attempt = format!("{TASK}.2");
        let first = permitted_result(TASK.parse().unwrap(), 1, None);
        let second = permitted_result(TASK.parse().unwrap(), 2, None);
        assert_eq!((count(&first, TASK), count(&second, TASK)), (3, 3));
        assert_eq!((count(&first, &attempt), count(&second, &attempt)), (0, 1));
        let (_, metadata) = bytes_fields(&second)
            .map(Result::unwrap)
            .find(|(number, _)| *number == field::METADATA)
            .unwrap();
        let mut read = CheckedMcpMessage::default();
        read_metadata(metadata, &mut read).unwrap();
        assert_eq!(read.attempt.as_ref(), Some(&attempt));
    }

    #[test]
    fn id_of_an_attempt_is_read_back_and_no_other_text_is() {
        let task: TaskId = TASK.parse().unwrap();
        for (attempt, read) in [(1, None), (2, Some(2)), (30, Some(30))] {
            let id = attempt_id(task, attempt);
            assert_eq!(parse_attempt_id(&id), Some((task, read)), "{id}");
        }
        for text in [
            "",
            "x",
            &format!("{task}."),
            &format!("{task}.x"),
            &format!(".{task}"),
        ] {
            assert_eq!(parse_attempt_id(text), None, "{text}");
        }
    }

    #[test]
    fn headers_that_are_not_read_and_values_repeated_often_are_not_kept() {
        let mut message = Vec::new();
        for service in ["a", "b", "c"] {
            put_bytes(&mut message, field::SERVICE_NAMES, service.as_bytes());
        }
        for name in ["X-User", "x-user", "X-USER", "accept", "accept"] {
            put_bytes(&mut message, field::HEADERS, &pair(name, b"v"));
        }
        let request = read(&message, field::MCP_REQUEST, |name| name == "x-user").unwrap();
        let value = ("x-user".to_owned(), b"v".to_vec());
        assert_eq!(request.headers, [value.clone(), value]);
        assert_eq!(request.services, ["a", "b"]);
        let report = read(&message, field::MCP_RESPONSE, |_| false).unwrap();
        assert!(report.headers.is_empty());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_at_any_depth_are_read_or_refused(bytes: Vec<u8>) {
            let _ = read(&bytes, field::MCP_REQUEST, |_| true);
            let mut metadata = CheckedMcpMessage::default();
            let _ = read_metadata(&bytes, &mut metadata);
            let mut message = pair(METADATA_KEY, &bytes);
            for number in [field::STRUCT_FIELDS, field::METADATA_CONTEXT] {
                let mut outer = Vec::new();
                put_bytes(&mut outer, number, &message);
                message = outer;
            }
            if let Ok(checked) = read(&message, field::MCP_REQUEST, |_| true) {
                let attempt = checked.attempt.unwrap_or_default();
                proptest::prop_assert!(attempt.len() <= bytes.len());
                proptest::prop_assert!(checked.body.is_empty());
            }
        }
    }
}
