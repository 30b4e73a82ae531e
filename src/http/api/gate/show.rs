//! `GET /v1/gate/calls/{task_id}`: reads a call. The response has no permit, and reading does not
//! make the client an asker of the call.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;

use super::waiting::longest_wait;
use crate::http::Http;
use crate::http::api::refusal::refusal_problem;
use crate::http::api::respond::mark_applied;
use crate::http::server::caller::CurrentCaller;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::prefer::Prefer;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::gate::WireGateCall;
use crate::http::wire::params::CallWaitHeader;
use crate::task::id::TaskId;

pub(crate) const OP: Op = Op::api("get_gate_call", &[Code::NotFound]);

/// Look at a gate call
///
/// Returns the call without a permit. With `Prefer: wait=N`, waits until the decision changes or
/// the call is settled.
#[utoipa::path(
    get, path = "/v1/gate/calls/{task_id}", operation_id = "get_gate_call", tag = "gate",
    params(("task_id" = String, Path, format = Uuid, description = "The task of the call"), CallWaitHeader),
    responses((status = 200, body = WireGateCall, description = "The call, without a permit"))
)]
pub(crate) async fn get_gate_call(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    PathId(task_id): PathId<TaskId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let prefer = Prefer::read(&headers).at_most(longest_wait(&caller));
    let slot = if prefer.wait_or(Duration::ZERO).is_zero() {
        None
    } else {
        http.waiting_asks.take_slot(&caller, &http.settings, None)
    };
    let (wait, applied) = prefer.within_slot(slot.is_some(), Duration::ZERO);
    let call = match http.engine.gates().read_call(&caller, task_id, wait).await {
        Ok(call) => call,
        Err(refusal) => return Err(refusal_problem(&http, &caller, refusal).await),
    };
    let mut response =
        Json(WireGateCall::from_call(&call, &caller, &http.settings)).into_response();
    mark_applied(response.headers_mut(), applied);
    Ok(response)
}
