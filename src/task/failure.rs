//! Failures: why a task is `Failed`.

use serde::{Deserialize, Serialize};

/// Codes of a failed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    /// The model's endpoint gave no usable answer.
    ModelFailed,
    /// A limit of the agent was reached; `limit` names it.
    LimitReached,
    /// The stored data contradicts itself.
    Integrity,
    /// The configuration no longer has what the task needs.
    Configuration,
    /// The task was taken over again and again without a new item.
    NoProgress,
}

impl FailureCode {
    /// The word on the wire, also the name of its problem page.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ModelFailed => "model_failed",
            Self::LimitReached => "limit_reached",
            Self::Integrity => "integrity",
            Self::Configuration => "configuration",
            Self::NoProgress => "no_progress",
        }
    }
}

/// A task's `error`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Kind of the failure.
    pub code: FailureCode,
    /// One sentence for a person; no secret, no URL.
    pub detail: String,
    /// The limit's name (`max_model_calls`) when `code` is `limit_reached`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

impl Failure {
    /// A failure without a limit's name.
    #[must_use]
    pub fn new(code: FailureCode, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            limit: None,
        }
    }

    /// The failure for a limit that was reached.
    #[must_use]
    pub fn limit(name: &str) -> Self {
        Self {
            code: FailureCode::LimitReached,
            detail: format!(
                "The limit {name} is reached. Raise it and retry the task, or send a message."
            ),
            limit: Some(name.to_owned()),
        }
    }
}
