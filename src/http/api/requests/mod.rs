//! Requests: the inbox, one request, and the answers to it.

pub mod approve;
pub mod decide;
mod decision_body;
pub mod list;
pub mod reject;
pub mod show;
