//! A journal item as the API shows it. Each type of item has its own component, and `type` tells
//! the components apart.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::decision::WireDecision;
use super::request::{RequestedCall, WireRequestStatus, WireVerdict, call_as_opened};
use super::task::{TaskError, WireTaskStatus};
use super::wire_enum;
use crate::http::Settings;
use crate::task::id::{CallId, RequestId, TaskId};
use crate::task::item::{self, Fact, Item, Part, Turn};
use crate::task::request::{RequestKind, RequestSpec};
use crate::task::status::RequestStatus;
use crate::task::verdict::Judgement;

wire_enum! {
    /// The type of a message part: `text`, or `image` (inline or by its address).
    ContentType as ContentType from item::PartType, "snake_case" { Text, Image }
}
wire_enum! {
    /// Why the model's answer ended: `stop` (the model was done), `tool_calls` (the model proposes
    /// calls), `length` (the length limit cut the answer), `content_filter` (a filter of the
    /// provider cut the answer), `gate` (an agent that runs elsewhere proposed the call) or
    /// `other`. The calls of an answer that was cut do not run.
    WireFinishReason as FinishReason from item::FinishReason, "snake_case" { Stop, ToolCalls, Length, ContentFilter, Other, Gate }
}
wire_enum! {
    /// How a call ended: `succeeded` (the call ran and answered), `failed` (it failed, or could not
    /// be sent), `invalid` (its name or its arguments do not fit; it never ran), `denied` (a rule
    /// refused it), `rejected` (a person rejected it), `responded` (a person supplied its result),
    /// `expired` (the request about it expired), `withdrawn` (the request about it was withdrawn,
    /// or the user sent another message), `canceled` (the task was canceled), `unknown` (it may
    /// have run) or `released` (it was let through at a gate that asks for no report).
    WireOutcome as Outcome from item::Outcome, "snake_case" {
        Succeeded, Failed, Invalid, Denied, Rejected, Responded, Expired, Withdrawn, Canceled, Unknown, Released
    }
}
wire_enum! {
    /// Why a request was closed without an answer: `expired` (its deadline passed), `superseded`
    /// (the user sent another message), `canceled` (the task was canceled or failed),
    /// `tool_changed` (the tool's definition changed) or `answered_late` (the result of the call
    /// arrived while the request was open).
    WireCloseReason as CloseReason from item::CloseReason, "snake_case" { Expired, Superseded, Canceled, ToolChanged, AnsweredLate }
}

/// The source of an item: `system` (the service), `user` (a message of the user), `assistant` (the
/// model's answers, and the requests to people), `human` (a person's decision) or `tool` (the
/// result of a tool).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemRole {
    System,
    User,
    Assistant,
    Human,
    Tool,
}

/// A part of a user's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct MessageItem {
    /// Whether `content` is text or an image.
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
    /// The name of the tool, as the model wrote it.
    pub name: String,
    /// The exact text of the arguments that the model wrote, with secrets redacted.
    pub arguments_text: String,
}

/// The tokens that one answer of the model took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Usage)]
#[expect(clippy::struct_field_names, reason = "the names on the wire")]
pub(crate) struct WireUsage {
    /// The tokens of the prompt.
    pub prompt_tokens: i64,
    /// The tokens of the answer.
    pub completion_tokens: i64,
    /// The provider's own total; without such a total, the sum of both counts.
    pub total_tokens: i64,
}

