//! An id or a name in the path of an operation.

use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use http::request::Parts;

use super::problem::Problem;
use crate::http::Http;

/// An id or a name in the path. A malformed id, or a segment that is not UTF-8, gets the problem
/// `not_found`, like an unknown id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathId<T>(pub T);

impl<T: FromStr + Send> FromRequestParts<Arc<Http>> for PathId<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, http: &Arc<Http>) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, http)
            .await
            .map_err(|_| Problem::not_found())?;
        text.parse().map(Self).map_err(|_| Problem::not_found())
    }
}
