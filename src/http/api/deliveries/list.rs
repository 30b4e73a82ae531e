//! `GET /v1/deliveries`: the tenant's deliveries.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::Uri;
use uuid::Uuid;

use crate::http::Http;
use crate::http::server::caller::{CurrentCaller, must_administer, must_read};
use crate::http::server::operation::Op;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::query::{Query, cursor_of};
use crate::http::wire::delivery::{Delivery, DeliveryList};
use crate::http::wire::params::{DeliveryQuery, PageQuery};
use crate::store::{DeliveryFilter, DeliveryState};
use crate::task::id::{RequestId, TaskId};

pub(crate) const OP: Op = Op::api("list_deliveries", &[Code::Invalid]);

/// List deliveries
///
/// Returns the deliveries of messages about the tenant's tasks, newest first; for an admin, or for
/// every caller of a service without accounts. A delivery that was sent or dropped is listed for 3
/// days, a dead delivery for 30 days.
#[utoipa::path(
    get, path = "/v1/deliveries", operation_id = "list_deliveries", tag = "deliveries", params(DeliveryQuery, PageQuery),
    responses((status = 200, body = DeliveryList, description = "A page of deliveries"))
)]
pub(crate) async fn list_deliveries(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    uri: Uri,
) -> Result<Json<DeliveryList>, Problem> {
    must_read(&caller)?;
    must_administer(&caller)?;
    let mut query = Query::from_uri(&uri);
    let filter = DeliveryFilter {
        tenant: caller.tenant.clone(),
        targets: query.texts("target"),
        states: query.words("state", &DeliveryState::ALL, DeliveryState::as_str),
        requests: query.many("request_id", "a request id", |text| {
            text.parse::<RequestId>().ok()
        }),
        roots: query.many("root_task_id", "a task id", |text| {
            text.parse::<TaskId>().ok()
        }),
        before: query.cursor(),
        limit: query.limit(),
    };
    query.finish()?;
    let page = http.store.deliveries(&filter).await?;
    let next: Option<Uuid> = page.next(|row| row.id);
    Ok(Json(DeliveryList {
        deliveries: page.iter().map(Delivery::from_row).collect(),
        next_cursor: next.map(cursor_of),
    }))
}
