//! Sign-in for browsers: a page that takes an API key and starts a session. A session is used only
//! for HTTP requests without an `Authorization` header, has the current rights of its key, and ends
//! with the key.

pub(crate) mod cookie;
pub(crate) mod end_session;
pub(crate) mod next;
pub(crate) mod page;
pub(crate) mod session;
pub(crate) mod show;
pub(crate) mod start_session;

pub(crate) use self::page::{sign_in_again, signed_in_bar};
