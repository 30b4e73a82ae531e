//! The limits of an agent's tasks, and of the data that a client sends with a message.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::units::duration_text;

/// The maximum number of texts and images in a message.
pub(crate) const MAX_MESSAGE_PARTS: usize = 32;
/// The maximum size of `user_context` and of `metadata`, in bytes of JSON, and of the `context` of
/// a call at a gate, in bytes of text.
pub(crate) const MAX_CONTEXT_BYTES: usize = 16 * 1024;

/// The limits of an agent. `max_model_calls`, `max_duration`, `max_rejections` and `max_tasks` are
/// counted from the user's last message, for the agent's task together with all tasks below it. A
/// task must stay within the limits of its own agent and of all its ancestors' agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "the configuration's keys")]
pub struct Limits {
    /// The maximum number of model calls. If several replicas call models for tasks of one tree at
    /// the same moment, the number of model calls may exceed the maximum.
    pub max_model_calls: u32,
    /// The maximum time during which the task or any task below it runs. Tasks that run at the same
    /// time count once. Time in which the task or the root of its tree is paused does not count.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub max_duration: Duration,
    /// The maximum number of levels of sub-agents below the task.
    pub max_depth: u32,
    /// The maximum number of calls that are refused because they repeat a rejected call.
    pub max_rejections: u32,
    /// The maximum number of sub-agents that one turn starts.
    pub max_children: u32,
    /// The maximum number of sub-agent tasks that are started below the task.
    pub max_tasks: u32,
    /// The maximum number of calls in one turn. A turn with more calls runs none of them.
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

impl Limits {
    /// Returns the key of each limit that is out of bounds, with a text that names the allowed
    /// values.
    #[must_use]
    pub fn out_of_bounds(&self) -> Vec<(&'static str, &'static str)> {
        let counts = [
            ("max_model_calls", self.max_model_calls),
            ("max_tasks", self.max_tasks),
            ("max_calls", self.max_calls),
        ];
        let zeros = counts.into_iter().filter(|(_, count)| *count == 0);
        let mut found: Vec<_> = zeros.map(|(key, _)| (key, "1 or more")).collect();
        if self.max_duration.is_zero() {
            found.push(("max_duration", "more than 0"));
        }
        found
    }
}
