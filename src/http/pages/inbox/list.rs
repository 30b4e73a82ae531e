//! `GET /inbox`: the requests that wait for a person, oldest first. A request that expires within
//! an hour is urgent. The first page searches the [`MAX_SEARCHED_FOR_URGENT`] oldest requests for
//! urgent requests, and shows these before all others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Uri};
use maud::{Markup, html};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::list_address;
use super::rows::open_row;
use crate::http::Http;
use crate::http::events::inbox::MAX_COUNTED;
use crate::http::events::inbox::filter::InboxFilter;
use crate::http::pages::follow;
use crate::http::pages::language::named_texts;
use crate::http::pages::layout::{HtmlPage, utc_text, visible};
use crate::http::pages::request::kind::kind_word;
use crate::http::pages::site::{NavPage, Site};
use crate::http::pages::translations::fill;
use crate::http::server::caller::{CurrentCaller, must_read_or_decide};
use crate::http::server::operation::Op;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::query::Query;
use crate::http::wire::params::{CursorQuery, InboxQuery};
use crate::people::Caller;
use crate::people::authorization::{can_decide, may_decide_any};
use crate::store::{OpenRequest, Page, RequestRow};
use crate::task::id::RequestId;
use crate::task::request::RequestKind;
use crate::task::time::Time;

pub(crate) const OP: Op = Op::page("get_inbox", &[Code::Invalid]);

/// A request that expires within this time is urgent: its row is marked.
pub(super) const URGENT_WITHIN: Duration = Duration::from_hours(1);
const MAX_ROWS: usize = 50;
/// The number of oldest requests in which the first page searches for urgent requests. The page
/// shows the urgent requests before all others.
const MAX_SEARCHED_FOR_URGENT: usize = 200;

/// The page of the inbox
///
/// Shows the requests that this caller may decide and has not answered, oldest first.
///
/// A parameter without a value counts as left out.
#[utoipa::path(
    get,
    path = "/inbox",
    operation_id = "get_inbox",
    tag = "pages",
    params(InboxQuery, CursorQuery),
    responses(HtmlPage)
)]
pub(crate) async fn get_inbox(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    must_read_or_decide(&caller)?;
    let mut query = Query::from_uri(&uri);
    query.drop_empty();
    let filter = InboxFilter::from_query(&mut query);
    let after = query.cursor().map(RequestId);
    query.finish()?;
    let inbox = InboxPage::read(&http, &caller, filter, after).await?;
    let site = Site::new(&http, &caller, &headers);
    Ok(follow::page_with_script(inbox.page(&site, &http)))
}

struct InboxPage {
    filter: InboxFilter,
    rows: Vec<RequestRow>,
    /// The number of waiting requests that fit the filter, up to [`MAX_COUNTED`]. If `has_more` is
    /// true, more may be waiting.
    open: usize,
    has_more: bool,
    /// The number of waiting requests after this page. The requests of this page and `remaining`
    /// together are at most [`MAX_COUNTED`].
    remaining: usize,
    /// The id of the request after which the next page begins; `None` on the last page.
    next: Option<RequestId>,
    has_urgent: bool,
    is_first: bool,
}

