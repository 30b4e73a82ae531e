//! Agents: what they are, for whoever may use them.

pub mod list;
