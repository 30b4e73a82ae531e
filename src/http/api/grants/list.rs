//! `GET /v1/grants`: the standing decisions that concern the caller.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::Uri;

use crate::http::Http;
use crate::http::server::caller::{CurrentCaller, must_read_or_decide};
use crate::http::server::operation::Op;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::query::{Query, cursor_of};
use crate::http::wire::grant::{GrantList, WireGrant};
use crate::http::wire::params::PageQuery;
use crate::people::Caller;
use crate::people::authorization::{inbox_person, sees_whole_tenant};
use crate::store::{GrantFilter, GrantRow, Page};
use crate::task::id::GrantId;

pub(crate) const OP: Op = Op::api("list_grants", &[Code::Invalid]);

/// List standing decisions
///
/// Returns standing decisions, newest first: those that the caller gave, those for the caller's own
/// tasks, and those given with a request that the caller may decide; for an admin, all of the
/// tenant. A standing decision is listed until 30 days after its `expires_at`.
#[utoipa::path(
    get, path = "/v1/grants", operation_id = "list_grants", tag = "grants", params(PageQuery),
    responses((status = 200, body = GrantList, description = "A page of standing decisions"))
)]
pub(crate) async fn list_grants(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    uri: Uri,
) -> Result<Json<GrantList>, Problem> {
    must_read_or_decide(&caller)?;
    let mut query = Query::from_uri(&uri);
    let (before, limit) = (query.cursor().map(GrantId), query.limit());
    query.finish()?;
    let page = read(&http, &caller, before, limit).await?;
    let next = page.next(|row| row.grant_id.0);
    let grants = page.iter();
    let grants = grants.map(|row| WireGrant::from_row(row, http.engine.grants().ended(row)));
    Ok(Json(GrantList {
        grants: grants.collect(),
        next_cursor: next.map(cursor_of),
    }))
}

/// Reads a page of the standing decisions that concern a caller. For an admin, reads a page of all
/// standing decisions of the tenant. The read of a page searches only a bounded number of standing
/// decisions, so an empty page may be followed by a page with entries.
///
/// # Errors
/// `unavailable` if the database does not answer; `internal` if a stored value cannot be decoded.
pub(crate) async fn read(
    http: &Http,
    caller: &Caller,
    before: Option<GrantId>,
    limit: i64,
) -> Result<Page<GrantRow>, Problem> {
    let filter = GrantFilter {
        tenant: caller.tenant.clone(),
        person: (!sees_whole_tenant(caller)).then(|| inbox_person(caller)),
        before,
        limit,
    };
    Ok(http.store.grants(&filter).await?)
}