impl InboxPage {
    async fn read(
        http: &Http,
        caller: &Caller,
        filter: InboxFilter,
        after: Option<RequestId>,
    ) -> Result<Self, Problem> {
        let all = open_requests(http, caller, &filter, None).await?;
        let (requests, urgent) = match after {
            Some(_) => (
                open_requests(http, caller, &filter, after).await?,
                Vec::new(),
            ),
            None => (all.clone(), urgent(&all, http.clock.now())),
        };
        let others = requests.iter().map(|request| request.id);
        let others = others.filter(|id| !urgent.contains(id));
        let free_rows = MAX_ROWS.saturating_sub(urgent.len());
        let shown: Vec<RequestId> = others.clone().take(free_rows).collect();
        let remaining = others.count() - shown.len();
        let next = match shown.last() {
            Some(last) if remaining > 0 => Some(*last),
            // The urgent requests fill this page. The next page begins with the oldest request of
            // all, because the nil id precedes every id.
            None if remaining > 0 => Some(RequestId(Uuid::nil())),
            _ => requests.next(|request| request.id.0).map(RequestId),
        };
        let ids: Vec<RequestId> = urgent.iter().copied().chain(shown).collect();
        let mut rows = http.store.requests_by_id(&caller.tenant, &ids).await?;
        rows.retain(|row| can_decide(caller, &row.tenant, &row.owner, &row.state()));
        rows.sort_by_key(|row| ids.iter().position(|id| *id == row.spec.request_id));
        Ok(Self {
            filter,
            rows,
            open: all.len(),
            has_more: all.more,
            remaining,
            next,
            has_urgent: !urgent.is_empty(),
            is_first: after.is_none(),
        })
    }

    fn page(&self, site: &Site<'_>, http: &Http) -> Markup {
        let (texts, now) = (site.texts(), http.clock.now());
        let shown_at = utc_text(&now);
        // The time without the date.
        let as_of = shown_at.get(11..).unwrap_or(&shown_at);
        let is_filtered = !self.filter.is_empty();
        let address = format!("{}/inbox", site.prefix);
        site.page_with_open_count(
            NavPage::Inbox,
            texts.inbox,
            &self.open_text(),
            &html! {
                div.line {
                    h1 { (texts.inbox) " " span #open-heading { (self.open_text()) } }
                    p.soft {
                        span #inbox-state { (fill(texts.as_of, &[("at", &as_of)])) }
                        " · " a href=(self.query_address(&address, None)) { (texts.look_again) }
                    }
                }
                (self.filter_form(site, &address))
                p #inbox-new aria-live="polite" {}
                @if self.rows.is_empty() && self.next.is_some() {
                    p { (texts.none_so_far) }
                } @else if self.rows.is_empty() && is_filtered {
                    p #inbox-empty { (texts.nothing_matches) " " a href=(address) { (texts.show_all) } }
                } @else if self.rows.is_empty() {
                    p #inbox-empty { (texts.nothing_open) " " a href=(format!("{address}/decided")) { (texts.decided) } }
                }
                @if self.has_urgent { p.soft { (texts.urgent_first) } }
                ul #inbox-rows .rows {
                    @for row in &self.rows { (open_row(site, row, &http.settings, now)) }
                }
                @if !self.is_first { p { a href=(self.query_address(&address, None)) { (texts.first_page) } } }
                @if let Some(next) = self.next {
                    p {
                        a #inbox-next href=(self.query_address(&address, Some(next))) { (fill(texts.next_page, &[("count", &self.count_text(self.remaining))])) }
                    }
                }
                p.soft { (texts.newest_last) }
                (self.script(site))
            },
        )
    }

    fn open_text(&self) -> String {
        if self.open >= MAX_COUNTED {
            "1,000+".to_owned()
        } else {
            self.count_text(self.open)
        }
    }

    /// Returns a number of requests as text, with a plus sign if more may be waiting.
    fn count_text(&self, count: usize) -> String {
        format!("{count}{}", if self.has_more { "+" } else { "" })
    }

    fn query_address(&self, path: &str, after: Option<RequestId>) -> String {
        list_address(path, &self.filter, false, after)
    }

