//! Gauges of rows that wait in the database: their number, and the age of the oldest.

use std::time::Duration;

use prometheus::IntGaugeVec;

use super::Builder;

/// The waiting rows of one label value: their number, and the age of the oldest row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BacklogSample {
    /// The label value, such as a kind of request.
    pub name: String,
    pub waiting: i64,
    pub oldest: Duration,
}

pub(super) struct BacklogGauges {
    waiting: IntGaugeVec,
    oldest: IntGaugeVec,
}

impl BacklogGauges {
    /// Builds the two gauges, each with the label `label`. `waiting` and `oldest` are pairs of a
    /// metric's name and its help text.
    pub(super) fn new(
        build: &Builder,
        waiting: (&str, &str),
        oldest: (&str, &str),
        label: &str,
    ) -> prometheus::Result<Self> {
        Ok(Self {
            waiting: build.gauge(waiting.0, waiting.1, label)?,
            oldest: build.gauge(oldest.0, oldest.1, label)?,
        })
    }

    /// Sets the gauges for the label values in `backlogs`, and removes the gauges for all other
    /// values.
    pub(super) fn set(&self, backlogs: &[BacklogSample]) {
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
