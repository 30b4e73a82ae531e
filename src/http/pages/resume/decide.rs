//! `POST /resume/{request_id}`: stores a person's answer. The paths `…/approve` and `…/reject` name
//! the action, so their bodies may be empty. Every operation that decides a request calls
//! [`store_decision`], so that every answer passes the same checks.

use std::sync::{Arc, OnceLock};

use axum::extract::State;
use axum::response::Response;
use utoipa::IntoResponses;

use super::decision_body;
use crate::engine::{Accepted, DecidableRequest, DecisionInput, DetailCode};
use crate::http::Http;
use crate::http::access;
use crate::http::api::respond::{self, SuccessStatus};
use crate::http::api::submit::submit;
use crate::http::events::opening;
use crate::http::events::stream_limiter::StreamPermit;
use crate::http::pages::request::{form, invalid_form};
use crate::http::pages::shown_to;
use crate::http::server::body::{PostRequest, form_fields};
use crate::http::server::json;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::session::redirect;
use crate::http::wire::body::{ApproveBody, RejectBody, WireDecisionBody};
use crate::http::wire::params::{KeyHeader, PreferHeader};
use crate::http::wire::task::AgentTask;
use crate::people::authorization::may_decide_any;
use crate::store::RequestRow;
use crate::task::decision::{Action, Door};
use crate::task::id::RequestId;

const PROBLEMS: &[Code] = &[
    Code::BadJson,
    Code::NotFound,
    Code::RequestWithdrawn,
    Code::AlreadyDecided,
    Code::RequestExpired,
    Code::DigestMismatch,
    Code::UnsupportedMediaType,
    Code::Invalid,
    Code::IdempotencyKeyReused,
];

/// The problems of an operation that takes an answer as a form only. A form is never bad JSON, so
/// the list leaves out `BadJson`, the first of [`PROBLEMS`].
pub(crate) const FORM_PROBLEMS: &[Code] = {
    assert!(matches!(PROBLEMS, [Code::BadJson, ..]));
    PROBLEMS.split_at(1).1
};

#[derive(IntoResponses)]
#[expect(dead_code, reason = "only documents the responses")]
pub(crate) enum DecisionResponses {
    #[response(status = 200, description = "Stored, and the root task no longer runs")]
    Stopped(AgentTask),
    #[response(status = 202, description = "Stored, and the root task still runs")]
    Running(AgentTask),
    #[response(status = 303, description = "Stored, and a page's form posted it: the request's page",
        headers(("Location" = String, description = "The request's page")))]
    Page,
}

pub(crate) const DECIDE: Op = Op::page("decide_request", PROBLEMS);
pub(crate) const APPROVE: Op = Op::page("approve_request", PROBLEMS);
pub(crate) const REJECT: Op = Op::page("reject_request", PROBLEMS);

/// Decide a request
///
/// Returns the root task after the decision took effect. A 2xx status means that the decision is
/// stored, not that the task succeeded.
///
/// Also takes the form of the request's page (`application/x-www-form-urlencoded`), and responds to
/// it with 303. A form whose field `shown_to` names another user is refused.
#[utoipa::path(
    post, path = "/resume/{request_id}", operation_id = "decide_request", tag = "requests",
    params(("request_id" = String, Path, format = Uuid, description = "The request"), PreferHeader, KeyHeader),
    request_body = WireDecisionBody,
    responses(DecisionResponses)
)]
pub(crate) async fn decide_request(
    State(http): State<Arc<Http>>,
    PathId(id): PathId<RequestId>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    decide(&http, id, posted, None).await
}

/// Approve a request
///
/// Every undecided call runs as shown.
///
/// Also takes the form of the request's page (`application/x-www-form-urlencoded`), and responds to
/// it with 303. A form whose field `shown_to` names another user is refused.
#[utoipa::path(
    post, path = "/resume/{request_id}/approve", operation_id = "approve_request", tag = "requests",
    params(("request_id" = String, Path, format = Uuid, description = "The request"), PreferHeader, KeyHeader),
    request_body = Option<ApproveBody>,
    responses(DecisionResponses)
)]
pub(crate) async fn approve_request(
    State(http): State<Arc<Http>>,
    PathId(id): PathId<RequestId>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    decide(&http, id, posted, Some(Action::Approve)).await
}

/// Reject a request
///
/// No undecided call runs. `then` is the consequence for the task; default: the rule's `on_reject`
/// if all calls of an approval request are rejected, else `continue`.
///
/// Also takes the form of the request's page (`application/x-www-form-urlencoded`), and responds to
/// it with 303. A form whose field `shown_to` names another user is refused.
#[utoipa::path(
    post, path = "/resume/{request_id}/reject", operation_id = "reject_request", tag = "requests",
    params(("request_id" = String, Path, format = Uuid, description = "The request"), PreferHeader, KeyHeader),
    request_body = Option<RejectBody>,
    responses(DecisionResponses)
)]
pub(crate) async fn reject_request(
    State(http): State<Arc<Http>>,
    PathId(id): PathId<RequestId>,
    posted: PostRequest,
) -> Result<Response, Problem> {
    decide(&http, id, posted, Some(Action::Reject)).await
}

