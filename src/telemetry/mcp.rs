//! The metrics of MCP servers.

use prometheus::{IntCounterVec, IntGaugeVec};

use super::Builder;
use super::observation::Observation;

/// The instruments of MCP servers, each with the label `server`: the server's name in the
/// configuration.
pub(super) struct McpMetrics {
    up: IntGaugeVec,
    changed: IntGaugeVec,
    dropped: IntCounterVec,
}

impl McpMetrics {
    pub(super) fn new(build: &Builder) -> prometheus::Result<Self> {
        Ok(Self {
            up: build.gauge(
                "holdpoint_mcp_server_up",
                "Whether the MCP server could be reached when it was last needed.",
                &["server"],
            )?,
            changed: build.gauge(
                "holdpoint_mcp_catalogue_changed",
                "Tools of the MCP server that are new or changed since the review.",
                &["server"],
            )?,
            dropped: build.counter(
                "holdpoint_mcp_dropped_total",
                "Messages and lines of the MCP server that were dropped.",
                &["server", "kind"],
            )?,
        })
    }

    pub(super) fn set_up(&self, observation: &Observation) {
        set(&self.up, observation);
    }

    pub(super) fn set_changed(&self, observation: &Observation) {
        set(&self.changed, observation);
    }

    pub(super) fn count_dropped(&self, observation: &Observation) {
        let labels = [observation.text("server"), observation.text("kind")];
        let count = u64::try_from(observation.change).unwrap_or_default();
        self.dropped.with_label_values(&labels).inc_by(count);
    }
}

fn set(gauge: &IntGaugeVec, observation: &Observation) {
    gauge
        .with_label_values(&[observation.text("server")])
        .set(observation.change);
}
