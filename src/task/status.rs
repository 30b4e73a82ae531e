//! Where a task and a request stand.

use serde::{Deserialize, Serialize};

/// A task's status, on the wire and in the database exactly these words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TaskStatus {
    /// Something in its tree runs or is about to.
    Running,
    /// Nothing runs and something waits for a human.
    Paused,
    /// The model gave its final answer.
    Completed,
    /// It could not go on; `error` says why. `retry` or a message continues it.
    Failed,
    /// A human ended it.
    Canceled,
}

impl TaskStatus {
    /// All of them, in the contract's order.
    pub const ALL: [Self; 5] = [Self::Running, Self::Paused, Self::Completed, Self::Failed, Self::Canceled];

    /// Whether nothing happens any more unless somebody asks for it.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Canceled)
    }

    /// The word on the wire and in the database.
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

    /// The status of that word, byte by byte.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}

/// A request's status: `pending → responded → resumed`, or from `pending` only `expired` or `withdrawn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestStatus {
    /// Open: somebody has to answer.
    Pending,
    /// Its last call is decided.
    Responded,
    /// What follows from the decision is committed.
    Resumed,
    /// Nobody answered in time.
    Expired,
    /// The question no longer stands.
    Withdrawn,
}

impl RequestStatus {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Pending, Self::Responded, Self::Resumed, Self::Expired, Self::Withdrawn];

    /// The word on the wire and in the database.
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

    /// The status of that word, byte by byte.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}
