//! The caller of an HTTP request. The guard (see `guard.rs`) sets the caller, the operation reads
//! the caller, and the functions of this module check the caller's permissions.

use axum::extract::FromRequestParts;
use http::request::Parts;

use super::problem::{Code, Problem};
use crate::engine::DetailCode;
use crate::http::Http;
use crate::people::Caller;
use crate::people::authenticator::AuthError;
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
            .ok_or_else(Problem::internal)
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

fn must(is_allowed: bool, refusal: &str) -> Result<(), Problem> {
    if is_allowed {
        Ok(())
    } else {
        Err(Problem::forbidden(refusal))
    }
}

pub(crate) fn must_read(caller: &Caller) -> Result<(), Problem> {
    must(caller.permissions.read, "This key may not read.")
}

pub(crate) fn must_read_or_decide(caller: &Caller) -> Result<(), Problem> {
    if caller.permissions.decide {
        Ok(())
    } else {
        must_read(caller)
    }
}

pub(crate) fn must_administer(caller: &Caller) -> Result<(), Problem> {
    must(caller.admin, "Only an admin may see and send messages.")
}

/// Refuses a caller whose key has no permission `gate`. The operation that shows a call uses this
/// check. Proposals and reports need `may_ask_at_gate`, which also refuses a key with `decide`,
/// because such a key could approve its own call.
pub(crate) fn must_ask_at_gate(caller: &Caller) -> Result<(), Problem> {
    must(caller.permissions.gate, "This key may not ask at gates.")
}

pub(crate) fn must_create(caller: &Caller) -> Result<(), Problem> {
    let detail = "This key may not create, continue or cancel tasks.";
    must(caller.permissions.create, detail)
}
