//! A journal item as the API shows it: one component for each type, told apart by `type`.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::decision::WireDecision;
use super::request::{RequestedCall, WireRequestStatus, WireVerdict, asked_call};
use super::task::{TaskError, WireTaskStatus};
use super::wire_enum;
use crate::http::Settings;
use crate::task::id::TaskId;
use crate::task::item::{self, Fact, Item, ToolResult, Turn};
use crate::task::request::RequestKind;

wire_enum! {
    /// What `content` is.
    ContentType as ContentType from item::PartType, "snake_case" { Text, Image }
}
wire_enum! {
    /// Why the model's answer ended.
    WireFinishReason as FinishReason from item::FinishReason, "snake_case" { Stop, ToolCalls, Length, ContentFilter, Other }
}
wire_enum! {
    /// How a call ended.
    WireOutcome as Outcome from item::Outcome, "snake_case" {
        Succeeded, Failed, Invalid, Denied, Rejected, Responded, Expired, Withdrawn, Canceled, Unknown
    }
}
wire_enum! {
    /// Why a request was closed without an answer.
    WireCloseReason as CloseReason from item::CloseReason, "snake_case" { Expired, Superseded, Canceled, ToolChanged, AnsweredLate }
}

/// Who an item is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemRole {
    /// The service.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// Whoever decided.
    Human,
    /// A tool.
    Tool,
}

/// One part of a user's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct MessageItem {
    /// What `content` is.
    pub content_type: ContentType,
    /// The text; or the image as a `data:` URI or an `https:` URL.
    pub content: String,
}

/// One call of a turn, as the model wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ToolCall)]
pub(crate) struct WireToolCall {
    /// Ours.
    #[schema(format = Uuid)]
    pub tool_call_id: String,
    /// The name the model used.
    pub name: String,
    /// The exact text the model wrote.
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
    /// Both.
    pub total_tokens: i64,
}

/// Declares the item types: each a struct with the members every item has, and its own.
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
                /// Which type of item it is.
                pub r#type: String,
                /// Who it is from.
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
        /// To what.
        status: WireTaskStatus,
        /// Why it failed.
        error: Option<TaskError>,
        /// The final text.
        output: Option<String>,
    }
    /// The user said something.
    UserMessageItem {
        /// What.
        items: Vec<MessageItem>,
        /// Data about the user, shown to the model before the message.
        user_context: Option<BTreeMap<String, String>>,
        /// Who.
        by: String,
    }
    /// The model answered: one turn.
    AssistantMessageItem {
        /// 1, 2, 3 … of the task.
        turn: u32,
        /// What it said.
        text: Option<String>,
        /// What it asks to run, in its order.
        tool_calls: Vec<WireToolCall>,
        /// Why it ended.
        finish_reason: WireFinishReason,
        /// What it cost.
        usage: WireUsage,
    }
    /// The policy judged a call.
    JudgedItem {
        /// Which.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// How.
        verdict: WireVerdict,
        /// By which rule.
        rule: Option<String>,
        /// Why.
        reason: Option<String>,
    }
    /// A human is asked.
    InterventionRequestedItem {
        /// Which request.
        #[schema(format = Uuid)]
        request_id: String,
        /// What kind.
        kind: RequestKind,
        /// The calls, as they were asked.
        pending_tool_calls: Vec<RequestedCall>,
    }
    /// A human answered.
    DecisionItem {
        /// Which request.
        #[schema(format = Uuid)]
        request_id: String,
        /// This one answer.
        decision: WireDecision,
    }
    /// A request was closed without an answer that decides it.
    RequestClosedItem {
        /// Which request.
        #[schema(format = Uuid)]
        request_id: String,
        /// `expired` or `withdrawn`.
        status: WireRequestStatus,
        /// Why.
        reason: WireCloseReason,
    }
    /// A call is about to be sent.
    ToolStartedItem {
        /// Which call.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The tool.
        name: String,
        /// Digest of what runs.
        digest: String,
        /// 1, 2, 3 … of this call.
        attempt: u32,
    }
    /// A call has its result.
    ToolResultItem {
        /// Which call.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The tool.
        name: String,
        /// How it ended.
        outcome: WireOutcome,
        /// What the model is shown.
        content: String,
        /// The status of an HTTP tool's answer.
        http_status: Option<u16>,
    }
    /// A result that came after its call was closed.
    LateResultItem {
        /// Which call.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The tool.
        name: String,
        /// How it ended.
        outcome: WireOutcome,
        /// The text.
        content: String,
        /// The status of an HTTP tool's answer.
        http_status: Option<u16>,
    }
    /// A sub-agent was started for a call.
    SubAgentStartedItem {
        /// Which call.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The sub-agent's task.
        #[schema(format = Uuid)]
        child_task_id: String,
        /// Its agent.
        agent: String,
    }
}

