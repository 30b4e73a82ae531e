//! The loop and its laws.

mod attacks;
mod cost;
mod laws;
mod lives;
mod questions;
mod restored;
mod stage;
mod takeover;
