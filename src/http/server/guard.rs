//! What is true of an operation before its handler runs. The guard is put on each operation's own method, so that an
//! unknown path is 404 and an unknown method 405 before anything else is looked at; then it checks, in this order, that
//! the request comes from here (without accounts), its origin, its announced size and its key, or its session's cookie.

use std::sync::{Arc, Weak};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;

use super::body::too_large;
use super::caller::CurrentCaller;
use super::connections::ConnectionSlot;
use super::edge::OperationSlot;
use super::operation::{AuthClass, Op};
use super::origin::not_from_here;
use super::problem::Problem;
use super::wrong_keys::ClientNetwork;
use crate::http::Http;
use crate::http::pages::sign_in::cookie;
use crate::http::pages::sign_in::session::{self, redirect_to_sign_in, wants_page};
use crate::people::Caller;
use crate::people::authenticator::{AuthError, only_ours, speaks_for_nobody};

/// Checks what comes before the operation.
///
/// # Errors
/// The problem of the first check that fails.
pub(crate) async fn guard(
    State((http, op)): State<(Arc<Http>, &'static Op)>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if let Some(slot) = request.extensions().get::<OperationSlot>() {
        slot.set(op.id);
    }
    let asked_here = http.settings.open && op.auth != AuthClass::Health;
    if let Some(why) = asked_here.then(|| not_from_here(request.headers(), request.uri(), request.version())).flatten()
    {
        return Err(Problem::forbidden(why));
    }
    if !http.origins.may_change(request.method(), request.headers(), request.uri()) {
        return Err(Problem::forbidden("The request comes from a page of another origin, which is not allowed here."));
    }
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > op.body as u64) {
        return Err(too_large(op.body));
    }
    let mut found = None;
    match op.auth {
        AuthClass::Key => {
            let key = caller_of_key(&http, &request)?;
            match or_session(&http, request.headers(), key).await? {
                Some(caller) => {
                    if let Some(slot) = request.extensions().get::<Weak<ConnectionSlot>>().and_then(Weak::upgrade) {
                        slot.protect();
                    }
                    found = Some(CurrentCaller(caller.clone()));
                    request.extensions_mut().insert(CurrentCaller(caller));
                }
                None if wants_page(request.method(), request.headers()) => {
                    return Ok(redirect_to_sign_in(request.uri(), &http.settings.public_url));
                }
                None => return Err(AuthError::Missing.into()),
            }
        }
        AuthClass::Out => {
            check_sign_out(&http, request.headers(), caller_of_key(&http, &request)?)?;
        }
        AuthClass::Open => only_ours(request.headers())?,
        AuthClass::Health => {}
    }
    request.extensions_mut().insert(op);
    let mut response = next.run(request).await;
    if let Some(authenticate) = found {
        // The page of a refusal says who is signed in.
        response.extensions_mut().insert(authenticate);
    }
    Ok(response)
}

/// Who sent these headers; `None` when nobody says. A key beats a session: the cookie is looked at only where there is no
/// `Authorization` at all, so a wrong key is refused however good the cookie is.
///
/// # Errors
/// `unauthorized`, `forbidden`, or the database's.
pub(crate) async fn authenticate(http: &Http, headers: &HeaderMap) -> Result<Option<Caller>, Problem> {
    or_session(http, headers, http.authenticator.authenticate(headers)).await
}

async fn or_session(
    http: &Http,
    headers: &HeaderMap,
    found: Result<Caller, AuthError>,
) -> Result<Option<Caller>, Problem> {
    match found {
        Err(AuthError::Missing) => session::caller(http, headers).await,
        found => Ok(Some(found?)),
    }
}

/// The caller by the request's key. A wrong key is counted.
///
/// # Errors
/// `too_many`, when too many wrong ones came from there. A right key is never refused for it.
fn caller_of_key(http: &Http, request: &Request) -> Result<Result<Caller, AuthError>, Problem> {
    let found = http.authenticator.authenticate(request.headers());
    if found == Err(AuthError::Wrong) {
        http.wrong_keys.note(ClientNetwork::of(request.extensions()), http.clock.uptime())?;
    }
    Ok(found)
}

/// Who shows the cookie may leave, alive or not: that the session was over already is no reason to keep him.
fn check_sign_out(http: &Http, headers: &HeaderMap, found: Result<Caller, AuthError>) -> Result<(), Problem> {
    match found {
        Err(AuthError::Missing) if cookie::is_sent(headers, &http.settings.public_url) => {
            Ok(speaks_for_nobody(headers)?)
        }
        found => Ok(found.map(|_| ())?),
    }
}
