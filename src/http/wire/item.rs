//! A journal item as the API shows it: one component for each type, told apart by `type`.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::decision::WireDecision;
use super::request::{RequestedCall, WireRequestStatus, WireVerdict, asked_call};
use super::task::{TaskError, WireTaskStatus};
use super::wire_enum;
use crate::http::Settings;
use crate::task::id::{CallId, RequestId, TaskId};
use crate::task::item::{self, Fact, Item, Part, ToolResult, Turn};
use crate::task::request::{RequestKind, RequestSpec};
use crate::task::status::RequestStatus;
use crate::task::verdict::Judgement;

wire_enum! {
    /// The kind of `content`.
    ContentType as ContentType from item::PartType, "snake_case" { Text, Image }
}
wire_enum! {
    /// Why the model's answer ended.
    WireFinishReason as FinishReason from item::FinishReason, "snake_case" { Stop, ToolCalls, Length, ContentFilter, Other, Gate }
}
wire_enum! {
    /// The outcome of a call.
    WireOutcome as Outcome from item::Outcome, "snake_case" {
        Succeeded, Failed, Invalid, Denied, Rejected, Responded, Expired, Withdrawn, Canceled, Unknown, Released
    }
}
wire_enum! {
    /// Why a request was closed without an answer.
    WireCloseReason as CloseReason from item::CloseReason, "snake_case" { Expired, Superseded, Canceled, ToolChanged, AnsweredLate }
}

/// The source of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemRole {
    /// The service.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The person who decided.
    Human,
    /// A tool.
    Tool,
}

/// A part of a user's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct MessageItem {
    /// The kind of `content`.
    pub content_type: ContentType,
    /// The text; or the image as a `data:` URI or an `https:` URL.
    pub content: String,
}

/// One call of a turn, as the model wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ToolCall)]
pub(crate) struct WireToolCall {
    /// The id of the call, assigned by the service.
    #[schema(format = Uuid)]
    pub tool_call_id: String,
    /// The name that the model used.
    pub name: String,
    /// The exact text that the model wrote.
    pub arguments_text: String,
}

/// Tokens of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Usage)]
#[expect(clippy::struct_field_names, reason = "the names on the wire")]
pub(crate) struct WireUsage {
    /// Tokens read.
    pub prompt_tokens: i64,
    /// Tokens written.
    pub completion_tokens: i64,
    /// Prompt and completion tokens together.
    pub total_tokens: i64,
}

/// Declares a struct for each item type: the members that every item has, then its own members.
macro_rules! items {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field:meta])* $member:ident: $kind:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
            pub(crate) struct $name {
                /// The task it belongs to.
                #[schema(format = Uuid)]
                pub task_id: String,
                /// 1, 2, 3 … within its task, without gaps.
                pub seq: i64,
                /// The type of the item.
                pub r#type: String,
                /// The source of the item.
                pub role: ItemRole,
                /// When it was committed.
                #[schema(format = DateTime)]
                pub at: String,
                $($(#[$field])* pub $member: $kind),*
            }
        )*
    };
}

items! {
    /// The task's status changed.
    TaskStatusItem {
        /// The new status.
        status: WireTaskStatus,
        /// Why it failed.
        error: Option<TaskError>,
        /// The final text.
        output: Option<String>,
    }
    /// The user sent a message.
    UserMessageItem {
        /// The parts of the message.
        items: Vec<MessageItem>,
        /// Data about the user, shown to the model before the message.
        user_context: Option<BTreeMap<String, String>>,
        /// The user who sent it.
        by: String,
    }
    /// The model answered: one turn.
    AssistantMessageItem {
        /// The number of the turn: 1, 2, 3 … within the task.
        turn: u32,
        /// The text of the answer.
        text: Option<String>,
        /// The calls that the model proposes, in its order.
        tool_calls: Vec<WireToolCall>,
        /// The reason why the answer ended.
        finish_reason: WireFinishReason,
        /// The tokens of the answer.
        usage: WireUsage,
    }
    /// The policy judged a call.
    JudgedItem {
        /// The call.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The verdict.
        verdict: WireVerdict,
        /// The rule that matched.
        rule: Option<String>,
        /// The reason that the rule gives.
        reason: Option<String>,
        /// The standing decision that allowed the call, although its rule would hold it.
        #[schema(format = Uuid)]
        grant_id: Option<String>,
    }
    /// A request to a human was opened.
    InterventionRequestedItem {
        /// The request.
        #[schema(format = Uuid)]
        request_id: String,
        /// The kind of request.
        kind: RequestKind,
        /// The calls, as they were asked.
        pending_tool_calls: Vec<RequestedCall>,
    }
    /// A human answered a request.
    DecisionItem {
        /// The request.
        #[schema(format = Uuid)]
        request_id: String,
        /// The answer.
        decision: WireDecision,
    }
    /// A request was closed without an answer that decides it.
    RequestClosedItem {
        /// The request.
        #[schema(format = Uuid)]
        request_id: String,
        /// `expired` or `withdrawn`.
        status: WireRequestStatus,
        /// The reason why it was closed.
        reason: WireCloseReason,
    }
    /// A call is about to be sent.
    ToolStartedItem {
        /// The call.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The tool.
        name: String,
        /// The digest of the call that runs.
        digest: String,
        /// The number of the attempt: 1, 2, 3 … of this call.
        attempt: u32,
    }
    /// A call has its result.
    ToolResultItem {
        /// The call.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The tool.
        name: String,
        /// The outcome of the call.
        outcome: WireOutcome,
        /// The result as the model sees it.
        content: String,
        /// The status of an HTTP tool's answer.
        http_status: Option<u16>,
    }
    /// A result that came after its call was closed.
    LateResultItem {
        /// The call.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The tool.
        name: String,
        /// The outcome of the call.
        outcome: WireOutcome,
        /// The text.
        content: String,
        /// The status of an HTTP tool's answer.
        http_status: Option<u16>,
    }
    /// A sub-agent was started for a call.
    SubAgentStartedItem {
        /// The call.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The sub-agent's task.
        #[schema(format = Uuid)]
        child_task_id: String,
        /// Its agent.
        agent: String,
    }
}

