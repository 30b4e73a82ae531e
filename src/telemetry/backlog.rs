//! Gauges of rows that wait in the database. They show the number of rows and the age of the oldest
//! row.

use std::time::Duration;

use prometheus::IntGaugeVec;

use super::Builder;

/// The number of waiting rows with one label value, and the age of the oldest such row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// The label value, such as a kind of request.
    pub name: String,
    /// The number of waiting rows.
    pub waiting: i64,
    /// The age of the oldest waiting row.
    pub oldest: Duration,
}

/// Two gauges with the same label: the number of waiting rows, and the age in seconds of the oldest
/// waiting row.
pub(super) struct BacklogGauges {
    waiting: IntGaugeVec,
    oldest: IntGaugeVec,
}

impl BacklogGauges {
    /// Builds the two gauges. Each argument is a pair of a metric's name and its description.
    /// `waiting` names the gauge for the number of rows, and `oldest` the gauge for the age of the
    /// oldest row.
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

    /// Sets the gauges for each label value in `backlogs`, and removes the gauges of all other
    /// label values.
    pub(super) fn set(&self, backlogs: &[Backlog]) {
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
