//! The names of durable events, each derived from one item of a journal.

use super::item::Fact;
use super::status::{RequestStatus, TaskStatus};

/// The events about which messages may be sent.
pub const NOTIFIABLE_EVENTS: [&str; 17] = [
    "task.created",
    "task.paused",
    "task.resumed",
    "task.completed",
    "task.failed",
    "task.canceled",
    "sub_agent.created",
    "sub_agent.paused",
    "sub_agent.resumed",
    "sub_agent.completed",
    "sub_agent.failed",
    "sub_agent.canceled",
    "sub_agent.started",
    "request.created",
    "request.decided",
    "request.expired",
    "request.withdrawn",
];

pub(crate) const REQUEST_CREATED: &str = "request.created";
/// Type of the message that reminds people of a request whose deadline is near. No item of a
/// journal causes this message.
pub const REQUEST_EXPIRING: &str = "request.expiring";
/// Type of the message that reminds people of a request that has waited for some time. No item of a
/// journal causes this message.
pub const REQUEST_WAITING: &str = "request.waiting";

/// The events of a request that make all earlier messages about the request out of date.
pub const REQUEST_CHANGES: [&str; 3] = ["request.decided", "request.expired", "request.withdrawn"];

/// Returns the name of the event that an item records. `is_root` says whether the item's task is
/// the root of its tree. `seq` is the item's number in its journal.
#[must_use]
pub fn event_name(fact: &Fact, is_root: bool, seq: i64) -> &'static str {
    match fact {
        Fact::TaskStatus { status, .. } => status_name(*status, is_root, seq == 1),
        Fact::UserMessage { .. } => "message.received",
        Fact::AssistantMessage(_) => "message.completed",
        Fact::Judged { .. } => "tool_call.judged",
        Fact::InterventionRequested(_) => REQUEST_CREATED,
        Fact::Decision { .. } => "request.decided",
        Fact::RequestClosed {
            status: RequestStatus::Expired,
            ..
        } => "request.expired",
        Fact::RequestClosed { .. } => "request.withdrawn",
        Fact::ToolStarted { .. } => "tool.started",
        Fact::ToolResult(_) => "tool.finished",
        Fact::LateResult(_) => "tool.finished_late",
        Fact::SubAgentStarted { .. } => "sub_agent.started",
    }
}

/// Returns the name of the event that a `task_status` item with this `status` records. `first` says
/// whether the item is the first of its journal.
fn status_name(status: TaskStatus, is_root: bool, first: bool) -> &'static str {
    match (is_root, status) {
        (true, _) if first => "task.created",
        (false, _) if first => "sub_agent.created",
        (true, TaskStatus::Running) => "task.resumed",
        (true, TaskStatus::Paused) => "task.paused",
        (true, TaskStatus::Completed) => "task.completed",
        (true, TaskStatus::Failed) => "task.failed",
        (true, TaskStatus::Canceled) => "task.canceled",
        (false, TaskStatus::Running) => "sub_agent.resumed",
        (false, TaskStatus::Paused) => "sub_agent.paused",
        (false, TaskStatus::Completed) => "sub_agent.completed",
        (false, TaskStatus::Failed) => "sub_agent.failed",
        (false, TaskStatus::Canceled) => "sub_agent.canceled",
    }
}
