//! `GET /v1/requests`: the requests in the caller's inbox, or every request of a tree.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::Uri;

use crate::http::Http;
use crate::http::access;
use crate::http::api::listing::Listing;
use crate::http::events::inbox::MAX_COUNTED;
use crate::http::events::inbox::filter::InboxFilter;
use crate::http::server::caller::{CurrentCaller, must_read_or_decide};
use crate::http::server::operation::Op;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::query::{MAX_LIMIT, Query, cursor_of};
use crate::http::wire::list::RequestList;
use crate::http::wire::params::{PageQuery, RequestQuery};
use crate::http::wire::request::InterventionRequest;
use crate::people::Caller;
use crate::people::authorization::{can_decide, inbox_person, may_decide, may_decide_any};
use crate::store::{RequestFilter, RequestRow};
use crate::task::id::{RequestId, TaskId};
use crate::task::status::RequestStatus;

pub(crate) const OP: Op = Op::api("list_requests", &[Code::NotFound, Code::Invalid]);

/// The maximum number of database reads for a page. [`list_page`] reads again while the page is
/// empty, because a read may find only requests that are not listed for this caller.
const MAX_READS: usize = 10;

/// List requests
///
/// Returns the pending requests that this caller may decide and has not answered, oldest first.
/// With another `status`: also requests that the caller has answered. With `task_id`: the requests
/// of that tree in any status, also those that the caller may not decide. All filters apply. `open`
/// counts the requests that wait for the caller under these filters, except `status`.
#[utoipa::path(
    get, path = "/v1/requests", operation_id = "list_requests", tag = "requests", params(RequestQuery, PageQuery),
    responses((status = 200, body = RequestList, description = "A page of requests"))
)]
pub(crate) async fn list_requests(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    uri: Uri,
) -> Result<Response, Problem> {
    let mut query = Query::from_uri(&uri);
    let tasks = query.task_ids("task_id");
    let mut statuses = query.words("status", &RequestStatus::ALL, RequestStatus::as_str);
    let filter = InboxFilter::from_query(&mut query);
    let (after, limit) = (query.cursor().map(RequestId), query.limit());
    if tasks.is_empty() {
        must_read_or_decide(&caller)?;
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
    if statuses.is_empty() && tasks.is_empty() {
        statuses.push(RequestStatus::Pending);
    }
    // A list of pending requests without `task_id` is the caller's inbox. The inbox leaves out
    // requests that the caller's key may not decide or that the caller has already answered.
    let inbox = tasks.is_empty()
        && statuses
            .iter()
            .all(|status| *status == RequestStatus::Pending);
    let open = open_requests(&http, &caller, &filter, &roots).await?;
    let filter = RequestFilter {
        person: tasks.is_empty().then(|| inbox_person(&caller)),
        statuses,
        roots,
        overdue: !inbox,
        after,
        limit,
        ..filter.open_for(&caller)
    };
    if inbox && !may_decide_any(&caller) {
        return Ok(list_response(Listing::new("requests"), None, open));
    }
    list_page(&http, &caller, filter, inbox, open).await
}

/// Returns the number of requests that wait for the caller and fit `filter`, but at most
/// [`MAX_COUNTED`]. Also returns whether there may be more such requests. If `roots` is not empty,
/// counts only the requests of these trees.
async fn open_requests(
    http: &Http,
    caller: &Caller,
    filter: &InboxFilter,
    roots: &[TaskId],
) -> Result<(usize, bool), Problem> {
    if !may_decide_any(caller) {
        return Ok((0, false));
    }
    if roots.is_empty() {
        let open = filter.open_for(caller);
        let open = http.store.open_requests(&open).await?;
        return Ok((open.len(), open.more));
    }
    let id_if_open = |row: RequestRow| {
        let waits_for_caller =
            filter.fits(&row) && can_decide(caller, &row.tenant, &row.owner, &row.state());
        waits_for_caller.then_some(row.spec.request_id)
    };
    let (store, tenant) = (&http.store, &caller.tenant);
    let pending = store.pending_ids_of(roots).await?;
    let open = store.filter_map_requests(tenant, &pending, id_if_open);
    let found = open.await?.len();
    Ok((found.min(MAX_COUNTED), found > MAX_COUNTED))
}

/// Returns whether the caller may decide the request with their present rights and key, or has
/// already answered it.
fn concerns(row: &RequestRow, caller: &Caller) -> bool {
    may_decide(caller, &row.tenant, &row.owner, &row.spec.terms.approvers).is_some()
        || row.state().answer_by(&caller.user_id, None).is_some()
}

fn list_response(
    listing: Listing,
    next: Option<String>,
    (open, open_more): (usize, bool),
) -> Response {
    listing.close(&[
        ("next_cursor", next.into()),
        ("open", open.into()),
        ("open_more", open_more.into()),
    ])
}

/// Returns the response with a page of requests. Reads until the page has an entry or no more
/// requests follow, and at most [`MAX_READS`] times. Reads no further if the store has stopped its
/// search early (`Page::scanned_to`).
///
/// If `inbox` is true, lists only the requests that the caller can decide now. If `inbox` is false
/// and the filter names trees, lists every request of these trees. If `inbox` is false and the
/// filter names no tree, lists the requests that concern the caller ([`concerns`]).
async fn list_page(
    http: &Http,
    caller: &Caller,
    mut filter: RequestFilter,
    inbox: bool,
    open: (usize, bool),
) -> Result<Response, Problem> {
    let mut listing = Listing::new("requests");
    let (limit, mut shown) = (filter.limit, 0);
    let mut reads = 0;
    let more = loop {
        let page = http.store.requests(&filter).await?;
        let (mut more, mut looked_at) = (page.more, page.scanned_to);
        for row in &page.rows {
            let is_listed = if inbox {
                can_decide(caller, &row.tenant, &row.owner, &row.state())
            } else {
                filter.person.is_none() || concerns(row, caller)
            };
            if is_listed {
                if shown == limit
                    || !listing.push(&InterventionRequest::listed(row, caller, &http.settings))?
                {
                    (more, looked_at) = (true, None);
                    break;
                }
                shown += 1;
            }
            filter.after = Some(row.spec.request_id);
        }
        filter.after = looked_at.map(RequestId).or(filter.after);
        reads += 1;
        if !more || !listing.is_empty() || looked_at.is_some() || reads == MAX_READS {
            break more;
        }
        // The next requests may all be for other people. With a large limit, one read skips many
        // such requests at once.
        filter.limit = MAX_LIMIT;
    };
    let next = filter.after.filter(|_| more);
    Ok(list_response(listing, next.map(|id| cursor_of(id.0)), open))
}
