//! Tests trees of tasks: sub-agents at any depth, their requests, their crashes and their ends.

mod concurrency;
mod concurrent_limits;
mod crashes;
mod endings;
pub(super) mod harness;
mod interleavings;
mod shared_state;
mod stale_state;
mod waits_for_room;
