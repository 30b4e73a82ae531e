//! Items of a task's append-only journal. The journal is the task's state, event stream and audit
//! trail at once.
//!
//! An item is stored as the JSON of its [`Fact`]. Some members are internal and never on the wire,
//! for example `raw`, `provider_id`, `terms`, `groups`, `timeout_ms`, `performer`, and the
//! `definition` of a call in a request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::decision::Decision;
use super::failure::Failure;
use super::grant::GrantUse;
use super::id::{CallId, RequestId, TaskId};
use super::request::RequestSpec;
use super::status::{RequestStatus, TaskStatus};
use super::time::Time;
use super::tool_spec::{Effect, ToolKind};
use super::verdict::Judgement;
use super::words::word_enum;

/// One item of the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Number of the item within its task: 1, 2, 3 …, without gaps.
    pub seq: i64,
    /// Time of the item's commit, by the database's clock.
    pub at: Time,
    /// The event that the item records.
    pub fact: Fact,
}

/// An event of a task, as the task's journal records it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Fact {
    /// The task's status changed.
    TaskStatus {
        /// The new status.
        status: TaskStatus,
        /// The failure, if `status` is `Failed`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Failure>,
        /// The task's final text, if `status` is `Completed`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<String>,
    },
    /// The user sent a message.
    UserMessage {
        /// Texts and images, in the user's order.
        items: Vec<Part>,
        /// Data about the user, shown to the model before the message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user_context: Option<BTreeMap<String, String>>,
        /// User id of the sender.
        by: String,
        /// The user's groups at the time of the message. Rules read them as `user.groups`. Not on
        /// the wire.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        groups: Vec<String>,
    },
    /// The model answered. Each answer of the model is a turn.
    AssistantMessage(Turn),
    /// The policy judged a call.
    Judged {
        /// The judged call, which an earlier turn proposed.
        tool_call_id: CallId,
        /// The verdict, with its reason and terms.
        #[serde(flatten)]
        judgement: Judgement,
        /// Effect of repeating the call; `once` for an unknown tool. Not on the wire.
        #[serde(default)]
        effect: Effect,
        /// How the call is performed. Not on the wire.
        #[serde(default)]
        performer: ToolKind,
    },
    /// A request was opened.
    InterventionRequested(RequestSpec),
    /// A person answered a request.
    Decision {
        /// The answered request, opened by an earlier item.
        request_id: RequestId,
        /// The answer, with the person who gave it.
        decision: Decision,
    },
    /// A request was closed without a deciding answer.
    RequestClosed {
        /// The closed request, opened by an earlier item.
        request_id: RequestId,
        /// `expired` or `withdrawn`.
        status: RequestStatus,
        /// The event that closed the request.
        reason: CloseReason,
    },
    /// A call is about to be sent. This item is committed before the call is sent.
    ToolStarted {
        /// The started call, which an earlier turn proposed.
        tool_call_id: CallId,
        /// Name of the called tool.
        name: String,
        /// Digest of the call as it runs, with edited arguments if a person edited them. See
        /// `call_digest`.
        digest: String,
        /// Number of the attempt at this call: 1, 2, 3 …
        attempt: u32,
        /// Timeout of this attempt, in milliseconds. Not on the wire.
        timeout_ms: u64,
        /// The process that runs the attempt. If this service runs it, the id of the service's
        /// process. If the client that proposed the call runs it, the text of
        /// `AttemptStart::replica_of_asker`, which names the proposal and the client's process. Not
        /// on the wire.
        replica: String,
        /// The standing decision that the attempt relies on, if any. Not on the wire.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grant: Option<GrantUse>,
    },
    /// A call got its result.
    ToolResult(ToolResult),
    /// A result that does not settle its call. Either the result came too late, or the client that
    /// runs the call reported that the outcome is unknown.
    LateResult(ToolResult),
    /// A call gave work to a sub-agent. The call created a task for the sub-agent. If the sub-agent
    /// has one conversation for all calls, a later call sends a message to the existing task.
    SubAgentStarted {
        /// The call that gave the work to the sub-agent.
        tool_call_id: CallId,
        /// The sub-agent's task: a new task, or the existing task that got the message.
        child_task_id: TaskId,
        /// Name of the sub-agent in the configuration.
        agent: String,
    },
}

impl Fact {
    /// Returns the fact that a request was closed without an answer, for a reason other than its
    /// deadline.
    #[must_use]
    pub fn withdrawn(request_id: RequestId, reason: CloseReason) -> Self {
        Self::RequestClosed {
            request_id,
            status: RequestStatus::Withdrawn,
            reason,
        }
    }

    /// Returns the item's `type` on the wire and in the database.
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

    /// Returns the item's `role` on the wire and in the database.
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

