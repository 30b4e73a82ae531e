//! What is true of an operation before its handler runs. The guard is put on each operation's own method, so that an
//! unknown path is 404 and an unknown method 405 before anything else is looked at; then it checks, in this order, that
//! the request comes from here (without accounts), its origin, its announced size and its key.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use std::str::FromStr;

use super::Http;
use super::body::too_large;
use super::caller::Who;
use super::edge::Seen;
use super::origin::not_from_here;
use super::problem::{Code, Problem};

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
    /// Whoever has a key.
    Key,
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
    if let Some(why) = asked_here.then(|| not_from_here(request.headers(), request.uri())).flatten() {
        return Err(Problem::forbidden(why));
    }
    if !http.origins.may_change(request.method(), request.headers(), request.uri()) {
        return Err(Problem::forbidden("The request comes from a page of another origin, which is not allowed here."));
    }
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > op.body as u64) {
        return Err(too_large(op.body));
    }
    if op.door == Door::Key {
        let caller = http.authenticator.authenticate(request.headers())?;
        request.extensions_mut().insert(Who(caller));
    }
    request.extensions_mut().insert(op);
    Ok(next.run(request).await)
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
