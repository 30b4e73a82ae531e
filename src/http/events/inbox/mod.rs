//! The stream of an inbox: first the requests that wait for one caller, then each new request and
//! each change. The events have no numbers, so a stream cannot be resumed: each connection begins
//! with the requests that wait at that time.
//!
//! In each process, one reader serves all inbox streams of a tenant (`tail`). The reader learns
//! which requests of the tenant were changed, and reads their rows once for all these streams. Each
//! stream derives the event for its caller from a row (`view`).
//!
//! Invariant: `view` is the only place that decides which event a changed request causes.

pub(crate) mod filter;
mod stream;
pub(crate) mod tail;
mod view;

pub(crate) use self::stream::open;
pub(crate) use self::view::MAX_COUNTED;
