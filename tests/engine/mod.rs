//! The loop and its laws.

mod attacks;
mod attacks2;
mod attacks3;
mod cancels;
mod cost;
mod deadlines;
mod late;
pub mod laws;
mod lives;
mod orphans;
mod overlap;
mod pair;
mod per_call;
mod questions;
mod queue;
mod races;
mod replies;
mod restored;
mod stage;
mod suspects;
mod takeover;
mod unreadable;
mod versions;
