//! Everything between a socket and an operation: connections, the guard, the parts of a request, and problem documents.

pub mod accept;
pub mod body;
pub mod caller;
pub mod connections;
pub mod descriptors;
mod drain_body;
pub mod edge;
pub mod fields;
pub mod guard;
pub mod json;
pub mod operation;
pub mod origin;
pub mod params;
pub mod path_id;
pub mod prefer;
pub mod problem;
pub mod query;
pub mod serve;
mod write_timeout;
pub mod wrong_keys;
