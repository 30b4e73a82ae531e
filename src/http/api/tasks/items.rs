//! `GET /v1/tasks/{task_id}/items`: the items of a task's journal.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::Uri;

use crate::http::Http;
use crate::http::access;
use crate::http::api::listing::Listing;
use crate::http::server::caller::CurrentCaller;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::query::Query;
use crate::http::wire::item::AgentTaskItem;
use crate::http::wire::list::ItemList;
use crate::http::wire::params::ItemQuery;
use crate::task::id::TaskId;

pub(crate) const OP: Op = Op::api("list_task_items", &[Code::NotFound, Code::Invalid]);

/// List a task's items
///
/// Returns the task's append-only journal in its order. A page has at most 4 MiB, so it may end
/// before `limit`; the last page is empty.
#[utoipa::path(
    get, path = "/v1/tasks/{task_id}/items", operation_id = "list_task_items", tag = "tasks",
    params(("task_id" = String, Path, format = Uuid, description = "The task"), ItemQuery),
    responses((status = 200, body = ItemList, description = "A page of items"))
)]
pub(crate) async fn list_task_items(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    PathId(id): PathId<TaskId>,
    uri: Uri,
) -> Result<Response, Problem> {
    access::readable_task(&http, &caller, id).await?;
    let mut query = Query::from_uri(&uri);
    let (after, limit) = (query.number("after").unwrap_or(0), query.limit());
    query.finish()?;
    let (mut listing, mut next_after) = (Listing::new("items"), after);
    for (item, _) in http.store.items(id, after, limit).await? {
        if !listing.push(&AgentTaskItem::from_item(id, &item, &http.settings))? {
            break;
        }
        next_after = item.seq;
    }
    Ok(listing.close(&[("next_after", next_after.into())]))
}
