//! `/l/{token}`: the page of one request, opened by the sealed link in a message. The page has no
//! script, and no hyperlink to another request or to a task.
//!
//! Invariant: the link alone identifies the reader as the person to whom the message was sent. The
//! operations read no key, cookie or session, and create none.

pub(crate) mod decide;
pub(crate) mod show;

use maud::{Markup, html};

use super::language::Language;
use super::layout::{utc_text, visible};
use super::request::View;
use super::request::texts::RequestTexts;
use super::translations::fill;
use crate::http::Http;
use crate::http::access;
use crate::http::server::link::CurrentLink;
use crate::http::server::problem::Problem;
use crate::http::server::session::next::sign_in_address;
use crate::people::Caller;
use crate::people::authorization::is_approver;
use crate::store::RequestRow;

/// Reads the request that a link is for.
///
/// # Errors
/// `not_found` if the request does not exist, or if the person to whom the link was sent is no
/// longer an approver of the request. The guard (`server/guard.rs`) gives the same error for a text
/// that is not a link. `unavailable` or `internal` if the request cannot be read.
async fn linked_request(
    http: &Http,
    caller: &Caller,
    link: &CurrentLink,
) -> Result<RequestRow, Problem> {
    let row = access::request(http, caller, link.request_id).await?;
    let approvers = &row.spec.terms.approvers;
    if is_approver(caller, &row.tenant, &row.owner, approvers) {
        Ok(row)
    } else {
        Err(Problem::not_found())
    }
}

/// Renders the first line of the page: the person to whom the link was sent, and the advice to any
/// other reader to close the page. If the person can decide, the line also says that a decision on
/// the page counts as theirs.
pub(crate) fn person_line(view: &View<'_>, link: &CurrentLink) -> Markup {
    let texts = view.texts;
    let user = visible(view.caller.user_id.as_str());
    let person = match &link.email {
        Some(email) => fill(
            texts.link_person,
            &[("user", &user), ("email", &visible(email))],
        ),
        None => user.clone(),
    };
    html! {
        p.by {
            bdi { (fill(texts.link_for, &[("person", &person)])) }
            @if view.request.can_decide { " " bdi { (fill(texts.link_counts, &[("user", &user)])) } }
            " " (texts.link_not_you)
        }
    }
}

/// Renders the last lines of the page: the time until which the link works, and the actions that
/// need a key. If the request's deadline is before the end of the link, the line with the time
/// begins with the deadline, because an answer is accepted only until then. The page of a closed
/// request leaves this line out, because its reader has nothing to answer.
pub(crate) fn expiry_lines(view: &View<'_>, link: &CurrentLink) -> Markup {
    let until = utc_text(&link.expires_at);
    let deadline = view.row.expires_at.filter(|at| *at < link.expires_at);
    let deadline = deadline.map(|at| utc_text(&at));
    html! {
        @if view.row.state().is_open() {
            p {
                @if let Some(at) = &deadline { (fill(view.texts.link_deadline, &[("at", at)])) " " }
                (fill(view.texts.link_until, &[("at", &until)]))
            }
        }
        p { (view.texts.link_rest) " " (sign_in_link(&view.return_path, &view.prefix, view.texts)) }
    }
}

/// Renders the notice that the sealed link does not permit the action, and a hyperlink to sign in.
pub(crate) fn key_needed_notice(view: &View<'_>) -> Markup {
    html! {
        p { strong { (view.texts.link_no_answer) } " " (sign_in_link(&view.return_path, &view.prefix, view.texts)) }
    }
}

/// Renders the hyperlink to the sign-in page, for the page of a problem. After the sign-in, the
/// browser opens the path `next`.
pub(crate) fn sign_in_paragraph(next: &str, prefix: &str, language: Language) -> Markup {
    html! { p { (sign_in_link(next, prefix, RequestTexts::for_language(language))) } }
}

/// Renders a hyperlink to the sign-in page, which opens the path `next` after the sign-in. With
/// `noreferrer`, the browser does not send the address of the present page along. This address may
/// be a sealed link, and a proxy may log what the browser sends to the sign-in page.
fn sign_in_link(next: &str, prefix: &str, texts: &RequestTexts) -> Markup {
    let address = sign_in_address(prefix, Some(next));
    html! { a href=(address) rel="noreferrer" { (texts.link_sign_in) } }
}
