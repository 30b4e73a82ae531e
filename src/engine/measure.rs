//! What is measured of a commit, once it is durable: requests that were closed, and outcomes that nobody knows.

use crate::task::id::RequestId;
use crate::task::item::{Fact, Item};
use crate::task::request::{Asked, RequestKind};
use crate::task::time::Time;

/// Observes what the items from `committed` on say. `items` is the whole journal.
pub(super) fn observe(items: &[Item], committed: usize) {
    for item in items.get(committed..).unwrap_or_default() {
        match &item.fact {
            Fact::Decision { request_id, decision } if decision.closes => {
                closed(items, *request_id, decision.action.as_str(), item.at);
            }
            Fact::RequestClosed { request_id, status, .. } => closed(items, *request_id, status.as_str(), item.at),
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

fn closed(items: &[Item], request: RequestId, outcome: &str, at: Time) {
    let Some((asked, opened)) = items.iter().rev().find_map(|item| opening(item, request)) else { return };
    let seconds = at.since(opened).as_secs_f64();
    let kind = asked.kind.as_str();
    tracing::info!(target: "holdpoint::metric", metric = "request_closed", kind, outcome, seconds);
}

fn opening(item: &Item, request: RequestId) -> Option<(&Asked, Time)> {
    match &item.fact {
        Fact::InterventionRequested(asked) if asked.request_id == request => Some((asked, item.at)),
        Fact::InterventionRequested(_)
        | Fact::Decision { .. }
        | Fact::RequestClosed { .. }
        | Fact::TaskStatus { .. }
        | Fact::UserMessage { .. }
        | Fact::AssistantMessage(_)
        | Fact::Judged { .. }
        | Fact::ToolStarted { .. }
        | Fact::ToolResult(_)
        | Fact::LateResult(_)
        | Fact::SubAgentStarted { .. } => None,
    }
}
