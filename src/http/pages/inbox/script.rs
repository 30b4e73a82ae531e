//! `/inbox.js`: marks the rows of an open inbox as requests change, counts them, and announces new
//! ones. The page is complete without it.
//!
//! Invariant: the script moves no row by itself, and takes no decision.

use axum::response::Response;
use maud::{Markup, html};

use crate::http::pages::follow;
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

/// Serves the script.
pub(crate) async fn get_inbox_script() -> Response {
    follow::served(SCRIPT)
}
