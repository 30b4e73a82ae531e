//! Builds the response to a POST that changes a task: either the task or an event stream. The task
//! is sent as soon as it no longer runs. `Prefer` or the configuration limits this wait: at the
//! limit, the task is sent although it still runs. The event stream begins with the first event
//! that the POST caused.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, LOCATION};

use super::wait;
use crate::engine::Accepted;
use crate::http::Http;
use crate::http::events::opening;
use crate::http::events::stream_limiter::StreamPermit;
use crate::http::server::body::PostRequest;
use crate::http::server::headers::insert_header;
use crate::http::server::prefer::Prefer;
use crate::http::server::problem::Problem;
use crate::http::wire::task::WireTaskStatus;
use crate::store::Listener;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuccessStatus {
    /// 201, or 202 while the task still runs. Both responses have a `Location`.
    Created,
    /// 200, or 202 while the task still runs.
    Ok,
}

/// Responds with the event stream if there is a `permit` for a stream. Otherwise waits for the task
/// as long as the client or the configuration asks, and then responds with the task.
///
/// # Errors
/// `not_found` if the task is gone; `unavailable` or `internal` if the task or its events cannot be
/// read. The problem has the headers of a committed POST, such as `Location`.
pub(crate) async fn respond(
    http: &Arc<Http>,
    mut posted: PostRequest,
    mut accepted: Accepted,
    success: SuccessStatus,
    permit: Option<StreamPermit>,
) -> Result<Response, Problem> {
    posted.release_body();
    let answered = match permit {
        Some(permit) => opening::open_after_commit(http, &posted, &mut accepted, permit).await,
        None => respond_after_wait(http, &posted, &mut accepted, success).await,
    };
    let mut headers = HeaderMap::new();
    if success == SuccessStatus::Created {
        let location = format!("{}/v1/tasks/{}", http.settings.public_url, accepted.task_id);
        insert_header(&mut headers, LOCATION, &location);
    }
    mark_replayed(&mut headers, accepted.replayed);
    match answered {
        Ok(mut response) => {
            response.headers_mut().extend(headers);
            Ok(response)
        }
        // The POST is committed, so even a response that is a problem names the created task. The
        // headers are copied to the problem, because `edge/` renders a problem as a new response,
        // which has only the problem's own headers.
        Err(mut problem) => {
            let headers = headers.iter();
            let headers = headers.map(|(name, value)| (name.clone(), value.clone()));
            problem.headers.extend(headers);
            Err(problem)
        }
    }
}

async fn respond_after_wait(
    http: &Http,
    posted: &PostRequest,
    accepted: &mut Accepted,
    success: SuccessStatus,
) -> Result<Response, Problem> {
    let prefer = Prefer::read(&posted.headers);
    let root = accepted.root;
    // The time that the client waits begins with the arrival of the body. The command may have used
    // a part of this time, because it may have waited for a slot or for the database.
    let time = posted.rest_of(prefer.wait_or(http.settings.wait));
    // A call at a gate starts only while its asker waits for the verdict. If the asker of an
    // approved call has left, the call starts only when the asker proposes it again. The response
    // then comes without a wait, and does not confirm the preference for one.
    let awaits_asker = accepted.is_gate_call
        && !time.is_zero()
        && http.engine.gates().awaits_its_asker(root).await?;
    let time = if awaits_asker { Duration::ZERO } else { time };
    let news = accepted.listener.take().map(Listener::news);
    let task = wait::task_when_stopped(http, &posted.caller, root, root, time, news).await?;
    let status = match (task.status, success) {
        (WireTaskStatus::Running, _) => StatusCode::ACCEPTED,
        (_, SuccessStatus::Created) => StatusCode::CREATED,
        (_, SuccessStatus::Ok) => StatusCode::OK,
    };
    let mut response = (status, Json(task)).into_response();
    let applied = prefer.applied().filter(|_| !awaits_asker);
    mark_applied(response.headers_mut(), applied);
    Ok(response)
}

/// Adds `Preference-Applied`, if a preference of the client was applied.
pub(crate) fn mark_applied(headers: &mut HeaderMap, applied: Option<String>) {
    if let Some(applied) = applied {
        let name = HeaderName::from_static("preference-applied");
        insert_header(headers, name, &applied);
    }
}

/// Adds `Idempotency-Replayed` if the response repeats the result of an earlier POST with the same
/// `Idempotency-Key`.
pub(crate) fn mark_replayed(headers: &mut HeaderMap, replayed: bool) {
    if replayed {
        let name = HeaderName::from_static("idempotency-replayed");
        insert_header(headers, name, "true");
    }
}
