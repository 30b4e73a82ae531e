//! Event streams to clients, of two kinds. A stream of a task sends the events of the task and of
//! all tasks below it. A stream of an inbox (`inbox`) sends the changes of the requests that wait
//! for a caller. An open stream sends each change as soon as the change is committed.
//!
//! A stream of a task subscribes first, then reads the stored events after its start position (an
//! event number), and then waits for notifications. The tail of the tree (`tail.rs`) reads new
//! events once for all streams of the process. A delta (a part of a model's answer) is sent after
//! all events that the model's prompt contained. Deltas are not stored, so a stream that misses
//! deltas goes on without them.

mod delta_filter;
pub(crate) mod inbox;
pub(crate) mod message_data;
pub(crate) mod opening;
mod reader;
mod rendered;
mod request_at_event;
pub(crate) mod sse;
pub(crate) mod stream;
pub(crate) mod stream_limiter;
pub(crate) mod tail;
mod task_stream;
