//! The events of a task tree: their names and their data. A durable event is an item of a journal.
//! A transient event is sent between durable events, and is not stored.
//!
//! Invariant: the data of a durable event is a function of its own commit and of earlier commits.
//! So every reader gets the same data, at any time and from any replica.

use std::collections::BTreeMap;

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::item::AgentTaskItem;
use super::request::InterventionRequest;
use crate::http::Settings;
use crate::store;
use crate::task::delta::{Delta, DeltaContent};
use crate::task::event_name::event_name;
use crate::task::id::TaskId;

/// The members of a request that depend on the caller. The request in an event lacks these members.
pub(crate) const CALLER_MEMBERS: [&str; 2] = ["allowed_actions", "can_decide"];

#[must_use]
pub(crate) fn name(event: &store::Event) -> &'static str {
    event_name(&event.item.fact, event.of_root, event.item.seq)
}

/// The data of an event that shows an item of a journal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EventData {
    event: &'static str,
    #[serde(flatten)]
    item: AgentTaskItem,
    agent_path: Vec<String>,
    root_task_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<RequestAtCommit>,
}

impl EventData {
    /// Returns the data of an event in the tree of the root task `root`. `request` is the request
    /// that the event is about, as of the event's commit; `None` if the event is not about a
    /// request.
    #[must_use]
    pub(crate) fn from_event(
        root: TaskId,
        event: &store::Event,
        request: Option<InterventionRequest>,
        settings: &Settings,
    ) -> Self {
        Self {
            event: name(event),
            item: AgentTaskItem::from_item(event.task_id, &event.item, settings),
            agent_path: event.agent_path.clone(),
            root_task_id: root.to_string(),
            request: request.map(RequestAtCommit),
        }
    }

    /// Replaces the name of the event. A reminder sends the data of the event that opened the
    /// request, under the reminder's own name, such as `request.expiring`.
    #[must_use]
    pub(crate) fn named(self, event: &'static str) -> Self {
        Self { event, ..self }
    }
}

/// A request as of one commit, serialized without [`CALLER_MEMBERS`].
#[derive(Clone, Debug, PartialEq)]
struct RequestAtCommit(InterventionRequest);

impl Serialize for RequestAtCommit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = serde_json::to_string(&self.0).map_err(S::Error::custom)?;
        let mut members: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(&text).map_err(S::Error::custom)?;
        members.retain(|name, _| !CALLER_MEMBERS.contains(&name.as_str()));
        members.serialize(serializer)
    }
}

/// Marks the end of the stored events: all events up to the number `after` have been sent. Later
/// events are sent as they are committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct CaughtUpEvent {
    /// Always `caught_up`.
    pub event: &'static str,
    /// The number up to which every event of this stream was sent. It may be greater than the
    /// number of the last event sent.
    pub after: i64,
}

impl CaughtUpEvent {
    /// The name of the server-sent event, also in the member `event`.
    pub(crate) const NAME: &'static str = "caught_up";

    #[must_use]
    pub(crate) fn at(after: i64) -> Self {
        Self {
            event: Self::NAME,
            after,
        }
    }
}

/// The next piece of the text of an answer that is still arriving.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct OutputTextDeltaEvent {
    /// Always `output_text.delta`.
    pub event: &'static str,
    /// The number of the turn that this text belongs to, the same as in the `message.completed`
    /// that follows.
    pub turn: u32,
    /// The number of characters (Unicode code points) before this piece.
    pub offset: u64,
    /// The text to append to the earlier pieces.
    pub delta: String,
    /// The id of the task whose model answers.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The names of the agents from the root to the task.
    pub agent_path: Vec<String>,
    /// The time at which the service published the piece.
    #[schema(format = DateTime)]
    pub at: String,
}

/// The beginning of a call in an answer that is still arriving: the name of the tool is known, but
/// the arguments are not known yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ToolCallNamedEvent {
    /// Always `tool_call.named`.
    pub event: &'static str,
    /// The number of the turn that the call belongs to.
    pub turn: u32,
    /// The id that the call will have.
    #[schema(format = Uuid)]
    pub tool_call_id: String,
    /// The name of the tool, as the model wrote it.
    pub name: String,
    /// The id of the task whose model answers.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The names of the agents from the root to the task.
    pub agent_path: Vec<String>,
    /// The time at which the service published the name.
    #[schema(format = DateTime)]
    pub at: String,
}

/// The next piece of the arguments of a call that is still arriving.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ToolCallArgumentsDeltaEvent {
    /// Always `tool_call.arguments.delta`.
    pub event: &'static str,
    /// The number of the turn that the call belongs to.
    pub turn: u32,
    /// The id that the call will have.
    #[schema(format = Uuid)]
    pub tool_call_id: String,
    /// The number of characters (Unicode code points) before this piece.
    pub offset: u64,
    /// The text to append to the earlier pieces of the arguments.
    pub delta: String,
    /// The id of the task whose model answers.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The names of the agents from the root to the task.
    pub agent_path: Vec<String>,
    /// The time at which the service published the piece.
    #[schema(format = DateTime)]
    pub at: String,
}

/// Voids all deltas of the turn `turn` that were published so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct MessageResetEvent {
    /// Always `message.reset`.
    pub event: &'static str,
    /// The number of the turn whose deltas are void.
    pub turn: u32,
    /// The id of the task whose model answered.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The names of the agents from the root to the task.
    pub agent_path: Vec<String>,
    /// The time of the reset.
    #[schema(format = DateTime)]
    pub at: String,
}

/// An event that is sent but not stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum TransientEvent {
    Text(OutputTextDeltaEvent),
    Named(ToolCallNamedEvent),
    Arguments(ToolCallArgumentsDeltaEvent),
    Reset(MessageResetEvent),
}

impl TransientEvent {
    /// Returns the event that publishes a model's delta.
    #[must_use]
    pub(crate) fn from_delta(delta: &Delta) -> Self {
        let (turn, at) = (delta.turn, delta.at.to_string());
        let (task_id, agent_path) = (delta.task_id.to_string(), delta.agent_path.clone());
        match &delta.said {
            DeltaContent::Text { offset, delta } => Self::Text(OutputTextDeltaEvent {
                event: "output_text.delta",
                turn,
                offset: *offset,
                delta: delta.clone(),
                task_id,
                agent_path,
                at,
            }),
            DeltaContent::Named { tool_call_id, name } => Self::Named(ToolCallNamedEvent {
                event: "tool_call.named",
                turn,
                tool_call_id: tool_call_id.to_string(),
                name: name.clone(),
                task_id,
                agent_path,
                at,
            }),
            DeltaContent::Arguments {
                tool_call_id,
                offset,
                delta,
            } => Self::Arguments(ToolCallArgumentsDeltaEvent {
                event: "tool_call.arguments.delta",
                turn,
                tool_call_id: tool_call_id.to_string(),
                offset: *offset,
                delta: delta.clone(),
                task_id,
                agent_path,
                at,
            }),
            DeltaContent::Reset => Self::reset(delta),
        }
    }

    #[must_use]
    pub(crate) fn reset(delta: &Delta) -> Self {
        Self::Reset(MessageResetEvent {
            event: "message.reset",
            turn: delta.turn,
            task_id: delta.task_id.to_string(),
            agent_path: delta.agent_path.clone(),
            at: delta.at.to_string(),
        })
    }

    /// Returns the name of the server-sent event, which is also the value of its member `event`.
    #[must_use]
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Text(event) => event.event,
            Self::Named(event) => event.event,
            Self::Arguments(event) => event.event,
            Self::Reset(event) => event.event,
        }
    }
}
