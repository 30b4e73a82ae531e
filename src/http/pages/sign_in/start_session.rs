//! `POST /sign-in`: exchanges an API key for a session. The key is checked once and not stored. The
//! browser always gets a new random token, because another person may know the token of an earlier
//! cookie.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{SET_COOKIE, WWW_AUTHENTICATE};
use utoipa::ToSchema;

use super::page;
use crate::engine::DetailCode;
use crate::http::Http;
use crate::http::pages::language::Language;
use crate::http::server::body::form;
use crate::http::server::fields::Errors;
use crate::http::server::operation::{AuthClass, Op};
use crate::http::server::problem::{Code, Problem, RenderedError, path_prefix};
use crate::http::server::session::{cookie, next, see_other};
use crate::http::server::wrong_keys::ClientNetwork;
use crate::http::wire::params::CheckedKeyHeader;
use crate::people::session::{SESSION_DURATION, Token};
use crate::world::random_bytes;

pub(crate) const OP: Op = Op {
    auth: AuthClass::Open,
    // The limit is low, because the sender is not authenticated. A body with a key and a path stays
    // below the limit.
    max_body_bytes: 16 * 1024,
    ..Op::page(
        "sign_in",
        &[Code::UnsupportedMediaType, Code::Invalid, Code::TooMany],
    )
};

/// The fields of the page's form.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignIn {
    /// The API key of the person who signs in.
    key: String,
    /// The path of this service that opens after the sign-in. Without it, or with a value that is
    /// no such path, the inbox opens.
    #[schema(value_type = String, required = false)]
    next: Option<String>,
}

/// Sign in
///
/// Takes the page's form. The response to an unknown key is the page again. Without accounts, the
/// response says that no sign-in is needed.
#[utoipa::path(
    post, path = "/sign-in", operation_id = "sign_in", tag = "sign-in", security(()), params(CheckedKeyHeader),
    request_body(content = SignIn, content_type = "application/x-www-form-urlencoded"),
    responses(
        (status = 200, body = String, content_type = "text/html", description = "Without accounts: no sign-in is needed"),
        (status = 303, description = "Signed in: on to `next`",
            headers(("Location" = String, description = "`next`, or the inbox"),
                ("Set-Cookie" = String, description = "`holdpoint_session`"))),
        (status = 401, body = String, content_type = "text/html", description = "The key is not known: the page again",
            headers(("WWW-Authenticate" = String, description = "`Bearer`"))),
    )
)]
pub(crate) async fn sign_in(
    State(http): State<Arc<Http>>,
    request: Request,
) -> Result<Response, Problem> {
    let language = Language::from_headers(request.headers());
    let source = ClientNetwork::from_extensions(request.extensions());
    let (headers, fields) = form(&http, request).await?;
    let submitted = SignIn::read(fields)?;
    if http.settings.without_accounts {
        return Ok(page::not_needed(language).into_response());
    }
    let prefix = path_prefix(&http.settings.public_url);
    let next = submitted.next.as_deref();
    let next = next.and_then(|next| next::local_path(next, &prefix));
    let token = Token::from_bytes(random_bytes().map_err(|_| Problem::unavailable())?);
    let key = submitted.key.trim();
    let Some(binding) = http.authenticator.session_binding(&token, key) else {
        if !key.is_empty() {
            http.wrong_keys.count(source, http.clock.uptime())?;
        }
        let again = page::sign_in_form(next, true, &prefix, language);
        let bearer = [(WWW_AUTHENTICATE, "Bearer")];
        let mut response = (StatusCode::UNAUTHORIZED, bearer, again).into_response();
        response.extensions_mut().insert(RenderedError);
        return Ok(response);
    };
    http.store
        .begin_session(&token.digest(), &binding, SESSION_DURATION)
        .await?;
    if let Some(old) = cookie::token(&headers, &http.settings.public_url) {
        // The new cookie replaces the browser's old cookie, so the old session is no longer needed.
        http.store.end_session(&old.digest()).await?;
    }
    let mut response = see_other(next.unwrap_or(&format!("{prefix}/inbox")));
    response
        .headers_mut()
        .insert(SET_COOKIE, cookie::set(&token, &http.settings.public_url)?);
    Ok(response)
}

impl SignIn {
    fn read(mut fields: BTreeMap<String, String>) -> Result<Self, Problem> {
        let mut errors = Errors::default();
        let (key, next) = (fields.remove("key"), fields.remove("next"));
        if key.is_none() {
            errors.add("/key", "the key");
        }
        // A body that consists of the bare key is parsed as a field whose name is the key. An error
        // must not repeat a key, so this error does not name the unknown field.
        if !fields.is_empty() {
            errors.add("", DetailCode::UnknownMember);
        }
        match key.filter(|_| errors.0.is_empty()) {
            Some(key) => Ok(Self {
                key,
                next: next.filter(|next| !next.is_empty()),
            }),
            None => Err(Problem::invalid(&errors.0)),
        }
    }
}
