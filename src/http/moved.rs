//! The answer to a POST that moves a task: waits as the client prefers, then says how the task stands.

use std::future::Future;
use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};

use super::prefer::Prefer;
use super::problem::Problem;
use super::refusal::refused;
use super::wire::task::TaskStatus;
use super::{Http, read, wait};
use crate::engine::{Accepted, Refusal};
use crate::people::Caller;

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

/// Waits, and answers with the task.
///
/// # Errors
/// The database's.
pub async fn answer(
    http: &Http,
    caller: &Caller,
    headers: &HeaderMap,
    accepted: Accepted,
    done: Done,
) -> Result<Response, Problem> {
    let prefer = Prefer::read(headers);
    let (root, time) = (accepted.root, prefer.time(http.settings.wait));
    let row = wait::until_still(http, root, root, time, accepted.news.clone()).await?;
    let task = read::with_pending(http, caller, row).await?;
    let status = match (task.status, done) {
        (TaskStatus::Running, _) => StatusCode::ACCEPTED,
        (_, Done::Created) => StatusCode::CREATED,
        (_, Done::Moved) => StatusCode::OK,
    };
    let location = format!("{}/v1/tasks/{}", http.settings.public_url, task.task_id);
    let mut response = (status, Json(task)).into_response();
    if done == Done::Created {
        insert(response.headers_mut(), LOCATION, &location);
    }
    if let Some(applied) = prefer.applied() {
        insert(response.headers_mut(), HeaderName::from_static("preference-applied"), &applied);
    }
    replayed(response.headers_mut(), &accepted);
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