/// One line of a task's append-only journal; `type` says which.
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
    /// The user said something.
    UserMessage(UserMessageItem),
    /// The model answered.
    AssistantMessage(AssistantMessageItem),
    /// The policy judged a call.
    Judged(JudgedItem),
    /// A human is asked.
    InterventionRequested(InterventionRequestedItem),
    /// A human answered.
    Decision(DecisionItem),
    /// A request was closed.
    RequestClosed(RequestClosedItem),
    /// A call is about to be sent.
    ToolStarted(ToolStartedItem),
    /// A call has its result.
    ToolResult(ToolResultItem),
    /// A result that came late.
    LateResult(LateResultItem),
    /// A sub-agent was started.
    SubAgentStarted(SubAgentStartedItem),
}

/// Builds one item with the members every item has.
macro_rules! build {
    ($variant:ident, $name:ident, $head:expr, { $($member:ident: $value:expr),* $(,)? }) => {{
        let head = $head;
        AgentTaskItem::$variant($name {
            task_id: head.0, seq: head.1, r#type: head.2, role: head.3, at: head.4, $($member: $value),*
        })
    }};
}

impl AgentTaskItem {
    /// An item of `task`.
    #[must_use]
    pub fn of(task: TaskId, item: &Item, settings: &Settings) -> Self {
        let head = (
            task.to_string(),
            item.seq,
            item.fact.type_name().to_owned(),
            role(&item.fact),
            item.at.to_string(),
        );
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
            } => build!(UserMessage, UserMessageItem, head, {
                items: items
                    .iter()
                    .map(|part| MessageItem { content_type: part.content_type.into(), content: part.content.clone() })
                    .collect(),
                user_context: user_context.clone(),
                by: by.clone(),
            }),
            Fact::AssistantMessage(turn) => build!(AssistantMessage, AssistantMessageItem, head, {
                turn: turn.turn,
                text: turn.text.clone(),
                tool_calls: calls(turn),
                finish_reason: turn.finish_reason.into(),
                usage: WireUsage {
                    prompt_tokens: turn.usage.prompt_tokens,
                    completion_tokens: turn.usage.completion_tokens,
                    total_tokens: turn.usage.total_tokens,
                },
            }),
            Fact::Judged {
                tool_call_id,
                judgement,
                ..
            } => build!(Judged, JudgedItem, head, {
                tool_call_id: tool_call_id.to_string(),
                verdict: judgement.verdict.into(),
                rule: judgement.rule.clone(),
                reason: judgement.reason.clone(),
            }),
            Fact::InterventionRequested(asked) => {
                build!(InterventionRequested, InterventionRequestedItem, head, {
                    request_id: asked.request_id.to_string(),
                    kind: asked.kind,
                    pending_tool_calls: asked.pending_tool_calls.iter().map(asked_call).collect(),
                })
            }
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
            } => build!(RequestClosed, RequestClosedItem, head, {
                request_id: request_id.to_string(),
                status: (*status).into(),
                reason: (*reason).into(),
            }),
            Fact::ToolStarted {
                tool_call_id,
                name,
                digest,
                attempt,
                timeout_ms: _,
                replica: _,
            } => {
                build!(ToolStarted, ToolStartedItem, head, {
                    tool_call_id: tool_call_id.to_string(),
                    name: name.clone(),
                    digest: digest.clone(),
                    attempt: *attempt,
                })
            }
            Fact::ToolResult(result) => {
                let (tool_call_id, name, outcome, content, http_status) = parts(result);
                build!(ToolResult, ToolResultItem, head, {
                    tool_call_id: tool_call_id, name: name, outcome: outcome, content: content, http_status: http_status,
                })
            }
            Fact::LateResult(result) => {
                let (tool_call_id, name, outcome, content, http_status) = parts(result);
                build!(LateResult, LateResultItem, head, {
                    tool_call_id: tool_call_id, name: name, outcome: outcome, content: content, http_status: http_status,
                })
            }
            Fact::SubAgentStarted {
                tool_call_id,
                child_task_id,
                agent,
            } => {
                build!(SubAgentStarted, SubAgentStartedItem, head, {
                    tool_call_id: tool_call_id.to_string(),
                    child_task_id: child_task_id.to_string(),
                    agent: agent.clone(),
                })
            }
        }
    }
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

fn parts(result: &ToolResult) -> (String, String, WireOutcome, String, Option<u16>) {
    (
        result.tool_call_id.to_string(),
        result.name.clone(),
        result.outcome.into(),
        result.content.clone(),
        result.http_status,
    )
}
