//! The policy turns a tool call into a verdict. The first matching rule decides. Without a matching
//! rule, a call at a gate is held, and any other call gets the default verdict of its tool's kind.
//! A rule that cannot be evaluated never allows a call.

mod cel;
mod check;
mod compile;
mod eval;
mod judge;
pub(crate) mod remember;
pub(crate) mod rules;
mod shape;
mod tool_patterns;
mod value;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod hostile;

use serde_json::Value;

use crate::task::tool_spec::ToolSpec;
use crate::task::user::UserId;

pub use compile::Policy;
pub use remember::RuleRemember;
pub use rules::{Decide, Expiry, Rule, RuleApprovers};

/// The input of a judgement: one call, whose arguments `tool/arguments.rs` has parsed and checked.
#[derive(Clone, Copy, Debug)]
pub struct JudgementInput<'a> {
    /// The called tool, with its current definition.
    pub tool: &'a ToolSpec,
    /// The arguments; always an object.
    pub args: &'a Value,
    /// The names of the agents from the root's agent to the agent that made the call.
    pub agent_path: &'a [String],
    /// The task's owner.
    pub user: &'a UserId,
    pub tenant: &'a str,
    /// The owner's groups, as of the owner's last message.
    pub groups: &'a [String],
    /// The id of the root task, as text.
    pub task_id: &'a str,
    /// The metadata of the root task: an object that the client of the API wrote.
    pub metadata: &'a Value,
    /// The session id of the task, which the client of the API may have chosen.
    pub session: &'a str,
    /// Whether the call was proposed at a gate. If no rule matches a call at a gate, the call is
    /// held, because otherwise no person would see it. If no rule matches any other call, the kind
    /// of the tool decides.
    pub at_gate: bool,
    /// Whether the agent or the gate lists the tool. A gate may let the rules judge calls of other
    /// tools; the arguments of such a call may be any object.
    pub is_listed: bool,
}