/// Declares a struct for each type of item. Each struct has the members that all types share
/// (`task_id` to `at`), and the members that its own declaration lists.
macro_rules! items {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field:meta])* $member:ident: $kind:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
            pub(crate) struct $name {
                /// The id of the task whose journal has the item.
                #[schema(format = Uuid)]
                pub task_id: String,
                /// The number of the item in its task's journal: 1, 2, 3 …, without gaps.
                pub seq: i64,
                /// The type of the item, which tells the variants of `AgentTaskItem` apart.
                pub r#type: String,
                /// The source of the item.
                pub role: ItemRole,
                /// The time at which the item was committed.
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
        /// The status from this item on.
        status: WireTaskStatus,
        /// The failure of a Failed task; null for any other status.
        error: Option<TaskError>,
        /// The final text of a Completed task; null for any other status.
        output: Option<String>,
    }
    /// The user sent a message.
    UserMessageItem {
        /// The parts of the message.
        items: Vec<MessageItem>,
        /// Data about the user, shown to the model before the message.
        user_context: Option<BTreeMap<String, String>>,
        /// The id of the user who sent the message.
        by: String,
    }
    /// The model answered: one turn.
    AssistantMessageItem {
        /// The number of the turn: 1, 2, 3 … within the task.
        turn: u32,
        /// The text of the answer; null if the answer has only calls.
        text: Option<String>,
        /// The calls that the model proposes, in the order of the answer.
        tool_calls: Vec<WireToolCall>,
        /// Why the answer ended. After `length` or `content_filter`, the calls do not run.
        finish_reason: WireFinishReason,
        /// The tokens that the answer took.
        usage: WireUsage,
    }
    /// The policy judged a call.
    JudgedItem {
        /// The id of the judged call.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The policy's verdict on the call.
        verdict: WireVerdict,
        /// The name of the rule that gave the verdict; null if no rule did.
        rule: Option<String>,
        /// The reason for the verdict; null without a reason.
        reason: Option<String>,
        /// The id of the standing decision that let the call run without a request; null if none
        /// did.
        #[schema(format = Uuid)]
        grant_id: Option<String>,
    }
    /// A request to a human was opened.
    InterventionRequestedItem {
        /// The id of the opened request.
        #[schema(format = Uuid)]
        request_id: String,
        /// The kind of question. The kind determines the actions that an answer may take.
        kind: RequestKind,
        /// The calls, as they were when the request was opened: for an approval, all calls of the
        /// turn; for any other kind, the one call that the request is about.
        pending_tool_calls: Vec<RequestedCall>,
    }
    /// A human answered a request.
    DecisionItem {
        /// The id of the answered request.
        #[schema(format = Uuid)]
        request_id: String,
        /// The answer, which may decide only some of the request's calls.
        decision: WireDecision,
    }
    /// A request was closed without an answer that decides it.
    RequestClosedItem {
        /// The id of the closed request.
        #[schema(format = Uuid)]
        request_id: String,
        /// `expired` or `withdrawn`.
        status: WireRequestStatus,
        /// Why the request was closed.
        reason: WireCloseReason,
    }
    /// A call is about to be sent.
    ToolStartedItem {
        /// The id of the started call.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The name of the tool.
        name: String,
        /// The digest of the call that runs.
        digest: String,
        /// The number of the attempt at this call: 1, 2, 3 …
        attempt: u32,
    }
    /// A call has ended with a result.
    ToolResultItem {
        /// The id of the call.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The name of the tool.
        name: String,
        /// How the call ended.
        outcome: WireOutcome,
        /// The result as the model sees it.
        content: String,
        /// The HTTP status with which an HTTP tool answered; null without an HTTP answer.
        http_status: Option<u16>,
        /// Whether the client that ran the call reported this result.
        reported: bool,
    }
    /// A result arrived that does not settle its call: the result came late, or the client that
    /// runs the call reported an unknown outcome.
    LateResultItem {
        /// The id of the call.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The name of the tool.
        name: String,
        /// How the call ended, according to this result.
        outcome: WireOutcome,
        /// The text of the result.
        content: String,
        /// The HTTP status with which an HTTP tool answered; null without an HTTP answer.
        http_status: Option<u16>,
        /// Whether the client that ran the call reported this result.
        reported: bool,
    }
    /// A call started a sub-agent's task, or sent a message to the sub-agent's existing task.
    SubAgentStartedItem {
        /// The id of the call that started the sub-agent's task or sent a message to it.
        #[schema(format = Uuid)]
        tool_call_id: String,
        /// The id of the sub-agent's task.
        #[schema(format = Uuid)]
        child_task_id: String,
        /// The name of the sub-agent.
        agent: String,
    }
}

