//! Requests: the inbox.

pub mod list;
