//! Whether what is stored is what was asked. What must stay true: a call whose question contradicts itself, or the words
//! of whoever wrote its arguments (the model, or a human who changed them), never runs; what is looked at are the bytes
//! that would run.

use std::collections::BTreeMap;

use super::session::TaskSession;
use crate::task::decision::Decision;
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::{CallId, RequestId};
use crate::task::item::Fact;
use crate::task::request::{RequestSpec, Digested, call_digest};

/// What is wrong with an open question as it is stored, if anything is.
pub(super) fn damage(session: &TaskSession, request: RequestId) -> Option<Failure> {
    damage_in(session, &[request])
}

/// The same, of the questions that gave leave to these calls.
pub(super) fn damage_before(session: &TaskSession, calls: &[CallId]) -> Option<Failure> {
    let approvals = calls.iter().filter_map(|id| session.own.progress.call(*id)?.approval.as_ref());
    let requests: Vec<_> = approvals.map(|approval| approval.request_id).collect();
    if requests.is_empty() { None } else { damage_in(session, &requests) }
}

fn damage_in(session: &TaskSession, requests: &[RequestId]) -> Option<Failure> {
    // What each call's tool and arguments were, item by item.
    let mut said: BTreeMap<CallId, (&str, &str)> = BTreeMap::new();
    let mut asked: BTreeMap<RequestId, &RequestSpec> = BTreeMap::new();
    let (mut found, mut sound) = (0, true);
    for item in &session.own.items {
        match &item.fact {
            Fact::AssistantMessage(turn) => said
                .extend(turn.tool_calls.iter().map(|call| (call.tool_call_id, (&*call.name, &*call.arguments_text)))),
            Fact::InterventionRequested(question) => {
                if requests.contains(&question.request_id) {
                    found += 1;
                    sound &= question.is_sound(&session.own.row.tenant, session.own.row.task_id) && faithful(question, &said);
                }
                asked.insert(question.request_id, question);
            }
            Fact::Decision { request_id, decision } => {
                let sound_edits = asked.get(request_id).is_none_or(|asked| edits_are_sound(session, asked, decision));
                sound &= sound_edits || !requests.contains(request_id);
                for (call, answer) in &decision.decisions {
                    if let (Some(edit), Some(known)) = (&answer.edit, said.get_mut(call)) {
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
    if sound && found > 0 {
        return None;
    }
    tracing::error!(task = %session.task_id(), "a question is not as it was asked");
    let detail = "What is stored of a question is not what was asked. Nothing was run.";
    Some(Failure::new(FailureCode::Integrity, detail))
}

/// Whether a question shows each call as it was written.
fn faithful(asked: &RequestSpec, said: &BTreeMap<CallId, (&str, &str)>) -> bool {
    asked.pending_tool_calls.iter().all(|shown| {
        said.get(&shown.tool_call_id).is_some_and(|(name, text)| *name == shown.name && *text == shown.arguments_text)
    })
}

/// Whether each replacement is the one that was judged.
fn edits_are_sound(session: &TaskSession, asked: &RequestSpec, decision: &Decision) -> bool {
    decision.decisions.iter().all(|(id, answer)| {
        let Some(edit) = &answer.edit else { return true };
        let shown = asked.own_calls().find(|call| call.tool_call_id == *id);
        let tool = shown.and_then(|call| {
            let definition = call.definition.as_deref()?;
            Some(Digested { name: &call.name, definition, target: &call.target, effect: call.effect })
        });
        let rule = edit.rule.as_deref();
        let digest =
            |tool| call_digest(&session.own.row.tenant, session.own.row.task_id, *id, tool, &edit.arguments_text, rule);
        tool.is_some_and(|tool| digest(tool) == edit.digest)
    })
}
