//! The operations on tasks, one file each.

pub(crate) mod cancel;
pub(crate) mod create;
pub(crate) mod events;
pub(crate) mod items;
pub(crate) mod list;
pub(crate) mod message;
pub(crate) mod message_body;
pub(crate) mod retry;
pub(crate) mod show;
