//! Renders a problem as a page, with the links that may help its reader.

use maud::Markup;
use uuid::Uuid;

use super::RequestContext;
use super::known_paths::{page_path, start_of};
use crate::engine::{Detail, DetailCode};
use crate::http::pages::layout;
use crate::http::pages::link::sign_in_paragraph;
use crate::http::pages::resume;
use crate::http::pages::sign_in::{self, sign_in_again};
use crate::http::server::caller::CurrentCaller;
use crate::http::server::problem::{Code, Problem, path_prefix};
use crate::http::server::session::next::local_path;

pub(super) fn render(
    public_url: &str,
    context: &RequestContext,
    problem: &Problem,
    caller: Option<CurrentCaller>,
) -> Markup {
    let prefix = path_prefix(public_url);
    let sign_in = sign_in_link(context, problem, caller, &prefix);
    let back = back_path(context, problem, &prefix);
    layout::problem_page(
        problem,
        context.id_on_page(problem.code),
        context.language,
        sign_in.as_ref(),
        back.as_deref(),
    )
}

/// Renders the link to the sign-in page for the page of a problem; `None` if a sign-in would not
/// help.
fn sign_in_link(
    context: &RequestContext,
    problem: &Problem,
    caller: Option<CurrentCaller>,
    prefix: &str,
) -> Option<Markup> {
    // Without a page to return to, such as after `/sign-out`, the sign-in leads to the inbox.
    let page = page_path(&context.path).unwrap_or("/inbox");
    let path = format!("{prefix}{page}");
    let sign_in_to = |next: &str| sign_in_paragraph(next, prefix, context.language);
    // The page of a `Forbidden` offers to sign in as another user, who may have access. The page of
    // a `NotFound` makes the same offer, so that it does not reveal whether the resource exists.
    if matches!(problem.code, Code::Forbidden | Code::NotFound) {
        caller.map(|CurrentCaller(caller)| sign_in_again(&caller, &path, prefix, context.language))
    } else if problem.code == Code::LinkExpired
        || start_of(&sign_in::show::OP) == Some(context.path.as_str())
    {
        Some(sign_in_to(&format!("{prefix}/inbox")))
    } else if problem.code == Code::Unauthorized {
        // The session may have ended while the person had a form open. The sign-in leads back to
        // the page with the form.
        local_path(&path, prefix).map(sign_in_to)
    } else {
        None
    }
}

/// Returns the path to which the page of a problem links back; `None` for a page without this link.
/// If the HTTP request was for an intervention request's page, or for a form on it, the link leads
/// to that page. After a problem that leaves open whether the reader may see the intervention
/// request, there is no link. If the page with the form was shown to another user
/// (`ShownToAnother`), the link leads to the page with the form, whichever page this is.
fn back_path(context: &RequestContext, problem: &Problem, prefix: &str) -> Option<String> {
    let may_hide_request = matches!(
        problem.code,
        Code::Unauthorized | Code::Forbidden | Code::NotFound | Code::LinkExpired
    );
    let is_others_form = problem.detail == Detail::Coded(DetailCode::ShownToAnother);
    if may_hide_request && !is_others_form && !problem.members.contains_key("request") {
        return None;
    }
    if context.is_link() {
        return Some(format!("{prefix}{}", context.path));
    }
    let start = start_of(&resume::show::OP)?;
    let Some(rest) = context.path.strip_prefix(start) else {
        let page = page_path(&context.path).filter(|_| is_others_form)?;
        return Some(format!("{prefix}{page}"));
    };
    let id = rest.split(['/', '?']).next()?;
    let id = Uuid::parse_str(id).ok()?;
    Some(format!("{prefix}{start}{id}"))
}
