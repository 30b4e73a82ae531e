//! `POST /v1/deliveries/resend`: makes the deliveries of one receiver due now.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde_json::Value;

use crate::http::Http;
use crate::http::server::body::PostRequest;
use crate::http::server::caller::{must_administer, must_create};
use crate::http::server::fields::{Errors, Fields};
use crate::http::server::operation::{AuthClass, Op, SMALL_BODY};
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::body::ResendDeliveries;
use crate::http::wire::delivery::ResentDeliveries;
use crate::store::{DeliveryState, ResendFilter};
use crate::task::time::Time;

pub(crate) const OP: Op = Op {
    id: "resend_deliveries",
    auth: AuthClass::Key,
    max_body_bytes: SMALL_BODY,
    problems: &[
        Code::BadRequest,
        Code::BadJson,
        Code::TooLarge,
        Code::UnsupportedMediaType,
        Code::Invalid,
    ],
};

/// Send the messages of a receiver again
///
/// Makes the deliveries of one receiver due now, with as many attempts as new deliveries and under
/// the same `webhook_id`; for an admin.
#[utoipa::path(
    post, path = "/v1/deliveries/resend", operation_id = "resend_deliveries", tag = "deliveries",
    request_body = ResendDeliveries,
    responses((status = 202, body = ResentDeliveries, description = "The deliveries are due now"))
)]
pub(crate) async fn resend_deliveries(
    State(http): State<Arc<Http>>,
    posted: PostRequest,
) -> Result<(StatusCode, Json<ResentDeliveries>), Problem> {
    must_create(&posted.caller)?;
    must_administer(&posted.caller)?;
    posted.key()?;
    let tenant = posted.caller.tenant.clone();
    let filter = posted
        .json(&http.body_parser, move |body, _| parse(body, tenant))
        .await?;
    let count = http.store.resend_all(&filter).await?;
    Ok((StatusCode::ACCEPTED, Json(ResentDeliveries { count })))
}

fn parse(body: Value, tenant: String) -> Result<ResendFilter, Problem> {
    let mut errors = Errors::default();
    let filter = Fields::from_value(body, "", &mut errors).and_then(|mut fields| {
        let target = fields.text("target", &mut errors);
        if target.is_none() && errors.0.is_empty() {
            errors.add("/target", "the name of a receiver");
        }
        let state = match fields.text("state", &mut errors) {
            None => Some(DeliveryState::Dead),
            Some(word) => {
                let state = DeliveryState::parse(&word);
                state.filter(|state| *state != DeliveryState::Due)
            }
        };
        if state.is_none() {
            errors.add("/state", "`dead`, `dropped` or `sent`");
        }
        let since = fields.text("since", &mut errors).map(|text| {
            let read = Time::parse(&text);
            if read.is_none() {
                errors.add("/since", "a time such as `2026-11-22T09:00:00Z`");
            }
            read.unwrap_or_default()
        });
        fields.finish(&mut errors);
        Some(ResendFilter {
            tenant,
            target: target?,
            state: state?,
            since,
        })
    });
    filter
        .filter(|_| errors.0.is_empty())
        .ok_or_else(|| Problem::invalid(&errors.0))
}
