//! The browser's door: a page that takes a key, and the session it begins. A session is the key shown once: it is looked
//! up only where no key comes with the request, it is worth what the key is worth today, and ends with it.

pub(crate) mod cookie;
pub(crate) mod end_session;
pub(crate) mod next;
pub(crate) mod page;
pub(crate) mod session;
pub(crate) mod show;
pub(crate) mod start_session;

pub(crate) use self::page::{sign_in_again, signed_in_bar};
