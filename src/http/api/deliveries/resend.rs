//! `POST /v1/deliveries/{delivery_id}/resend`: makes one delivery due now.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use uuid::Uuid;

use super::keyed::resend;
use crate::http::Http;
use crate::http::api::submit::no_members;
use crate::http::server::body::PostRequest;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::params::KeyHeader;
use crate::store::ResendTarget;

pub(crate) const OP: Op = Op::command("resend_delivery", &[Code::NotFound]);

/// Send a message again
///
/// Makes the delivery due now, under the same `webhook_id`; for an admin, or for every caller of a
/// service without accounts. A delivery that has ended gets as many attempts as a new delivery; a
/// delivery that is due keeps its count of attempts.
#[utoipa::path(
    post, path = "/v1/deliveries/{delivery_id}/resend", operation_id = "resend_delivery", tag = "deliveries",
    params(("delivery_id" = String, Path, format = Uuid, description = "The delivery"), KeyHeader),
    responses((status = 202, description = "The delivery is due now"))
)]
pub(crate) async fn resend_delivery(
    State(http): State<Arc<Http>>,
    PathId(id): PathId<Uuid>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    let find = async {
        let found = http.store.has_delivery(&posted.caller.tenant, id).await?;
        found.then_some(()).ok_or_else(Problem::not_found)
    };
    let target = async {
        posted.json(&http.body_parser, no_members).await?;
        Ok::<_, Problem>(ResendTarget::One(id))
    };
    let resent = resend(&http, &posted, find, target).await?;
    // `find` saw the delivery, but it may have been removed since.
    if resent.count == 0 {
        return Err(Problem::not_found());
    }
    Ok(resent.mark(StatusCode::ACCEPTED.into_response()))
}
