//! `GET /inbox/decided`: the requests that a person has answered. With `all=1`, the list also has
//! the requests that other people have decided, if the person has the right to decide them.
//!
//! The pages follow the order in which the requests were opened: the first page has the newest
//! requests. The cursor is the id of a request, and ids are in this order. Within a page, the rows
//! follow the time of the answers: the first row has the newest answer.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Uri};
use maud::{Markup, html};

use super::list_address;
use super::rows::request_link;
use crate::http::events::inbox::filter::InboxFilter;
use crate::http::pages::follow;
use crate::http::pages::layout::{HtmlPage, time_tag, visible};
use crate::http::pages::reasons;
use crate::http::pages::request::deadline::duration_text;
use crate::http::pages::site::{NavPage, Site};
use crate::http::pages::site_texts::SiteTexts;
use crate::http::pages::translations::fill;
use crate::http::server::caller::{CurrentCaller, must_read_or_decide};
use crate::http::server::operation::Op;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::query::Query;
use crate::http::wire::params::{CursorQuery, DecidedQuery, InboxQuery};
use crate::http::{Http, Settings};
use crate::people::Caller;
use crate::people::authorization::{inbox_person, may_decide, required_approvals};
use crate::store::RequestRow;
use crate::task::decision::Action;
use crate::task::id::RequestId;
use crate::task::request_state::TimedDecision;
use crate::task::status::RequestStatus;

pub(crate) const OP: Op = Op::page("get_decided", &[Code::Invalid]);

const MAX_ROWS: usize = 50;
const REQUESTS_PER_READ: i64 = 50;
/// The maximum number of database reads for one page.
const MAX_READS: usize = 40;

/// The page of decided requests
///
/// Shows the requests that this caller has answered. The pages go from the most recently opened
/// requests to older ones. Within a page, the newest answer comes first.
///
/// A parameter without a value counts as left out.
#[utoipa::path(
    get,
    path = "/inbox/decided",
    operation_id = "get_decided",
    tag = "pages",
    params(DecidedQuery, InboxQuery, CursorQuery),
    responses(HtmlPage)
)]
pub(crate) async fn get_decided(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    must_read_or_decide(&caller)?;
    let mut query = Query::from_uri(&uri);
    query.drop_empty();
    let filter = InboxFilter::from_query(&mut query);
    let all = query.one("all", "1", |text| (text == "1").then_some(()));
    let before = query.cursor().map(RequestId);
    query.finish()?;
    let (mut rows, next) = read(&http, &caller, &filter, all.is_some(), before).await?;
    rows.sort_by_key(|row| Reverse(shown_answer(row, &caller).map(|(_, (at, _))| *at)));
    let site = Site::new(&http, &caller, &headers);
    let shown = page(&site, &http, &filter, &rows, all.is_some(), next);
    Ok(follow::page_with_script(shown))
}

/// Reads a page of decided requests, the most recently opened first. If more requests may follow,
/// also returns the id of the last request that this page has shown or skipped. The next page
/// begins after this request.
async fn read(
    http: &Http,
    caller: &Caller,
    filter: &InboxFilter,
    include_others: bool,
    mut before: Option<RequestId>,
) -> Result<(Vec<RequestRow>, Option<RequestId>), Problem> {
    let (store, tenant) = (&http.store, &caller.tenant);
    let (person, mut shown) = (inbox_person(caller), Vec::new());
    for _ in 0..MAX_READS {
        let ids = store
            .decided_requests(tenant, &person, include_others, before, REQUESTS_PER_READ)
            .await?;
        let is_last_read = i64::try_from(ids.len()).is_ok_and(|count| count < REQUESTS_PER_READ);
        let mut rows = store.requests_by_id(tenant, &ids).await?;
        rows.reverse();
        for row in rows {
            if shown.len() == MAX_ROWS {
                return Ok((shown, before));
            }
            before = Some(row.spec.request_id);
            if filter.fits(&row) && is_shown(&row, caller, include_others) {
                shown.push(row);
            }
        }
        if is_last_read {
            return Ok((shown, None));
        }
        before = ids.last().copied();
    }
    Ok((shown, before))
}

/// Returns whether the list shows a request. The list shows each request that the caller has
/// answered. With `include_others`, the list also shows each decided request that the caller may
/// decide.
fn is_shown(row: &RequestRow, caller: &Caller, include_others: bool) -> bool {
    let own = || row.state().answer_by(&caller.user_id, None).is_some();
    let decided = || row.state().resolution().is_some();
    let approvers = &row.spec.terms.approvers;
    let may_decide_it = || may_decide(caller, &row.tenant, &row.owner, approvers).is_some();
    own() || (include_others && decided() && may_decide_it())
}

