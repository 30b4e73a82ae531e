//! The loop and its laws.

mod attacks;
mod cost;
mod laws;
mod lives;
mod questions;
mod queue;
mod restored;
mod stage;
mod suspects;
mod takeover;
mod versions;
