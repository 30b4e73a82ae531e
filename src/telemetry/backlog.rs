//! The gauges of what waits: how much, and since when.

use std::time::Duration;

use prometheus::IntGaugeVec;

use super::Builder;

/// The rows of one label that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// The value of the label.
    pub name: String,
    /// The number of rows.
    pub waiting: i64,
    /// The age of the oldest one.
    pub oldest: Duration,
}

/// Two gauges with one label.
pub(super) struct BacklogGauges {
    waiting: IntGaugeVec,
    oldest: IntGaugeVec,
}

impl BacklogGauges {
    /// The gauges with these names and descriptions: of the number, and of the oldest one's age.
    pub(super) fn new(
        build: &Builder,
        waiting: (&str, &str),
        oldest: (&str, &str),
        label: &str,
    ) -> prometheus::Result<Self> {
        Ok(Self {
            waiting: build.gauge(waiting.0, waiting.1, &[label])?,
            oldest: build.gauge(oldest.0, oldest.1, &[label])?,
        })
    }

    /// Shows these counts, and no others.
    pub(super) fn show(&self, backlogs: &[Backlog]) {
        self.waiting.reset();
        self.oldest.reset();
        for backlog in backlogs {
            let label = &[&backlog.name];
            self.waiting.with_label_values(label).set(backlog.waiting);
            let seconds = i64::try_from(backlog.oldest.as_secs()).unwrap_or(i64::MAX);
            self.oldest.with_label_values(label).set(seconds);
        }
    }
}