/// Returns the answer that the page shows for a request, and the action that the page names. If the
/// caller has answered, this is the caller's last answer. Otherwise it is the answer that closed
/// the request, or `None` if no answer closed it. The action is that of the answer, or `Mixed` if
/// the caller gave several answers with different actions.
fn shown_answer<'r>(row: &'r RequestRow, caller: &Caller) -> Option<(Action, &'r TimedDecision)> {
    let state = row.state();
    let own: Vec<_> = state.answers_by(&caller.user_id).collect();
    let Some(last) = own.last() else {
        let last = state.resolution()?.last;
        return Some((last.1.action, last));
    };
    let action = last.1.action;
    let is_same = own.iter().all(|answer| answer.1.action == action);
    Some((if is_same { action } else { Action::Mixed }, last))
}

fn page(
    site: &Site<'_>,
    http: &Http,
    filter: &InboxFilter,
    rows: &[RequestRow],
    include_others: bool,
    next: Option<RequestId>,
) -> Markup {
    let texts = site.texts();
    let path = format!("{}/inbox/decided", site.prefix);
    let address = |all, before| list_address(&path, filter, all, before);
    let label = if include_others {
        texts.own_only
    } else {
        texts.others_too
    };
    site.page(
        NavPage::Decided,
        texts.decided,
        &html! {
            h1 { (texts.decided) }
            p {
                a href=(address(!include_others, None)) { (label) }
                " · " a href=(format!("{}/grants", site.prefix)) { (texts.grants) }
            }
            @if rows.is_empty() { p { (if next.is_some() { texts.none_so_far } else { texts.nothing_decided }) } }
            ul.rows { @for row in rows { (decided_row(site, http, row)) } }
            @if next.is_some() { p { a href=(address(include_others, next)) { (texts.older) } } }
            (follow::script_tags(&site.prefix, &["times.js"]))
        },
    )
}

fn decided_row(site: &Site<'_>, http: &Http, row: &RequestRow) -> Markup {
    let (texts, words) = (site.texts(), site.words());
    let answer = shown_answer(row, site.caller);
    html! {
        li {
            (request_link(site, row, &http.settings))
            @if let Some((action, answer)) = answer { (answer_line(site, row, action, answer)) }
            p.soft {
                bdi { (visible(&row.agent_path.join(" › "))) }
                " · " bdi { (fill(texts.for_user, &[("user", &visible(&row.owner))])) }
                " · " (status_word(row, texts))
                @if let Some(missing) = missing_approvals_text(site, row, &http.settings) { " · " (missing) }
            }
            @for reason in answer.map_or_else(Vec::new, |(_, (_, answer))| reasons(answer)) {
                p { (words.reason) (words.colon) bdi { (visible(reason)) } }
            }
        }
    }
}

/// Renders an answer: its `action`, the person, the time of the answer, and the age of the request
/// at that time.
fn answer_line(
    site: &Site<'_>,
    row: &RequestRow,
    action: Action,
    (at, answer): &TimedDecision,
) -> Markup {
    let (texts, words) = (site.texts(), site.words());
    let what = words.action(action);
    let user = if site.caller.user_id.is_same_person(&answer.by) {
        texts.by_you.to_owned()
    } else {
        visible(&answer.by)
    };
    let by = fill(texts.by_at, &[("user", &user)]);
    let waited = duration_text(at.since(row.created_at), words);
    html! {
        p.status {
            (what) " " bdi { (by) } " " (time_tag(at)) " · " (fill(texts.waited, &[("time", &waited)]))
        }
    }
}

fn status_word(row: &RequestRow, texts: &SiteTexts) -> &'static str {
    match row.status {
        RequestStatus::Pending if row.expired => texts.state_expired,
        RequestStatus::Pending => texts.state_pending,
        RequestStatus::Responded => texts.state_responded,
        RequestStatus::Resumed => texts.state_resumed,
        RequestStatus::Expired => texts.state_expired,
        RequestStatus::Withdrawn => texts.state_withdrawn,
    }
}

/// Returns a text that says how many more people have to approve an open request. `None` if the
/// request is closed or needs a single approval.
pub(super) fn missing_approvals_text(
    site: &Site<'_>,
    row: &RequestRow,
    settings: &Settings,
) -> Option<String> {
    let (texts, state) = (site.texts(), row.state());
    let required = required_approvals(site.caller, &row.spec);
    let required = usize::try_from(required).unwrap_or(usize::MAX);
    let missing = required.saturating_sub(state.approval_count(settings.roster.ids()));
    match missing {
        _ if !state.is_open() || required < 2 => None,
        1 => Some(texts.waits_for_one.to_owned()),
        missing => Some(fill(texts.waits_for_more, &[("count", &missing)])),
    }
}
