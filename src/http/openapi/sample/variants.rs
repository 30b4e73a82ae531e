//! Variants of the sample request for tests: requests of other kinds, requests with several calls,
//! and answers.

use serde_json::{Value, json};

use super::{AT, id, request};
use crate::store::RequestRow;
use crate::task::decision::{Action, Decision};
use crate::task::id::CallId;
use crate::task::request::RequestKind;
use crate::task::request_kind::ResponseKind;
use crate::task::time::Time;
use crate::task::verdict::{Terms, Verdict};

#[must_use]
pub(crate) fn several(count: u128) -> RequestRow {
    let mut row = request();
    let calls = row.spec.pending_tool_calls.clone();
    row.spec.pending_tool_calls = (0..count)
        .flat_map(|index| calls.iter().cloned().map(move |call| (index, call)))
        .map(|(index, mut call)| {
            call.tool_call_id = CallId(id(0x30 + index));
            call.summary = format!("Refund 120 for order {}", 17 + index);
            call
        })
        .collect();
    row
}

/// Returns a sample request of this kind. Approvals and reconcile requests need an approver; the
/// task's owner may answer the other kinds.
#[must_use]
pub(crate) fn of_kind(kind: RequestKind) -> RequestRow {
    let mut row = request();
    let properties = kind.properties();
    if properties.decides_calls {
        return row;
    }
    let asked_by_server = properties.response == ResponseKind::ServerForm;
    row.spec.kind = kind;
    if !properties.outcome_unknown {
        row.spec.terms = Terms::default();
    }
    let (name, arguments, question, details, form) = question_of_kind(kind);
    let written = arguments.to_string();
    for call in &mut row.spec.pending_tool_calls {
        name.clone_into(&mut call.name);
        call.arguments_text.clone_from(&written);
        if !properties.outcome_unknown {
            call.verdict = if asked_by_server {
                Verdict::Allow
            } else {
                Verdict::Human
            };
            call.rule = None;
            call.reason = None;
        }
    }
    row.spec.question = question.map(str::to_owned);
    row.spec.details = details;
    row.spec.form = form;
    if asked_by_server {
        row.spec.terms.message = Some("files asks: Which folder?".to_owned());
    }
    row
}

/// The parts of a sample request: the tool's name, the arguments, the question, the details and the
/// form.
type SampleQuestion = (
    &'static str,
    Value,
    Option<&'static str>,
    Option<Value>,
    Option<Value>,
);

fn question_of_kind(kind: RequestKind) -> SampleQuestion {
    match kind {
        RequestKind::Approval | RequestKind::Reconcile => (
            "refund_payment",
            json!({"amount": 120, "order": 17}),
            None,
            Some(
                json!({"sent_at": "2026-11-03T09:30:00.000000Z", "attempt": 1, "replica": "a", "problem": "timeout"}),
            ),
            None,
        ),
        RequestKind::Guidance => (
            "request_human_guidance",
            json!({"question": "Which order is meant?", "context": "Two orders match.", "options": ["17", "18"]}),
            Some("Which order is meant?"),
            Some(json!({"context": "Two orders match.", "options": ["17", "18"]})),
            Some(
                json!({"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}),
            ),
        ),
        RequestKind::Confirmation => (
            "request_confirmation",
            json!({"action": "Close the ticket.", "risks": ["The customer may write again."]}),
            Some("Close the ticket."),
            Some(json!({"risks": ["The customer may write again."]})),
            Some(json!({
                "type": "object",
                "properties": { "confirmed": { "type": "boolean" }, "comment": { "type": "string" } },
                "required": ["confirmed"]
            })),
        ),
        RequestKind::Credentials => (
            "request_credentials",
            json!({"service": "jira", "reason": "I need to comment on the ticket."}),
            Some("I need to comment on the ticket."),
            Some(json!({"service": "jira"})),
            Some(json!({
                "type": "object", "title": "jira", "description": "Login of the caller's Jira.",
                "properties": { "email": { "type": "string", "format": "email" }, "token": { "type": "string" } },
                "required": ["email", "token"], "additionalProperties": false,
                "x-expires-in": 28800, "x-receivers": ["comment_ticket: POST https://jira.acme.com"]
            })),
        ),
        RequestKind::Elicitation => (
            "fs_move_file",
            json!({"from": "a.txt"}),
            Some("Which folder?"),
            Some(json!({"server": "files", "tool": "move_file", "mode": "form", "url": null})),
            Some(json!({
                "type": "object", "properties": { "folder": { "type": "string" } },
                "required": ["folder"], "additionalProperties": false
            })),
        ),
        RequestKind::ExternalResult => (
            "ask_customer_system",
            json!({"customer": 4}),
            None,
            None,
            Some(json!({
                "type": "object",
                "properties": { "since": { "type": "string", "format": "date" }, "orders": { "type": "integer", "minimum": 0 } },
                "required": ["orders"]
            })),
        ),
    }
}

/// Returns the stored answer in which the user `by` takes `action` on each of `calls`. `closes`
/// tells whether the answer closes the request.
#[must_use]
pub(crate) fn answer(
    by: &str,
    action: Action,
    calls: &[CallId],
    closes: bool,
) -> Option<(Time, Decision)> {
    let decisions: serde_json::Map<_, _> = calls
        .iter()
        .map(|call| {
            (
                call.to_string(),
                json!({"action": action, "reason": "So it is."}),
            )
        })
        .collect();
    let decision = json!({"action": action, "by": by, "decisions": decisions, "closes": closes});
    Some((
        Time(AT + 60_000_000),
        serde_json::from_value(decision).ok()?,
    ))
}

/// Returns the time two minutes after the sample request was opened.
#[must_use]
pub(crate) fn now() -> Time {
    Time(AT + 120_250_000)
}
