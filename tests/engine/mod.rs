//! The loop and its laws.

mod attacks;
mod cancels;
mod cost;
mod credentials;
mod deadlines;
mod edited;
mod flips;
mod late;
pub mod laws;
mod lives;
mod noes;
mod orphans;
mod overlap;
mod pair;
mod people;
mod per_call;
mod questions;
mod queue;
mod races;
mod replies;
mod restored;
mod sealed;
mod stage;
mod suspects;
mod takeover;
mod unreadable;
mod versions;
