//! The guard runs before each operation. It is a layer on the operation's route, so the router
//! answers unknown paths (404) and unknown methods (405) before the guard runs. The guard makes
//! four checks, in this order:
//! 1. In a service without accounts, the request must name a loopback host and come through no
//!    proxy. Health checks are exempt.
//! 2. The origin of the request must be allowed.
//! 3. The announced size of the body must be within the limit of the operation.
//! 4. The operation must admit the credential: the key, the session's cookie or the sealed link.
//!
//! For a call over gRPC, the guard makes only the first two checks. The operation checks the size
//! and the key itself.

use std::sync::{Arc, Weak};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::ORIGIN;
use http::{Extensions, HeaderMap, Method};

use super::body::{content_length, too_large};
use super::caller::CurrentCaller;
use super::connections::ConnectionSlot;
use super::link::CurrentLink;
use super::operation::{AuthClass, Op, OperationSlot, fixed_start};
use super::problem::{Code, Problem, path_prefix};
use super::session::{self, cookie, redirect_to_sign_in, wants_page};
use super::wrong_keys::ClientNetwork;
use crate::engine::DetailCode;
use crate::http::Http;
use crate::people::Caller;
use crate::people::authenticator::{
    AuthError, refuse_headers_beside_link, refuse_holdpoint_headers, refuse_unknown_headers,
};

/// Checks a request, attaches the caller to the request, and runs the operation.
///
/// # Errors
/// Fails with the problem of the first check that the request does not pass.
pub(crate) async fn guard(
    State((http, op)): State<(Arc<Http>, &'static Op)>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if let Some(slot) = request.extensions().get::<OperationSlot>() {
        slot.set(op);
    }
    check_source(&http, op, &request)?;
    let mut authenticated = None;
    match op.auth {
        AuthClass::Key => {
            let key = caller_of_key(&http, request.headers(), request.extensions())?;
            match with_session_fallback(&http, request.headers(), key).await? {
                Some(caller) => {
                    protect_connection(request.extensions());
                    authenticated = Some(CurrentCaller(caller.clone()));
                    request.extensions_mut().insert(CurrentCaller(caller));
                }
                None if wants_page(request.method(), request.headers()) => {
                    return Ok(redirect_to_sign_in(
                        request.uri(),
                        &http.settings.public_url,
                    ));
                }
                None => return Err(AuthError::Missing.into()),
            }
        }
        AuthClass::SignOut => {
            let (headers, extensions) = (request.headers(), request.extensions());
            check_sign_out(&http, headers, caller_of_key(&http, headers, extensions)?)?;
        }
        AuthClass::Link => {
            refuse_headers_beside_link(request.headers())?;
            let (caller, link) = caller_of_link(&http, &request)?;
            protect_connection(request.extensions());
            request.extensions_mut().insert(CurrentCaller(caller));
            request.extensions_mut().insert(link);
        }
        AuthClass::Open => refuse_unknown_headers(request.headers())?,
        AuthClass::Gateway | AuthClass::Health => {}
    }
    request.extensions_mut().insert(op);
    let mut response = next.run(request).await;
    if let Some(caller) = authenticated {
        // If the response is a problem, `edge/` may render it as a page with a link to sign in as
        // another user. This page names the caller.
        response.extensions_mut().insert(caller);
    }
    Ok(response)
}

/// Opens the sealed link in the path. Returns a caller for the person to whom the link was sent,
/// and the opened link.
///
/// # Errors
/// `not_found` for a text that is not a link of this service, and for a link whose person is no
/// longer in the configuration; `link_expired` when the link has ended.
fn caller_of_link(http: &Http, request: &Request) -> Result<(Caller, CurrentLink), Problem> {
    let path = request.uri().path();
    let route = request.extensions().get::<MatchedPath>();
    let start = route.map_or("", |route| fixed_start(route.as_str()));
    let token = path.strip_prefix(start).unwrap_or_default();
    let links = http.settings.links.as_ref();
    let opened = links.and_then(|links| Some((links, links.open(token)?)));
    let (links, link) = opened.ok_or_else(Problem::not_found)?;
    let reached = http.settings.roster.link_caller(&link.tenant, &link.user);
    let (person, caller) = reached.ok_or_else(Problem::not_found)?;
    if links.has_ended(&link, http.clock.now()) {
        return Err(Problem::new(Code::LinkExpired, DetailCode::LinkExpired));
    }
    let current = CurrentLink {
        request_id: link.request_id,
        expires_at: link.expires_at,
        email: person.email.clone(),
        path: format!("{}{path}", path_prefix(&http.settings.public_url)),
        stored_path: format!("{start}{}", link.request_id),
    };
    Ok((caller, current))
}

