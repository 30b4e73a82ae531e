//! Lists, agents and the caller, as the API shows them.

use serde::Serialize;
use utoipa::ToSchema;

use super::item::AgentTaskItem;
use super::request::{InterventionRequest, WireEffect};
use super::task::AgentTask;

/// A page of tasks, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TaskList {
    /// The tasks of this page.
    pub tasks: Vec<AgentTask>,
    /// The value of `cursor` for the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// A page of the items of a task, in the order of the journal.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ItemList {
    /// The items of this page.
    pub items: Vec<AgentTaskItem>,
    /// The value of `after` for the next page: the `seq` of the last item of this page. For an
    /// empty page, it is the `after` with which the client read the page. Never null.
    pub next_after: i64,
}

/// A page of requests, oldest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct RequestList {
    /// The requests of this page.
    pub requests: Vec<InterventionRequest>,
    /// The value of `cursor` for the next page; null on the last page.
    pub next_cursor: Option<String>,
    /// The number of requests that wait for this caller, counted up to 1,000. The filters of the
    /// list apply, except `status` and `cursor`. Without `task_id`, the service looks at no more
    /// than 2,000 open requests, oldest first.
    pub open: usize,
    /// Whether more than `open` requests may wait for this caller.
    pub open_more: bool,
}

/// The agents that this caller may use.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct AgentList {
    /// One entry for each agent that is open to this caller.
    pub agents: Vec<WireAgent>,
}

/// An agent, as the configuration defines it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Agent)]
pub(crate) struct WireAgent {
    /// The name of the agent, as in the member `agent` of a new task.
    pub name: String,
    /// The purpose of the agent.
    pub description: String,
    /// The digest of the agent's definition: `sha256:…`.
    pub agent_version: String,
    /// Whether a new task gets this agent by default.
    pub default: bool,
    /// The tools that are offered to the agent's model.
    pub tools: Vec<AgentTool>,
    /// The names of the agents that the agent may start as sub-agents.
    pub sub_agents: Vec<String>,
    /// The kinds of the requests with which the agent may ask a person: some of `guidance`,
    /// `credentials` and `confirmation`.
    pub human: Vec<String>,
}

/// A tool that is offered to an agent's model.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct AgentTool {
    /// The name by which the model calls the tool.
    pub name: String,
    /// The description for the model.
    pub description: String,
    /// The effect of repeating a call.
    pub effect: WireEffect,
}

/// The caller, as the key or the session identifies them.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Me {
    /// The id of the user.
    pub user_id: String,
    /// The tenant that the user belongs to.
    pub tenant: String,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// If the key speaks for another person, the id of the key's own user; else null.
    pub via: Option<String>,
    /// Whether the key is an admin's.
    pub admin: bool,
    /// The permissions of the key.
    pub may: Vec<WirePermission>,
    /// The names of the gates at which this caller may propose calls.
    pub gates: Vec<String>,
}

/// A permission of a key: `create` (every POST under `/v1`; includes `gate`), `read` (every GET but
/// those of gate calls), `decide` (every POST under `/resume`, ending standing decisions, and
/// reading the requests that the user may decide) or `gate` (proposing, reading and reporting the
/// user's own calls at gates). A key with `decide` may neither propose nor report calls, whatever
/// its other permissions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Right)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WirePermission {
    Create,
    Read,
    Decide,
    Gate,
}
