//! The operations of the API, one file each, and the parts that the operations share: the pipeline
//! of a POST, waiting for tasks, and responses.

pub(crate) mod agents;
pub(crate) mod deliveries;
pub(crate) mod gate;
pub(crate) mod grants;
pub(crate) mod health;
mod listing;
pub(crate) mod mcp;
pub(crate) mod me;
pub(crate) mod refusal;
pub(crate) mod requests;
pub(crate) mod respond;
pub(crate) mod submit;
pub(crate) mod tasks;
mod wait;
