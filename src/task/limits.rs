//! How far a task may go before a person has to look, counted from the last user message.

use std::time::Duration;

/// An agent's limits; the default of each is the configuration's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Model answers.
    pub max_model_calls: u32,
    /// Running time; waiting for a person does not count.
    pub max_duration: Duration,
    /// Levels of sub-agents below the task.
    pub max_depth: u32,
    /// Calls refused because they repeat a rejected call.
    pub max_rejections: u32,
    /// Sub-agents started by one turn.
    pub max_children: u32,
    /// Sub-agents started in the task's subtree.
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
