//! The names and data of the events of a tree, as the API shows them. A durable event is an item of
//! a journal. Transient events are sent between durable events and are not stored. Invariant: the
//! data of a durable event depends only on its own commit and on earlier commits, so every reader
//! gets the same data, at any time and on any replica.

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

/// Returns the name of an item's event.
#[must_use]
pub(crate) fn name(event: &store::Event) -> &'static str {
    event_name(&event.item.fact, event.of_root, event.item.seq)
}

/// The data of a durable event.
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
    /// Returns the data of an event in the tree of `root`. `request` is the event's request as of
    /// the event's commit; `None` if the event is not about a request.
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
}

/// A request as of one commit, serialized without the members that depend on the caller, so that
/// every reader gets the same data.
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

/// The event that separates the stored events from the new events: every stored event up to the
/// number `after` has been sent, and later events are sent as they are committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct CaughtUpEvent {
    /// Always `caught_up`.
    pub event: &'static str,
    /// The number of the last event sent.
    pub after: i64,
}

impl CaughtUpEvent {
    /// The name of the server-sent event, also in the member `event`.
    pub(crate) const NAME: &'static str = "caught_up";

    /// Returns the event that follows all stored events up to the number `after`.
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

/// All deltas of the turn `turn` that were published so far are void.
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
    /// Voids all deltas of the turn.
    Reset(MessageResetEvent),
}

impl TransientEvent {
    /// Returns the event that publishes a model's delta.
    #[must_use]
    pub(crate) fn from_delta(delta: &Delta) -> Self {
        let (turn, task_id, agent_path) = (
            delta.turn,
            delta.task_id.to_string(),
            delta.agent_path.clone(),
        );
        let (event, at) = (delta_event_name(&delta.said), delta.at.to_string());
        match &delta.said {
            DeltaContent::Text { offset, delta } => {
                let (offset, delta) = (*offset, delta.clone());
                Self::Text(OutputTextDeltaEvent {
                    event,
                    turn,
                    offset,
                    delta,
                    task_id,
                    agent_path,
                    at,
                })
            }
            DeltaContent::Named { tool_call_id, name } => {
                let (tool_call_id, name) = (tool_call_id.to_string(), name.clone());
                Self::Named(ToolCallNamedEvent {
                    event,
                    turn,
                    tool_call_id,
                    name,
                    task_id,
                    agent_path,
                    at,
                })
            }
            DeltaContent::Arguments {
                tool_call_id,
                offset,
                delta,
            } => {
                let (tool_call_id, offset, delta) =
                    (tool_call_id.to_string(), *offset, delta.clone());
                Self::Arguments(ToolCallArgumentsDeltaEvent {
                    event,
                    turn,
                    tool_call_id,
                    offset,
                    delta,
                    task_id,
                    agent_path,
                    at,
                })
            }
            DeltaContent::Reset => Self::reset(delta),
        }
    }

    /// Returns the event that voids a turn's earlier deltas.
    #[must_use]
    pub(crate) fn reset(delta: &Delta) -> Self {
        Self::Reset(MessageResetEvent {
            event: delta_event_name(&DeltaContent::Reset),
            turn: delta.turn,
            task_id: delta.task_id.to_string(),
            agent_path: delta.agent_path.clone(),
            at: delta.at.to_string(),
        })
    }

    /// Returns the name of the server-sent event, also in the member `event`.
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

/// Returns the event name for the content of a delta.
fn delta_event_name(said: &DeltaContent) -> &'static str {
    match said {
        DeltaContent::Text { .. } => "output_text.delta",
        DeltaContent::Named { .. } => "tool_call.named",
        DeltaContent::Arguments { .. } => "tool_call.arguments.delta",
        DeltaContent::Reset => "message.reset",
    }
}
