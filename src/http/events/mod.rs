//! Event streams to clients. One kind of stream sends the events of a task and of all tasks below
//! it; the other sends the changes of an inbox (`inbox`). Both send each event when it is
//! committed.
//!
//! A stream of a task subscribes first, then reads the stored events after its start position (an
//! event number), and then waits for notifications. The tail of the tree (`tail.rs`) reads the new
//! events once for all streams of the process. The stream sends every event of its task's subtree
//! after the start position. Before the stream sends a delta (a part of a model's answer), it sends
//! all events that the model's prompt contained. Deltas are not stored, so a stream that misses
//! deltas goes on without them.

mod delta_filter;
pub(crate) mod inbox;
pub(crate) mod message_data;
pub(crate) mod opening;
mod reader;
mod rendered;
mod request_at_event;
mod sse;
pub(crate) mod stream;
pub(crate) mod stream_limiter;
pub(crate) mod tail;
mod task_stream;