/// An item of a task's append-only journal. `type` tells the variants apart.
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
    /// A request was closed without an answer that decides it.
    RequestClosed(RequestClosedItem),
    /// A call is about to be sent.
    ToolStarted(ToolStartedItem),
    /// A call has ended with a result.
    ToolResult(ToolResultItem),
    /// A result arrived that does not settle its call.
    LateResult(LateResultItem),
    /// A call started a sub-agent's task, or sent a message to the sub-agent's existing task.
    SubAgentStarted(SubAgentStartedItem),
}

/// The task of an item, and the item: the source of the members that all types share.
type Head<'i> = (TaskId, &'i Item);

macro_rules! build {
    ($variant:ident, $name:ident, $head:expr, { $($member:ident: $value:expr),* $(,)? }) => {{
        let (task, item) = $head;
        AgentTaskItem::$variant($name {
            task_id: task.to_string(),
            seq: item.seq,
            r#type: item.fact.type_name().to_owned(),
            role: role(&item.fact),
            at: item.at.to_string(),
            $($member: $value),*
        })
    }};
}

macro_rules! build_result {
    ($variant:ident, $name:ident, $head:expr, $result:expr) => {
        build!($variant, $name, $head, {
            tool_call_id: $result.tool_call_id.to_string(),
            name: $result.name.clone(),
            outcome: $result.outcome.into(),
            content: $result.content.clone(),
            http_status: $result.http_status,
            reported: $result.reported,
        })
    };
}

impl AgentTaskItem {
    #[must_use]
    pub(crate) fn from_item(task: TaskId, item: &Item, settings: &Settings) -> Self {
        let head = (task, item);
        match &item.fact {
            Fact::TaskStatus {
                status,
                error,
                output,
            } => build!(TaskStatus, TaskStatusItem, head, {
                status: (*status).into(),
                error: error.as_ref().map(|failure| TaskError::from_failure(failure, settings)),
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
                ..
            } => build!(ToolStarted, ToolStartedItem, head, {
                tool_call_id: tool_call_id.to_string(),
                name: name.clone(),
                digest: digest.clone(),
                attempt: *attempt,
            }),
            Fact::ToolResult(result) => build_result!(ToolResult, ToolResultItem, head, result),
            Fact::LateResult(result) => build_result!(LateResult, LateResultItem, head, result),
            Fact::SubAgentStarted {
                tool_call_id,
                child_task_id,
                agent,
            } => sub_agent_started(head, *tool_call_id, *child_task_id, agent),
        }
    }
}

fn user_message(
    head: Head<'_>,
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

fn assistant_message(head: Head<'_>, turn: &Turn) -> AgentTaskItem {
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

fn judged(head: Head<'_>, call: CallId, judgement: &Judgement) -> AgentTaskItem {
    build!(Judged, JudgedItem, head, {
        tool_call_id: call.to_string(),
        verdict: judgement.verdict.into(),
        rule: judgement.rule.clone(),
        reason: judgement.reason.clone(),
        grant_id: judgement.grant_id.map(|id| id.to_string()),
    })
}

fn intervention_requested(head: Head<'_>, spec: &RequestSpec) -> AgentTaskItem {
    build!(InterventionRequested, InterventionRequestedItem, head, {
        request_id: spec.request_id.to_string(),
        kind: spec.kind,
        pending_tool_calls: spec.pending_tool_calls.iter().map(call_as_opened).collect(),
    })
}

fn request_closed(
    head: Head<'_>,
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

fn sub_agent_started(head: Head<'_>, call: CallId, child: TaskId, agent: &str) -> AgentTaskItem {
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
