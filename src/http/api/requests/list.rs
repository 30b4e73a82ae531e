//! `GET /v1/requests`: the inbox, or every request of a tree.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::Uri;

use crate::http::Http;
use crate::http::api::access;
use crate::http::api::listing::Listing;
use crate::http::server::caller::CurrentCaller;
use crate::http::server::operation::{AuthClass, Op, SMALL};
use crate::http::server::params::RequestQuery;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::query::{MOST, Query, cursor_of};
use crate::http::wire::list::RequestList;
use crate::http::wire::request::{InterventionRequest, state};
use crate::people::Caller;
use crate::people::may::can_decide;
use crate::store::RequestFilter;
use crate::task::id::{RequestId, TaskId};
use crate::task::request::RequestKind;
use crate::task::status::RequestStatus;

pub(crate) const OP: Op = Op {
    id: "list_requests",
    auth: AuthClass::Key,
    body: SMALL,
    problems: &[Code::NotFound, Code::Invalid],
};

/// List requests
///
/// Returns the requests that this caller may decide and has not answered, oldest first. With
/// `task_id`: every request of that tree.
#[utoipa::path(
    get, path = "/v1/requests", operation_id = "list_requests", tag = "requests", params(RequestQuery),
    responses((status = 200, body = RequestList, description = "A page of requests"))
)]
pub(crate) async fn list_requests(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    uri: Uri,
) -> Result<Response, Problem> {
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
        roots.push(
            access::readable_task(&http, &caller, *task)
                .await?
                .root_task_id,
        );
    }
    query.finish()?;
    if wanted.is_empty() && tasks.is_empty() {
        wanted.push(RequestStatus::Pending);
    }
    // The inbox leaves out requests that the caller's key may not decide, and requests that the
    // caller has answered and that still wait for other people.
    let inbox = tasks.is_empty()
        && wanted
            .iter()
            .all(|status| *status == RequestStatus::Pending);
    let filter = RequestFilter {
        tenant: caller.tenant.clone(),
        person: tasks.is_empty().then(|| access::inbox_person(&caller)),
        statuses: wanted,
        kinds: kinds
            .into_iter()
            .map(|kind| kind.as_str().to_owned())
            .collect(),
        agents,
        sessions,
        roots,
        overdue: !inbox,
        after,
        limit,
    };
    if inbox && !caller.may.decide {
        return Listing::of("requests").close("next_cursor", &None::<String>);
    }
    list_page(&http, &caller, filter, inbox).await
}

/// Reads until the page has an entry or no request follows. The inbox skips requests that this
/// caller may not decide.
async fn list_page(
    http: &Http,
    caller: &Caller,
    mut filter: RequestFilter,
    inbox: bool,
) -> Result<Response, Problem> {
    let mut listing = Listing::of("requests");
    let (limit, mut shown) = (filter.limit, 0);
    let more = loop {
        let page = http.store.requests(&filter).await?;
        let (mut more, mut looked_at) = (page.more, page.looked_at);
        for row in &page.rows {
            if !inbox || can_decide(caller, &row.tenant, &row.owner, &state(row)) {
                if shown == limit
                    || !listing.push(&InterventionRequest::listed(row, caller, &http.settings))?
                {
                    (more, looked_at) = (true, None);
                    break;
                }
                shown += 1;
            }
            filter.after = Some(row.asked.request_id);
        }
        filter.after = looked_at.map(RequestId).or(filter.after);
        if !more || !listing.is_empty() {
            break more;
        }
        // The next requests may all be for other people; large reads skip them fastest.
        filter.limit = MOST;
    };
    listing.close(
        "next_cursor",
        &filter.after.filter(|_| more).map(|id| cursor_of(id.0)),
    )
}
