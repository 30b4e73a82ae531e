//! `POST /sign-out`: ends the session of the cookie, and deletes the cookie even if the session has
//! expired.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use http::header::SET_COOKIE;

use crate::http::Http;
use crate::http::server::body::check_key;
use crate::http::server::operation::{AuthClass, Op};
use crate::http::server::problem::Problem;
use crate::http::server::session::{cookie, redirect};
use crate::http::wire::params::CheckedKeyHeader;

pub(crate) const OP: Op = Op {
    auth: AuthClass::SignOut,
    ..Op::page("sign_out", &[])
};

/// Sign out
///
/// Ends the session of the request's cookie and deletes the cookie. The body is ignored.
#[utoipa::path(
    post, path = "/sign-out", operation_id = "sign_out", tag = "sign-in", params(CheckedKeyHeader),
    responses((status = 303, description = "Signed out: the page that takes a key",
        headers(("Location" = String, description = "The page that takes a key"),
            ("Set-Cookie" = String, description = "`holdpoint_session`, empty and expired"))))
)]
pub(crate) async fn sign_out(
    State(http): State<Arc<Http>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    check_key(&headers)?;
    // Looks the session up first, so that an invented token causes no write to the database.
    if let Some(token) = cookie::token(&headers, &http.settings.public_url)
        && http.store.session(&token.digest()).await?.is_some()
    {
        http.store.end_session(&token.digest()).await?;
    }
    let mut response = redirect(&http, "/sign-in");
    response
        .headers_mut()
        .insert(SET_COOKIE, cookie::clear(&http.settings.public_url)?);
    Ok(response)
}
