//! The metrics of requests and of people's decisions.

use prometheus::{HistogramVec, IntCounterVec};

use super::Builder;
use super::backlog::BacklogGauges;

/// The instruments of requests, each with the label `kind`.
pub(super) struct RequestMetrics {
    pub(super) open: BacklogGauges,
    closed: IntCounterVec,
    decided: IntCounterVec,
    wait: HistogramVec,
}

/// Upper bounds of the buckets in seconds, for the time that requests wait for people.
const WAIT_BUCKETS: [f64; 12] = [
    1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0,
];

impl RequestMetrics {
    pub(super) fn new(build: &Builder) -> prometheus::Result<Self> {
        Ok(Self {
            open: BacklogGauges::new(
                build,
                ("holdpoint_requests_open", "Requests that wait for a human."),
                (
                    "holdpoint_request_oldest_seconds",
                    "The age of the oldest request that waits.",
                ),
                "kind",
            )?,
            closed: build.counter(
                "holdpoint_requests_closed_total",
                "Requests that were closed.",
                &["kind", "outcome"],
            )?,
            decided: build.counter(
                "holdpoint_requests_decided_total",
                "Decisions of people, also those after which a request stays open.",
                &["kind", "action", "door"],
            )?,
            wait: build.histogram(
                "holdpoint_request_wait_seconds",
                "How long requests waited.",
                &["kind"],
                &WAIT_BUCKETS,
            )?,
        })
    }

    pub(super) fn count_decision(&self, kind: &str, action: &str, door: &str) {
        self.decided.with_label_values(&[kind, action, door]).inc();
    }

    /// Counts a closed request. If `seconds` is known, also records for how long the request was
    /// open.
    pub(super) fn record_closed(&self, kind: &str, outcome: &str, seconds: Option<f64>) {
        self.closed.with_label_values(&[kind, outcome]).inc();
        if let Some(seconds) = seconds {
            self.wait.with_label_values(&[kind]).observe(seconds);
        }
    }
}
