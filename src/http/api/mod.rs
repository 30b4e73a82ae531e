//! The operations of the API, one file each, and what they share: access, waiting, the answer to a POST that moves a task.

pub(crate) mod access;
pub(crate) mod agents;
pub(crate) mod docs;
pub(crate) mod health;
mod listing;
pub(crate) mod me;
pub(crate) mod problems;
pub(crate) mod refusal;
pub(crate) mod requests;
pub(crate) mod respond;
pub(crate) mod tasks;
mod wait;
