//! The failures that make a task `Failed`.

use serde::{Deserialize, Serialize};

use super::words::word_enum;

word_enum! {
    /// The code of a failure, for programs. The page `docs/problems/<word>.md` describes the
    /// failure.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum FailureCode {
        /// The model's endpoint gave no usable answer.
        ModelFailed = "model_failed",
        /// A limit of the agent was reached. The failure's `limit` names the limit.
        LimitReached = "limit_reached",
        /// Stored data are damaged, or the database refused to store the task's next step.
        Integrity = "integrity",
        /// The configuration no longer fits the task, for example because the agent was removed.
        Configuration = "configuration",
        /// Several leases of the task expired in succession without a new item in the journal.
        NoProgress = "no_progress",
    }
}

/// Why a task failed. The API shows a failure as the task's `error`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The reason, for programs.
    pub code: FailureCode,
    /// The reason in one sentence, for people. The sentence contains no secrets and no URLs.
    pub detail: String,
    /// Key of the reached limit, for example `max_model_calls`, if `code` is `limit_reached`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

impl Failure {
    /// Creates a failure that names no limit.
    #[must_use]
    pub fn new(code: FailureCode, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            limit: None,
        }
    }

    /// Creates the failure for a reached limit. `name` is the limit's key in the configuration.
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
