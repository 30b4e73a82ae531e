//! The loop and its laws.

mod laws;
mod lives;
mod stage;
mod takeover;
