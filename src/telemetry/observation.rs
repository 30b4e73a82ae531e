//! The fields of an observation: a `tracing` event that a metric records.

use std::fmt;

use tracing::field::{Field, Visit};

#[derive(Debug, Default)]
pub(super) struct Observation {
    pub(super) metric: String,
    pub(super) operation: String,
    pub(super) status: String,
    pub(super) model: String,
    pub(super) tool: String,
    pub(super) rule: String,
    pub(super) kind: String,
    pub(super) outcome: String,
    pub(super) door: String,
    pub(super) entry: String,
    pub(super) server: String,
    pub(super) gate: String,
    pub(super) decision: String,
    pub(super) seconds: Option<f64>,
    pub(super) change: i64,
    pub(super) size: f64,
}

impl Observation {
    fn text(&mut self, name: &str, value: String) {
        let to = match name {
            "metric" => &mut self.metric,
            "operation" => &mut self.operation,
            "status" => &mut self.status,
            "model" => &mut self.model,
            "tool" => &mut self.tool,
            "rule" => &mut self.rule,
            "kind" => &mut self.kind,
            "outcome" => &mut self.outcome,
            "door" => &mut self.door,
            "entry" => &mut self.entry,
            "server" => &mut self.server,
            "gate" => &mut self.gate,
            "decision" => &mut self.decision,
            _ => return,
        };
        *to = value;
    }

    fn number(&mut self, name: &str, value: f64) {
        match name {
            "seconds" => self.seconds = Some(value),
            "size" => self.size = value,
            _ => {}
        }
    }
}

impl Visit for Observation {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.number(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        if field.name() == "change" {
            self.change = value;
        } else {
            self.record_u64(field, u64::try_from(value).unwrap_or(0));
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "change" {
            self.change = i64::try_from(value).unwrap_or(0);
        }
        self.text(field.name(), value.to_string());
        self.number(
            field.name(),
            f64::from(u32::try_from(value).unwrap_or(u32::MAX)),
        );
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field.name(), format!("{value:?}"));
    }
}
