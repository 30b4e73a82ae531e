//! Renders a line for the page of a request, with a link to the next question. If the reader has
//! answered the request, the link has the focus, so the Enter key opens the next question.

use maud::{Markup, html};

use super::list::open_requests;
use super::rows::summary;
use crate::http::Http;
use crate::http::events::inbox::filter::InboxFilter;
use crate::http::pages::site::Site;
use crate::http::pages::translations::fill;
use crate::http::server::problem::Problem;
use crate::people::Caller;
use crate::people::authorization::may_decide;
use crate::store::RequestRow;

/// Renders the line with a link to the next question. If no other request waits, the line has a
/// sentence instead of this link. The reader gets the line if they have answered the request in
/// `row`, or if the request is closed and they have the right to decide it. Returns `None` for any
/// other reader.
///
/// # Errors
/// `unavailable` or `internal` when the inbox cannot be read.
pub(crate) async fn next_question_line(
    http: &Http,
    row: &RequestRow,
    site: &Site<'_>,
) -> Result<Option<Markup>, Problem> {
    let own = row.state().answers_by(&site.caller.user_id).next_back();
    if own.is_none() && !is_closed_for_approver(row, site.caller) {
        return Ok(None);
    }
    let open = open_requests(http, site.caller, &InboxFilter::default(), None).await?;
    // The page shows the request in `row` itself, so the link leads to another request.
    let mut others: Vec<_> = open.iter().map(|request| request.id).collect();
    others.retain(|id| *id != row.spec.request_id);
    let waits_here = others.len() < open.len();
    let count = others.len().saturating_sub(1);
    let mut next = None;
    for id in others {
        // `requests_by_id` leaves out an undecodable request; the loop then tries the next.
        let (store, tenant) = (&http.store, &site.caller.tenant);
        next = store.requests_by_id(tenant, &[id]).await?.pop();
        if next.is_some() {
            break;
        }
    }
    let (texts, words) = (site.texts(), site.words());
    let more = format!("{count}{}", if open.more { "+" } else { "" });
    Ok(Some(html! {
        p.next {
            @if let Some((_, answer)) = own { (words.action(answer.action)) (words.full_stop) " " }
            @match &next {
                Some(next) => {
                    a autofocus[own.is_some()] href=(format!("{}/resume/{}", site.prefix, next.spec.request_id)) {
                        span.exact { (fill(texts.next, &[("summary", &summary(next, texts))])) }
                    }
                    @if count > 0 { " · " (fill(texts.more_wait, &[("count", &more)])) }
                }
                None if waits_here => (texts.rest_waits),
                None => (texts.nothing_more),
            }
            " · " a href=(format!("{}/inbox", site.prefix)) { (texts.inbox) }
        }
    }))
}

/// Returns whether the request takes no more answers, and `caller` has the right to decide it.
fn is_closed_for_approver(row: &RequestRow, caller: &Caller) -> bool {
    let approvers = &row.spec.terms.approvers;
    !row.state().is_open() && may_decide(caller, &row.tenant, &row.owner, approvers).is_some()
}
