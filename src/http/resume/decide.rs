//! `POST /resume/{request_id}`: a human's answer. The doors with the action in the path and the pages' forms end here
//! too, so there is one way to decide.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::LOCATION;

use super::{again, answer, form};
use crate::engine::{Accepted, Answer};
use crate::http::body::{Posted, form_fields};
use crate::http::events::opening;
use crate::http::events::seats::Seat;
use crate::http::moved::{self, Done, insert, perform};
use crate::http::operation::{Door, Id, Op, SMALL};
use crate::http::params::MoveHeaders;
use crate::http::problem::{Code, Problem, prefix};
use crate::http::wire::{body::DecisionBody, task::AgentTask};
use crate::http::{Http, json, read};
use crate::people::may::may_decide;
use crate::store::RequestRow;
use crate::task::decision::Action;
use crate::task::id::RequestId;
use crate::task::request::RequestKind;

/// What every door of a decision can answer with.
pub const PROBLEMS: &[Code] = &[
    Code::BadJson,
    Code::BadRequest,
    Code::NotFound,
    Code::RequestWithdrawn,
    Code::AlreadyDecided,
    Code::RequestExpired,
    Code::DigestMismatch,
    Code::TooLarge,
    Code::UnsupportedMediaType,
    Code::Invalid,
    Code::IdempotencyKeyReused,
    Code::TooMany,
];

/// The operation.
pub const OP: Op = Op { id: "decide_request", door: Door::Key, body: SMALL, problems: PROBLEMS };

/// Decide a request
///
/// Answers with the root task after it has moved on. 2xx says that the decision is stored, not that the task went well.
#[utoipa::path(
    post, path = "/resume/{request_id}", operation_id = "decide_request", tag = "requests",
    params(("request_id" = String, Path, format = Uuid, description = "The request"), MoveHeaders),
    request_body = DecisionBody,
    responses(
        (status = 200, body = AgentTask, description = "Stored, and the root task no longer runs",
            headers(("Preference-Applied" = String, description = "What of `Prefer` was done"),
                ("Idempotency-Replayed" = String, description = "`true` when an earlier POST with the same key did it"))),
        (status = 202, body = AgentTask, description = "Stored, and the root task still runs",
            headers(("Preference-Applied" = String, description = "What of `Prefer` was done"),
                ("Idempotency-Replayed" = String, description = "`true` when an earlier POST with the same key did it"))),
        (status = 303, description = "Stored, and a page's form posted it: the request's page",
            headers(("Location" = String, description = "The request's page"))),
    )
)]
pub(crate) async fn decide_request(
    State(http): State<Arc<Http>>,
    Id(id): Id<RequestId>,
    posted: Posted,
) -> Result<Response, Problem> {
    decide(&http, id, posted, None).await
}

/// Stores an answer, and answers with the root task; a page's form is sent back to the request's page.
///
/// # Errors
/// The problem of the first check that fails: replay, 404, 403, the body, then what the engine says.
pub async fn decide(
    http: &Arc<Http>,
    id: RequestId,
    posted: Posted,
    in_path: Option<Action>,
) -> Result<Response, Problem> {
    let seat = opening::seat(http, &posted)?;
    match stored(http, id, &posted, in_path).await {
        Ok(accepted) => respond(http, id, posted, accepted, seat).await,
        Err(problem) => again::again(http, id, &posted, in_path, problem).await,
    }
}

async fn stored(
    http: &Arc<Http>,
    id: RequestId,
    posted: &Posted,
    in_path: Option<Action>,
) -> Result<Accepted, Problem> {
    let caller = &posted.caller;
    if let Some(accepted) = posted.replay(http).await? {
        return Ok(accepted);
    }
    let row = read::request(http, caller, id).await?;
    if !may_decide(caller, &row.tenant, &row.owner, &row.asked.terms.approvers) {
        return Err(Problem::forbidden("This request is for others to decide: see its `approvers`."));
    }
    let form = (row.asked.kind == RequestKind::Credentials).then(|| row.asked.form.clone().unwrap_or_default());
    let said = answered(http, posted, row, in_path).await;
    said.map_err(|problem| form.map_or(problem.clone(), |form| again::unnamed(problem, &form)))
}

async fn answered(
    http: &Arc<Http>,
    posted: &Posted,
    row: RequestRow,
    in_path: Option<Action>,
) -> Result<Accepted, Problem> {
    let caller = &posted.caller;
    let key = posted.key()?;
    let answer = if posted.is_form() {
        let row = row.clone();
        posted.understand(&http.parsing, move |bytes| of_form(&row, bytes, in_path)).await?
    } else {
        posted.json(&http.parsing, move |body, text| answer::read(body, text, in_path)).await?
    };
    let (engine, by) = (http.engine.clone(), caller.clone());
    perform(http, caller, async move { Box::pin(engine.decide_read(&by, row, answer, key)).await }).await
}

fn of_form(row: &RequestRow, bytes: &[u8], in_path: Option<Action>) -> Result<Answer, Problem> {
    let text = form::to_json(row, &form_fields(bytes)?).map_err(|errors| Problem::invalid(&errors))?;
    answer::read(json::parse(text.as_bytes())?, text.as_bytes(), in_path)
}

async fn respond(
    http: &Arc<Http>,
    id: RequestId,
    posted: Posted,
    accepted: Accepted,
    seat: Option<Seat>,
) -> Result<Response, Problem> {
    if posted.is_form() {
        // A path and not a whole address: the page's policy lets a form end only where the page came from.
        let mut response = StatusCode::SEE_OTHER.into_response();
        insert(response.headers_mut(), LOCATION, &format!("{}/resume/{id}", prefix(&http.settings.public_url)));
        moved::replayed(response.headers_mut(), &accepted);
        return Ok(response);
    }
    moved::answer(http, posted, accepted, Done::Moved, seat).await
}
