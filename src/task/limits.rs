//! How far a task may go before somebody looks, counted from the last user message.

use std::time::Duration;

/// An agent's limits; each has the configuration's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Answers of the model.
    pub max_model_calls: u32,
    /// Time spent running; waiting for a human does not count.
    pub max_duration: Duration,
    /// Levels of sub-agents.
    pub max_depth: u32,
    /// Calls refused because a human had said no to the same call.
    pub max_rejections: u32,
    /// Sub-agents started by one turn.
    pub max_children: u32,
    /// Tasks of the tree.
    pub max_tasks: u32,
    /// Calls in one turn.
    pub max_calls: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_model_calls: 25,
            max_duration: Duration::from_hours(1),
            max_depth: 5,
            max_rejections: 3,
            max_children: 8,
            max_tasks: 50,
            max_calls: 16,
        }
    }
}
