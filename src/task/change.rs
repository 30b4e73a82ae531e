//! What one commit writes. There is one kind of write: a [`Change`] of one tree, all of it or nothing.
//!
//! The rows of requests, approvers and decisions follow from the items (an `intervention_requested` opens a request
//! row, a `decision` adds to it, a `request_closed` closes it), so nothing can be said in one place and not in the other.

use std::ops::AddAssign;
use std::time::Duration;

use super::credential::SealedCredential;
use super::id::{ChangeId, RequestId, TaskId};
use super::item::{Fact, Item, Usage};
use super::status::TaskStatus;
use super::time::Time;
use super::user::UserKey;

/// One commit: one or more tasks of one root, each at the version it was read at.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its own id; its items carry it, so that a commit whose answer was lost can be looked up.
    pub id: ChangeId,
    /// The root of the tree it changes. Two changes of one root never share a batch.
    pub root: TaskId,
    /// The tasks it touches, each once.
    pub tasks: Vec<TaskChange>,
    /// Requests whose decisions have now taken effect: `responded` → `resumed`.
    pub resumed: Vec<RequestId>,
    /// The idempotency row of the operation this commit is the effect of.
    pub idempotency: Option<IdempotencyRow>,
}

/// What happens to one task.
#[derive(Clone, Debug)]
pub struct TaskChange {
    /// Which.
    pub task_id: TaskId,
    /// At which version.
    pub guard: Guard,
    /// What is appended; `seq` goes on from `last_seq`.
    pub facts: Vec<Fact>,
    /// The `seq` of the last item before this change (0 for a new task).
    pub last_seq: i64,
    /// The agent's version from now on, where it becomes another one.
    pub agent_version: Option<String>,
    /// Added to the counters of this row.
    pub counters: Counters,
    /// What happens to its lease.
    pub lease: LeaseChange,
    /// What a person has filled in for it. A change with which it ends writes none, and removes those there are.
    pub credentials: Vec<SealedCredential>,
}

/// At which version a task's row must be found.
#[derive(Clone, Debug)]
pub enum Guard {
    /// It must not exist: it is inserted.
    New(Box<NewTask>),
    /// It must be at exactly this version, and goes to the next.
    Version(i64),
    /// Any version: only counters are added (an ancestor). Carries no facts.
    Any,
}

/// The fixed members of a new task.
#[derive(Clone, Debug)]
pub struct NewTask {
    /// The tenant.
    pub tenant: String,
    /// The owner.
    pub user_id: String,
    /// The caller's own string or a fresh id.
    pub session_id: String,
    /// The agent's name.
    pub agent: String,
    /// `sha256:…` of its definition.
    pub agent_version: String,
    /// The task and call that started it, of a sub-agent's.
    pub parent: Option<(TaskId, super::id::CallId)>,
    /// Names from the root to it.
    pub agent_path: Vec<String>,
    /// The caller's, as JSON text (an object).
    pub metadata: String,
}

/// What is added to the counters over a task's own subtree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tasks that run.
    pub busy: i32,
    /// Open requests.
    pub open_requests: i32,
    /// Tokens.
    pub usage: Usage,
    /// Answers of a model.
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

/// What happens to a task's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// Nothing.
    Keep,
    /// This process takes it (or keeps it) for so long from now, in database time.
    Take {
        /// The process: random per start.
        owner: String,
        /// For how long.
        time: Duration,
    },
    /// Any worker may take it at once.
    Queue,
    /// Nobody has it; it sleeps until something happens or, when given, until so long from now.
    Park {
        /// When a worker looks again.
        wake_in: Option<Duration>,
    },
}

/// The row that makes a repeated POST do nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyRow {
    /// The tenant.
    pub tenant: String,
    /// On whose behalf, as it is spelt.
    pub user_id: String,
    /// The same person however the id is spelt, where spellings are compared folded.
    pub person: Option<UserKey>,
    /// Method and path.
    pub path: String,
    /// The `Idempotency-Key` as it stands.
    pub key: String,
    /// What is kept of the body: `k1:…`, a keyed hash, or, where nobody can be asked for a credential, SHA-256 in hex.
    pub body_digest: String,
    /// The task the operation answers with.
    pub task_id: TaskId,
    /// The request it decided, on `/resume`.
    pub request_id: Option<RequestId>,
}

/// What a commit did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The moment of its items, by the database's clock.
    pub at: Time,
}

/// A task's row.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskRow {
    /// Its id.
    pub task_id: TaskId,
    /// Its root's (its own, of a root).
    pub root_task_id: TaskId,
    /// The task and call that started it.
    pub parent: Option<(TaskId, super::id::CallId)>,
    /// The tenant.
    pub tenant: String,
    /// The owner.
    pub user_id: String,
    /// The session.
    pub session_id: String,
    /// The agent's name.
    pub agent: String,
    /// `sha256:…` of its definition.
    pub agent_version: String,
    /// Names from the root to it.
    pub agent_path: Vec<String>,
    /// Where it stands.
    pub status: TaskStatus,
    /// The fence.
    pub version: i64,
    /// The `seq` of its last item.
    pub last_seq: i64,
    /// The caller's, as JSON text.
    pub metadata: String,
    /// Tasks of its subtree that run.
    pub busy: i32,
    /// Open requests of its subtree.
    pub open_requests: i32,
    /// Tokens of its subtree, for life.
    pub usage: Usage,
    /// Answers of a model in its subtree, for life.
    pub model_calls: i64,
    /// The last `task_status` item's `output`.
    pub output: Option<String>,
    /// The last `task_status` item's `error`.
    pub error: Option<super::failure::Failure>,
    /// Who holds its lease, when somebody does.
    pub lease_owner: Option<String>,
    /// Until when.
    pub lease_until: Option<Time>,
    /// Nobody has it in hand, nobody is to take it, and no moment wakes it.
    pub parked: bool,
    /// Takeovers since its last item.
    pub takeovers: i32,
    /// Those of them after which work had begun and nothing came of it.
    pub fruitless: i32,
    /// The number of the last event of its tree; on the root's row only, 0 on the others.
    pub next_event: i64,
    /// When its first item was committed.
    pub created_at: Time,
    /// When its last item was.
    pub updated_at: Time,
}

/// A task as it was read: its row and its whole journal, in one snapshot.
#[derive(Clone, Debug)]
pub struct Journal {
    /// The row.
    pub row: TaskRow,
    /// Its items, `seq` 1, 2, 3 …
    pub items: Vec<Item>,
    /// The database's clock at that moment.
    pub now: Time,
    /// Up to when the history is in doubt: the database was restored, or a standby promoted, and what came after some
    /// moment before it is forgotten.
    pub history_uncertain_until: Option<Time>,
}
