//! The loop and its laws.

mod laws;
mod lives;
