//! The browser's door: a page that takes a key, and the session it begins. A session is the key shown once: it is looked
//! up only where no key comes with the request, it is worth what the key is worth today, and ends with it.

pub mod cookie;
pub mod end_session;
pub mod next;
pub mod page;
pub mod session;
pub mod show;
pub mod start_session;

pub use self::page::{sign_in_again, signed_in_bar};
