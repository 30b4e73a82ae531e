//! Tasks: one file for each operation.

pub(crate) mod cancel;
pub(crate) mod create;
pub(crate) mod events;
pub(crate) mod items;
pub(crate) mod list;
pub(crate) mod message;
mod message_body;
pub(crate) mod retry;
pub(crate) mod show;

use serde_json::Value;

use crate::http::server::fields::{Errors, Fields};
use crate::http::server::problem::Problem;

/// A body that says nothing: an operation without members.
///
/// # Errors
/// It says something.
pub(crate) fn nothing(body: Value) -> Result<(), Problem> {
    let mut errors = Errors::default();
    if let Some(fields) = Fields::of(body, "", &mut errors) {
        fields.finish(&mut errors);
    }
    if errors.0.is_empty() { Ok(()) } else { Err(Problem::invalid(&errors.0)) }
}
