//! Defines the deltas of a model's answer. A delta is a part of an answer that is not complete yet.
//! Deltas are sent to subscribers and never stored; the complete answer is stored in the journal.
//! The joined deltas after the last `Reset` equal the text and the calls of the complete answer.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::id::{CallId, TaskId};
use super::time::Time;

/// A part of an answer that is published while the answer arrives, and never stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// Root of the task's tree.
    pub root_task_id: TaskId,
    /// Task whose model answers.
    pub task_id: TaskId,
    /// Agent names, from the root's agent to this task's agent.
    pub agent_path: Vec<String>,
    /// Number that the complete answer will have within the task: 1, 2, 3 …
    pub turn: u32,
    /// The `seq` of the task's last item at the start of the model call. A subscriber reads the
    /// items up to this `seq` before it uses the delta. If the subscriber has read a later item,
    /// the answer may already be stored or discarded. So the subscriber then ignores every delta of
    /// this answer except a `Reset`.
    pub after_seq: i64,
    /// Id of the attempt at this answer. Deltas of different attempts must not be joined.
    pub asking: Uuid,
    /// Time at which the delta was published, by the clock of the process that called the model.
    pub at: Time,
    /// The part of the answer that this delta adds.
    pub said: DeltaContent,
}

/// Content of a delta. Offsets count characters (Unicode code points).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DeltaContent {
    /// The next part of the answer's text.
    Text {
        /// Number of characters of the text before this delta.
        offset: u64,
        /// Text to append.
        delta: String,
    },
    /// The name of a call. The arguments are not known yet.
    Named {
        /// The id that the call will have.
        tool_call_id: CallId,
        /// Name of the called tool.
        name: String,
    },
    /// The next part of a call's arguments.
    Arguments {
        /// The id that the call will have.
        tool_call_id: CallId,
        /// Number of characters of the arguments before this delta.
        offset: u64,
        /// Text to append.
        delta: String,
    },
    /// A command to subscribers to discard all earlier deltas of this turn.
    Reset,
}
