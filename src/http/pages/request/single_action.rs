//! `GET /resume/{request_id}/approve` and `…/reject`: pages with one button, which sends the
//! approval or the rejection as a POST. The GETs themselves change nothing.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;

use super::{View, page_response, single_action_page};
use crate::engine::Refusal;
use crate::http::Http;
use crate::http::access;
use crate::http::pages::layout::HtmlPage;
use crate::http::server::caller::CurrentCaller;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::people::Caller;
use crate::store::RequestRow;
use crate::task::decision::Action;
use crate::task::id::RequestId;

pub(crate) const APPROVE: Op = Op::page("get_approve_page", &[Code::NotFound]);
pub(crate) const REJECT: Op = Op::page("get_reject_page", &[Code::NotFound]);

/// Get the page that approves
///
/// The page has one button, which sends the approval as a POST. If the approval would be refused,
/// the page says why instead. This GET never changes anything.
#[utoipa::path(
    get, path = "/resume/{request_id}/approve", operation_id = "get_approve_page", tag = "requests",
    params(("request_id" = String, Path, format = Uuid, description = "The request")),
    responses(HtmlPage)
)]
pub(crate) async fn get_approve_page(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    PathId(id): PathId<RequestId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    get_single_action_page(&http, &caller, id, &headers, Action::Approve).await
}

/// Get the page that rejects
///
/// The page has one button, which sends the rejection as a POST. If the rejection would be refused,
/// the page says why instead. This GET never changes anything.
#[utoipa::path(
    get, path = "/resume/{request_id}/reject", operation_id = "get_reject_page", tag = "requests",
    params(("request_id" = String, Path, format = Uuid, description = "The request")),
    responses(HtmlPage)
)]
pub(crate) async fn get_reject_page(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    PathId(id): PathId<RequestId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    get_single_action_page(&http, &caller, id, &headers, Action::Reject).await
}

/// Responds with a page that has one button, which submits `action`. If the reader follows the
/// page's link to sign in as another user, the sign-in leads back to this page.
///
/// # Errors
/// `not_found` or `forbidden` for a request that this caller may not read; `unavailable` or
/// `internal` when the request cannot be read.
async fn get_single_action_page(
    http: &Http,
    caller: &Caller,
    id: RequestId,
    headers: &HeaderMap,
    action: Action,
) -> Result<Response, Problem> {
    let row = access::readable_request(http, caller, id).await?;
    let mut view = View::load(http, &row, caller, headers, None).await?;
    view.return_path = format!("{}/{}", view.return_path, action.as_str());
    let mut refusal = view.refusal_reason(action);
    // If a tool has changed, `action` would not take effect: any answer withdraws the request, and
    // the engine judges the calls anew. So this page shows the refusal instead of its button. The
    // request's own page keeps its forms, by which a person can start the new judgement.
    if refusal.is_none() && asks_about_changed_tool(http, caller, &row, action).await? {
        refusal = Some(view.words.tool_has_changed);
    }
    let page = single_action_page(&view, action, refusal);
    Ok(page_response(&view, page))
}

/// Returns whether `action` would withdraw the request, because a tool has changed. An error other
/// than `unavailable`, such as an unreadable journal, counts as no change: the page keeps its
/// button.
async fn asks_about_changed_tool(
    http: &Http,
    caller: &Caller,
    row: &RequestRow,
    action: Action,
) -> Result<bool, Problem> {
    let decisions = http.engine.decisions();
    let changed = decisions.asks_about_changed_tool(caller, row, action);
    match changed.await {
        Err(Refusal::Unavailable) => Err(Problem::unavailable()),
        changed => Ok(changed.unwrap_or_default()),
    }
}
