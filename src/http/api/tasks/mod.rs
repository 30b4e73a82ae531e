//! Tasks: one file for each operation.

pub mod cancel;
pub mod create;
pub mod events;
pub mod items;
pub mod list;
pub mod message;
mod message_body;
pub mod retry;
pub mod show;

use serde_json::Value;

use crate::http::server::fields::{Errors, Fields};
use crate::http::server::problem::Problem;

/// A body that says nothing: an operation without members.
///
/// # Errors
/// It says something.
pub fn nothing(body: Value) -> Result<(), Problem> {
    let mut errors = Errors::default();
    if let Some(fields) = Fields::of(body, "", &mut errors) {
        fields.finish(&mut errors);
    }
    if errors.0.is_empty() { Ok(()) } else { Err(Problem::invalid(&errors.0)) }
}
