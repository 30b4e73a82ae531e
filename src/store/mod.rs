//! Every byte we keep. A struct, not a trait: SQLite on a temporary file is the test double.

use crate::task::change::{Change, Committed, IdempotencyRow, Journal, TaskRow};
use crate::task::decision::Decision;
use crate::task::id::{RequestId, TaskId};
use crate::task::item::Item;
use crate::task::request::Asked;
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::time::Time;

/// A request as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestRow {
    /// The question as it was asked.
    pub asked: Asked,
    /// The task that asked.
    pub task_id: TaskId,
    /// The root of its tree.
    pub root_task_id: TaskId,
    /// The tenant.
    pub tenant: String,
    /// The tree's owner.
    pub owner: String,
    /// The session.
    pub session_id: String,
    /// Names from the root's agent to the one that asked.
    pub agent_path: Vec<String>,
    /// Where it stands. `Pending` past `expires_at` is expired, swept or not; see `expired`.
    pub status: RequestStatus,
    /// When it was asked.
    pub created_at: Time,
    /// From when on an answer comes too late; `None` is never.
    pub expires_at: Option<Time>,
    /// Whether `expires_at` had passed, by the database's clock, when this row was read.
    pub expired: bool,
    /// The answers so far, oldest first, each with its moment.
    pub answers: Vec<(Time, Decision)>,
}

/// Which root tasks to list.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// Of this tenant.
    pub tenant: String,
    /// Of these owners; empty is everybody's.
    pub users: Vec<String>,
    /// In one of these; empty is any.
    pub statuses: Vec<TaskStatus>,
    /// Of one of these agents; empty is any.
    pub agents: Vec<String>,
    /// Of one of these sessions; empty is any.
    pub sessions: Vec<String>,
    /// These trees' tasks instead of root tasks; empty is root tasks.
    pub roots: Vec<TaskId>,
    /// Only tasks older (smaller id) than this one.
    pub before: Option<TaskId>,
    /// How many at most.
    pub limit: i64,
}

/// Which requests to list.
#[derive(Clone, Debug, Default)]
pub struct RequestFilter {
    /// Of this tenant.
    pub tenant: String,
    /// What this person may decide (by `approvers`: user or group rows; the owner where `owner` is set), or has decided
    /// when `statuses` is not just pending. `None`: no such condition.
    pub person: Option<Person>,
    /// In one of these; empty is any.
    pub statuses: Vec<RequestStatus>,
    /// Of one of these kinds (their wire words); empty is any.
    pub kinds: Vec<String>,
    /// Asked by one of these agents; empty is any.
    pub agents: Vec<String>,
    /// Of one of these sessions; empty is any.
    pub sessions: Vec<String>,
    /// Of these trees; empty is any.
    pub roots: Vec<TaskId>,
    /// Only requests younger (greater id) than this one.
    pub after: Option<RequestId>,
    /// How many at most.
    pub limit: i64,
}

/// Somebody, as the inbox sees him.
#[derive(Clone, Debug, Default)]
pub struct Person {
    /// His id.
    pub user_id: String,
    /// His groups.
    pub groups: Vec<String>,
    /// Without accounts: he may decide everything.
    pub everything: bool,
}

/// Why something was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Another commit came first: read again.
    #[error("another commit came first")]
    Stale,
    /// A constraint forbids it: a spent idempotency key, or a bug.
    #[error("a constraint forbids it")]
    Refused,
    /// Nothing was sent: the database does not answer.
    #[error("the database does not answer")]
    Unavailable,
    /// The answer was lost, and it could not be found out whether it was written.
    #[error("the database's answer was lost")]
    Unknown,
}

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The database does not answer.
    #[error("the database does not answer")]
    Unavailable,
    /// What is stored cannot be understood.
    #[error("what is stored cannot be understood: {0}")]
    Corrupt(String),
}

/// The store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {}

