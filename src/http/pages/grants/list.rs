//! `GET /grants`: the standing decisions that concern a person (for an admin, those of the whole
//! tenant), newest first. Each standing decision that the person may end has a form that ends it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Uri};
use maud::{Markup, html};

use crate::http::Http;
use crate::http::api::grants::list::read;
use crate::http::pages::follow;
use crate::http::pages::layout::{HtmlPage, time_tag, visible};
use crate::http::pages::shown_to;
use crate::http::pages::site::{NavPage, Site};
use crate::http::pages::site_texts::SiteTexts;
use crate::http::pages::translations::fill;
use crate::http::server::caller::{CurrentCaller, must_read_or_decide};
use crate::http::server::operation::Op;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::query::{Query, cursor_of};
use crate::http::wire::params::CursorQuery;
use crate::store::{GrantRow, Page};
use crate::task::grant::{GrantEnd, GrantScope};
use crate::task::id::GrantId;

pub(crate) const OP: Op = Op::page("get_grants_page", &[Code::Invalid]);

const MAX_ROWS: i64 = 50;

/// The page of standing decisions
///
/// Shows the approvals that also let later calls through, newest first: who gave them, for what,
/// until when, and how often they were used.
///
/// A parameter without a value counts as left out.
#[utoipa::path(
    get,
    path = "/grants",
    operation_id = "get_grants_page",
    tag = "pages",
    params(CursorQuery),
    responses(HtmlPage)
)]
pub(crate) async fn get_grants_page(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    must_read_or_decide(&caller)?;
    let mut query = Query::from_uri(&uri);
    query.drop_empty();
    let before = query.cursor().map(GrantId);
    query.finish()?;
    let rows = read(&http, &caller, before, MAX_ROWS).await?;
    let site = Site::new(&http, &caller, &headers);
    Ok(follow::page_with_script(page(&site, &http, &rows)))
}

fn page(site: &Site<'_>, http: &Http, rows: &Page<GrantRow>) -> Markup {
    let texts = site.texts();
    let next = rows.next(|row| row.grant_id.0);
    site.page(
        NavPage::Decided,
        texts.grants,
        &html! {
            h1 { (texts.grants) }
            p { (texts.grants_about) }
            @if rows.is_empty() { p { (if next.is_some() { texts.none_so_far } else { texts.no_grants }) } }
            ul.rows { @for row in rows.iter() { (grant_row(site, http, row)) } }
            @if let Some(next) = next {
                p { a href=(format!("{}/grants?cursor={}", site.prefix, cursor_of(next))) { (texts.older) } }
            }
            (follow::script_tags(&site.prefix, &["times.js"]))
        },
    )
}

fn grant_row(site: &Site<'_>, http: &Http, row: &GrantRow) -> Markup {
    let texts = site.texts();
    let tool = visible(&row.tool);
    let end = http.engine.grants().ended(row);
    let head = fill(
        texts.grant_tool,
        &[("tool", &tool), ("rule", &visible(&row.rule))],
    );
    let given = fill(texts.grant_given, &[("user", &visible(&row.by.by))]);
    html! {
        li {
            p { strong { bdi { (head) } } " · " bdi { (scope_text(row, texts)) } }
            p.about {
                bdi { (given) } " " (time_tag(&row.created_at))
                " · " (texts.grant_until) " " (time_tag(&row.expires_at))
                " · " (fill(texts.grant_used, &[("used", &row.used), ("uses", &row.uses)]))
                @if let Some(end) = end { " · " strong { (end_text(end, texts)) } }
            }
            p.soft {
                a href=(format!("{}/tasks/{}", site.prefix, row.root_task_id)) { (site.words().task) " " (row.root_task_id) }
            }
            @if end.is_none() && http.engine.grants().may_end(site.caller, row) {
                form method="post" action=(format!("{}/grants/{}", site.prefix, row.grant_id)) {
                    (shown_to::field(site.caller))
                    button.second type="submit" { bdi { (fill(texts.grant_end, &[("tool", &tool)])) } }
                }
            }
        }
    }
}

fn scope_text(row: &GrantRow, texts: &SiteTexts) -> String {
    let text = match row.scope {
        GrantScope::Task => texts.grant_of_task,
        GrantScope::Owner => texts.grant_of_owner,
    };
    let (user, agent) = (visible(&row.owner), visible(&row.agent));
    fill(text, &[("user", &user), ("agent", &agent)])
}

fn end_text(end: GrantEnd, texts: &SiteTexts) -> &'static str {
    match end {
        GrantEnd::Revoked => texts.ended_revoked,
        GrantEnd::Expired => texts.ended_expired,
        GrantEnd::UsedUp => texts.ended_used_up,
        GrantEnd::Message => texts.ended_message,
        GrantEnd::HistoryLost => texts.ended_history_lost,
        GrantEnd::Giver => texts.ended_giver,
        GrantEnd::Changed => texts.ended_changed,
    }
}
