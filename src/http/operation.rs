//! What is true of an operation before its handler runs. The guard is put on each operation's own method, so that an
//! unknown path is 404 and an unknown method 405 before anything else is looked at; then it checks, in this order, that
//! the request comes from here (without accounts), its origin, its announced size and its key, or its session's cookie.

use std::sync::{Arc, Weak};

use axum::extract::{FromRequestParts, Path, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http::request::Parts;
use std::str::FromStr;

use super::Http;
use super::body::{announced, too_large};
use super::caller::Who;
use super::connections::Place;
use super::edge::Seen;
use super::origin::not_from_here;
use super::problem::{Code, Problem};
use super::sign_in::cookie;
use super::sign_in::session::{self, asks_for_a_page, way_in};
use super::wrong_keys::Source;
use crate::people::Caller;
use crate::people::authenticator::{AuthError, only_ours, speaks_for_nobody};

/// The body of most operations.
pub const SMALL: usize = 1024 * 1024;
/// The body of a message, which may carry images.
pub const LARGE: usize = 20 * 1024 * 1024;

/// One operation.
#[derive(Debug)]
pub struct Op {
    /// Its stable `operationId`.
    pub id: &'static str,
    /// Who gets in.
    pub door: Door,
    /// How many bytes its body may have.
    pub body: usize,
    /// The problems it can answer with, beside those of its door.
    pub problems: &'static [Code],
}

/// Who gets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Whoever has a key, or a session that is alive.
    Key,
    /// The same, and whoever has a session that is over: the way out.
    Out,
    /// Everybody.
    Open,
    /// Everybody, by whatever name or proxy: whether the service lives.
    Health,
}

/// Checks what comes before the operation.
///
/// # Errors
/// The problem of the first check that fails.
pub async fn guard(
    State((http, op)): State<(Arc<Http>, &'static Op)>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if let Some(seen) = request.extensions().get::<Seen>() {
        seen.operation(op.id);
    }
    let asked_here = http.settings.open && op.door != Door::Health;
    if let Some(why) = asked_here.then(|| not_from_here(request.headers(), request.uri(), request.version())).flatten()
    {
        return Err(Problem::forbidden(why));
    }
    if !http.origins.may_change(request.method(), request.headers(), request.uri()) {
        return Err(Problem::forbidden("The request comes from a page of another origin, which is not allowed here."));
    }
    if announced(request.headers()).is_some_and(|length| length > op.body) {
        return Err(too_large(op.body));
    }
    let mut found = None;
    match op.door {
        Door::Key => {
            let key = authenticated(&http, &request)?;
            match or_session(&http, request.headers(), key).await? {
                Some(caller) => {
                    if let Some(place) = request.extensions().get::<Weak<Place>>().and_then(Weak::upgrade) {
                        place.keep();
                    }
                    found = Some(Who(caller.clone()));
                    request.extensions_mut().insert(Who(caller));
                }
                None if asks_for_a_page(request.method(), request.headers()) => {
                    return Ok(way_in(request.uri(), &http.settings.public_url));
                }
                None => return Err(AuthError::Missing.into()),
            }
        }
        Door::Out => {
            may_leave(&http, request.headers(), authenticated(&http, &request)?)?;
        }
        Door::Open => only_ours(request.headers())?,
        Door::Health => {}
    }
    request.extensions_mut().insert(op);
    let mut response = next.run(request).await;
    if let Some(who) = found {
        // The page of a refusal says who is signed in.
        response.extensions_mut().insert(who);
    }
    Ok(response)
}

/// Who sent these headers; `None` when nobody says. A key beats a session: the cookie is looked at only where there is no
/// `Authorization` at all, so a wrong key is refused however good the cookie is.
///
/// # Errors
/// `unauthorized`, `forbidden`, or the database's.
pub async fn who(http: &Http, headers: &HeaderMap) -> Result<Option<Caller>, Problem> {
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
fn authenticated(http: &Http, request: &Request) -> Result<Result<Caller, AuthError>, Problem> {
    let found = http.authenticator.authenticate(request.headers());
    if found == Err(AuthError::Wrong) {
        http.wrong_keys.note(Source::of(request.extensions()), http.clock.uptime())?;
    }
    Ok(found)
}

/// Who shows the cookie may leave, alive or not: that the session was over already is no reason to keep him.
fn may_leave(http: &Http, headers: &HeaderMap, found: Result<Caller, AuthError>) -> Result<(), Problem> {
    match found {
        Err(AuthError::Missing) if cookie::came(headers, &http.settings.public_url) => Ok(speaks_for_nobody(headers)?),
        found => Ok(found.map(|_| ())?),
    }
}

/// An id in the path. One that is no id is 404, as one that is nobody's.
#[derive(Clone, Copy, Debug)]
pub struct Id<T>(pub T);

impl<T: FromStr + Send> FromRequestParts<Arc<Http>> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, http: &Arc<Http>) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, http).await.map_err(|_| Problem::not_found())?;
        text.parse().map(Self).map_err(|_| Problem::not_found())
    }
}
