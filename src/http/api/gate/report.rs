//! `POST /v1/gate/outcomes`: stores the outcome of a call that the client ran.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::gate_problem;
use crate::engine::gate::OutcomeReport;
use crate::http::Http;
use crate::http::api::respond::mark_replayed;
use crate::http::api::submit::run_detached;
use crate::http::server::body::PostRequest;
use crate::http::server::fields::{Fields, variant};
use crate::http::server::json;
use crate::http::server::operation::Op;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::gate::{ReportGateOutcome, WireGateCall};
use crate::http::wire::params::KeyHeader;
use crate::people::authorization::may_ask_at_gate;

const MAX_CONTENT_BYTES: usize = 1024 * 1024;

pub(crate) const OP: Op = Op {
    // Each byte of the content takes at most six bytes in JSON, as an escape such as `\u0000`. All
    // other members together may take 64 KiB.
    max_body_bytes: 6 * MAX_CONTENT_BYTES + 64 * 1024,
    ..Op::command("report_gate_outcome", &[Code::NotFound, Code::CallSettled])
};

/// Report the outcome of a call
///
/// The same report again changes nothing. A report about a call that a person has settled meanwhile
/// is kept as a late result.
#[utoipa::path(
    post, path = "/v1/gate/outcomes", operation_id = "report_gate_outcome", tag = "gate",
    params(KeyHeader), request_body = ReportGateOutcome,
    responses((status = 200, body = WireGateCall, description = "The call"))
)]
pub(crate) async fn report_gate_outcome(
    State(http): State<Arc<Http>>,
    mut posted: PostRequest,
) -> Result<Response, Problem> {
    may_ask_at_gate(&posted.caller).map_err(Problem::forbidden)?;
    let key = posted.key()?;
    let report = posted
        .json(&http.body_parser, |body, text| {
            Fields::read(body, |fields| ReportGateOutcome::read(text, fields))
                .map(OutcomeReport::from)
        })
        .await?;
    posted.release_body();
    let (engine, caller) = (Arc::clone(&http.engine), posted.caller.clone());
    let stored = async move { engine.gates().report(&caller, &report, key.as_ref()).await };
    match run_detached(&http, Box::pin(stored)).await? {
        Ok((call, replayed)) => {
            let call = WireGateCall::from_call(&call, &posted.caller, &http.settings);
            let mut response = Json(call).into_response();
            mark_replayed(response.headers_mut(), replayed);
            Ok(response)
        }
        Err(refusal) => Err(gate_problem(&http, &posted.caller, refusal).await),
    }
}

impl ReportGateOutcome {
    /// Reads the members of a report. `text` is the unparsed body. If `content` is not a text, its
    /// JSON is copied from `text`.
    fn read(text: &[u8], fields: &mut Fields<'_>) -> Option<Self> {
        let (task, key) = (fields.text("task_id"), fields.text("key"));
        let task_id = task.as_ref().and_then(|id| id.parse().ok());
        if task.is_some() == key.is_some() {
            fields.errors.add("", "exactly one of `task_id` and `key`");
        } else if task.is_some() && task_id.is_none() {
            fields.refuse("task_id", "a UUID");
        }
        let attempt = attempt(fields);
        let outcome = fields.text("outcome");
        let outcome = outcome.as_deref().and_then(variant);
        if outcome.is_none() {
            fields.refuse("outcome", "`succeeded`, `failed` or `unknown`");
        }
        let content = match fields.take("content") {
            Some(Value::String(text)) => Some(text),
            Some(_) => json::member(text, "content"),
            None => None,
        };
        if content
            .as_ref()
            .is_some_and(|content| content.len() > MAX_CONTENT_BYTES)
        {
            fields.refuse("content", format!("at most {MAX_CONTENT_BYTES} bytes"));
        }
        Some(Self {
            task_id,
            key,
            attempt,
            outcome: outcome?,
            content,
        })
    }
}

impl From<ReportGateOutcome> for OutcomeReport {
    fn from(body: ReportGateOutcome) -> Self {
        Self {
            // `read` made sure that the body has either a `task_id` or a `key`.
            call: body.task_id.ok_or(body.key.unwrap_or_default()),
            attempt: body.attempt,
            outcome: body.outcome.into(),
            content: body.content.unwrap_or_default(),
        }
    }
}

fn attempt(fields: &mut Fields<'_>) -> Option<u32> {
    let value = fields.take("attempt")?;
    let attempt = value.as_u64().and_then(|number| u32::try_from(number).ok());
    let attempt = attempt.filter(|number| *number > 0);
    if attempt.is_none() {
        fields.refuse("attempt", "a number from 1");
    }
    attempt
}
