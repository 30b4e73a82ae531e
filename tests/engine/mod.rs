//! The loop and its laws.

mod attacks;
mod cancels;
mod cost;
mod deadlines;
mod laws;
mod lives;
mod orphans;
mod overlap;
mod pair;
mod questions;
mod races;
mod stage;
mod takeover;
