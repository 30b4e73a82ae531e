//! `/inbox.js`: keeps an open inbox page up to date. Marks the row of each request that no longer
//! waits, counts the waiting requests, and announces new requests. The page is complete without the
//! script.
//!
//! Invariant: the script leaves each row in its place, and sends no decision.

use axum::response::Response;

use crate::http::pages::follow;
use crate::http::server::operation::Op;

pub(crate) const OP: Op = Op::public("get_inbox_script", &[]);

pub(crate) const SCRIPT: &str = include_str!("inbox.js");

pub(crate) async fn get_inbox_script() -> Response {
    follow::script_response(SCRIPT)
}
