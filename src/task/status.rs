//! Statuses of tasks and requests.

use serde::{Deserialize, Serialize};

/// A task's status. The wire and the database use exactly these words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TaskStatus {
    /// The task or a descendant runs or is about to run.
    Running,
    /// The task and its descendants do not run, and one of them waits for a person.
    Paused,
    /// The model gave its final answer, or the gate call got its result.
    Completed,
    /// The task cannot continue. The task's `error` says why. The command `retry` or a new message
    /// resumes the task.
    Failed,
    /// A person, a deadline or an ancestor canceled the task.
    Canceled,
}

impl TaskStatus {
    /// All statuses, in the order of the OpenAPI document.
    pub const ALL: [Self; 5] = [
        Self::Running,
        Self::Paused,
        Self::Completed,
        Self::Failed,
        Self::Canceled,
    ];

    /// Whether the status is terminal. A terminal task is driven again only after a `retry` or a
    /// new message.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Canceled)
    }

    /// Returns the word on the wire and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Paused => "Paused",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Canceled => "Canceled",
        }
    }

    /// Returns the status with exactly this word (letter case counts).
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}

/// A request's status: `pending → responded → resumed`, `pending → expired` or
/// `pending → withdrawn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestStatus {
    /// The request is open and waits for a decision.
    Pending,
    /// An answer closed the request. The effects of the answer are possibly not committed yet.
    Responded,
    /// The effects of the decision are committed.
    Resumed,
    /// The deadline passed without a decision.
    Expired,
    /// The request was closed without a decision, because it no longer applied.
    Withdrawn,
}

impl RequestStatus {
    /// All statuses, in the order of declaration.
    pub const ALL: [Self; 5] = [
        Self::Pending,
        Self::Responded,
        Self::Resumed,
        Self::Expired,
        Self::Withdrawn,
    ];

    /// Returns the word on the wire and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Responded => "responded",
            Self::Resumed => "resumed",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
        }
    }

    /// Returns the status with exactly this word (letter case counts).
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}
