//! Whether what is stored is what was asked. What must stay true: a call whose question contradicts itself, or the
//! model's own words, never runs; what is looked at are the bytes that would run.

use super::live::Live;
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::CallId;
use crate::task::item::Fact;
use crate::task::request::Asked;

/// What is wrong with a question as it is stored, if anything is.
pub(super) fn damage(live: &Live, asked: &Asked) -> Option<Failure> {
    let said = |id: CallId| live.progress.call(id).map(|standing| &standing.call);
    let faithful = asked.pending_tool_calls.iter().all(|shown| match said(shown.tool_call_id) {
        Some(call) => call.name == shown.name && call.arguments_text == shown.arguments_text,
        // A neighbour may have its result for long; what is decided has none.
        None => !shown.needs_decision,
    });
    if faithful && asked.is_sound(&live.row.tenant, live.row.task_id) {
        return None;
    }
    tracing::error!(task = %live.task_id(), request = %asked.request_id, "a question is not as it was asked");
    let detail = "What is stored of a question is not what was asked. Nothing was run.";
    Some(Failure::new(FailureCode::Integrity, detail))
}

/// The same, of the questions that gave leave to these calls.
pub(super) fn damage_before(live: &Live, calls: &[CallId]) -> Option<Failure> {
    let approvals = calls.iter().filter_map(|id| live.progress.call(*id)?.approval.as_ref());
    let requests: Vec<_> = approvals.map(|approval| approval.request_id).collect();
    live.items.iter().find_map(|item| {
        let Fact::InterventionRequested(asked) = &item.fact else { return None };
        if requests.contains(&asked.request_id) { damage(live, asked) } else { None }
    })
}
