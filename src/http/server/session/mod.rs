//! Finds the caller whom the session of an HTTP request authenticates, and redirects a browser
//! without a session to the sign-in page.

pub(crate) mod cookie;
pub(crate) mod next;

use axum::response::{IntoResponse, Response};
use http::header::{HeaderMap, LOCATION};
use http::{HeaderValue, Method, StatusCode, Uri};

use self::next::{local_path, sign_in_address};
use super::accept::wants_html;
use super::problem::{Problem, path_prefix};
use crate::http::Http;
use crate::people::Caller;
use crate::people::authenticator::AuthError;

/// Returns the caller whom the request's session authenticates. `None` without a session, or when
/// the session or the session's key is no longer valid.
///
/// # Errors
/// `forbidden` when the request has a `Holdpoint-…` header, because a session may not speak for
/// other people; `unavailable` or `internal` when the session cannot be read.
pub(crate) async fn caller(http: &Http, headers: &HeaderMap) -> Result<Option<Caller>, Problem> {
    let Some(token) = cookie::token(headers, &http.settings.public_url) else {
        return Ok(None);
    };
    let Some(binding) = http.store.session(&token.digest()).await? else {
        return Ok(None);
    };
    match http
        .authenticator
        .authenticate_session(headers, &token, &binding)
    {
        Ok(caller) => Ok(Some(caller)),
        Err(AuthError::Missing) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether the client asks for a page. If such a client has neither a key nor a session,
/// `http/server/guard.rs` redirects it to the sign-in page.
#[must_use]
pub(crate) fn wants_page(method: &Method, headers: &HeaderMap) -> bool {
    matches!(*method, Method::GET | Method::HEAD) && wants_html(headers)
}

/// Redirects to the sign-in page, which leads to `uri` after the sign-in. The response does not
/// tell whether the task or request in `uri` exists.
#[must_use]
pub(crate) fn redirect_to_sign_in(uri: &Uri, public_url: &str) -> Response {
    let prefix = path_prefix(public_url);
    let requested = format!(
        "{prefix}{}",
        uri.path_and_query().map_or("/", |path| path.as_str())
    );
    see_other(&sign_in_address(&prefix, local_path(&requested, &prefix)))
}

/// Redirects to a page of this service. `path` is below the path of `public_url`.
#[must_use]
pub(crate) fn redirect(http: &Http, path: &str) -> Response {
    let prefix = path_prefix(&http.settings.public_url);
    see_other(&format!("{prefix}{path}"))
}

#[must_use]
pub(crate) fn see_other(path: &str) -> Response {
    match HeaderValue::from_str(path) {
        Ok(path) => (StatusCode::SEE_OTHER, [(LOCATION, path)]).into_response(),
        Err(_) => Problem::internal("a redirect cannot be sent").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_to(asked: &str, public_url: &str) -> String {
        let response = redirect_to_sign_in(&asked.parse().unwrap(), public_url);
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        response.headers()[LOCATION].to_str().unwrap().to_owned()
    }

    #[test]
    fn sign_in_redirect_leads_back() {
        assert_eq!(
            sent_to("/resume/x?a=1&b=2", "http://h"),
            "/sign-in?next=/resume/x%3Fa%3D1%26b%3D2"
        );
        assert_eq!(
            sent_to("/resume/x", "https://h/base"),
            "/base/sign-in?next=/base/resume/x"
        );
        assert_eq!(
            sent_to("/resume/a%2Fb", "http://h"),
            "/sign-in?next=/resume/a%252Fb"
        );
        assert_eq!(sent_to("/resume/../x", "http://h"), "/sign-in");
        assert_eq!(
            sent_to(&format!("/resume/{}", "x".repeat(3000)), "http://h"),
            "/sign-in"
        );
    }
}
