//! `GET /sign-in`: the page that takes a key, or names the signed-in user. A key in the URL is
//! ignored.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use http::HeaderMap;
use maud::Markup;

use super::{next, page, session};
use crate::http::Http;
use crate::http::pages::language::Language;
use crate::http::server::operation::{AuthClass, Op, SMALL};
use crate::http::server::problem::{Code, Problem, prefix};

pub(crate) const OP: Op = Op {
    id: "get_sign_in",
    auth: AuthClass::Open,
    body: SMALL,
    problems: &[Code::Unavailable],
};

/// The page that takes a key
///
/// For a signed-in user it shows the user and the sign-out button. Without accounts it says that no
/// sign-in is needed.
#[utoipa::path(
    get, path = "/sign-in", operation_id = "get_sign_in", tag = "sign-in", security(()),
    params(("next" = Option<String>, Query, description = "The path of this service to open afterwards")),
    responses((status = 200, body = String, content_type = "text/html", description = "The page"))
)]
pub(crate) async fn get_sign_in(
    State(http): State<Arc<Http>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Markup, Problem> {
    let (language, prefix) = (Language::of(&headers), prefix(&http.settings.public_url));
    if http.settings.open {
        return Ok(page::not_needed(language));
    }
    let asked = only_next(query.as_deref().unwrap_or_default());
    let next = asked
        .as_deref()
        .and_then(|asked| next::own_path(asked, &prefix));
    Ok(match session::caller(&http, &headers).await? {
        Some(caller) => page::signed_in(&caller, next, &prefix, language),
        None => page::sign_in_form(next, false, &prefix, language),
    })
}

/// Returns the `next` of a query; `None` if the query has several.
fn only_next(query: &str) -> Option<String> {
    let mut found =
        url::form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "next");
    match (found.next(), found.next()) {
        (Some((_, next)), None) => Some(next.into_owned()),
        (_, _) => None,
    }
}
