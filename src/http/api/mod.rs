//! The operations of the API, one file each, and what they share: access, waiting, the answer to a POST that moves a task.

pub mod access;
pub mod agents;
pub mod docs;
pub mod health;
mod listing;
pub mod me;
pub mod problems;
pub mod refusal;
pub mod requests;
pub mod respond;
pub mod tasks;
mod wait;
