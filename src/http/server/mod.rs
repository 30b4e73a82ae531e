//! Everything between a socket and an operation: connections, the guard (the checks before each
//! operation), the parts of a request, and problem documents.

pub(crate) mod accept;
pub(crate) mod body;
pub(crate) mod caller;
pub(crate) mod connections;
pub(crate) mod delivered_body;
pub(crate) mod descriptors;
pub(crate) mod drain_body;
pub(crate) mod fields;
pub(crate) mod guard;
pub(crate) mod headers;
mod held_frames;
mod http2;
pub(crate) mod json;
pub(crate) mod link;
pub(crate) mod operation;
pub(crate) mod origin;
pub(crate) mod path_id;
pub(crate) mod prefer;
pub(crate) mod problem;
pub(crate) mod query;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod settings;
mod write_timeout;
pub(crate) mod wrong_keys;
