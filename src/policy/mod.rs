//! Turns a tool call into a verdict: the first rule that matches decides, what none matches is held, and what cannot
//! be evaluated never allows.

mod cel;
mod check;
mod compile;
mod eval;
mod judge;
pub mod rules;
mod shape;
mod value;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod hostile;

use serde_json::Value;

use crate::task::tool_spec::ToolSpec;
use crate::task::user::UserId;

pub use compile::Policy;
pub use rules::{Decide, Expiry, Rule, RuleApprovers};

/// What a rule may look at, for one call. The arguments are those of `tool/arguments.rs`: read once, checked.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The tool that is called.
    pub tool: &'a ToolSpec,
    /// Its arguments, an object.
    pub args: &'a Value,
    /// Names from the root's agent to the one that asks.
    pub agent_path: &'a [String],
    /// The task's owner.
    pub user: &'a UserId,
    /// His tenant.
    pub tenant: &'a str,
    /// His groups, as of his last message.
    pub groups: &'a [String],
    /// The root task's id, as text.
    pub task_id: &'a str,
    /// The root task's metadata, an object.
    pub metadata: &'a Value,
    /// The session.
    pub session: &'a str,
}
