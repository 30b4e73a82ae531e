//! Makes deliveries due now, for the two POST operations that resend deliveries. Of several POSTs
//! with the same `Idempotency-Key`, the first makes the deliveries due, and the others return its
//! result.

use std::future::Future;

use axum::response::Response;

use crate::engine::{IdempotencyKey, Refusal};
use crate::http::Http;
use crate::http::api::refusal::refusal_problem;
use crate::http::api::respond::mark_replayed;
use crate::http::server::body::PostRequest;
use crate::http::server::caller::{must_administer, must_create};
use crate::http::server::problem::Problem;
use crate::people::Caller;
use crate::store::{ResendKey, ResendTarget};

pub(super) struct Resent {
    pub count: usize,
    /// Whether an earlier POST with the same key has stored this result.
    replayed: bool,
}

impl Resent {
    /// Adds the header `Idempotency-Replayed` if an earlier POST has stored the result.
    pub(super) fn mark(&self, mut response: Response) -> Response {
        mark_replayed(response.headers_mut(), self.replayed);
        response
    }
}

/// Makes deliveries due now. The future `find` looks for the delivery that the path names. The
/// future `read` reads the body and returns the target: one delivery, or all deliveries that a
/// filter selects. `find` is polled only after the check that the caller may resend deliveries: a
/// caller without this right gets `forbidden` for every id. As in `api/submit.rs`, the form of the
/// key is checked after `find` and before `read`.
///
/// # Errors
/// `idempotency_key_reused` if an earlier POST with the same key had a different body; `forbidden`
/// if the caller may not resend deliveries; the errors of `find`; `bad_request` if the key is
/// malformed; the errors of `read`; `unavailable`.
pub(super) async fn resend(
    http: &Http,
    posted: &PostRequest,
    find: impl Future<Output = Result<(), Problem>>,
    read: impl Future<Output = Result<ResendTarget, Problem>>,
) -> Result<Resent, Problem> {
    if let Ok(Some(key)) = posted.key()
        && let Some(resent) = earlier(http, &posted.caller, &key).await?
    {
        return Ok(resent);
    }
    authorize(&posted.caller)?;
    find.await?;
    let key = posted.key()?;
    let target = read.await?;
    let Some(key) = key else {
        let count = without_key(http, &posted.caller, &target).await?;
        return Ok(Resent {
            count,
            replayed: false,
        });
    };
    let row = ResendKey {
        tenant: posted.caller.tenant.clone(),
        user: posted.caller.user_id.clone(),
        path: key.path.clone(),
        key: key.key.clone(),
        body_digest: key.body.digest().to_owned(),
    };
    match http.store.resend_with_key(&target, &row).await? {
        Some(count) => Ok(Resent {
            count,
            replayed: false,
        }),
        // `None`: another POST has stored the key since the look-up at the beginning of this
        // function.
        None => earlier(http, &posted.caller, &key)
            .await?
            .ok_or_else(Problem::unavailable),
    }
}

async fn without_key(
    http: &Http,
    caller: &Caller,
    target: &ResendTarget,
) -> Result<usize, Problem> {
    Ok(match target {
        ResendTarget::One(id) => usize::from(http.store.resend(&caller.tenant, *id).await?),
        ResendTarget::All(filter) => http.store.resend_all(filter).await?,
    })
}

/// Returns the result of an earlier POST with this `Idempotency-Key`; `None` if there is none.
async fn earlier(
    http: &Http,
    caller: &Caller,
    key: &IdempotencyKey,
) -> Result<Option<Resent>, Problem> {
    let stored = http
        .store
        .stored_resend(&caller.tenant, &caller.user_id, &key.path, &key.key)
        .await?;
    let Some(stored) = stored else {
        return Ok(None);
    };
    if !key.body.matches_digest(&stored.body_digest) {
        return Err(refusal_problem(http, caller, Refusal::KeyReused).await);
    }
    authorize(caller)?;
    Ok(Some(Resent {
        count: stored.count,
        replayed: true,
    }))
}

fn authorize(caller: &Caller) -> Result<(), Problem> {
    must_create(caller)?;
    must_administer(caller)
}
