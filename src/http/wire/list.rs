//! Lists, agents and the caller, as the API shows them.

use serde::Serialize;
use utoipa::ToSchema;

use super::item::AgentTaskItem;
use super::request::{InterventionRequest, WireEffect};
use super::task::AgentTask;

/// A page of tasks, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TaskList {
    /// The tasks.
    pub tasks: Vec<AgentTask>,
    /// The value of `cursor` for the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// A page of the items of a task.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ItemList {
    /// The items.
    pub items: Vec<AgentTaskItem>,
    /// The `seq` of the last item read: the value of `after` for the next page. Never null, even on
    /// the last page.
    pub next_after: i64,
}

/// A page of requests, oldest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct RequestList {
    /// The requests.
    pub requests: Vec<InterventionRequest>,
    /// The value of `cursor` for the next page; null on the last page.
    pub next_cursor: Option<String>,
    /// How many requests wait for this caller under the filters of the list, whatever its `status`
    /// and `cursor`: 1,000 at most.
    pub open: usize,
    /// Whether more than `open` requests wait for this caller.
    pub open_more: bool,
}

/// The agents that this caller may use.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct AgentList {
    /// The agents.
    pub agents: Vec<WireAgent>,
}

/// An agent.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Agent)]
pub(crate) struct WireAgent {
    /// Its name.
    pub name: String,
    /// The purpose of the agent.
    pub description: String,
    /// `sha256:…` of its definition.
    pub agent_version: String,
    /// Whether tasks that name no agent use it.
    pub default: bool,
    /// The tools that the model is offered.
    pub tools: Vec<AgentTool>,
    /// The sub-agents that it may start.
    pub sub_agents: Vec<String>,
    /// The kinds of questions that it may ask a human.
    pub human: Vec<String>,
}

/// A tool of an agent.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct AgentTool {
    /// Its name.
    pub name: String,
    /// The description for the model.
    pub description: String,
    /// The effect of repeating a call.
    pub effect: WireEffect,
}

/// The caller.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Me {
    /// The user.
    pub user_id: String,
    /// The tenant.
    pub tenant: String,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// The user of the service key that acts for this user, if any.
    pub via: Option<String>,
    /// Whether the key is an admin's.
    pub admin: bool,
    /// The permissions of the key.
    pub may: Vec<Right>,
    /// The names of the gates at which this caller may propose calls.
    pub gates: Vec<String>,
}

/// A permission of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Right {
    /// Every POST under `/v1`.
    Create,
    /// Every GET.
    Read,
    /// Every POST under `/resume`, and reading the requests that the user may decide.
    Decide,
    /// Proposing calls at gates, unless the key may decide, too.
    Gate,
}
