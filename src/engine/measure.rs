//! What is measured of a commit, once it is durable: requests that were closed, and outcomes that nobody knows.

use super::member::Member;
use crate::task::id::RequestId;
use crate::task::item::Fact;
use crate::task::request::RequestKind;
use crate::task::time::Time;

/// Observes what a task's part of a commit of that moment says, before it is taken over.
pub(super) fn observe(member: &Member, at: Time) {
    for item in member.pushed() {
        match &item.fact {
            Fact::Decision { request_id, decision } if decision.closes => {
                closed(member, *request_id, decision.action.as_str(), at);
            }
            Fact::RequestClosed { request_id, status, .. } => closed(member, *request_id, status.as_str(), at),
            Fact::InterventionRequested(asked) if asked.kind == RequestKind::Reconcile => {
                for call in asked.own_calls() {
                    tracing::info!(target: "holdpoint::metric", metric = "unknown_outcome", tool = %call.name);
                }
            }
            Fact::Decision { .. }
            | Fact::InterventionRequested(_)
            | Fact::TaskStatus { .. }
            | Fact::UserMessage { .. }
            | Fact::AssistantMessage(_)
            | Fact::Judged { .. }
            | Fact::ToolStarted { .. }
            | Fact::ToolResult(_)
            | Fact::LateResult(_)
            | Fact::SubAgentStarted { .. } => {}
        }
    }
}

fn closed(member: &Member, request: RequestId, outcome: &str, at: Time) {
    let Some((_, kind, since)) = member.asked.iter().find(|(id, ..)| *id == request) else { return };
    let (kind, seconds) = (kind.as_str(), at.since(*since).as_secs_f64());
    tracing::info!(target: "holdpoint::metric", metric = "request_closed", kind, outcome, seconds);
}
