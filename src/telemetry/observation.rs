//! The fields of an observation: a `tracing` event that a metric records.

use std::collections::BTreeMap;
use std::fmt;

use tracing::field::{Field, Visit};

#[derive(Debug, Default)]
pub(super) struct Observation {
    texts: BTreeMap<&'static str, String>,
    pub(super) seconds: Option<f64>,
    pub(super) change: Option<i64>,
    pub(super) size: f64,
}

impl Observation {
    /// Returns a field as text; empty if there is no such field.
    pub(super) fn text(&self, name: &str) -> &str {
        self.texts.get(name).map_or("", String::as_str)
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
            self.change = Some(value);
        } else {
            self.record_u64(field, u64::try_from(value).unwrap_or(0));
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "change" {
            self.change = Some(i64::try_from(value).unwrap_or(0));
        }
        self.texts.insert(field.name(), value.to_string());
        self.number(
            field.name(),
            f64::from(u32::try_from(value).unwrap_or(u32::MAX)),
        );
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.texts.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.texts.insert(field.name(), format!("{value:?}"));
    }
}
