//! `GET /v1/requests`: the inbox, or every request of a tree.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::Uri;

use crate::http::caller::Who;
use crate::http::operation::{Door, Op, SMALL};
use crate::http::params::RequestQuery;
use crate::http::problem::{Code, Problem};
use crate::http::query::{Query, cursor_of, cut};
use crate::http::wire::list::RequestList;
use crate::http::wire::request::{InterventionRequest, can_decide, status_of};
use crate::http::{Http, read};
use crate::store::RequestFilter;
use crate::task::id::{RequestId, TaskId};
use crate::task::request::RequestKind;
use crate::task::status::RequestStatus;

/// The operation.
pub const OP: Op = Op { id: "list_requests", door: Door::Key, body: SMALL, problems: &[Code::NotFound, Code::Invalid] };

/// List requests
///
/// What this caller may decide and has not yet, oldest first. With `task_id`: every request of that tree.
#[utoipa::path(
    get, path = "/v1/requests", operation_id = "list_requests", tag = "requests", params(RequestQuery),
    responses((status = 200, body = RequestList, description = "Some requests"))
)]
pub(crate) async fn list_requests(
    State(http): State<Arc<Http>>,
    Who(caller): Who,
    uri: Uri,
) -> Result<Json<RequestList>, Problem> {
    let mut query = Query::of(&uri);
    let tasks = query.many("task_id", "a task id", |text| text.parse::<TaskId>().ok());
    let mut wanted = query.many("status", "a request status", RequestStatus::parse);
    let kinds = query.many("kind", "a kind of request", RequestKind::parse);
    let (agents, sessions) = (query.texts("agent"), query.texts("session_id"));
    let (after, limit) = (query.cursor().map(RequestId), query.limit());
    if tasks.is_empty() && !caller.may.read && !caller.may.decide {
        return Err(Problem::forbidden("This key may not read."));
    }
    let mut roots = Vec::new();
    for task in &tasks {
        roots.push(read::readable(&http, &caller, *task).await?.root_task_id);
    }
    query.finish()?;
    if wanted.is_empty() && tasks.is_empty() {
        wanted.push(RequestStatus::Pending);
    }
    // The inbox proper shows neither what he has answered already (and others have not yet), nor what his key may not decide.
    let inbox = tasks.is_empty() && wanted.iter().all(|status| *status == RequestStatus::Pending);
    let filter = RequestFilter {
        tenant: caller.tenant.clone(),
        person: tasks.is_empty().then(|| read::person(&caller)),
        statuses: asked_of_store(&wanted),
        kinds: kinds.into_iter().map(|kind| kind.as_str().to_owned()).collect(),
        agents,
        sessions,
        roots,
        after,
        limit: limit + 1,
    };
    let mut rows = http.store.requests(&filter).await?;
    let more = cut(&mut rows, limit);
    let next_cursor = rows.last().filter(|_| more).map(|row| cursor_of(row.asked.request_id.0));
    let requests = rows
        .iter()
        .filter(|row| wanted.is_empty() || wanted.contains(&status_of(row)))
        .filter(|row| !inbox || can_decide(row, &caller))
        .map(|row| InterventionRequest::of(row, &caller, &http.settings))
        .collect();
    Ok(Json(RequestList { requests, next_cursor }))
}

/// What is past its deadline and not swept yet stands as pending in the store.
fn asked_of_store(wanted: &[RequestStatus]) -> Vec<RequestStatus> {
    let mut statuses = wanted.to_vec();
    if wanted.contains(&RequestStatus::Expired) && !wanted.contains(&RequestStatus::Pending) {
        statuses.push(RequestStatus::Pending);
    }
    statuses
}
