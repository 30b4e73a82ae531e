//! Compares stored requests with their own digests, and with the arguments that the model or a
//! person wrote. Invariants: a call whose request does not match never runs; a call runs with
//! exactly the bytes that were compared.

use std::collections::BTreeMap;

use crate::engine::session::TaskSession;
use crate::task::decision::Decision;
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::{CallId, RequestId};
use crate::task::item::Fact;
use crate::task::request::{CallSpec, RequestSpec};

/// Returns the failure with which the task has to end if this request is damaged; else `None`.
pub(crate) fn request_damage(session: &TaskSession, request: RequestId) -> Option<Failure> {
    damage_of_requests(session, &[request])
}

/// Returns the failure with which the task has to end if a request that approved one of these calls
/// is damaged; else `None`.
pub(crate) fn approval_damage(session: &TaskSession, calls: &[CallId]) -> Option<Failure> {
    let approvals = calls
        .iter()
        .filter_map(|id| session.own.progress.call(*id)?.approval.as_ref());
    let requests: Vec<_> = approvals.map(|approval| approval.request_id).collect();
    if requests.is_empty() {
        None
    } else {
        damage_of_requests(session, &requests)
    }
}

fn damage_of_requests(session: &TaskSession, requests: &[RequestId]) -> Option<Failure> {
    // The tool and the arguments of each call, as written by the items that the loop below has read
    // so far.
    let mut written: BTreeMap<CallId, (&str, &str)> = BTreeMap::new();
    let mut requests_by_id: BTreeMap<RequestId, &RequestSpec> = BTreeMap::new();
    let (mut found, mut is_valid) = (0, true);
    for item in &session.own.items {
        match &item.fact {
            Fact::AssistantMessage(turn) => written.extend(
                turn.tool_calls
                    .iter()
                    .map(|call| (call.tool_call_id, (&*call.name, &*call.arguments_text))),
            ),
            Fact::InterventionRequested(spec) => {
                if requests.contains(&spec.request_id) {
                    found += 1;
                    is_valid &= spec
                        .has_valid_digests(&session.own.row.tenant, session.own.row.task_id)
                        && matches_arguments(spec, &written);
                }
                requests_by_id.insert(spec.request_id, spec);
            }
            Fact::Decision {
                request_id,
                decision,
            } => {
                let edits_are_valid = requests_by_id
                    .get(request_id)
                    .is_none_or(|spec| has_valid_edits(session, spec, decision));
                is_valid &= edits_are_valid || !requests.contains(request_id);
                for (call, answer) in &decision.decisions {
                    if let (Some(edit), Some(known)) = (&answer.edit, written.get_mut(call)) {
                        known.1 = &edit.arguments_text;
                    }
                }
            }
            Fact::TaskStatus { .. }
            | Fact::UserMessage { .. }
            | Fact::Judged { .. }
            | Fact::RequestClosed { .. }
            | Fact::ToolStarted { .. }
            | Fact::ToolResult(_)
            | Fact::LateResult(_)
            | Fact::SubAgentStarted { .. } => {}
        }
    }
    if is_valid && found > 0 {
        return None;
    }
    tracing::error!(task = %session.task_id(), "a stored request differs from the one that was asked");
    let detail = "The stored request differs from the one that was asked. No call was run.";
    Some(Failure::new(FailureCode::Integrity, detail))
}

fn matches_arguments(spec: &RequestSpec, written: &BTreeMap<CallId, (&str, &str)>) -> bool {
    spec.pending_tool_calls.iter().all(|shown| {
        written
            .get(&shown.tool_call_id)
            .is_some_and(|(name, text)| *name == shown.name && *text == shown.arguments_text)
    })
}

/// Whether the digest of each edit in the decision matches the edited arguments, the rule and the
/// tool.
fn has_valid_edits(session: &TaskSession, spec: &RequestSpec, decision: &Decision) -> bool {
    decision.decisions.iter().all(|(id, answer)| {
        let Some(edit) = &answer.edit else {
            return true;
        };
        let shown = spec.own_calls().find(|call| call.tool_call_id == *id);
        let (row, text, rule) = (&session.own.row, &edit.arguments_text, edit.rule.as_deref());
        let digest = |call: &CallSpec| call.digest_with(&row.tenant, row.task_id, text, rule);
        shown.and_then(digest).as_ref() == Some(&edit.digest)
    })
}
