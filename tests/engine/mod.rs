//! The loop and its laws.

mod attacks;
mod cancels;
mod cost;
mod credentials;
mod deadlines;
mod late;
pub mod laws;
mod lives;
mod orphans;
mod overlap;
mod pair;
mod questions;
mod queue;
mod races;
mod restored;
mod sealed;
mod stage;
mod suspects;
mod takeover;
mod unreadable;
mod versions;
