//! `/inbox.js`: marks the rows of an open inbox as requests change, counts them, and announces new
//! ones. The page is complete without it.
//!
//! Invariant: the script moves no row by itself, and takes no decision.

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use maud::{Markup, html};

use crate::http::server::operation::{AuthClass, Op, SMALL};

pub(crate) const OP: Op = Op {
    id: "get_inbox_script",
    auth: AuthClass::Open,
    body: SMALL,
    problems: &[],
};

/// The script.
pub(crate) const SCRIPT: &str = include_str!("inbox.js");

/// The `<script>` element, on a page whose paths begin with `prefix`.
#[must_use]
pub(crate) fn tag(prefix: &str) -> Markup {
    html! { script src=(format!("{prefix}/inbox.js")) defer {} }
}

/// Serves the script. `no-cache` makes the browser ask again with each page, so the script is never
/// older than the page.
pub(crate) async fn get_inbox_script() -> Response {
    let headers = [
        (CONTENT_TYPE, "text/javascript; charset=utf-8"),
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, SCRIPT).into_response()
}