impl Store {
    /// Writes one change, all of it or nothing.
    pub async fn commit(&self, _change: Change) -> Result<Committed, CommitError> {
        Err(CommitError::Unavailable)
    }

    /// The database's clock.
    pub async fn now(&self) -> Result<Time, ReadError> {
        Err(ReadError::Unavailable)
    }

    /// A task's row.
    pub async fn task(&self, _id: TaskId) -> Result<Option<TaskRow>, ReadError> {
        Err(ReadError::Unavailable)
    }

    /// A task's row and its whole journal, in one snapshot.
    pub async fn journal(&self, _id: TaskId) -> Result<Option<Journal>, ReadError> {
        Err(ReadError::Unavailable)
    }

    /// A task's items after a `seq`, with each one's event number in its root's stream.
    pub async fn items(&self, _id: TaskId, _after: i64, _limit: i64) -> Result<Vec<(Item, i64)>, ReadError> {
        Err(ReadError::Unavailable)
    }

    /// Tasks, newest first.
    pub async fn tasks(&self, _filter: &TaskFilter) -> Result<Vec<TaskRow>, ReadError> {
        Err(ReadError::Unavailable)
    }

    /// A request, by its id through the primary key.
    pub async fn request(&self, _id: RequestId) -> Result<Option<RequestRow>, ReadError> {
        Err(ReadError::Unavailable)
    }

    /// Requests, oldest first.
    pub async fn requests(&self, _filter: &RequestFilter) -> Result<Vec<RequestRow>, ReadError> {
        Err(ReadError::Unavailable)
    }

    /// The open requests of a task and of its sub-agents, in the order they were asked.
    pub async fn pending(&self, _root: TaskId, _task: TaskId) -> Result<Vec<RequestRow>, ReadError> {
        Err(ReadError::Unavailable)
    }

    /// Whether somebody may decide (by approver rows) or has decided one of a tree's requests.
    pub async fn involved(&self, _root: TaskId, _person: &Person) -> Result<bool, ReadError> {
        Err(ReadError::Unavailable)
    }

    /// The row of an idempotency key.
    pub async fn idempotency(
        &self,
        _tenant: &str,
        _user: &str,
        _path: &str,
        _key: &str,
    ) -> Result<Option<IdempotencyRow>, ReadError> {
        Err(ReadError::Unavailable)
    }

    /// Takes over up to `limit` tasks that nobody drives: queued ones, those whose lease ran out, and parked ones whose
    /// time has come. Bumps each one's version (the old driver's fence) and, where a lease ran out, its `takeovers`.
    pub async fn claim(
        &self,
        _owner: &str,
        _lease: std::time::Duration,
        _limit: i64,
    ) -> Result<Vec<TaskId>, ReadError> {
        Err(ReadError::Unavailable)
    }

    /// Renews the leases this process holds. Returns the tasks whose lease is still its own.
    pub async fn renew(
        &self,
        _owner: &str,
        _lease: std::time::Duration,
        _tasks: &[TaskId],
    ) -> Result<Vec<TaskId>, ReadError> {
        Err(ReadError::Unavailable)
    }

    /// Open requests whose deadline has passed, by the database's clock, oldest first.
    pub async fn overdue(&self, _limit: i64) -> Result<Vec<RequestRow>, ReadError> {
        Err(ReadError::Unavailable)
    }

    /// How many tasks stand in each status, and how many open requests there are of each kind (wire words).
    pub async fn census(&self) -> Result<(Vec<(TaskStatus, i64)>, Vec<(String, i64)>), ReadError> {
        Err(ReadError::Unavailable)
    }

    /// Whether the database answers.
    pub async fn ready(&self) -> bool {
        false
    }

    /// A receiver that is told after each commit of this process to that tree.
    pub fn watch(&self, _root: TaskId) -> tokio::sync::watch::Receiver<u64> {
        tokio::sync::watch::channel(0).1
    }
}
