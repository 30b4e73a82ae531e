//! `GET /v1/agents`: the agents that the caller may use.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::agent::OpenTo;
use crate::http::Http;
use crate::http::server::caller::{CurrentCaller, must_read};
use crate::http::server::operation::{AuthClass, Op, SMALL_BODY};
use crate::http::server::problem::Problem;
use crate::http::wire::list::{AgentList, AgentTool, WireAgent};
use crate::task::tool_spec::Effect;

pub(crate) const OP: Op = Op {
    id: "list_agents",
    auth: AuthClass::Key,
    max_body_bytes: SMALL_BODY,
    problems: &[],
};

/// An agent as the API shows it. `app/cards.rs` builds these values from the configured agents.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AgentCard {
    pub name: String,
    pub description: String,
    /// The SHA-256 hash of the agent's definition, written as `sha256:…`.
    pub version: String,
    /// Whether a new task that names no agent gets this agent.
    pub default: bool,
    pub tools: Vec<ToolCard>,
    pub sub_agents: Vec<String>,
    /// The kinds of questions that the agent may ask a human: `guidance`, `credentials`,
    /// `confirmation`.
    pub human: Vec<String>,
    /// The callers who may use the agent; `None` means every caller.
    pub open_to: Option<OpenTo>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolCard {
    pub name: String,
    pub description: String,
    /// The effect of a call of the tool: whether the call changes anything, and whether it may be
    /// repeated.
    pub effect: Effect,
}

/// List agents
///
/// Returns the agents that this caller may use, with their tools.
#[utoipa::path(
    get, path = "/v1/agents", operation_id = "list_agents", tag = "agents",
    responses((status = 200, body = AgentList, description = "The agents"))
)]
pub(crate) async fn list_agents(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
) -> Result<Json<AgentList>, Problem> {
    must_read(&caller)?;
    let admits = |to: &OpenTo| to.admits(&caller.tenant, &caller.user_id, &caller.groups);
    let open = http
        .agents
        .iter()
        .filter(|card| card.open_to.as_ref().is_none_or(admits));
    Ok(Json(AgentList {
        agents: open.map(wire_agent).collect(),
    }))
}

fn wire_agent(card: &AgentCard) -> WireAgent {
    WireAgent {
        name: card.name.clone(),
        description: card.description.clone(),
        agent_version: card.version.clone(),
        default: card.default,
        tools: card
            .tools
            .iter()
            .map(|tool| AgentTool {
                name: tool.name.clone(),
                description: tool.description.clone(),
                effect: tool.effect.into(),
            })
            .collect(),
        sub_agents: card.sub_agents.clone(),
        human: card.human.clone(),
    }
}