    /// Returns the request that the fact opens, answers or closes, if any.
    #[must_use]
    pub fn request_id(&self) -> Option<RequestId> {
        match self {
            Self::InterventionRequested(asked) => Some(asked.request_id),
            Self::Decision { request_id, .. } | Self::RequestClosed { request_id, .. } => {
                Some(*request_id)
            }
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

/// Returns the decisions of a journal, the newest first, each with its time and its request.
pub fn newest_decisions(items: &[Item]) -> impl Iterator<Item = (Time, RequestId, &Decision)> {
    items.iter().rev().filter_map(|item| {
        let Fact::Decision {
            request_id,
            decision,
        } = &item.fact
        else {
            return None;
        };
        Some((item.at, *request_id, decision))
    })
}

/// Why a request was closed without a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// The request's deadline passed.
    Expired,
    /// The user sent another message.
    Superseded,
    /// The task was canceled or failed.
    Canceled,
    /// The tool's definition, or the form of the requested credential, changed after the request
    /// was opened.
    ToolChanged,
    /// The result of the call arrived while the request about the call was open.
    AnsweredLate,
}

/// One part of a user's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Whether `content` is a text or an image.
    pub content_type: PartType,
    /// The text; or the image as a `data:` URI or an `https:` URL.
    pub content: String,
}

/// The type of a part's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartType {
    /// Text, verbatim.
    Text,
    /// An image, inline or by its URL.
    Image,
}

/// One answer of the model, including the calls that the model proposes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Number of the turn within its task: 1, 2, 3 …
    pub turn: u32,
    /// Text of the answer, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Calls that the model proposes, in the model's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The provider's reason for the end of the answer.
    pub finish_reason: FinishReason,
    /// Tokens of the prompt and of the answer, as the provider counts them.
    pub usage: Usage,
    /// The provider's own JSON of the answer, with secrets redacted. The JSON may lack the
    /// arguments of the calls, which `tool_calls` has. Later model calls send this JSON back. If it
    /// is null, they build the JSON from the other members. Not on the wire.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub raw: Value,
}

/// A call that a turn proposes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Id that this service gave the call.
    pub tool_call_id: CallId,
    /// Name of the tool, as the model wrote it.
    pub name: String,
    /// The arguments as the model wrote them, except that secrets are redacted.
    pub arguments_text: String,
    /// Whether a secret in the arguments was redacted. If so, the text is not exactly what the
    /// model wrote, and the call never runs. Not on the wire.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holds_secret: bool,
    /// Id of the call in the conversation with the provider. It is the provider's own id, or
    /// `tool_call_id` if the provider's own id is empty or repeats an earlier id. Not on the wire.
    #[serde(default)]
    pub provider_id: String,
}

/// Why the answer of a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its answer.
    Stop,
    /// The model proposes calls.
    ToolCalls,
    /// The length limit cut the answer. None of the answer's calls runs.
    Length,
    /// A filter of the provider cut the answer. None of the answer's calls runs.
    ContentFilter,
    /// Any other reason of the provider.
    Other,
    /// There was no model: an agent that runs elsewhere proposed the call at a gate.
    Gate,
}

/// Token counts, as the provider reports them. A count of one turn is at most `u32::MAX`, so that
/// sums of counts do not overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: i64,
    /// Tokens of the answer.
    pub completion_tokens: i64,
    /// The provider's own total, or the sum of both counts if the provider reports no total.
    pub total_tokens: i64,
}

word_enum! {
    /// How a call ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Outcome {
        /// The call ran and returned a result.
        Succeeded = "succeeded",
        /// The call failed or could not be sent. A call whose effect is not known may end like
        /// this, too: for example, a repeatable call without an answer in all its attempts, a
        /// repeatable gate call without a report in time, and a call that a person said not to
        /// count on.
        Failed = "failed",
        /// The call could not run as it was proposed, for example because its arguments do not fit
        /// the tool.
        Invalid = "invalid",
        /// A rule refused the call.
        Denied = "denied",
        /// A person rejected the call.
        Rejected = "rejected",
        /// A person supplied the call's result.
        Responded = "responded",
        /// The request about the call expired, or an approved gate call was not started in time.
        Expired = "expired",
        /// The request about the call was withdrawn, or the user sent another message.
        Withdrawn = "withdrawn",
        /// The call's task was canceled, or the sub-agent that performed the call was canceled.
        Canceled = "canceled",
        /// The call may have run, but its outcome is not known.
        Unknown = "unknown",
        /// A gate let the call through and does not learn the outcome. Either the gate requires no
        /// report (`report: optional`), or it does not store allowed calls (`record: held`).
        Released = "released",
    }
}

/// A call's result, as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// Id of the call that the result is for.
    pub tool_call_id: CallId,
    /// Name of the called tool.
    pub name: String,
    /// How the call ended, for example `denied` or `unknown`.
    pub outcome: Outcome,
    /// Text of the result. The model sees at most the first 64 KiB.
    pub content: String,
    /// HTTP status of the answer of an HTTP tool. `None` for other tools, and if there was no
    /// answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// True if an MCP server answered the call with an error, but may have executed the call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspect: bool,
    /// Whether the client that proposed this gate call reported the result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reported: bool,
}
