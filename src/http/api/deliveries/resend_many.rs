//! `POST /v1/deliveries/resend`: makes the deliveries of one receiver due now.

use std::future::ready;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;

use super::keyed::resend;
use crate::http::Http;
use crate::http::server::body::PostRequest;
use crate::http::server::fields::{Fields, variant};
use crate::http::server::operation::Op;
use crate::http::server::problem::Problem;
use crate::http::wire::body::{ResendDeliveries, ResentState};
use crate::http::wire::delivery::ResentDeliveries;
use crate::http::wire::params::KeyHeader;
use crate::store::{DeliveryFilter, DeliveryState, ResendFilter, ResendTarget};
use crate::task::time::Time;

pub(crate) const OP: Op = Op::command("resend_deliveries", &[]);

/// Send the messages of a receiver again
///
/// Makes the deliveries of one receiver due now, with as many attempts as new deliveries and under
/// the same `webhook_id`; for an admin, or for every caller of a service without accounts.
#[utoipa::path(
    post, path = "/v1/deliveries/resend", operation_id = "resend_deliveries", tag = "deliveries",
    params(KeyHeader), request_body = ResendDeliveries,
    responses((status = 202, body = ResentDeliveries, description = "The deliveries are due now"))
)]
pub(crate) async fn resend_deliveries(
    State(http): State<Arc<Http>>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    let target = async {
        let selection = posted
            .json(&http.body_parser, |body, _| {
                Fields::read(body, ResendDeliveries::read)
            })
            .await?;
        let filter = selection.into_filter(posted.caller.tenant.clone());
        check_receiver(&http, &filter).await?;
        Ok::<_, Problem>(ResendTarget::All(filter))
    };
    let resent = resend(&http, &posted, ready(Ok(())), target).await?;
    let body = Json(ResentDeliveries {
        count: resent.count,
    });
    Ok(resent.mark((StatusCode::ACCEPTED, body).into_response()))
}

/// Checks that the tenant has the receiver that `filter` names. Without this check, the response to
/// a misspelt name would be a success with the count 0. A receiver that is no longer in the
/// configuration is accepted while it has a delivery.
///
/// # Errors
/// `invalid` if no receiver of the tenant has this name; `unavailable`.
async fn check_receiver(http: &Http, filter: &ResendFilter) -> Result<(), Problem> {
    let tenants = http.settings.receivers.get(&filter.target);
    if tenants.is_some_and(|tenants| tenants.contains(&filter.tenant)) {
        return Ok(());
    }
    let deliveries = DeliveryFilter {
        tenant: filter.tenant.clone(),
        targets: vec![filter.target.clone()],
        limit: 1,
        ..DeliveryFilter::default()
    };
    if http.store.deliveries(&deliveries).await?.is_empty() {
        let detail = "the name of a receiver in the configuration or in the list of deliveries";
        return Err(Problem::invalid_at("/target", detail));
    }
    Ok(())
}

impl ResendDeliveries {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let target = fields.text("target");
        if target.is_none() && fields.errors.0.is_empty() {
            fields.refuse("target", "the name of a receiver");
        }
        let state = fields.text("state").and_then(|word| {
            let state = variant(&word);
            if state.is_none() {
                fields.refuse("state", "`dead`, `dropped` or `sent`");
            }
            state
        });
        let since = fields.text("since").and_then(|text| {
            let time = Time::parse(&text);
            if time.is_none() {
                fields.refuse("since", "a time such as `2026-11-22T09:00:00Z`");
            }
            time
        });
        Some(Self {
            target: target?,
            since,
            state,
        })
    }

    fn into_filter(self, tenant: String) -> ResendFilter {
        ResendFilter {
            tenant,
            target: self.target,
            state: self.state.map_or(DeliveryState::Dead, Into::into),
            since: self.since,
        }
    }
}

impl From<ResentState> for DeliveryState {
    fn from(state: ResentState) -> Self {
        match state {
            ResentState::Dead => Self::Dead,
            ResentState::Dropped => Self::Dropped,
            ResentState::Sent => Self::Sent,
        }
    }
}
