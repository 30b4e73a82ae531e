//! One line of a task's append-only journal. The journal is the state, the event stream and the audit trail.
//!
//! An item is stored as the JSON of its [`Fact`]. Members that the contract does not list (`raw`, `provider_id`,
//! `terms`, `groups`, `timeout_ms`, `performer`, an asked call's `definition`) are for us and never on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::decision::Decision;
use super::failure::Failure;
use super::id::{CallId, RequestId, TaskId};
use super::request::RequestSpec;
use super::status::{RequestStatus, TaskStatus};
use super::time::Time;
use super::tool_spec::{Effect, ToolKind};
use super::verdict::Judgement;

/// One line of the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// 1, 2, 3 … within its task, without gaps.
    pub seq: i64,
    /// When it was committed, by the database's clock.
    pub at: Time,
    /// What happened.
    pub fact: Fact,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Fact {
    /// The task's status changed.
    TaskStatus {
        /// To what.
        status: TaskStatus,
        /// Why it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Failure>,
        /// The final text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<String>,
    },
    /// The user said something.
    UserMessage {
        /// What.
        items: Vec<Part>,
        /// Data about the user, shown to the model before the message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user_context: Option<BTreeMap<String, String>>,
        /// Who.
        by: String,
        /// His groups then: what rules read as `user.groups`. Not on the wire.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        groups: Vec<String>,
    },
    /// The model answered: one turn.
    AssistantMessage(Turn),
    /// The policy judged a call.
    Judged {
        /// Which.
        tool_call_id: CallId,
        /// How.
        #[serde(flatten)]
        judgement: Judgement,
        /// What repeating the call does; `once` where the tool is not known. Not on the wire.
        #[serde(default)]
        effect: Effect,
        /// Who performs the call. Not on the wire.
        #[serde(default)]
        performer: ToolKind,
    },
    /// A human is asked.
    InterventionRequested(RequestSpec),
    /// A human answered.
    Decision {
        /// Which question.
        request_id: RequestId,
        /// This one answer.
        decision: Decision,
    },
    /// A question was closed without an answer that decides it.
    RequestClosed {
        /// Which.
        request_id: RequestId,
        /// `expired` or `withdrawn`.
        status: RequestStatus,
        /// Why.
        reason: CloseReason,
    },
    /// A call is about to be sent. Committed before it is.
    ToolStarted {
        /// Which.
        tool_call_id: CallId,
        /// The tool.
        name: String,
        /// Digest of what runs.
        digest: String,
        /// 1, 2, 3 … of this call.
        attempt: u32,
        /// How long this attempt may take, in milliseconds. Not on the wire.
        timeout_ms: u64,
        /// Which process sends it. Not on the wire.
        replica: String,
    },
    /// A call has its result.
    ToolResult(ToolResult),
    /// A result that came after its call was closed.
    LateResult(ToolResult),
    /// A child task was started for a call.
    SubAgentStarted {
        /// Which call.
        tool_call_id: CallId,
        /// The child.
        child_task_id: TaskId,
        /// Its agent.
        agent: String,
    },
}

