//! The caller of an HTTP request. The guard (see `guard.rs`) sets the caller, and the operation
//! reads the caller. The functions `must_…` turn a missing right into a problem.

use axum::extract::FromRequestParts;
use http::request::Parts;

use super::problem::{Code, Problem};
use crate::engine::DetailCode;
use crate::http::Http;
use crate::people::Caller;
use crate::people::authenticator::AuthError;
use crate::people::authorization::{
    may_administer, may_create, may_read_any, may_read_or_decide_any,
};
use crate::task::user::UserKey;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct CurrentCaller(pub Caller);

impl FromRequestParts<Arc<Http>> for CurrentCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Http>) -> Result<Self, Problem> {
        // `guard.rs` sets the caller of every operation with `AuthClass::Key` or `AuthClass::Link`.
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| Problem::internal("an operation has no caller"))
    }
}

impl From<AuthError> for Problem {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Missing => Self::new(Code::Unauthorized, DetailCode::KeyMissing),
            AuthError::UnknownKey => Self::new(Code::Unauthorized, DetailCode::KeyUnknown),
            AuthError::Forbidden(detail) => Self::forbidden(detail),
            AuthError::BadHeader(detail) => Self::bad_request(detail),
        }
    }
}

/// The tenant and the user of a caller, by which limits count the requests of one person.
pub(crate) type PersonKey = (String, UserKey);

pub(crate) fn person_key(caller: &Caller) -> PersonKey {
    (caller.tenant.clone(), caller.user_id.key().clone())
}

pub(crate) fn must_read(caller: &Caller) -> Result<(), Problem> {
    may_read_any(caller).map_err(Problem::forbidden)
}

pub(crate) fn must_read_or_decide(caller: &Caller) -> Result<(), Problem> {
    may_read_or_decide_any(caller).map_err(Problem::forbidden)
}

pub(crate) fn must_administer(caller: &Caller) -> Result<(), Problem> {
    may_administer(caller).map_err(Problem::forbidden)
}

pub(crate) fn must_create(caller: &Caller) -> Result<(), Problem> {
    may_create(caller).map_err(Problem::forbidden)
}
