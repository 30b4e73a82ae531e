//! The metrics of gates.

use prometheus::{HistogramVec, IntCounterVec, IntGauge};

use super::Builder;
use super::observation::Observation;

pub(super) struct GateMetrics {
    calls: IntCounterVec,
    ask: HistogramVec,
    pub(super) waiting: IntGauge,
}

/// Upper bounds of the buckets in seconds, up to the longest wait of a proposal at a gate.
const DURATION_BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 45.0, 120.0, 300.0,
];

impl GateMetrics {
    pub(super) fn new(build: &Builder) -> prometheus::Result<Self> {
        let waiting = IntGauge::new("holdpoint_gate_waiting", "Clients that wait at gates.")?;
        build.0.register(Box::new(waiting.clone()))?;
        Ok(Self {
            calls: build.counter(
                "holdpoint_gate_calls_total",
                "Answers to asks at gates.",
                &["gate", "decision"],
            )?,
            ask: build.histogram(
                "holdpoint_gate_ask_seconds",
                "How long asks at gates took to answer.",
                &["gate", "door"],
                &DURATION_BUCKETS,
            )?,
            waiting,
        })
    }

    pub(super) fn count_answer(&self, observation: &Observation) {
        let labels = [observation.text("gate"), observation.text("decision")];
        self.calls.with_label_values(&labels).inc();
    }

    pub(super) fn record_duration(&self, observation: &Observation) {
        let labels = [observation.text("gate"), observation.text("door")];
        let seconds = observation.seconds.unwrap_or(0.0);
        self.ask.with_label_values(&labels).observe(seconds);
    }
}
