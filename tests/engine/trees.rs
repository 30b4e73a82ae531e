//! Trees of tasks: sub-agents at any depth, their requests, crashes and endings.

mod concurrency;
mod concurrent_limits;
mod crashes;
mod endings;
pub(super) mod harness;
mod interleavings;
mod shared_state;
mod stale_state;
