//! `POST /l/{token}`: stores the answer of the person to whom the link was sent. Like every
//! operation that decides, this operation calls `store_decision`. The body must be the page's form,
//! with the digest of the request.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use utoipa::ToSchema;

use super::linked_request;
use crate::http::Http;
use crate::http::api::respond::mark_replayed;
use crate::http::pages::request::{View, invalid_form};
use crate::http::pages::resume::decide::{FORM_PROBLEMS, store_decision};
use crate::http::server::body::{PostRequest, must_be_form};
use crate::http::server::fields::variant;
use crate::http::server::link::CurrentLink;
use crate::http::server::operation::{AuthClass, Op};
use crate::http::server::problem::{Code, Problem};
use crate::http::server::session::see_other;
use crate::http::wire::params::KeyHeader;
use crate::task::decision::Action;

pub(crate) const OP: Op = Op {
    auth: AuthClass::Link,
    ..Op::page("decide_by_link", FORM_PROBLEMS)
};

/// The fields of the page's forms, in addition to the fields of the question's own form.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only documents the form")]
pub(crate) struct LinkAnswer {
    /// The digest of the request as the page showed it.
    digest: String,
    /// `approve`, `reject` or `respond`.
    #[schema(value_type = String, required = false)]
    action: Option<String>,
    /// The person's comment.
    #[schema(value_type = String, required = false)]
    reason: Option<String>,
    /// The effect of a rejection: `continue`, `cancel` or `cancel_root`.
    #[schema(value_type = String, required = false)]
    then: Option<String>,
    /// The effect of a rejection that the page announces. It counts if `then` is absent or empty,
    /// and has no meaning beside another action.
    #[schema(rename = "reject.then", value_type = String, required = false)]
    reject_then: Option<String>,
}

/// Decide a request by a link
///
/// The body is the form of the link's page, and must come from a page of this service. A link
/// permits approving, rejecting, and answering the agent's questions; every other action needs a
/// key.
#[utoipa::path(
    post, path = "/l/{token}", operation_id = "decide_by_link", tag = "requests",
    params(("token" = String, Path, description = "The sealed link of a message"), KeyHeader),
    request_body(content = LinkAnswer, content_type = "application/x-www-form-urlencoded"),
    responses((status = 303, description = "Stored: the link's page",
        headers(("Location" = String, description = "The link's page"))))
)]
pub(crate) async fn decide_by_link(
    State(http): State<Arc<Http>>,
    Extension(link): Extension<CurrentLink>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    let row = linked_request(&http, &posted.caller, &link).await?;
    match Box::pin(store_decision(
        &http,
        link.request_id,
        &posted,
        None,
        check_form,
    ))
    .await
    {
        Ok(accepted) => {
            let mut response = see_other(&link.path);
            mark_replayed(response.headers_mut(), accepted.replayed);
            Ok(response)
        }
        Err(problem) if problem.code == Code::Invalid => {
            let (caller, headers) = (&posted.caller, &posted.headers);
            let view = View::load(&http, &row, caller, headers, Some(&link)).await?;
            invalid_form::page(&http, view, &posted, action_in_form(&posted), problem).await
        }
        // The member `pending` of a problem lists the task's other open requests. The link gives no
        // right to see these requests, so the response leaves the member out.
        Err(mut problem) => {
            problem.members.remove("pending");
            Err(problem)
        }
    }
}

/// Returns the action in the form's field `action`, if it is `approve` or `reject`. The page of a
/// sealed link posts every action to the same path, so the form has this field for the action.
fn action_in_form(posted: &PostRequest) -> Option<Action> {
    let action: Action = variant(posted.fields().ok()?.get("action")?)?;
    matches!(action, Action::Approve | Action::Reject).then_some(action)
}

/// Checks that the body is a form with the digest of a request.
fn check_form(posted: &PostRequest) -> Result<(), Problem> {
    must_be_form(&posted.headers)?;
    if posted.fields()?.get("digest").is_none_or(String::is_empty) {
        let detail = "the digest of the request as the page showed it";
        return Err(Problem::invalid_at("/digest", detail));
    }
    Ok(())
}
