//! `POST /v1/deliveries/{delivery_id}/resend`: makes one delivery due now.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use uuid::Uuid;

use crate::http::Http;
use crate::http::api::submit::no_members;
use crate::http::server::body::PostRequest;
use crate::http::server::caller::{must_administer, must_create};
use crate::http::server::operation::{AuthClass, Op, SMALL_BODY};
use crate::http::server::path_id::Id;
use crate::http::server::problem::{Code, Problem};

pub(crate) const OP: Op = Op {
    id: "resend_delivery",
    auth: AuthClass::Key,
    max_body_bytes: SMALL_BODY,
    problems: &[
        Code::BadRequest,
        Code::BadJson,
        Code::NotFound,
        Code::TooLarge,
        Code::UnsupportedMediaType,
        Code::Invalid,
    ],
};

/// Send a message again
///
/// Makes the delivery due now, under the same `webhook_id`; for an admin. A delivery that has ended
/// gets as many attempts as a new one; a delivery that is due keeps its count of attempts.
#[utoipa::path(
    post, path = "/v1/deliveries/{delivery_id}/resend", operation_id = "resend_delivery", tag = "deliveries",
    params(("delivery_id" = String, Path, format = Uuid, description = "The delivery")),
    responses((status = 202, description = "The delivery is due now"))
)]
pub(crate) async fn resend_delivery(
    State(http): State<Arc<Http>>,
    Id(id): Id<Uuid>,
    posted: PostRequest,
) -> Result<StatusCode, Problem> {
    must_create(&posted.caller)?;
    must_administer(&posted.caller)?;
    posted.key()?;
    posted.json(&http.body_parser, no_members).await?;
    if http.store.resend(&posted.caller.tenant, id).await? {
        Ok(StatusCode::ACCEPTED)
    } else {
        Err(Problem::not_found())
    }
}
