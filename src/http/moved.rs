//! The answer to a POST that moves a task: waits as the client prefers, then says how the task stands; or, where a stream
//! is asked for, shows how it moves.

use std::future::Future;
use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};

use super::body::Posted;
use super::events::opening;
use super::events::seats::Seat;
use super::prefer::Prefer;
use super::problem::Problem;
use super::refusal::refused;
use super::wire::task::TaskStatus;
use super::{Http, wait};
use crate::engine::{Accepted, Refusal};
use crate::people::Caller;
use crate::store::Listener;

/// What a task that no longer runs is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// 201 and 202 with `Location`.
    Created,
    /// 200 and 202.
    Moved,
}

/// Performs an engine's operation on a tracked task: a client that goes away stops nothing. A service that goes down
/// takes no work.
///
/// # Errors
/// The refusal, as a problem.
pub async fn perform(
    http: &Arc<Http>,
    caller: &Caller,
    work: impl Future<Output = Result<Accepted, Refusal>> + Send + 'static,
) -> Result<Accepted, Problem> {
    if http.shutdown.is_cancelled() {
        return Err(Problem::unavailable());
    }
    match http.tracker.spawn(work).await {
        Ok(Ok(accepted)) => Ok(accepted),
        Ok(Err(refusal)) => Err(refused(http, caller, refusal).await),
        Err(_) => Err(Problem::internal()),
    }
}

/// Waits, and answers with the task; or, with a seat for it, with the stream.
///
/// # Errors
/// The database's.
pub async fn answer(
    http: &Arc<Http>,
    mut posted: Posted,
    mut accepted: Accepted,
    done: Done,
    seat: Option<Seat>,
) -> Result<Response, Problem> {
    posted.release();
    let mut response = match seat {
        Some(seat) => opening::from_commit(http, &posted, &mut accepted, seat).await?,
        None => waited(http, &posted, &mut accepted, done).await?,
    };
    if done == Done::Created {
        let location = format!("{}/v1/tasks/{}", http.settings.public_url, accepted.task_id);
        insert(response.headers_mut(), LOCATION, &location);
    }
    replayed(response.headers_mut(), &accepted);
    Ok(response)
}

async fn waited(http: &Http, posted: &Posted, accepted: &mut Accepted, done: Done) -> Result<Response, Problem> {
    let prefer = Prefer::read(&posted.headers);
    let (root, time) = (accepted.root, prefer.time(http.settings.wait));
    let news = accepted.news.take().map(Listener::news);
    let task = wait::shown(http, &posted.caller, root, root, time, news).await?;
    let status = match (task.status, done) {
        (TaskStatus::Running, _) => StatusCode::ACCEPTED,
        (_, Done::Created) => StatusCode::CREATED,
        (_, Done::Moved) => StatusCode::OK,
    };
    let mut response = (status, Json(task)).into_response();
    if let Some(applied) = prefer.applied() {
        insert(response.headers_mut(), HeaderName::from_static("preference-applied"), &applied);
    }
    Ok(response)
}

/// Says that an earlier POST did it.
pub fn replayed(headers: &mut HeaderMap, accepted: &Accepted) {
    if accepted.replayed {
        insert(headers, HeaderName::from_static("idempotency-replayed"), "true");
    }
}

/// Adds a header whose value is ours.
pub fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
