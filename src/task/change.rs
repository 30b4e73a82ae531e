//! The writes of one commit: a [`Change`] of one tree, stored whole or not at all.
//!
//! The store derives the rows of requests, approvers and decisions from the items (an
//! `intervention_requested` opens a request row, a `decision` adds to it, a `request_closed` closes
//! it), so rows and items cannot disagree.

use std::ops::AddAssign;
use std::time::Duration;

use super::credential::SealedCredential;
use super::id::{ChangeId, RequestId, TaskId};
use super::item::{Fact, Item, Usage};
use super::status::TaskStatus;
use super::time::Time;
use super::user::UserKey;

/// One commit: the changes of one or more tasks of one tree, each guarded by its task's version.
#[derive(Clone, Debug)]
pub struct Change {
    /// Id of the commit. The commit's items carry this id, so that a commit whose answer was lost
    /// can be looked up.
    pub id: ChangeId,
    /// Root of the changed tree. Two changes of one root never share a batch.
    pub root: TaskId,
    /// Tenant of the tree.
    pub tenant: String,
    /// Name of the root's agent.
    pub root_agent: String,
    /// The changed tasks, each once.
    pub tasks: Vec<TaskChange>,
    /// Requests whose decisions have now taken effect: `responded` → `resumed`.
    pub resumed: Vec<RequestId>,
    /// Idempotency row of the command that this commit carries out.
    pub idempotency: Option<IdempotencyRow>,
}

/// The change of one task.
#[derive(Clone, Debug)]
pub struct TaskChange {
    /// The changed task.
    pub task_id: TaskId,
    /// Version that the task's row must have.
    pub guard: Guard,
    /// Facts to append; their `seq` continues from `last_seq`.
    pub facts: Vec<Fact>,
    /// The `seq` of the last item before this change (0 for a new task).
    pub last_seq: i64,
    /// The agent's new version, where it changes.
    pub agent_version: Option<String>,
    /// Added to the counters of the task's row.
    pub counters: Counters,
    /// Change of the task's lease.
    pub lease: LeaseChange,
    /// Change of the presence of the asker of a gate call.
    pub asker: Option<Asker>,
    /// Credentials that a person provided for the task. A change that ends the task writes none and
    /// removes the stored ones.
    pub credentials: Vec<SealedCredential>,
}

/// Version that a task's row must have when the change is written.
#[derive(Clone, Debug)]
pub enum Guard {
    /// No row may exist: the change inserts it.
    New(Box<NewTask>),
    /// Exactly this version; the change increments it.
    Version(i64),
    /// Any version, for an ancestor: the change adds counters and carries no facts.
    Any,
}

/// Members of a new task's row.
#[derive(Clone, Debug)]
pub struct NewTask {
    /// Tenant of the row.
    pub tenant: String,
    /// User id of the owner.
    pub user_id: String,
    /// The session id that the API's client gave, or a fresh one.
    pub session_id: String,
    /// The agent's name.
    pub agent: String,
    /// `sha256:…` of the agent's definition.
    pub agent_version: String,
    /// Parent task, and its call that started this task; `None` for a root.
    pub parent: Option<(TaskId, super::id::CallId)>,
    /// Agent names, from the root's agent to this task's agent.
    pub agent_path: Vec<String>,
    /// The metadata that the API's client gave: JSON text of an object.
    pub metadata: String,
    /// Set for a call at a gate to which an equal call may attach.
    pub call: Option<KeyedCall>,
}

/// The identity of a call at a gate: equal calls of one user and session have equal identities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedCall {
    /// Name of the tool.
    pub tool: String,
    /// `b:<hash>` of the call's bytes, or `k:<hash>` if the caller named the call by a key of its
    /// own; only the former attach.
    pub key: String,
}

/// The presence of the asker of a gate call: the client that waits for the call's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The asker waits for this long from the time of the commit, in database time.
    For(Duration),
    /// The asker has left; a result has not been delivered.
    Gone,
    /// The result has been delivered.
    Delivered,
}

/// Increments of the counters over a task's subtree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Busy tasks: a driver holds the task, the task is queued, or a timer will wake it.
    pub busy: i32,
    /// Open requests.
    pub open_requests: i32,
    /// Model tokens.
    pub usage: Usage,
    /// Model answers.
    pub model_calls: i32,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, more: Self) {
        self.busy += more.busy;
        self.open_requests += more.open_requests;
        self.usage.prompt_tokens += more.usage.prompt_tokens;
        self.usage.completion_tokens += more.usage.completion_tokens;
        self.usage.total_tokens += more.usage.total_tokens;
        self.model_calls += more.model_calls;
    }
}

