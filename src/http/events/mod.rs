//! Event streams: the journal of a task tree, live (contract, section 6).
//!
//! A stream subscribes first, then reads the rows after its marker to their end, then waits for a
//! notification. The rows are the truth; a model's deltas are forwarded as they arrive and never
//! waited for.

pub(crate) mod opening;
mod partial;
mod reader;
mod request_then;
mod sse;
pub(crate) mod stream;
pub(crate) mod stream_limiter;