/// An item of a task's append-only journal, told apart by `type`.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(discriminator(property_name = "type", mapping(
    ("task_status" = "#/components/schemas/TaskStatusItem"),
    ("user_message" = "#/components/schemas/UserMessageItem"),
    ("assistant_message" = "#/components/schemas/AssistantMessageItem"),
    ("judged" = "#/components/schemas/JudgedItem"),
    ("intervention_requested" = "#/components/schemas/InterventionRequestedItem"),
    ("decision" = "#/components/schemas/DecisionItem"),
    ("request_closed" = "#/components/schemas/RequestClosedItem"),
    ("tool_started" = "#/components/schemas/ToolStartedItem"),
    ("tool_result" = "#/components/schemas/ToolResultItem"),
    ("late_result" = "#/components/schemas/LateResultItem"),
    ("sub_agent_started" = "#/components/schemas/SubAgentStartedItem"),
)))]
pub(crate) enum AgentTaskItem {
    /// The task's status changed.
    TaskStatus(TaskStatusItem),
    /// The user sent a message.
    UserMessage(UserMessageItem),
    /// The model answered.
    AssistantMessage(AssistantMessageItem),
    /// The policy judged a call.
    Judged(JudgedItem),
    /// A request to a human was opened.
    InterventionRequested(InterventionRequestedItem),
    /// A human answered a request.
    Decision(DecisionItem),
    /// A request was closed.
    RequestClosed(RequestClosedItem),
    /// A call is about to be sent.
    ToolStarted(ToolStartedItem),
    /// A call has its result.
    ToolResult(ToolResultItem),
    /// A result that arrived after its call was closed.
    LateResult(LateResultItem),
    /// A sub-agent was started.
    SubAgentStarted(SubAgentStartedItem),
}

/// The members that every item has.
struct Head {
    task_id: String,
    seq: i64,
    r#type: String,
    role: ItemRole,
    at: String,
}

impl Head {
    fn of(task: TaskId, item: &Item) -> Self {
        Self {
            task_id: task.to_string(),
            seq: item.seq,
            r#type: item.fact.type_name().to_owned(),
            role: role(&item.fact),
            at: item.at.to_string(),
        }
    }
}

