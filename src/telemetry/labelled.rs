//! The metrics with labels that observations change, one row of [`ROWS`] each.

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts};

use super::observation::Observation;
use super::{Builder, Metrics};

/// Upper bounds of the buckets in seconds, up to the maximum timeout of a tool.
const DURATION_BUCKETS: [f64; 17] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 600.0,
];

/// Upper bounds of the buckets in seconds, up to the longest wait of a proposal at a gate.
const GATE_BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 45.0, 120.0, 300.0,
];

/// Upper bounds of the buckets in seconds, for the time that requests wait for people.
const WAIT_BUCKETS: [f64; 12] = [
    1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0,
];

/// Upper bounds of the buckets in seconds. The last bound is 3 days: about as long as all attempts
/// to deliver a message take.
const LAG_BUCKETS: [f64; 12] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 60.0, 3600.0, 86_400.0, 259_200.0,
];

/// The values of the label `outcome` of deliveries.
const DELIVERY_OUTCOMES: [&str; 4] = ["sent", "failed", "dead", "dropped"];

enum MetricKind {
    /// Grows by the `change` of an observation, or by 1 if it has no `change`.
    Counter,
    /// Has the `change` of the last observation.
    Gauge,
    /// Collects the `seconds` of observations that have them. These are the upper bounds of the
    /// buckets.
    Histogram(&'static [f64]),
}

/// A metric, and the observations that change it.
struct Row {
    /// The value of the field `metric` of the observations.
    observed: &'static str,
    kind: MetricKind,
    name: &'static str,
    help: &'static str,
    /// Pairs of a label and the field of an observation that has the label's value.
    labels: &'static [(&'static str, &'static str)],
}

static ROWS: [Row; 16] = [
    Row {
        observed: "http_request",
        kind: MetricKind::Histogram(&DURATION_BUCKETS),
        name: "holdpoint_http_request_duration_seconds",
        help: "How long HTTP requests took to answer.",
        labels: &[("operation", "operation"), ("status", "status")],
    },
    Row {
        observed: "model_call",
        kind: MetricKind::Histogram(&DURATION_BUCKETS),
        name: "holdpoint_model_call_duration_seconds",
        help: "How long models took to answer.",
        labels: &[("model", "model"), ("outcome", "outcome")],
    },
    Row {
        observed: "tool_call",
        kind: MetricKind::Histogram(&DURATION_BUCKETS),
        name: "holdpoint_tool_call_duration_seconds",
        help: "How long tools took to answer.",
        labels: &[("tool", "tool"), ("outcome", "outcome")],
    },
    Row {
        observed: "unknown_outcome",
        kind: MetricKind::Counter,
        name: "holdpoint_unknown_outcomes_total",
        help: "Calls with an unknown outcome.",
        labels: &[("tool", "tool")],
    },
    Row {
        observed: "request_decided",
        kind: MetricKind::Counter,
        name: "holdpoint_requests_decided_total",
        help: "Decisions of people, also those after which a request stays open.",
        labels: &[("kind", "kind"), ("action", "outcome"), ("door", "door")],
    },
    Row {
        observed: "request_closed",
        kind: MetricKind::Counter,
        name: "holdpoint_requests_closed_total",
        help: "Requests that were closed.",
        labels: &[("kind", "kind"), ("outcome", "outcome")],
    },
    Row {
        observed: "request_closed",
        kind: MetricKind::Histogram(&WAIT_BUCKETS),
        name: "holdpoint_request_wait_seconds",
        help: "How long requests waited.",
        labels: &[("kind", "kind")],
    },
    Row {
        observed: "grant_used",
        kind: MetricKind::Counter,
        name: "holdpoint_grants_used_total",
        help: "Calls that a standing decision let through.",
        labels: &[("rule", "rule")],
    },
    Row {
        observed: "delivery",
        kind: MetricKind::Counter,
        name: "holdpoint_deliveries_total",
        help: "Attempts at messages, by how they ended.",
        labels: &[("target", "entry"), ("outcome", "outcome")],
    },
    // For a reminder, the seconds count from the time at which the reminder was due.
    Row {
        observed: "delivery_lag",
        kind: MetricKind::Histogram(&LAG_BUCKETS),
        name: "holdpoint_delivery_lag_seconds",
        help: "The time from a commit to the delivery of its message.",
        labels: &[("target", "entry")],
    },
    Row {
        observed: "unreachable",
        kind: MetricKind::Counter,
        name: "holdpoint_requests_unreachable_total",
        help: "Questions for which no approver has a mail address.",
        labels: &[("target", "entry")],
    },
    Row {
        observed: "gate_call",
        kind: MetricKind::Counter,
        name: "holdpoint_gate_calls_total",
        help: "Answers to asks at gates.",
        labels: &[("gate", "gate"), ("decision", "decision")],
    },
    Row {
        observed: "gate_ask",
        kind: MetricKind::Histogram(&GATE_BUCKETS),
        name: "holdpoint_gate_ask_seconds",
        help: "How long asks at gates took to answer.",
        labels: &[("gate", "gate"), ("door", "door")],
    },
    Row {
        observed: "mcp_server_up",
        kind: MetricKind::Gauge,
        name: "holdpoint_mcp_server_up",
        help: "Whether the MCP server could be reached when it was last needed.",
        labels: &[("server", "server")],
    },
    Row {
        observed: "mcp_catalogue_changed",
        kind: MetricKind::Gauge,
        name: "holdpoint_mcp_catalogue_changed",
        help: "Tools of the MCP server that are new or changed since the review.",
        labels: &[("server", "server")],
    },
    Row {
        observed: "mcp_dropped",
        kind: MetricKind::Counter,
        name: "holdpoint_mcp_dropped_total",
        help: "Messages and lines of the MCP server that were dropped.",
        labels: &[("server", "server"), ("kind", "kind")],
    },
];

enum Instrument {
    Counter(IntCounterVec),
    Gauge(IntGaugeVec),
    Histogram(HistogramVec),
}

impl Row {
    fn instrument(&self, build: &Builder) -> prometheus::Result<Instrument> {
        let labels: Vec<&str> = self.labels.iter().map(|(label, _)| *label).collect();
        let options = Opts::new(self.name, self.help);
        Ok(match self.kind {
            MetricKind::Counter => {
                Instrument::Counter(build.register(IntCounterVec::new(options, &labels)?)?)
            }
            MetricKind::Gauge => {
                Instrument::Gauge(build.register(IntGaugeVec::new(options, &labels)?)?)
            }
            MetricKind::Histogram(buckets) => {
                let options = HistogramOpts::from(options).buckets(buckets.to_vec());
                Instrument::Histogram(build.register(HistogramVec::new(options, &labels)?)?)
            }
        })
    }
}

pub(super) struct LabelledMetrics(Vec<(&'static Row, Instrument)>);

impl LabelledMetrics {
    pub(super) fn new(build: &Builder) -> prometheus::Result<Self> {
        let metrics = ROWS.iter().map(|row| Ok((row, row.instrument(build)?)));
        metrics.collect::<prometheus::Result<_>>().map(Self)
    }

    pub(super) fn observe(&self, observation: &Observation) {
        for (row, instrument) in self.observed_by(observation.text("metric")) {
            let values = row.labels.iter().map(|(_, field)| observation.text(field));
            let labels: Vec<&str> = values.collect();
            let change = observation.change;
            match instrument {
                Instrument::Counter(counter) => {
                    let count =
                        change.map_or(1, |change| u64::try_from(change).unwrap_or_default());
                    counter.with_label_values(&labels).inc_by(count);
                }
                Instrument::Gauge(gauge) => {
                    gauge
                        .with_label_values(&labels)
                        .set(change.unwrap_or_default());
                }
                Instrument::Histogram(histogram) => {
                    if let Some(seconds) = observation.seconds {
                        histogram.with_label_values(&labels).observe(seconds);
                    }
                }
            }
        }
    }

    fn observed_by(&self, metric: &str) -> impl Iterator<Item = &(&'static Row, Instrument)> {
        let metrics = self.0.iter();
        metrics.filter(move |(row, _)| row.observed == metric)
    }
}

/// Appends the `HELP` and `TYPE` lines of each metric of [`ROWS`] that `text` does not have. The
/// encoder leaves out a metric that has no series yet.
pub(super) fn name_missing(text: &mut String) {
    for row in &ROWS {
        let kind = match row.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram(_) => "histogram",
        };
        let type_line = format!("# TYPE {} {kind}\n", row.name);
        if !text.contains(&type_line) {
            text.extend(["# HELP ", row.name, " ", row.help, "\n", type_line.as_str()]);
        }
    }
}

impl Metrics {
    /// Shows a receiver's counters as 0 before its first message. Otherwise each series would begin
    /// at 1, and a rate over the series would miss the first event.
    pub fn expect_receiver(&self, target: &str) {
        for outcome in DELIVERY_OUTCOMES {
            self.expect("delivery", &[target, outcome]);
        }
        self.expect("unreachable", &[target]);
    }

    /// Shows a tool's counter of unknown outcomes as 0 before the first of them.
    pub fn expect_tool(&self, tool: &str) {
        self.expect("unknown_outcome", &[tool]);
    }

    fn expect(&self, metric: &str, labels: &[&str]) {
        for (_, instrument) in self.0.labelled.observed_by(metric) {
            if let Instrument::Counter(counter) = instrument {
                counter.with_label_values(labels);
            }
        }
    }
}
