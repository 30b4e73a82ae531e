//! Sign-in for browsers: a page that takes an API key and starts a session. A session is ignored in
//! an HTTP request with an `Authorization` header. A session has the current rights of its key, and
//! ends as soon as the key is no longer valid.

pub(crate) mod end_session;
pub(crate) mod page;
pub(crate) mod show;
pub(crate) mod start_session;
mod texts;

pub(crate) use self::page::{sign_in_again, signed_in_bar};
