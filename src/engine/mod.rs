//! Makes tasks move. What the outside asks for (`create`, `message`, `cancel`, `retry`, `decide`) only appends facts;
//! the loop in `drive.rs` does the rest, and a crash anywhere is continued by asking `next_step` again.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::people::Caller;
use crate::task::decision::{Action, CallAnswer, Then};
use crate::task::id::{RequestId, TaskId};
use crate::task::item::Part;
use crate::task::status::TaskStatus;

/// A new task, as asked for. Checked by the door for shape and size; the engine checks the agent.
#[derive(Clone, Debug)]
pub struct NewTask {
    /// The agent's name; `None` is the default agent.
    pub agent: Option<String>,
    /// The user's message.
    pub items: Vec<Part>,
    /// The caller's own string, or `None` for a fresh id.
    pub session_id: Option<String>,
    /// Data about the user.
    pub user_context: Option<BTreeMap<String, String>>,
    /// The caller's, as JSON text of an object.
    pub metadata: String,
}

/// The user's next message.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// The message.
    pub items: Vec<Part>,
    /// Data about the user.
    pub user_context: Option<BTreeMap<String, String>>,
    /// Whether open questions are dropped.
    pub supersede: bool,
}

/// A human's answer, as sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What the approver saw.
    pub digest: Option<String>,
    /// The answer.
    pub body: AnswerBody,
}

/// One answer for the whole request, or one for each call.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerBody {
    /// `action` in the body or in the path.
    Whole {
        /// The action.
        action: Action,
        /// The reason.
        reason: Option<String>,
        /// What follows a rejection.
        then: Option<Then>,
        /// What was filled in.
        response: Option<Value>,
        /// The result.
        result: Option<Value>,
    },
    /// `decisions`: by `tool_call_id` as it was sent, with `then` beside each reject.
    PerCall(BTreeMap<String, (CallAnswer, Option<Then>)>),
}

/// The `Idempotency-Key` of a POST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Method and path, e.g. `POST /v1/tasks`.
    pub path: String,
    /// The header as it stands.
    pub key: String,
    /// SHA-256 of the body, in hex.
    pub body_digest: String,
}

/// Something was stored (or, replayed, had been).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The task the operation answers with.
    pub task_id: TaskId,
    /// The root of its tree: what a POST waits for.
    pub root: TaskId,
    /// Whether an earlier POST with the same key did it.
    pub replayed: bool,
}

/// One thing that is wrong with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// JSON pointer of the place.
    pub pointer: String,
    /// What was expected; never the value.
    pub detail: String,
}

/// Why nothing was done. Each has its problem code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// `not_found`.
    #[error("there is nothing by that id")]
    NotFound,
    /// `forbidden`.
    #[error("{0}")]
    Forbidden(String),
    /// `invalid`.
    #[error("the body does not fit")]
    Invalid(Vec<FieldError>),
    /// `idempotency_key_reused`.
    #[error("the key was used with another body")]
    KeyReused,
    /// `digest_mismatch`.
    #[error("the digest is not that of the request")]
    DigestMismatch(RequestId),
    /// `request_expired`.
    #[error("the request has expired")]
    Expired(RequestId),
    /// `request_withdrawn`.
    #[error("the request was withdrawn")]
    Withdrawn(RequestId),
    /// `already_decided`.
    #[error("it is decided already")]
    AlreadyDecided(RequestId),
    /// `task_running`, `task_paused`, `task_final` or `task_not_failed`: by what was asked and the status.
    #[error("the task is {status:?}")]
    Conflict {
        /// The problem's code.
        code: ConflictCode,
        /// The task.
        task_id: TaskId,
        /// Its status.
        status: TaskStatus,
    },
    /// `not_a_root_task`.
    #[error("the task is a sub-agent's")]
    NotARoot {
        /// Its root.
        root: TaskId,
        /// Its status.
        status: TaskStatus,
    },
    /// `unavailable`: the database does not answer, or the service is going down.
    #[error("not now")]
    Unavailable,
    /// `internal`: logged where it happened.
    #[error("an internal error")]
    Internal,
}

/// Which conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictCode {
    /// A message to a running task.
    TaskRunning,
    /// A message to a paused task.
    TaskPaused,
    /// Cancel of a completed or failed task.
    TaskFinal,
    /// Retry of a task that is not failed.
    TaskNotFailed,
}

/// The engine. One for each process.
#[derive(Debug)]
pub struct Engine {}

impl Engine {
    /// Creates a task and begins to drive it; returns once it is stored.
    pub async fn create(
        self: &Arc<Self>,
        _caller: &Caller,
        _task: NewTask,
        _key: Option<Key>,
    ) -> Result<Accepted, Refusal> {
        Err(Refusal::Unavailable)
    }

    /// Appends the user's next message.
    pub async fn message(
        self: &Arc<Self>,
        _caller: &Caller,
        _task: TaskId,
        _message: NewMessage,
        _key: Option<Key>,
    ) -> Result<Accepted, Refusal> {
        Err(Refusal::Unavailable)
    }

    /// Cancels a task and everything below it.
    pub async fn cancel(
        self: &Arc<Self>,
        _caller: &Caller,
        _task: TaskId,
        _key: Option<Key>,
    ) -> Result<Accepted, Refusal> {
        Err(Refusal::Unavailable)
    }

    /// Goes on with a failed task.
    pub async fn retry(
        self: &Arc<Self>,
        _caller: &Caller,
        _task: TaskId,
        _key: Option<Key>,
    ) -> Result<Accepted, Refusal> {
        Err(Refusal::Unavailable)
    }

    /// Stores a human's answer and goes on.
    pub async fn decide(
        self: &Arc<Self>,
        _caller: &Caller,
        _request: RequestId,
        _answer: Answer,
        _key: Option<Key>,
    ) -> Result<Accepted, Refusal> {
        Err(Refusal::Unavailable)
    }

    /// What an earlier POST with the same key did: checked before anything else of the operation.
    /// `KeyReused` when its body was another; `Forbidden` when the caller has lost his right since.
    pub async fn replay(&self, _caller: &Caller, _key: &Key) -> Result<Option<Accepted>, Refusal> {
        Err(Refusal::Unavailable)
    }
}