/// Checks the host and the origin of a request, and the announced size of the body.
fn check_source(http: &Http, op: &Op, request: &Request) -> Result<(), Problem> {
    if op.auth != AuthClass::Health
        && let Some(why) = http.edge.host_refusal(request)
    {
        return Err(Problem::forbidden(why));
    }
    let (origins, headers) = (&http.edge.origins, request.headers());
    if !origins.may_change(request.method(), headers, request.uri()) {
        return Err(Problem::forbidden(DetailCode::ForeignOrigin));
    }
    // A sealed link authorizes its POST without any other credential, so the POST must come from
    // this service's page. The check by `may_change` is too weak: it also accepts the origins in
    // `cors_origins`, and a POST without `Origin`. This service's page always sends `Origin`,
    // because a browser adds `Origin` to every POST of a form.
    if op.auth == AuthClass::Link
        && *request.method() == Method::POST
        && !origins.is_own_page(headers, request.uri())
    {
        return Err(Problem::forbidden(if headers.contains_key(ORIGIN) {
            DetailCode::ForeignOrigin
        } else {
            DetailCode::NoOrigin
        }));
    }
    if op.auth != AuthClass::Gateway
        && content_length(request.headers()).is_some_and(|length| length > op.max_body_bytes)
    {
        return Err(too_large(op.max_body_bytes));
    }
    Ok(())
}

/// Protects the connection of a request whose caller is authenticated. While the connection serves
/// the request, it is not closed to make room for another client. `extensions` are those of the
/// request.
pub(crate) fn protect_connection(extensions: &Extensions) {
    let slot = extensions.get::<Weak<ConnectionSlot>>();
    if let Some(slot) = slot.and_then(Weak::upgrade) {
        slot.protect();
    }
}

/// Returns the caller whom the credentials in `headers` identify; `None` without credentials. A
/// session cookie counts only if there is no `Authorization` header, so a wrong key is refused even
/// with a valid cookie.
///
/// # Errors
/// `unauthorized` for an unknown key; `forbidden` or `bad_request` if the headers are not allowed
/// or malformed; the problem of a failed database access.
pub(crate) async fn authenticate(
    http: &Http,
    headers: &HeaderMap,
) -> Result<Option<Caller>, Problem> {
    with_session_fallback(http, headers, http.authenticator.authenticate(headers)).await
}

async fn with_session_fallback(
    http: &Http,
    headers: &HeaderMap,
    found: Result<Caller, AuthError>,
) -> Result<Option<Caller>, Problem> {
    match found {
        // Boxed, so that the future of the HTTP request reserves no memory for the look-up while
        // the operation runs.
        Err(AuthError::Missing) => Box::pin(session::caller(http, headers)).await,
        found => Ok(Some(found?)),
    }
}

/// Authenticates a request by the key in `headers`, and counts a wrong key for the client's
/// network, which is in the `extensions` of the request. Returns the result of the authentication
/// as the inner result.
///
/// # Errors
/// The outer result is `too_many` if the key is wrong and the network is over its limit of wrong
/// keys.
pub(crate) fn caller_of_key(
    http: &Http,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<Result<Caller, AuthError>, Problem> {
    let found = http.authenticator.authenticate(headers);
    if found == Err(AuthError::UnknownKey) {
        let network = ClientNetwork::from_extensions(extensions);
        http.wrong_keys.count(network, http.clock.uptime())?;
    }
    Ok(found)
}

/// Checks the credentials of a sign-out. Accepts a known key. Without an `Authorization` header,
/// accepts any session cookie, even an expired or malformed one.
fn check_sign_out(
    http: &Http,
    headers: &HeaderMap,
    found: Result<Caller, AuthError>,
) -> Result<(), Problem> {
    match found {
        Err(AuthError::Missing) if cookie::is_sent(headers, &http.settings.public_url) => {
            Ok(refuse_holdpoint_headers(headers)?)
        }
        found => Ok(found.map(|_| ())?),
    }
}