    fn filter_form(&self, site: &Site<'_>, address: &str) -> Markup {
        let (texts, words) = (site.texts(), site.words());
        let agents = self.rows.iter().filter_map(|row| row.agent_path.last());
        let agents: BTreeSet<&String> = agents.chain(&self.filter.agents).collect();
        html! {
            details.filter open[!self.filter.is_empty()] {
                summary { (texts.filter) }
                form method="get" action=(address) {
                    div.field {
                        label for="kind" { (words.kind) }
                        select #kind name="kind" {
                            option value="" { (texts.all) }
                            @for kind in RequestKind::ALL {
                                option value=(kind.as_str()) selected[self.filter.kinds.contains(&kind)] { (kind_word(kind, words)) }
                            }
                        }
                    }
                    div.field {
                        label for="agent" { (words.agent) }
                        select #agent name="agent" {
                            option value="" { (texts.all) }
                            @for agent in agents {
                                option value=(agent) selected[self.filter.agents.contains(agent)] { (visible(agent)) }
                            }
                        }
                    }
                    div.field {
                        label for="session" { (words.session) }
                        input #session name="session_id" maxlength="128" autocomplete="off" value=[self.filter.sessions.first()];
                    }
                    button type="submit" .second { (texts.show) }
                }
            }
        }
    }

    /// Renders the script and its data: the address of the events, the counts and the texts.
    fn script(&self, site: &Site<'_>) -> Markup {
        let events = self.query_address(&format!("{}/v1/events", site.prefix), None);
        html! {
            div #inbox-live hidden data-events=(events) data-open=(self.open) data-more[self.has_more]
                data-requests=(format!("{}/resume/", site.prefix))
                data-words=(Value::Object(script_texts(site)))
            {
                button #inbox-tell type="button" .second { (site.texts().notify) }
                span #inbox-tell-note role="status" {}
            }
            (follow::script_tags(&site.prefix, &["inbox.js"]))
        }
    }
}

fn script_texts(site: &Site<'_>) -> Map<String, Value> {
    let (texts, words) = (site.texts(), site.words());
    let of_list = named_texts![texts:
        live not_live new_one new_many notify notify_stop notify_refused notify_title
        row_decided row_over row_expired row_withdrawn row_answered have_approved
    ];
    let kinds = RequestKind::ALL.map(|kind| {
        let word = kind_word(kind, words);
        (format!("short_{}", kind.as_str()), Value::from(word))
    });
    let of_requests =
        named_texts![words: did_approve did_reject did_edit did_respond did_retry did_mixed];
    of_list
        .into_iter()
        .chain(kinds)
        .chain(of_requests)
        .collect()
}

/// Reads the requests that wait for a caller, oldest first, beginning after the request `after`.
/// Returns at most [`MAX_COUNTED`] requests, and none for a caller who may not decide.
pub(super) async fn open_requests(
    http: &Http,
    caller: &Caller,
    filter: &InboxFilter,
    after: Option<RequestId>,
) -> Result<Page<OpenRequest>, Problem> {
    if !may_decide_any(caller) {
        return Ok(Page::empty());
    }
    let mut wanted = filter.open_for(caller);
    wanted.after = after;
    Ok(http.store.open_requests(&wanted).await?)
}

/// Searches the oldest [`MAX_SEARCHED_FOR_URGENT`] requests for those that expire within
/// [`URGENT_WITHIN`]. Returns at most [`MAX_ROWS`] of them, ordered by deadline.
fn urgent(requests: &[OpenRequest], now: Time) -> Vec<RequestId> {
    let oldest = requests.iter().take(MAX_SEARCHED_FOR_URGENT);
    let mut soon: Vec<(Time, RequestId)> = oldest
        .filter_map(|request| Some((request.expires_at?, request.id)))
        .filter(|(at, _)| at.since(now) <= URGENT_WITHIN)
        .collect();
    soon.sort_unstable();
    soon.truncate(MAX_ROWS);
    soon.into_iter().map(|(_, id)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heading_counts_up_to_a_thousand_and_then_says_that_there_may_be_more() {
        for (open, has_more, shown) in [
            (0, false, "0"),
            (12, true, "12+"),
            (999, false, "999"),
            (1000, false, "1,000+"),
            (1000, true, "1,000+"),
        ] {
            let inbox = InboxPage {
                filter: InboxFilter::default(),
                rows: Vec::new(),
                open,
                has_more,
                remaining: 0,
                next: None,
                has_urgent: false,
                is_first: true,
            };
            assert_eq!(inbox.open_text(), shown);
        }
    }
}
