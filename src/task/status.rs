//! Statuses of tasks and requests.

use serde::{Deserialize, Serialize};

use super::words::word_enum;

word_enum! {
    /// A task's status. The wire and the database use exactly these words. The order is that of the
    /// OpenAPI document.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    pub enum TaskStatus {
        /// The task or a descendant runs or is about to run.
        Running = "Running",
        /// The task and its descendants do not run, and one of them waits for a person.
        Paused = "Paused",
        /// The model gave its final answer, or the gate call got its result.
        Completed = "Completed",
        /// The task cannot continue. The task's `error` says why. The command `retry` or a new
        /// message resumes the task.
        Failed = "Failed",
        /// A person, a deadline or an ancestor canceled the task.
        Canceled = "Canceled",
    }
}

impl TaskStatus {
    /// Whether the status is terminal. A terminal task is driven again only after a `retry` or a
    /// new message.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Canceled)
    }
}

word_enum! {
    /// A request's status: `pending → responded → resumed`, `pending → expired` or
    /// `pending → withdrawn`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum RequestStatus {
        /// The request is open and waits for a decision.
        Pending = "pending",
        /// An answer closed the request. The effects of the answer are possibly not committed yet.
        Responded = "responded",
        /// The effects of the decision are committed.
        Resumed = "resumed",
        /// The deadline passed without a decision.
        Expired = "expired",
        /// The request was closed without a decision, because it no longer applied.
        Withdrawn = "withdrawn",
    }
}
