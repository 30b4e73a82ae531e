//! `GET /sign-in`: the page that takes a key, or names the signed-in user. A key in the URL is
//! ignored.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use http::HeaderMap;
use maud::Markup;

use super::page;
use crate::http::Http;
use crate::http::pages::language::Language;
use crate::http::pages::layout::HtmlPage;
use crate::http::server::operation::{AuthClass, Op};
use crate::http::server::problem::{Problem, path_prefix};
use crate::http::server::session::{self, next};

pub(crate) const OP: Op = Op {
    auth: AuthClass::Open,
    ..Op::page("get_sign_in", &[])
};

/// The page that takes a key
///
/// For a signed-in user, the page shows the user and the sign-out button. Without accounts, the
/// page says that no sign-in is needed.
#[utoipa::path(
    get, path = "/sign-in", operation_id = "get_sign_in", tag = "sign-in", security(()),
    params(("next" = Option<String>, Query, description = "The path of this service to open afterwards")),
    responses(HtmlPage)
)]
pub(crate) async fn get_sign_in(
    State(http): State<Arc<Http>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Markup, Problem> {
    let language = Language::from_headers(&headers);
    let prefix = path_prefix(&http.settings.public_url);
    if http.settings.without_accounts {
        return Ok(page::not_needed(language));
    }
    let requested = single_next(query.as_deref().unwrap_or_default());
    let next = requested.as_deref();
    let next = next.and_then(|path| next::local_path(path, &prefix));
    Ok(match session::caller(&http, &headers).await? {
        Some(caller) => page::signed_in(&caller, next, &prefix, language),
        None => page::sign_in_form(next, false, &prefix, language),
    })
}

/// Returns the value of `next` in a query; `None` if `next` is missing or repeated.
fn single_next(query: &str) -> Option<String> {
    let found = url::form_urlencoded::parse(query.as_bytes());
    let mut found = found.filter(|(name, _)| name == "next");
    match (found.next(), found.next()) {
        (Some((_, next)), None) => Some(next.into_owned()),
        (_, _) => None,
    }
}
