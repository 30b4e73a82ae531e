//! (being written)
/// Metrics.
#[derive(Clone, Debug)]
pub struct Metrics;
