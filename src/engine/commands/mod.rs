//! The commands of users and approvers, one file for each verb of the API. A command appends facts
//! to a task's journal in one commit. The driver then carries out the task's next steps.

mod access;
mod cancel;
mod compare_tools;
pub(in crate::engine) mod create;
mod credentials;
mod decide;
mod decision_input;
mod decisions;
mod denied_edits;
mod detail;
pub(crate) mod expire;
mod grants;
mod idempotency;
mod late_answer;
mod message;
mod remember;
mod retry;
pub(in crate::engine) mod submit;
mod valid_decision;

use std::collections::BTreeMap;
use std::fmt::Display;

pub use self::decision_input::{CallReply, DecisionBody, DecisionInput};
pub use self::decisions::{DecidableRequest, Decisions};
pub use self::detail::{Detail, DetailCode};
pub use self::grants::Grants;
pub use self::idempotency::IdempotencyKey;
use crate::store::{Listener, ReadError};
use crate::task::change::{ClientColumns, IdempotencyRow, TaskRow};
use crate::task::id::{CallId, RequestId, TaskId};
use crate::task::item::Part;
use crate::task::status::TaskStatus;

/// The maximum number of times that a command loads its task and tries to commit. A try fails if
/// another commit comes first. After the last failed try, the command is refused as `unavailable`.
pub(crate) const MAX_TRIES: u32 = 200;

/// The input of `Engine::create`. The HTTP handler has checked the shape and the size of the
/// input; the engine checks the agent.
#[derive(Clone, Debug)]
pub struct TaskInput {
    /// The name of the agent; `None` stands for the default agent.
    pub agent: Option<String>,
    /// The parts of the first message.
    pub items: Vec<Part>,
    /// The caller's session id. With `None`, the task gets a new session id.
    pub session_id: Option<String>,
    /// Data about the user, shown to the model before the message.
    pub user_context: Option<BTreeMap<String, String>>,
    /// The columns of the task's row that keep values of the client unchanged.
    pub client: ClientColumns,
}

/// The input of `Engine::message`. The HTTP handler has checked the shape and the size of the
/// input.
#[derive(Clone, Debug)]
pub struct MessageInput {
    pub items: Vec<Part>,
    /// Data about the user, shown to the model before the message.
    pub user_context: Option<BTreeMap<String, String>>,
    /// If set, a paused task accepts the message, and its open requests are withdrawn.
    pub supersede: bool,
}

/// The result of a command whose effect is stored.
#[derive(Debug)]
pub struct Accepted {
    /// The task that the response shows; for a decision, the root task.
    pub task_id: TaskId,
    /// The root of the task's tree. A POST that waits for a result waits for this task.
    pub root: TaskId,
    /// Whether this POST repeated the idempotency key of an earlier POST and had no effect itself.
    pub replayed: bool,
    /// Whether the root is a call at a gate.
    pub is_gate_call: bool,
    /// Listens to the tree's commits. The listener is opened before the command's commit, so that
    /// no later commit is missed. `None` for a cancel and for a replay.
    pub listener: Option<Listener>,
    /// The position of the command's commit. For a replay, the commit that stored the idempotency
    /// key of the earlier POST. `None` for a cancel that is no replay, because its response is
    /// never a stream of events.
    pub position: Option<CommitPosition>,
}

/// The place of a command's commit in the tree's events, from which a reader of events starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitPosition {
    /// The commit that stored this task's item with this `seq`.
    Item(TaskId, i64),
    /// The commit that stored this idempotency key.
    Key(Box<IdempotencyRow>),
}

impl Accepted {
    pub(crate) fn without_events(task_id: TaskId, root: TaskId, replayed: bool) -> Self {
        Self {
            task_id,
            root,
            replayed,
            is_gate_call: false,
            listener: None,
            position: None,
        }
    }
}

/// An error in the body of an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// JSON pointer to the place of the error.
    pub pointer: String,
    /// The expected value or form; never the value sent.
    pub detail: Detail,
}

/// The reason why a command had no effect. The comment of each variant names the problem code of
/// the HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// `not_found`: the id is unknown in the caller's tenant.
    #[error("the id is unknown")]
    NotFound,
    /// `forbidden`, with the reason in words for the caller.
    #[error("{0}")]
    Forbidden(Detail),
    /// `invalid`, with the errors of the body.
    #[error("the body is invalid")]
    Invalid(Vec<FieldError>),
    /// `idempotency_key_reused`: an earlier POST with the same key had a different body.
    #[error("an earlier request had the same key and a different body")]
    KeyReused,
    /// `digest_mismatch`: the digest in the answer differs from the request's digest.
    #[error("the digest is not that of the request")]
    DigestMismatch(RequestId),
    /// `request_expired`: the deadline of the request has passed.
    #[error("the request has expired")]
    Expired(RequestId),
    /// `request_withdrawn`: the request was closed without a decision.
    #[error("the request was withdrawn")]
    Withdrawn(RequestId),
    /// `already_decided`: the request or the call is decided, or the caller has already approved
    /// the call.
    #[error("the request or the call is already decided")]
    AlreadyDecided {
        request: RequestId,
        /// The call that is already decided or approved; `None` if the refusal is about the whole
        /// request.
        call: Option<CallId>,
    },
    /// The task's status or kind does not allow the command. `code` determines the problem code.
    #[error("the task is {status:?}")]
    Conflict {
        code: ConflictCode,
        task_id: TaskId,
        status: TaskStatus,
    },
    /// `not_a_root_task`: a sub-agent's task takes no message and no retry.
    #[error("the task is a sub-agent's")]
    NotARoot {
        /// The root of the task's tree, which takes the command instead.
        root: TaskId,
        /// The status of the task, not of the root.
        status: TaskStatus,
    },
    /// `unavailable`: the database does not answer, the service is shutting down, or other commits
    /// came first at every try.
    #[error("the service is unavailable")]
    Unavailable,
    /// `internal`: the cause is in the log.
    #[error("an internal error")]
    Internal(LoggedCause),
}

/// Shows that the cause of an internal error was logged: only `LoggedCause::log` builds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedCause(());

impl LoggedCause {
    /// Logs the cause of an internal error. The cause must not contain a secret.
    pub(crate) fn log(cause: impl Display) -> Self {
        tracing::error!(%cause, "an internal error");
        Self(())
    }
}

/// The reason why a task's status or kind does not allow a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictCode {
    /// The command is a message, and the task is running.
    TaskRunning,
    /// The command is a message without `supersede`, and the task is paused.
    TaskPaused,
    /// The command is a cancel, and the task is completed or failed.
    TaskFinal,
    /// The command is a retry, and the task has not failed.
    TaskNotFailed,
    /// The command is a message or a retry, and the task is a gate call.
    NotAConversation,
}

impl Refusal {
    /// Returns the refusal of a body with a single error.
    pub(in crate::engine) fn invalid(
        pointer: impl Into<String>,
        detail: impl Into<Detail>,
    ) -> Self {
        Self::Invalid(vec![FieldError {
            pointer: pointer.into(),
            detail: detail.into(),
        }])
    }

    /// Logs the cause of an internal error, and returns the refusal.
    pub(in crate::engine) fn internal(cause: impl Display) -> Self {
        Self::Internal(LoggedCause::log(cause))
    }

    /// Returns the refusal of a command that the status or the kind of the task does not allow.
    fn conflict(row: &TaskRow, code: ConflictCode) -> Self {
        Self::Conflict {
            code,
            task_id: row.task_id,
            status: row.status,
        }
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unavailable => Self::Unavailable,
            ReadError::Corrupt(_) => Self::internal(error),
        }
    }
}
