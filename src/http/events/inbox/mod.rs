//! The stream of an inbox: first the requests that wait for one caller, then each new request and
//! each change. The events have no numbers, so a stream cannot be resumed: each connection begins
//! with the requests that wait at that time.
//!
//! Each tenant has one reader (`tail`). The reader learns which requests were changed, and reads
//! the rows of these requests once for all streams of the process. Each stream derives the event
//! for its caller from a row (`view`).
//!
//! Invariant: `view` is the only place that decides which event a changed request causes.

mod stream;
pub(crate) mod tail;
mod view;

pub(crate) use self::stream::open;
pub(crate) use self::view::MAX_COUNTED;
