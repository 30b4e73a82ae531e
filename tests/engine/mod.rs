//! The loop and its laws.

mod lives;
