//! `GET /v1/agents`: the agents that the caller may use.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::agent::OpenTo;
use crate::http::Http;
use crate::http::server::caller::{CurrentCaller, must_read};
use crate::http::server::operation::Op;
use crate::http::server::problem::Problem;
use crate::http::wire::list::{AgentList, WireAgent};

pub(crate) const OP: Op = Op::api("list_agents", &[]);

/// An agent of the configuration. `app/cards.rs` builds these values.
#[derive(Clone, Debug)]
pub(crate) struct AgentCard {
    pub agent: WireAgent,
    /// The callers who may use the agent; `None` means every caller.
    pub open_to: Option<OpenTo>,
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
        agents: open.map(|card| card.agent.clone()).collect(),
    }))
}
