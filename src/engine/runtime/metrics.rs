//! Writes the metrics and log lines of a durable commit: about pauses, opened and closed requests,
//! decisions, uses of standing decisions, failed tasks, and calls that failed, are invalid or have
//! an unknown outcome. No metric and no log line has a tool name that a model or an agent at a gate
//! made up.

use crate::engine::session::task_draft::TaskDraft;
use crate::task::call_state::CallState;
use crate::task::decision::Door;
use crate::task::id::RequestId;
use crate::task::item::{Fact, Outcome, ToolResult};
use crate::task::request::CallSpec;
use crate::task::status::TaskStatus;
use crate::task::time::Time;

/// The label for every tool name that the configuration does not have. No tool can be called
/// `(unconfigured)`.
const UNCONFIGURED: &str = "(unconfigured)";

/// Writes the metrics and log lines of the items that a commit at the time `at` has stored for a
/// task. Must be called before [`TaskDraft::mark_committed`], while these items are still pending
/// in `draft`. `is_configured` tells whether the configuration has a tool name.
pub(crate) fn observe(draft: &TaskDraft, at: Time, is_configured: &impl Fn(&str) -> bool) {
    for item in draft.pending_items() {
        measure(draft, &item.fact, at);
        if let Fact::ToolResult(result) | Fact::LateResult(result) = &item.fact {
            // At a gate, a rule can let a call with a made-up tool name run. So if the name in a
            // gate call is not in the configuration, the log line hides the name. In any other
            // task, a call with a made-up name is invalid, and its log line has no name.
            let is_known = is_configured(&result.name) || !draft.is_gate_call();
            let tool = if is_known {
                result.name.as_str()
            } else {
                UNCONFIGURED
            };
            log_result(draft, result, tool);
        } else {
            log(draft, &item.fact);
        }
    }
}

fn operator_name(call: &CallSpec) -> &str {
    call.operator_name().unwrap_or(UNCONFIGURED)
}

fn measure(draft: &TaskDraft, fact: &Fact, at: Time) {
    match fact {
        Fact::Decision {
            request_id,
            decision,
        } => {
            let (outcome, door) = (decision.action.as_str(), decision.door);
            if let Some((kind, _)) = known_request(draft, *request_id) {
                let door = door.map_or("none", Door::as_str);
                tracing::info!(target: "holdpoint::metric", metric = "request_decided", kind, outcome, door);
            }
            if decision.closes {
                measure_closed_request(draft, *request_id, outcome, at);
            }
        }
        Fact::RequestClosed {
            request_id, status, ..
        } => measure_closed_request(draft, *request_id, status.as_str(), at),
        Fact::InterventionRequested(spec) if spec.kind.properties().outcome_unknown => {
            for call in spec.own_calls() {
                tracing::info!(target: "holdpoint::metric", metric = "unknown_outcome", tool = operator_name(call));
            }
        }
        Fact::ToolStarted {
            tool_call_id,
            grant: Some(used),
            ..
        } if !used.again => {
            let rule = draft.progress.call(*tool_call_id).and_then(CallState::rule);
            let rule = rule.unwrap_or_default();
            tracing::info!(target: "holdpoint::metric", metric = "grant_used", rule);
        }
        Fact::InterventionRequested(_)
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

/// Returns the kind of a request and the time at which the request was opened. `None` if the
/// request was not open before the commit.
fn known_request(draft: &TaskDraft, request: RequestId) -> Option<(&'static str, Time)> {
    let known = draft.known_requests.iter().find(|(id, ..)| *id == request);
    known.map(|(_, kind, since)| (kind.as_str(), *since))
}

fn measure_closed_request(draft: &TaskDraft, request: RequestId, outcome: &str, at: Time) {
    let Some((kind, since)) = known_request(draft, request) else {
        return;
    };
    let seconds = at.since(since).as_secs_f64();
    tracing::info!(target: "holdpoint::metric", metric = "request_closed", kind, outcome, seconds);
}

fn log(draft: &TaskDraft, fact: &Fact) {
    let (task_id, root_task_id, agent) =
        (draft.row.task_id, draft.row.root_task_id, &draft.row.agent);
    match fact {
        Fact::TaskStatus {
            status: TaskStatus::Paused,
            ..
        } => {
            let request_ids = open_requests(draft);
            if request_ids.is_empty() {
                tracing::info!(task = %task_id, %root_task_id, agent, "the task waits for people whom its sub-agents ask");
            } else {
                tracing::info!(task = %task_id, %root_task_id, agent, request_ids, "the task waits for people");
            }
        }
        Fact::TaskStatus {
            status: TaskStatus::Failed,
            error: Some(failure),
            ..
        } => {
            let (code, limit) = (failure.code.as_str(), failure.limit.as_deref());
            tracing::warn!(task = %task_id, %root_task_id, agent, code, limit, "the task failed");
        }
        Fact::InterventionRequested(spec) if spec.kind.properties().outcome_unknown => {
            for call in spec.own_calls() {
                let (tool_call_id, tool, request_id) =
                    (call.tool_call_id, operator_name(call), spec.request_id);
                tracing::warn!(task = %task_id, %root_task_id, %tool_call_id, tool, %request_id,
                    "the outcome of a tool call is unknown; a person is asked");
            }
        }
        Fact::InterventionRequested(spec) => {
            let (request_id, kind) = (spec.request_id, spec.kind.as_str());
            tracing::info!(task = %task_id, %root_task_id, agent, %request_id, kind, "a person is asked");
        }
        Fact::Decision {
            request_id,
            decision,
        } => {
            let (action, by) = (decision.action.as_str(), &decision.by);
            let (via, door) = (decision.via.as_deref(), decision.door.map(Door::as_str));
            tracing::info!(task = %task_id, %root_task_id, %request_id, action, by, via, door, "a person decided");
        }
        Fact::TaskStatus { .. }
        | Fact::UserMessage { .. }
        | Fact::AssistantMessage(_)
        | Fact::Judged { .. }
        | Fact::RequestClosed { .. }
        | Fact::ToolStarted { .. }
        | Fact::ToolResult(_)
        | Fact::LateResult(_)
        | Fact::SubAgentStarted { .. } => {}
    }
}

fn open_requests(draft: &TaskDraft) -> String {
    let open = draft.progress.open.iter();
    let ids: Vec<_> = open.map(|open| open.spec.request_id.to_string()).collect();
    ids.join(" ")
}

fn log_result(draft: &TaskDraft, result: &ToolResult, tool: &str) {
    let (task_id, root_task_id, tool_call_id) = (
        draft.row.task_id,
        draft.row.root_task_id,
        result.tool_call_id,
    );
    let status = result.http_status;
    match result.outcome {
        Outcome::Failed => {
            tracing::warn!(task = %task_id, %root_task_id, %tool_call_id, tool, status, "a tool call failed");
        }
        // An unknown outcome that the asker reported is not logged here, because it does not end
        // the call. The request about the outcome has a log line of its own.
        Outcome::Unknown if !result.reported => {
            tracing::warn!(task = %task_id, %root_task_id, %tool_call_id, tool, "a tool call ended with an unknown outcome");
        }
        Outcome::Invalid => {
            let agent = &draft.row.agent;
            tracing::info!(task = %task_id, %root_task_id, agent, %tool_call_id,
                "a call was proposed that does not fit (unknown tool or arguments)");
        }
        Outcome::Succeeded
        | Outcome::Unknown
        | Outcome::Denied
        | Outcome::Rejected
        | Outcome::Responded
        | Outcome::Expired
        | Outcome::Withdrawn
        | Outcome::Canceled
        | Outcome::Released => {}
    }
}