impl Fact {
    /// The item's `type` on the wire and in the database.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::TaskStatus { .. } => "task_status",
            Self::UserMessage { .. } => "user_message",
            Self::AssistantMessage(_) => "assistant_message",
            Self::Judged { .. } => "judged",
            Self::InterventionRequested(_) => "intervention_requested",
            Self::Decision { .. } => "decision",
            Self::RequestClosed { .. } => "request_closed",
            Self::ToolStarted { .. } => "tool_started",
            Self::ToolResult(_) => "tool_result",
            Self::LateResult(_) => "late_result",
            Self::SubAgentStarted { .. } => "sub_agent_started",
        }
    }

    /// The item's `role` on the wire and in the database.
    #[must_use]
    pub fn role(&self) -> &'static str {
        match self {
            Self::UserMessage { .. } => "user",
            Self::AssistantMessage(_) | Self::InterventionRequested(_) => "assistant",
            Self::Decision { .. } => "human",
            Self::ToolResult(_) => "tool",
            Self::TaskStatus { .. }
            | Self::LateResult(_)
            | Self::Judged { .. }
            | Self::RequestClosed { .. }
            | Self::ToolStarted { .. }
            | Self::SubAgentStarted { .. } => "system",
        }
    }

    /// The request it is about, if it is about one.
    #[must_use]
    pub fn request_id(&self) -> Option<RequestId> {
        match self {
            Self::InterventionRequested(asked) => Some(asked.request_id),
            Self::Decision { request_id, .. } | Self::RequestClosed { request_id, .. } => Some(*request_id),
            Self::TaskStatus { .. }
            | Self::UserMessage { .. }
            | Self::AssistantMessage(_)
            | Self::Judged { .. }
            | Self::ToolStarted { .. }
            | Self::ToolResult(_)
            | Self::LateResult(_)
            | Self::SubAgentStarted { .. } => None,
        }
    }
}

/// Why a question was closed without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// Its deadline passed.
    Expired,
    /// The user went on with another message.
    Superseded,
    /// The task was canceled or failed.
    Canceled,
    /// The tool's definition changed after it was asked.
    ToolChanged,
    /// The result came by itself.
    AnsweredLate,
}

/// One part of a user's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// What `content` is.
    pub content_type: PartType,
    /// The text; or the image as a `data:` URI or an `https:` URL.
    pub content: String,
}

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartType {
    /// Text.
    Text,
    /// An image.
    Image,
}

/// One answer of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// 1, 2, 3 … of the task.
    pub turn: u32,
    /// What it said, if it said something.
    pub text: Option<String>,
    /// What it asks to run, in its order.
    pub tool_calls: Vec<ToolCall>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What it cost.
    pub usage: Usage,
    /// The provider's own JSON of the answer, sent back unchanged. Not on the wire.
    #[serde(default)]
    pub raw: Value,
}

/// One call of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Ours.
    pub tool_call_id: CallId,
    /// The name the model used.
    pub name: String,
    /// The exact text the model wrote, but for secrets.
    pub arguments_text: String,
    /// Whether something in it was replaced because it is secret: then it is not what the model wrote, and never runs. Not
    /// on the wire.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holds_secret: bool,
    /// The id the provider knows it by (its own, or ours where its own was empty or repeated). Not on the wire.
    #[serde(default)]
    pub provider_id: String,
}

/// Why the model's answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// It was done.
    Stop,
    /// It wants tools to run.
    ToolCalls,
    /// It was cut at its length: none of its calls runs.
    Length,
    /// A filter of the provider cut it: none of its calls runs.
    ContentFilter,
    /// Something else the provider said.
    Other,
}

/// Tokens and calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read.
    pub prompt_tokens: i64,
    /// Tokens written.
    pub completion_tokens: i64,
    /// Both, or what the provider says.
    pub total_tokens: i64,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It ran and answered.
    Succeeded,
    /// It failed, or could not be sent.
    Failed,
    /// Its name or arguments do not fit; it never ran.
    Invalid,
    /// A rule refused it.
    Denied,
    /// A human refused it.
    Rejected,
    /// A human gave its result.
    Responded,
    /// Nobody answered in time.
    Expired,
    /// The user went on without it.
    Withdrawn,
    /// The task was canceled.
    Canceled,
    /// It was started and nobody knows what happened.
    Unknown,
}

impl Outcome {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Invalid => "invalid",
            Self::Denied => "denied",
            Self::Rejected => "rejected",
            Self::Responded => "responded",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
            Self::Canceled => "canceled",
            Self::Unknown => "unknown",
        }
    }
}

/// A call's result: what the model is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// Which call.
    pub tool_call_id: CallId,
    /// The tool.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The text.
    pub content: String,
    /// The status of an HTTP tool's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
}
