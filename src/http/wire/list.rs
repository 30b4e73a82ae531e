//! Lists, agents and the caller, as the API shows them.

use serde::Serialize;
use utoipa::ToSchema;

use super::item::AgentTaskItem;
use super::request::{InterventionRequest, WireEffect};
use super::task::AgentTask;

/// Some tasks, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TaskList {
    /// The tasks.
    pub tasks: Vec<AgentTask>,
    /// Goes into `cursor` for the next ones; null at the end.
    pub next_cursor: Option<String>,
}

/// Some items of a task.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ItemList {
    /// The items.
    pub items: Vec<AgentTaskItem>,
    /// The last `seq` given, also at the end: goes into `after`.
    pub next_after: i64,
}

/// Some requests, oldest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct RequestList {
    /// The requests.
    pub requests: Vec<InterventionRequest>,
    /// Goes into `cursor` for the next ones; null at the end.
    pub next_cursor: Option<String>,
}

/// The agents this caller may use.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct AgentList {
    /// The agents.
    pub agents: Vec<WireAgent>,
}

/// One agent.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Agent)]
pub(crate) struct WireAgent {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// `sha256:…` of its definition.
    pub agent_version: String,
    /// Whether it is used when a task names none.
    pub default: bool,
    /// What it is offered.
    pub tools: Vec<AgentTool>,
    /// The agents it may start.
    pub sub_agents: Vec<String>,
    /// What it may ask a human for.
    pub human: Vec<String>,
}

/// One tool of an agent.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct AgentTool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// What repeating a call does.
    pub effect: WireEffect,
}

/// Who is calling.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Me {
    /// The user.
    pub user_id: String,
    /// His tenant.
    pub tenant: String,
    /// His groups.
    pub groups: Vec<String>,
    /// The key's user, when it speaks for another.
    pub via: Option<String>,
    /// Whether the key is an admin's.
    pub admin: bool,
    /// What the key may be used for.
    pub may: Vec<Right>,
}

/// What a key may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Right {
    /// Every POST under `/v1`.
    Create,
    /// Every GET.
    Read,
    /// Every POST under `/resume`, and reading what one may decide.
    Decide,
}
