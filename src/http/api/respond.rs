//! The answer to a POST that moves a task: waits as the client prefers, then says how the task stands; or, where a stream
//! is asked for, shows how it moves.

use std::future::Future;
use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};

use super::refusal::refusal_problem;
use super::wait;
use crate::engine::{Accepted, Refusal};
use crate::http::Http;
use crate::http::events::opening;
use crate::http::events::seats::Seat;
use crate::http::server::body::Posted;
use crate::http::server::prefer::Prefer;
use crate::http::server::problem::Problem;
use crate::http::wire::task::WireTaskStatus;
use crate::people::Caller;
use crate::store::Listener;

/// The status of an answer whose task no longer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuccessStatus {
    /// 201 and 202 with `Location`.
    Created,
    /// 200 and 202.
    Ok,
}

/// Performs an engine's operation on a tracked task: a client that goes away stops nothing. A service that goes down
/// takes no work.
///
/// # Errors
/// The refusal, as a problem.
pub(crate) async fn perform(
    http: &Arc<Http>,
    caller: &Caller,
    work: impl Future<Output = Result<Accepted, Refusal>> + Send + 'static,
) -> Result<Accepted, Problem> {
    if http.shutdown.is_cancelled() {
        return Err(Problem::unavailable());
    }
    match http.tracker.spawn(work).await {
        Ok(Ok(accepted)) => Ok(accepted),
        Ok(Err(refusal)) => Err(refusal_problem(http, caller, refusal).await),
        Err(_) => Err(Problem::internal()),
    }
}

/// Waits, and answers with the task; or, with a seat for it, with the stream.
///
/// # Errors
/// The database's.
pub(crate) async fn respond(
    http: &Arc<Http>,
    posted: &Posted,
    mut accepted: Accepted,
    success: SuccessStatus,
    seat: Option<Seat>,
) -> Result<Response, Problem> {
    let mut response = match seat {
        Some(seat) => opening::from_commit(http, posted, &mut accepted, seat).await?,
        None => respond_after_wait(http, posted, &mut accepted, success).await?,
    };
    if success == SuccessStatus::Created {
        let location = format!("{}/v1/tasks/{}", http.settings.public_url, accepted.task_id);
        insert_header(response.headers_mut(), LOCATION, &location);
    }
    mark_replayed(response.headers_mut(), &accepted);
    Ok(response)
}

async fn respond_after_wait(
    http: &Http,
    posted: &Posted,
    accepted: &mut Accepted,
    success: SuccessStatus,
) -> Result<Response, Problem> {
    let prefer = Prefer::read(&posted.headers);
    let (root, time) = (accepted.root, prefer.time(http.settings.wait));
    let news = accepted.news.take().map(Listener::news);
    let task = wait::task_when_stopped(http, &posted.caller, root, root, time, news).await?;
    let status = match (task.status, success) {
        (WireTaskStatus::Running, _) => StatusCode::ACCEPTED,
        (_, SuccessStatus::Created) => StatusCode::CREATED,
        (_, SuccessStatus::Ok) => StatusCode::OK,
    };
    let mut response = (status, Json(task)).into_response();
    if let Some(applied) = prefer.applied() {
        insert_header(response.headers_mut(), HeaderName::from_static("preference-applied"), &applied);
    }
    Ok(response)
}

/// Says that an earlier POST did it.
pub(crate) fn mark_replayed(headers: &mut HeaderMap, accepted: &Accepted) {
    if accepted.replayed {
        insert_header(headers, HeaderName::from_static("idempotency-replayed"), "true");
    }
}

/// Adds a header whose value is ours.
pub(crate) fn insert_header(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
