//! What a model has said of an answer that is not whole yet. It is shown to whoever looks on and never kept: the whole
//! answer is an item of the journal, and what is told here adds up to it.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::id::{CallId, TaskId};
use super::time::Time;

/// A piece of one answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// The root of the tree.
    pub root_task_id: TaskId,
    /// The task whose model is speaking.
    pub task_id: TaskId,
    /// The names of the agents from the root's to that task's.
    pub agent_path: Vec<String>,
    /// Which answer of the task it will be: 1, 2, 3 …
    pub turn: u32,
    /// The `seq` that the task's journal had reached when the model was asked. Whoever has not seen the items up to there
    /// reads them first; once the journal has gone further, the answer is there, or void.
    pub after_seq: i64,
    /// Which asking it belongs to: pieces of two askings are never one text.
    pub asking: Uuid,
    /// When it was told, by the clock of the process that asks.
    pub at: Time,
    /// What is told.
    pub said: Said,
}

/// What is told of an answer. Offsets count characters (Unicode code points).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Said {
    /// More of its text.
    Text {
        /// How much there was before.
        offset: u64,
        /// What comes now.
        delta: String,
    },
    /// A call's name is known, its arguments are not yet.
    Named {
        /// The id that the call will have.
        tool_call_id: CallId,
        /// Its name.
        name: String,
    },
    /// More of a call's arguments.
    Arguments {
        /// The id that the call will have.
        tool_call_id: CallId,
        /// How much there was before.
        offset: u64,
        /// What comes now.
        delta: String,
    },
    /// What was told of this turn is void.
    Reset,
}
