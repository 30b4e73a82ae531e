//! `GET /v1/me`: the caller and their permissions.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::http::Http;
use crate::http::server::caller::{CurrentCaller, must_read};
use crate::http::server::operation::Op;
use crate::http::server::problem::Problem;
use crate::http::wire::list::{Me, WirePermission};
use crate::people::authorization::may_ask_at_gate;

pub(crate) const OP: Op = Op::api("get_me", &[]);

/// Get the caller
///
/// Returns the user of the key (or of `Holdpoint-User`, if the key may act for others), and the
/// gates at which this caller may propose calls.
#[utoipa::path(
    get, path = "/v1/me", operation_id = "get_me", tag = "agents",
    responses((status = 200, body = Me, description = "The caller"))
)]
pub(crate) async fn get_me(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
) -> Result<Json<Me>, Problem> {
    must_read(&caller)?;
    let permissions = [
        (caller.permissions.create, WirePermission::Create),
        (caller.permissions.read, WirePermission::Read),
        (caller.permissions.decide, WirePermission::Decide),
        (caller.permissions.gate, WirePermission::Gate),
    ];
    let may_ask = may_ask_at_gate(&caller).is_ok();
    let open = http.engine.agents().gates().filter(|(gate, _)| {
        may_ask && gate.is_open_to(&caller.tenant, &caller.user_id, &caller.groups)
    });
    let gates = open.map(|(gate, _)| gate.name.clone()).collect();
    Ok(Json(Me {
        may: permissions
            .into_iter()
            .filter(|(has, _)| *has)
            .map(|(_, permission)| permission)
            .collect(),
        gates,
        user_id: caller.user_id.to_string(),
        tenant: caller.tenant,
        groups: caller.groups,
        via: caller.via,
        admin: caller.admin,
    }))
}
