//! `GET /v1/agents`: the agents that the caller may use.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::http::Http;
use crate::http::server::caller::{CurrentCaller, must_read};
use crate::http::server::operation::Op;
use crate::http::server::problem::Problem;
use crate::http::wire::list::{AgentList, WireAgent};

pub(crate) const OP: Op = Op::api("list_agents", &[]);

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
    let (agents, user) = (http.engine.agents(), &caller.user_id);
    let is_open = |agent: &&WireAgent| {
        let found = agents.find(Some(&agent.name), &caller.tenant, user, &caller.groups);
        found.is_some()
    };
    let open = http.agents.iter().filter(is_open);
    Ok(Json(AgentList {
        agents: open.cloned().collect(),
    }))
}
