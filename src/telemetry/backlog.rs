//! Gauges of rows that wait in the database: the number of rows, and the age of the oldest row.

use std::time::Duration;

use prometheus::IntGaugeVec;

use super::Builder;

/// The number and the age of the waiting rows with one label value.
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
    /// Builds the two gauges. `waiting` and `oldest` are pairs of a name and a description:
    /// `waiting` for the number of rows, `oldest` for the age of the oldest row.
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

    /// Sets the gauges for each label value in `backlogs`, and removes all other label values.
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
