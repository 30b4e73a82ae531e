//! The metrics of the messages that the service sends to the receivers in `notify.to`.

use prometheus::{HistogramVec, IntCounterVec};

use super::backlog::BacklogGauges;
use super::{Builder, Metrics};

/// The instruments of messages, each with the label `target`: the name of the receiver.
pub(super) struct DeliveryMetrics {
    attempts: IntCounterVec,
    pub(super) waiting: BacklogGauges,
    lag: HistogramVec,
    unreachable: IntCounterVec,
}

/// Upper bounds of the buckets in seconds. The last bound is 3 days: about as long as all attempts
/// to deliver a message take.
const LAG_BUCKETS: [f64; 12] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 60.0, 3600.0, 86_400.0, 259_200.0,
];

/// The values of the label `outcome`.
const OUTCOMES: [&str; 4] = ["sent", "failed", "dead", "dropped"];

impl Metrics {
    /// Shows a receiver's counters as 0 before its first message. Otherwise each series would begin
    /// at 1, and a rate over the series would miss the first event.
    pub fn expect_receiver(&self, target: &str) {
        let DeliveryMetrics {
            attempts,
            unreachable,
            ..
        } = &self.0.deliveries;
        for outcome in OUTCOMES {
            attempts.with_label_values(&[target, outcome]);
        }
        unreachable.with_label_values(&[target]);
    }
}

impl DeliveryMetrics {
    pub(super) fn new(build: &Builder) -> prometheus::Result<Self> {
        Ok(Self {
            attempts: build.counter(
                "holdpoint_deliveries_total",
                "Attempts at messages, by how they ended.",
                &["target", "outcome"],
            )?,
            waiting: BacklogGauges::new(
                build,
                (
                    "holdpoint_deliveries_waiting",
                    "Messages that are to be sent, now or after a failure.",
                ),
                (
                    "holdpoint_delivery_oldest_seconds",
                    "The age of the oldest message that is to be sent.",
                ),
                "target",
            )?,
            lag: build.histogram(
                "holdpoint_delivery_lag_seconds",
                "The time from a commit to the delivery of its message.",
                &["target"],
                &LAG_BUCKETS,
            )?,
            unreachable: build.counter(
                "holdpoint_requests_unreachable_total",
                "Questions for which no approver has a mail address.",
                &["target"],
            )?,
        })
    }

    /// Counts an attempt to send a message, or a delivery that was dropped.
    pub(super) fn count_attempt(&self, target: &str, outcome: &str) {
        self.attempts.with_label_values(&[target, outcome]).inc();
    }

    pub(super) fn count_unreachable(&self, target: &str) {
        self.unreachable.with_label_values(&[target]).inc();
    }

    /// Records the seconds from a commit to the delivery of its message. For a reminder, the
    /// seconds count from the time at which the reminder was due.
    pub(super) fn record_lag(&self, target: &str, seconds: f64) {
        self.lag.with_label_values(&[target]).observe(seconds);
    }
}
