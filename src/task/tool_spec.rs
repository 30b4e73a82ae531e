//! What is known of a tool without calling it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;

/// What repeating a call does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Changes nothing.
    ReadOnly,
    /// Safe to repeat with the same key.
    Idempotent,
    /// Must not happen twice.
    #[default]
    Once,
}

impl Effect {
    /// The word on the wire and in rules.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read_only",
            Self::Idempotent => "idempotent",
            Self::Once => "once",
        }
    }

    /// Whether a call whose outcome is unknown may be sent again with the same key.
    #[must_use]
    pub fn repeatable(self) -> bool {
        !matches!(self, Self::Once)
    }
}

/// Who performs a call of the tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// An HTTP request.
    #[default]
    Http,
    /// A command on this host.
    Shell,
    /// The caller, who posts the result.
    External,
    /// A sub-agent.
    Agent,
    /// A human: the three `request_…` tools.
    Human,
}

/// A tool as a model, a rule and an approver see it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Its name, as the model calls it.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema (2020-12) of its arguments; always an object schema.
    pub parameters: Value,
    /// What repeating a call does.
    pub effect: Effect,
    /// Who performs it.
    pub kind: ToolKind,
    /// Where a call goes, for an approver: `POST http://payments.internal`, `shell /srv/ops`.
    pub target: String,
    /// Template of the line an approver reads: `Refund {amount} for order {order}`.
    pub summary: Option<String>,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// `sha256:…` over kind, target, parameters, effect, and headers and env unexpanded; not over texts or timeout.
    pub definition: String,
    /// The credentials that its headers, `url` and `env` refer to, each once, in order of their names.
    pub needs: Vec<String>,
}

impl ToolSpec {
    /// The line an approver reads: the template with the arguments filled in as text, each cut at 80 characters.
    /// Without a template, the tool's name.
    #[must_use]
    pub fn summarize(&self, arguments: &Value) -> String {
        let Some(template) = &self.summary else { return self.name.clone() };
        let mut line = String::new();
        let mut rest = template.as_str();
        while let Some((before, after)) = rest.split_once('{') {
            line.push_str(before);
            let Some((name, tail)) = after.split_once('}') else {
                line.push('{');
                rest = after;
                continue;
            };
            match arguments.get(name) {
                Some(Value::String(text)) => line.extend(text.chars().take(80)),
                Some(other) => line.extend(other.to_string().chars().take(80)),
                None => {}
            }
            rest = tail;
        }
        line.push_str(rest);
        line
    }
}
