//! Gauges of rows that wait in the database: their number, and the age of the oldest.

use prometheus::IntGaugeVec;

use super::Builder;
use crate::world::Backlog;

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

    /// Sets the gauges for the label values that `backlogs` name, and removes the gauges for all
    /// other values.
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