impl Asker {
    /// The `asker_until` that a commit at time `at` stores.
    #[must_use]
    pub fn until(self, at: Time) -> Time {
        match self {
            Self::For(time) => at + time,
            Self::Gone => Time(0),
            Self::Delivered => DELIVERED,
        }
    }
}

/// How a commit changes a task's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// Leaves the lease as it is.
    Keep,
    /// Takes or extends the lease for `time` from now, in database time.
    Take {
        /// Id of the process, random per start.
        owner: String,
        /// Duration of the lease.
        time: Duration,
    },
    /// Releases the lease: any worker may claim the task at once.
    Queue,
    /// Releases the lease: the task sleeps until a commit wakes it, or until `wake_in` has passed,
    /// if given.
    Park {
        /// Time after which a worker looks at the task again.
        wake_in: Option<Duration>,
    },
}

/// The row that makes a repeated POST a no-op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyRow {
    /// Tenant of the row.
    pub tenant: String,
    /// User that the command acts for, as the HTTP request spells the id.
    pub user_id: String,
    /// Comparison key of that user, where spellings are compared folded.
    pub person: Option<UserKey>,
    /// Method and path.
    pub path: String,
    /// The `Idempotency-Key`, verbatim.
    pub key: String,
    /// Digest of the body: a keyed hash (`k1:…`), or SHA-256 in hex where no credential can be
    /// requested.
    pub body_digest: String,
    /// Task that the command returns.
    pub task_id: TaskId,
    /// Request that the command decided, on `/resume`.
    pub request_id: Option<RequestId>,
}

/// Result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Time of the items that the commit wrote, by the database's clock.
    pub at: Time,
}

/// The stored `asker_until` of a gate call whose result was delivered.
pub const DELIVERED: Time = Time(i64::MAX);

/// The stored row of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskRow {
    /// Id of the task.
    pub task_id: TaskId,
    /// Id of the tree's root; for a root, its own id.
    pub root_task_id: TaskId,
    /// Parent task, and its call that started this task; `None` for a root.
    pub parent: Option<(TaskId, super::id::CallId)>,
    /// Tenant of the row.
    pub tenant: String,
    /// User id of the owner.
    pub user_id: String,
    /// The session id that the API's client gave, or a generated one.
    pub session_id: String,
    /// The agent's name.
    pub agent: String,
    /// `sha256:…` of the agent's definition.
    pub agent_version: String,
    /// Agent names, from the root's agent to this task's agent.
    pub agent_path: Vec<String>,
    /// Status of the task.
    pub status: TaskStatus,
    /// The fence: every write names the version it read.
    pub version: i64,
    /// The `seq` of the task's last item.
    pub last_seq: i64,
    /// The metadata that the API's client gave, as JSON text.
    pub metadata: String,
    /// Busy tasks of the task's subtree, see [`Counters::busy`].
    pub busy: i32,
    /// Open requests of the task's subtree.
    pub open_requests: i32,
    /// Tokens that the task's subtree has used over the task's life.
    pub usage: Usage,
    /// Model answers in the task's subtree over the task's life.
    pub model_calls: i64,
    /// The last `task_status` item's `output`.
    pub output: Option<String>,
    /// The last `task_status` item's `error`.
    pub error: Option<super::failure::Failure>,
    /// Process that holds the lease, if any.
    pub lease_owner: Option<String>,
    /// End of the lease.
    pub lease_until: Option<Time>,
    /// Whether the task is idle: not leased, not queued, and without a wake-up time.
    pub parked: bool,
    /// Of a gate call: the time until which its asker waits; [`DELIVERED`] once its result was
    /// delivered. `None` for any other task.
    pub asker_until: Option<Time>,
    /// Takeovers since the task's last item.
    pub takeovers: i32,
    /// Leases that ran out after work on the task had begun, since the task's last item.
    pub fruitless: i32,
    /// Number of the tree's last event, on the root's row; 0 on all other rows.
    pub next_event: i64,
    /// Time of the commit of the task's first item.
    pub created_at: Time,
    /// Time of the commit of the task's last item.
    pub updated_at: Time,
}

impl TaskRow {
    /// The name of the root's agent.
    #[must_use]
    pub fn root_agent(&self) -> &str {
        self.agent_path.first().map_or(&self.agent, String::as_str)
    }
}

/// A task's row and its whole journal, read in one snapshot.
#[derive(Clone, Debug)]
pub struct Journal {
    /// The task's row.
    pub row: TaskRow,
    /// The task's items, `seq` 1, 2, 3 …
    pub items: Vec<Item>,
    /// Time of the snapshot, by the database's clock.
    pub now: Time,
    /// Time up to which the history is uncertain, because a restore or the promotion of a standby
    /// has lost its end. `None` if the history is certain.
    pub history_uncertain_until: Option<Time>,
}
