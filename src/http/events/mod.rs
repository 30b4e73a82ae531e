//! Event streams: the journal of a task tree, live (contract, section 6).
//!
//! A stream subscribes first, then reads all stored events after its marker (the number of an
//! event), then waits for notifications. Every stored event of its subtree is sent. A model's
//! deltas are forwarded as they arrive; the stream never waits for a delta.

pub(crate) mod opening;
mod partial;
mod reader;
mod request_then;
mod sse;
pub(crate) mod stream;
pub(crate) mod stream_limiter;