/// Stores an answer and responds with the root task. If the answer was posted by the form of a
/// page, redirects to the request's page instead. `path_action` is the action in the path, if any.
///
/// # Errors
/// The problem of the first check that fails, or the engine's refusal.
async fn decide(
    http: &Arc<Http>,
    id: RequestId,
    posted: PostRequest,
    path_action: Option<Action>,
) -> Result<Response, Problem> {
    // A form is answered with a redirect, so it takes no stream permit.
    let permit = if posted.is_form() {
        None
    } else {
        opening::take_permit(http, &posted)?
    };
    match Box::pin(store_decision(http, id, &posted, path_action, |_| Ok(()))).await {
        Ok(accepted) => respond(http, id, posted, accepted, permit).await,
        Err(problem) => invalid_form::rerender(http, id, &posted, path_action, problem).await,
    }
}

/// Stores an answer. `path_action` is the action in the path, if any. `check_body` is the first
/// check of the body. It runs only if no earlier POST had the same `Idempotency-Key`, and if the
/// caller may decide.
///
/// # Errors
/// The problem of the first check that fails, or the engine's refusal. If the answer is a form with
/// mistakes, the error is the problem `invalid`, from which [`decide`] renders a page.
pub(crate) async fn store_decision(
    http: &Arc<Http>,
    id: RequestId,
    posted: &PostRequest,
    path_action: Option<Action>,
    check_body: fn(&PostRequest) -> Result<(), Problem>,
) -> Result<Accepted, Problem> {
    let secret_form = OnceLock::new();
    let authorize = async {
        let caller = &posted.caller;
        let read = access::request_with_journal(http, caller, id).await?;
        let Some(request) = DecidableRequest::for_caller(caller, read) else {
            return Err(Problem::forbidden(if caller.door == Some(Door::Link) {
                DetailCode::LinkMayNotDecide
            } else if !may_decide_any(caller) {
                DetailCode::KeyMayNotDecide
            } else {
                DetailCode::MayNotDecide
            }));
        };
        let spec = &request.row().spec;
        if spec.kind.takes_secrets() {
            secret_form.get_or_init(|| spec.form.clone().unwrap_or_default());
        }
        Ok(request)
    };
    let stored = submit(
        http,
        posted,
        authorize,
        |request| async move {
            check_body(posted)?;
            read_answer(http, posted, request, path_action).await
        },
        |engine, _, (request, answer), key| async move {
            Box::pin(engine.decisions().decide(request, answer, key)).await
        },
    );
    stored.await.map_err(|problem| match secret_form.get() {
        Some(form) => invalid_form::without_unknown_names(problem, form),
        None => problem,
    })
}

async fn read_answer(
    http: &Http,
    posted: &PostRequest,
    request: DecidableRequest,
    path_action: Option<Action>,
) -> Result<(DecidableRequest, DecisionInput), Problem> {
    if !posted.is_form() {
        let answer = posted
            .json(&http.body_parser, move |body, text| {
                decision_body::read(body, text, path_action)
            })
            .await?;
        return Ok((request, answer));
    }
    let user = posted.caller.user_id.clone();
    let read = move |bytes: &[u8]| {
        shown_to::check(bytes, &user)?;
        let answer = read_form(request.row(), bytes, path_action)?;
        Ok((request, answer))
    };
    posted.parse_bytes(&http.body_parser, read).await
}

fn read_form(
    row: &RequestRow,
    bytes: &[u8],
    path_action: Option<Action>,
) -> Result<DecisionInput, Problem> {
    let mut fields = form_fields(bytes)?;
    fields.remove(shown_to::FIELD);
    form::apply_announced_then(&mut fields, path_action);
    let text = form::to_json(row, &fields).map_err(|errors| Problem::invalid(&errors))?;
    decision_body::read(json::parse(text.as_bytes())?, text.as_bytes(), path_action)
}

async fn respond(
    http: &Arc<Http>,
    id: RequestId,
    posted: PostRequest,
    accepted: Accepted,
    permit: Option<StreamPermit>,
) -> Result<Response, Problem> {
    if posted.is_form() {
        // The location is a path, not a URL, because the page's `form-action` policy allows only
        // the page's own origin.
        let mut response = redirect(http, &format!("/resume/{id}"));
        respond::mark_replayed(response.headers_mut(), accepted.replayed);
        return Ok(response);
    }
    respond::respond(http, posted, accepted, SuccessStatus::Ok, permit).await
}
