//! Turns a tool call into a verdict: the first matching rule decides, a call without a matching
//! rule gets the default of its tool's kind (at a gate it is held), and a rule that cannot be evaluated never allows.

mod cel;
mod check;
mod compile;
mod covers;
mod eval;
mod judge;
pub(crate) mod remember;
pub(crate) mod rules;
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
pub use remember::RuleRemember;
pub use rules::{Decide, Expiry, Rule, RuleApprovers};

/// The input of a judgement: one call. Its arguments were parsed once and checked by
/// `tool/arguments.rs`.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The called tool.
    pub tool: &'a ToolSpec,
    /// The arguments, an object.
    pub args: &'a Value,
    /// Agent names from the root's agent to the agent that made the call.
    pub agent_path: &'a [String],
    /// The task's owner.
    pub user: &'a UserId,
    /// The owner's tenant.
    pub tenant: &'a str,
    /// The owner's groups, as of their last message.
    pub groups: &'a [String],
    /// The root task's id, as text.
    pub task_id: &'a str,
    /// The root task's metadata, an object.
    pub metadata: &'a Value,
    /// The session id.
    pub session: &'a str,
    /// Whether the call was proposed at a gate. There a call that no rule matches is held, whatever
    /// the kind of its tool: no other step asks a person.
    pub at_gate: bool,
}
