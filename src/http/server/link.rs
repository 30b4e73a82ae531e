//! The sealed link of a message, as the guard opens it from the path of an HTTP request.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;

use super::problem::Problem;
use crate::http::Http;
use crate::task::id::RequestId;
use crate::task::time::Time;

/// The content of the sealed link in the path of an HTTP request. The guard (`server/guard.rs`)
/// opens the link and stores this struct for the operation.
#[derive(Clone, Debug)]
pub(crate) struct CurrentLink {
    pub request_id: RequestId,
    pub expires_at: Time,
    /// The e-mail address of the person to whom the link was sent, if the configuration has it.
    pub email: Option<String>,
    /// The path of the link's page, including the path of `public_url`.
    pub path: String,
    /// The path that is stored with an idempotency key. A sealed link gives the right to decide and
    /// must not be stored, so this path has the id of the link's request in place of the link.
    pub stored_path: String,
}

impl FromRequestParts<Arc<Http>> for CurrentLink {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Http>) -> Result<Self, Problem> {
        // The guard has stored the link for every operation of `AuthClass::Link`.
        let link = parts.extensions.get::<Self>().cloned();
        link.ok_or_else(Problem::internal)
    }
}
