//! Responds to a form with mistakes: shows the page with the form again, filled in with the
//! submitted values. Each mistake is shown at the top of the page and next to its field. The
//! response to any other error is a problem.

use axum::response::Response;
use http::StatusCode;
use maud::Markup;
use serde_json::Value;

use super::View;
use super::submitted::SubmittedForm;
use crate::engine::FieldError;
use crate::http::Http;
use crate::http::access;
use crate::http::pages::request;
use crate::http::server::accept::wants_html;
use crate::http::server::body::PostRequest;
use crate::http::server::fields::pointer;
use crate::http::server::problem::{Code, Problem, RenderedError};
use crate::task::decision::Action;
use crate::task::id::RequestId;

/// The member names that an error about submitted credentials may contain. Any other name may be a
/// secret that the person entered by mistake.
const MEMBERS: [&str; 7] = [
    "action",
    "decisions",
    "digest",
    "reason",
    "then",
    "response",
    "result",
];

/// Responds with the page of the request `id`, which shows the form and its mistakes. `problem` is
/// the reason why the POST was refused. `path_action` is the action in the POST's path, if any.
///
/// # Errors
/// Fails with `problem` itself if its code is not `invalid`, if the body is not a form, or if the
/// client does not accept HTML. Also fails with `problem` if the caller cannot read the request,
/// or if the form cannot be checked for secrets. Fails with another problem if the data of the page
/// cannot be read.
pub(crate) async fn rerender(
    http: &Http,
    id: RequestId,
    posted: &PostRequest,
    path_action: Option<Action>,
    problem: Problem,
) -> Result<Response, Problem> {
    if !is_shown(posted, &problem) {
        return Err(problem);
    }
    let Ok(row) = access::readable_request(http, &posted.caller, id).await else {
        return Err(problem);
    };
    let view = View::load(http, &row, &posted.caller, &posted.headers, None).await?;
    page(http, view, posted, path_action, problem).await
}

/// Returns whether the response is the page with the form. If not, the response is the problem.
fn is_shown(posted: &PostRequest, problem: &Problem) -> bool {
    problem.code == Code::Invalid && posted.is_form() && wants_html(&posted.headers)
}

/// Responds with the page of `view`, which shows the form and its mistakes. `problem` is the reason
/// why the POST was refused.
///
/// # Errors
/// Fails with `problem` itself if its code is not `invalid`, if the body is not a form, if the
/// client does not accept HTML, or if the form cannot be checked for secrets.
pub(crate) async fn page(
    http: &Http,
    view: View<'_>,
    posted: &PostRequest,
    path_action: Option<Action>,
    problem: Problem,
) -> Result<Response, Problem> {
    let (true, Ok(fields)) = (is_shown(posted, &problem), posted.fields()) else {
        return Err(problem);
    };
    // A page shows no secret, not even to the person who typed it.
    let decisions = http.engine.decisions();
    let Ok(fields) = decisions.without_secrets(view.row.task_id, fields).await else {
        return Err(problem);
    };
    let submitted = SubmittedForm::new(
        view.row,
        path_action,
        fields,
        &problem.errors,
        request::has_single_call_forms(&view),
    );
    // A person with open calls can correct the form, so the page does not lead them to another
    // question.
    let can_correct = view.row.state().is_open() && !view.open_calls().is_empty();
    let view = View {
        submitted: Some(&submitted),
        next_question: view.next_question.filter(|_| !can_correct),
        ..view
    };
    let mut response = request::page_response(&view, page_with_mistakes(&view, path_action));
    *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    response.extensions_mut().insert(RenderedError);
    Ok(response)
}

/// Renders the page that shows the form again. If the request asks for a yes or no, and the path of
/// the POST named the action (`path_action`), this page is the one with a single button. Otherwise
/// this page is the request's own page.
pub(super) fn page_with_mistakes(view: &View<'_>, path_action: Option<Action>) -> Markup {
    match path_action.filter(|_| view.row.spec.kind.is_yes_or_no()) {
        Some(action) => request::single_action_page(view, action, view.refusal_reason(action)),
        None => request::request_page(view),
    }
}

/// Removes unknown member names from errors about submitted credentials, because a person may have
/// entered a secret as a name. The known names are [`MEMBERS`] and, inside `response`, the
/// properties of the schema `form`. Each changed pointer ends before its first unknown name.
pub(crate) fn without_unknown_names(problem: Problem, form: &Value) -> Problem {
    if problem.code != Code::Invalid {
        return problem;
    }
    let mut errors = problem.errors;
    for error in &mut errors {
        let mut parts = error.pointer.split('/').skip(1);
        let in_form = |name: &&str| form["properties"].get(*name).is_some();
        let member = parts.next().filter(|name| MEMBERS.contains(name));
        let field = parts
            .next()
            .filter(|name| member == Some("response") && in_form(name));
        let known = member
            .into_iter()
            .chain(field)
            .fold(String::new(), |known, name| pointer(&known, name));
        if known != error.pointer {
            *error = FieldError {
                pointer: known,
                detail: "has an unknown member".into(),
            };
        }
    }
    errors.dedup();
    Problem::invalid(&errors)
}
