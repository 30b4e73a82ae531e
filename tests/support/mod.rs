//! What several suites need.

pub mod postgres;
