//! The operations on requests: the inbox, single requests, and answers.

pub(crate) mod approve;
pub(crate) mod decide;
mod decision_body;
pub(crate) mod events;
pub(crate) mod inbox_filter;
pub(crate) mod list;
pub(crate) mod reject;
pub(crate) mod show;
