//! `GET /v1/me`: who is calling.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::http::Http;
use crate::http::server::caller::{CurrentCaller, must_read};
use crate::http::server::operation::{AuthClass, Op, SMALL};
use crate::http::server::problem::Problem;
use crate::http::wire::list::{Me, Right};

pub(crate) const OP: Op = Op {
    id: "get_me",
    auth: AuthClass::Key,
    body: SMALL,
    problems: &[],
};

/// Get the caller
///
/// The caller as the key (and `Holdpoint-User`, where the key may act for others) says.
#[utoipa::path(
    get, path = "/v1/me", operation_id = "get_me", tag = "agents",
    responses((status = 200, body = Me, description = "The caller"))
)]
pub(crate) async fn get_me(
    State(_http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
) -> Result<Json<Me>, Problem> {
    must_read(&caller)?;
    let rights = [
        (caller.may.create, Right::Create),
        (caller.may.read, Right::Read),
        (caller.may.decide, Right::Decide),
    ];
    Ok(Json(Me {
        may: rights
            .into_iter()
            .filter(|(has, _)| *has)
            .map(|(_, right)| right)
            .collect(),
        user_id: caller.user_id.to_string(),
        tenant: caller.tenant,
        groups: caller.groups,
        via: caller.via,
        admin: caller.admin,
    }))
}