/// Builds one item from its head and its own members.
macro_rules! build {
    ($variant:ident, $name:ident, $head:expr, { $($member:ident: $value:expr),* $(,)? }) => {{
        let Head { task_id, seq, r#type, role, at } = $head;
        AgentTaskItem::$variant($name { task_id, seq, r#type, role, at, $($member: $value),* })
    }};
}

impl AgentTaskItem {
    /// An item of `task`.
    #[must_use]
    pub(crate) fn of(task: TaskId, item: &Item, settings: &Settings) -> Self {
        let head = Head::of(task, item);
        match &item.fact {
            Fact::TaskStatus {
                status,
                error,
                output,
            } => build!(TaskStatus, TaskStatusItem, head, {
                status: (*status).into(),
                error: error.as_ref().map(|failure| TaskError::of(failure, settings)),
                output: output.clone(),
            }),
            Fact::UserMessage {
                items,
                user_context,
                by,
                groups: _,
            } => user_message(head, items, user_context.as_ref(), by),
            Fact::AssistantMessage(turn) => assistant_message(head, turn),
            Fact::Judged {
                tool_call_id,
                judgement,
                ..
            } => judged(head, *tool_call_id, judgement),
            Fact::InterventionRequested(spec) => intervention_requested(head, spec),
            Fact::Decision {
                request_id,
                decision,
            } => build!(Decision, DecisionItem, head, {
                request_id: request_id.to_string(),
                decision: WireDecision::of_answer(item.at, decision),
            }),
            Fact::RequestClosed {
                request_id,
                status,
                reason,
            } => request_closed(head, *request_id, *status, *reason),
            Fact::ToolStarted {
                tool_call_id,
                name,
                digest,
                attempt,
                timeout_ms: _,
                replica: _,
                grant: _,
            } => tool_started(head, *tool_call_id, name, digest, *attempt),
            Fact::ToolResult(result) => tool_result(head, result),
            Fact::LateResult(result) => late_result(head, result),
            Fact::SubAgentStarted {
                tool_call_id,
                child_task_id,
                agent,
            } => sub_agent_started(head, *tool_call_id, *child_task_id, agent),
        }
    }
}

fn user_message(
    head: Head,
    items: &[Part],
    user_context: Option<&BTreeMap<String, String>>,
    by: &str,
) -> AgentTaskItem {
    build!(UserMessage, UserMessageItem, head, {
        items: items
            .iter()
            .map(|part| MessageItem { content_type: part.content_type.into(), content: part.content.clone() })
            .collect(),
        user_context: user_context.cloned(),
        by: by.to_owned(),
    })
}

fn assistant_message(head: Head, turn: &Turn) -> AgentTaskItem {
    build!(AssistantMessage, AssistantMessageItem, head, {
        turn: turn.turn,
        text: turn.text.clone(),
        tool_calls: calls(turn),
        finish_reason: turn.finish_reason.into(),
        usage: WireUsage {
            prompt_tokens: turn.usage.prompt_tokens,
            completion_tokens: turn.usage.completion_tokens,
            total_tokens: turn.usage.total_tokens,
        },
    })
}

fn judged(head: Head, call: CallId, judgement: &Judgement) -> AgentTaskItem {
    build!(Judged, JudgedItem, head, {
        tool_call_id: call.to_string(),
        verdict: judgement.verdict.into(),
        rule: judgement.rule.clone(),
        reason: judgement.reason.clone(),
        grant_id: judgement.grant_id.map(|id| id.to_string()),
    })
}

fn intervention_requested(head: Head, spec: &RequestSpec) -> AgentTaskItem {
    build!(InterventionRequested, InterventionRequestedItem, head, {
        request_id: spec.request_id.to_string(),
        kind: spec.kind,
        pending_tool_calls: spec.pending_tool_calls.iter().map(asked_call).collect(),
    })
}

fn request_closed(
    head: Head,
    request: RequestId,
    status: RequestStatus,
    reason: item::CloseReason,
) -> AgentTaskItem {
    build!(RequestClosed, RequestClosedItem, head, {
        request_id: request.to_string(),
        status: status.into(),
        reason: reason.into(),
    })
}

fn tool_started(head: Head, call: CallId, name: &str, digest: &str, attempt: u32) -> AgentTaskItem {
    build!(ToolStarted, ToolStartedItem, head, {
        tool_call_id: call.to_string(),
        name: name.to_owned(),
        digest: digest.to_owned(),
        attempt: attempt,
    })
}

fn tool_result(head: Head, result: &ToolResult) -> AgentTaskItem {
    build!(ToolResult, ToolResultItem, head, {
        tool_call_id: result.tool_call_id.to_string(),
        name: result.name.clone(),
        outcome: result.outcome.into(),
        content: result.content.clone(),
        http_status: result.http_status,
    })
}

fn late_result(head: Head, result: &ToolResult) -> AgentTaskItem {
    build!(LateResult, LateResultItem, head, {
        tool_call_id: result.tool_call_id.to_string(),
        name: result.name.clone(),
        outcome: result.outcome.into(),
        content: result.content.clone(),
        http_status: result.http_status,
    })
}

fn sub_agent_started(head: Head, call: CallId, child: TaskId, agent: &str) -> AgentTaskItem {
    build!(SubAgentStarted, SubAgentStartedItem, head, {
        tool_call_id: call.to_string(),
        child_task_id: child.to_string(),
        agent: agent.to_owned(),
    })
}

fn role(fact: &Fact) -> ItemRole {
    match fact.role() {
        "user" => ItemRole::User,
        "assistant" => ItemRole::Assistant,
        "human" => ItemRole::Human,
        "tool" => ItemRole::Tool,
        _ => ItemRole::System,
    }
}

fn calls(turn: &Turn) -> Vec<WireToolCall> {
    turn.tool_calls
        .iter()
        .map(|call| WireToolCall {
            tool_call_id: call.tool_call_id.to_string(),
            name: call.name.clone(),
            arguments_text: call.arguments_text.clone(),
        })
        .collect()
}
