//! The pipeline of the POSTs that create, continue, retry or cancel a task, or that decide a
//! request. Clients rely on the order of its checks: the replay of an earlier POST with the same
//! `Idempotency-Key`, the caller's right, the form of the `Idempotency-Key`, the body, and the
//! engine's own checks.

use std::future::Future;
use std::sync::Arc;

use serde_json::Value;

use super::refusal::refusal_problem;
use crate::engine::{Accepted, Engine, IdempotencyKey, Refusal};
use crate::http::Http;
use crate::http::access;
use crate::http::server::body::PostRequest;
use crate::http::server::fields::Fields;
use crate::http::server::problem::Problem;
use crate::people::Caller;
use crate::people::authorization::Command;
use crate::task::id::TaskId;

/// If an earlier POST had the same `Idempotency-Key`, returns that POST's result. Otherwise awaits
/// `authorize`, checks the form of the key, awaits `read`, and then runs `command`. `authorize`
/// loads the command's target and checks the caller's right. `read` builds the command's input from
/// the loaded target and the body.
///
/// # Errors
/// Fails with the problem of the first check that fails, or with the engine's refusal.
pub(crate) async fn submit<A, T, R, C>(
    http: &Arc<Http>,
    posted: &PostRequest,
    authorize: impl Future<Output = Result<A, Problem>>,
    read: impl FnOnce(A) -> R,
    command: impl FnOnce(Arc<Engine>, Caller, T, Option<IdempotencyKey>) -> C,
) -> Result<Accepted, Problem>
where
    R: Future<Output = Result<T, Problem>>,
    C: Future<Output = Result<Accepted, Refusal>> + Send + 'static,
{
    if let Some(accepted) = replayed(http, posted).await? {
        return Ok(accepted);
    }
    let target = authorize.await?;
    let key = posted.key()?;
    let input = read(target).await?;
    let (engine, caller) = (Arc::clone(&http.engine), &posted.caller);
    let command = Box::pin(command(engine, caller.clone(), input, key));
    let refusal = match run_detached(http, command).await? {
        Ok(accepted) => return Ok(accepted),
        Err(refusal) => refusal,
    };
    // Another POST with the same key may have committed since the look-up above. If so, this POST
    // counts as its repetition, and returns the other POST's result instead of the refusal.
    if refusal != Refusal::Unavailable
        && let Some(accepted) = replayed(http, posted).await?
    {
        return Ok(accepted);
    }
    Err(refusal_problem(http, caller, refusal).await)
}

/// Checks that the caller may give `command` to the task.
///
/// # Errors
/// `not_found` if the tenant has no such task; `forbidden` if the caller may not give the command.
pub(crate) async fn may_command(
    http: &Http,
    caller: &Caller,
    id: TaskId,
    command: Command,
) -> Result<(), Problem> {
    let row = access::task(http, caller, id).await?;
    http.engine
        .may_command(caller, command, &row)
        .map_err(Problem::forbidden)
}

/// Checks that a body has no members.
///
/// # Errors
/// Fails with `invalid` if the body is not an object, or if it has members. The problem lists every
/// member.
pub(crate) fn no_members(body: Value, _: &[u8]) -> Result<(), Problem> {
    Fields::read(body, |_| Some(()))
}

/// Returns the result of an earlier POST with the same `Idempotency-Key`; `None` if `posted` has no
/// valid key, or no earlier POST had this key.
async fn replayed(http: &Http, posted: &PostRequest) -> Result<Option<Accepted>, Problem> {
    let Ok(key) = posted.key() else {
        return Ok(None);
    };
    let earlier = http.engine.earlier_result(&posted.caller, key.as_ref());
    match earlier.await {
        Ok(accepted) => Ok(accepted),
        Err(refusal) => Err(refusal_problem(http, &posted.caller, refusal).await),
    }
}

/// Runs a command in a tracked Tokio task, so that the command completes even when the client
/// disconnects. A service that is shutting down accepts no command.
///
/// # Errors
/// `unavailable` if the service is shutting down; `internal` if the command panics.
pub(crate) async fn run_detached<T: Send + 'static>(
    http: &Http,
    command: impl Future<Output = T> + Send + 'static,
) -> Result<T, Problem> {
    if http.shutdown.is_cancelled() {
        return Err(Problem::unavailable());
    }
    let ended = http.tracker.spawn(command).await;
    ended.map_err(|_| Problem::internal("a command panicked"))
}
