//! The writes of one commit. The store writes a [`Change`] as a whole or not at all.
//!
//! The store derives the rows of requests, approvers and decisions from the journal's items, so
//! rows and items cannot disagree. An `intervention_requested` item inserts a request row, a
//! `decision` item adds a decision, and a `request_closed` item closes the request.

use std::ops::AddAssign;
use std::time::Duration;

use super::credential::SealedCredential;
use super::id::{ChangeId, RequestId, TaskId};
use super::item::{Fact, Item, Usage};
use super::status::TaskStatus;
use super::time::Time;
use super::user::UserKey;

/// One commit: a [`TaskChange`] for each changed task. All changed tasks belong to one tree.
#[derive(Clone, Debug)]
pub struct Change {
    /// Id of the commit, stored with the commit's items. If the database's answer to the commit is
    /// lost, the store looks for this id to find out whether the commit succeeded.
    pub id: ChangeId,
    /// Root of the changed tree. The store never writes two changes of one root in the same batch.
    pub root: TaskId,
    /// Tenant of every task of the tree.
    pub tenant: String,
    /// Name of the root's agent. The entries of `notify.to` can filter messages by this name.
    pub root_agent: String,
    /// The changed tasks, each once.
    pub tasks: Vec<TaskChange>,
    /// Requests whose status the commit changes from `responded` to `resumed`, because their
    /// decisions have taken effect.
    pub resumed: Vec<RequestId>,
    /// Row for the `Idempotency-Key` of the command that this commit carries out, if any.
    pub idempotency: Option<IdempotencyRow>,
    /// The [`Journal::history_uncertain_until`] of the journal from which the change was made. On
    /// Postgres, the commit of a change with [`Guard::Version`] fails as stale if the database has
    /// another time. The database is then a restored backup or a promoted standby, in which another
    /// commit may have the version and the `seq` of a commit that was lost.
    pub history_uncertain_until: Option<Time>,
}

/// The part of a [`Change`] that concerns one task.
#[derive(Clone, Debug)]
pub struct TaskChange {
    /// Id of the changed task, or of the task to insert.
    pub task_id: TaskId,
    /// Condition on the version of the task's row. If the row does not meet the condition, the
    /// commit fails as stale.
    pub guard: Guard,
    /// Facts to append. The `seq` of the first fact is `last_seq` + 1.
    pub facts: Vec<Fact>,
    /// The `seq` of the last item before this change (0 for a new task).
    pub last_seq: i64,
    /// New `agent_version` of the row; `None` keeps the stored version.
    pub agent_version: Option<String>,
    /// Increments of the counters of the task's row.
    pub counters: Counters,
    /// Whether the commit keeps, takes or releases the lease.
    pub lease: LeaseChange,
    /// For a gate call, the new presence of the asker (the client that waits for the verdict).
    /// `None` keeps the stored presence.
    pub asker: Option<AskerPresence>,
    /// For a gate call, the identity by which the service finds this call when a client proposes an
    /// equal call. The first commit of an unsettled call sets the identity in three cases: the call
    /// waits for a person, its effect is `once`, or its tool takes a credential. A later commit
    /// sets the identity if the call has none and now waits for a person. A stored identity is
    /// never replaced.
    pub call: Option<KeyedCall>,
    /// For a gate call with an identity, the effect of the commit on the quarantine of the call's
    /// tool (see `quarantine.rs`). `true`: the commit puts the tool into quarantine. `false`: the
    /// commit has a person's decision about the call, which ends the quarantine. `None`: the commit
    /// keeps the stored effect and its stored time.
    pub in_quarantine: Option<bool>,
    /// Credentials that a person provided for the task. A change that ends the task writes no
    /// credentials and removes the stored credentials.
    pub credentials: Vec<SealedCredential>,
}

impl TaskChange {
    /// Returns a change that appends no facts. With [`Guard::Version`], the change only increments
    /// the version of the task's row. With [`Guard::Any`], the change alters nothing. `last_seq` is
    /// the `seq` of the task's last item.
    #[must_use]
    pub fn empty(task_id: TaskId, guard: Guard, last_seq: i64) -> Self {
        Self {
            task_id,
            guard,
            facts: Vec::new(),
            last_seq,
            agent_version: None,
            counters: Counters::default(),
            lease: LeaseChange::Keep,
            asker: None,
            call: None,
            in_quarantine: None,
            credentials: Vec::new(),
        }
    }
}

/// The condition that a task's row must meet when the change is written: there is no row, or the
/// row has a given version, or the row has any version.
#[derive(Clone, Debug)]
pub enum Guard {
    /// No row may exist: the change inserts the row.
    New(Box<NewTask>),
    /// The row must have exactly this version, which the change increments.
    Version(i64),
    /// The row may have any version, which the change keeps. Two kinds of change have this guard.
    /// The first kind only adds to the counters `usage` and `model_calls` of an ancestor. The
    /// second kind only advances the `next_event` of a root.
    Any,
}

/// The initial columns of a new task's row.
#[derive(Clone, Debug)]
pub struct NewTask {
    /// Tenant of the owner.
    pub tenant: String,
    /// User id of the owner, in the caller's spelling.
    pub user_id: String,
    /// The session id that the API's client gave, or a generated id.
    pub session_id: String,
    /// Name of the agent in the configuration.
    pub agent: String,
    /// `sha256:…` of the agent's definition.
    pub agent_version: String,
    /// Parent task, and the parent's call that started this task; `None` for a root.
    pub parent: Option<(TaskId, super::id::CallId)>,
    /// Agent names, from the root's agent to this task's agent.
    pub agent_path: Vec<String>,
    /// The columns that the API's client gave.
    pub client: ClientColumns,
}

/// The columns of a task's row that hold values of the API's client unchanged. The engine copies
/// them from the body of the HTTP request to the row, and from a task to its sub-agents' tasks. The
/// session id is not among them, because the engine generates it if the client gives none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientColumns {
    /// The client's metadata: JSON text of an object.
    pub metadata: String,
}

impl ClientColumns {
    /// Returns the columns for a client that gives only metadata, as the clients of gates do.
    #[must_use]
    pub fn with_metadata(metadata: String) -> Self {
        Self { metadata }
    }
}

/// The identity of a gate call. By this identity, the service recognizes a later proposal of the
/// same call. The service compares a proposal only with calls of the same user and session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedCall {
    /// Name of the called tool.
    pub tool: String,
    /// A prefix, and a hash over the tool's name and the arguments. If a gateway proposes the call,
    /// the hash also covers the `rest` of `Identity::Bytes`.
    /// - `b:` lets a later proposal with an equal hash continue the call without naming the call.
    /// - `k:` lets only a proposal that names the call continue it, by the call's idempotency key
    ///   or id. A call has this prefix if its first proposal has an idempotency key but no
    ///   `attach: true`. A call also has this prefix if the identity is added when the outcome
    ///   becomes unknown, because the first proposal is no longer known then.
    pub key: String,
}

/// The presence of the asker of a gate call: the client that waits for the call's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskerPresence {
    /// The asker waits for this duration, which begins at the time of the commit.
    PresentFor(Duration),
    /// The asker has left, and the result has not been delivered.
    Absent,
    /// The result, or the permit to run the call, has been delivered.
    Delivered,
}

/// Increments of a task's counters, which count over the task's whole subtree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Change of the number of busy tasks. A task is busy if a driver holds the task, if the task
    /// is queued, or if a timer will wake it.
    pub busy: i32,
    /// Opened requests minus closed requests.
    pub open_requests: i32,
    /// Tokens that the model calls used.
    pub usage: Usage,
    /// Number of answers of the model. The turn of a gate call is not counted, because no model
    /// made it.
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

impl AskerPresence {
    /// Returns the [`TaskRow::asker_until`] that a commit at the time `at` stores for this
    /// presence.
    #[must_use]
    pub fn until(self, at: Time) -> Time {
        match self {
            Self::PresentFor(time) => at + time,
            Self::Absent => Time(0),
            Self::Delivered => ASKER_UNTIL_DELIVERED,
        }
    }
}

/// How a commit changes a task's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// Leaves the lease as it is.
    Keep,
    /// Takes or extends the lease. The lease then ends `time` after the commit, by the database's
    /// clock.
    Take {
        /// Id of the process that takes the lease, generated when the process starts.
        owner: String,
        /// Duration of the lease, after which another process may claim the task.
        time: Duration,
    },
    /// Releases the lease and queues the task: any worker may claim it at once.
    Queue,
    /// Releases the lease and parks the task. The task sleeps until a commit wakes it or until the
    /// time `wake_in` has passed.
    Park {
        /// Time after which a worker may claim the task; `None` if the task sleeps until a commit
        /// wakes it.
        wake_in: Option<Duration>,
    },
}

impl LeaseChange {
    /// Parks the task until a commit wakes it.
    pub const PARK: Self = Self::Park { wake_in: None };
}

/// The row of an `Idempotency-Key`. A POST that repeats the key has no second effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyRow {
    /// Tenant of the caller.
    pub tenant: String,
    /// Id of the user that the command acts for, in the spelling of the HTTP request.
    pub user_id: String,
    /// Comparison key of `user_id`; `None` if user ids are compared byte by byte.
    pub person: Option<UserKey>,
    /// Method and path of the POST, for example `POST /v1/tasks`. For a proposal at a gate, always
    /// `/v1/gate/calls`, even if the client proposes the call by another protocol than REST.
    pub path: String,
    /// The `Idempotency-Key`, verbatim.
    pub key: String,
    /// Digest of the POST's body. If the configuration has sealing keys, the digest is a keyed hash
    /// (such as `k1:…`). A reader of the digest then cannot guess a credential in the body. Without
    /// sealing keys, the digest is SHA-256 in hex.
    pub body_digest: String,
    /// Task that the command returns.
    pub task_id: TaskId,
    /// Request that the command decided; `None` if the command is no decision.
    pub request_id: Option<RequestId>,
}

/// The result of a successful commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Time of the items that the commit wrote, by the database's clock.
    pub at: Time,
}

/// The [`TaskRow::asker_until`] of a gate call whose asker has got the result or the permit to run
/// the call.
pub const ASKER_UNTIL_DELIVERED: Time = Time(i64::MAX);

/// The stored row of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskRow {
    /// Id of the task and key of the row.
    pub task_id: TaskId,
    /// Id of the tree's root; for a root, the task's own id.
    pub root_task_id: TaskId,
    /// Parent task, and the parent's call that started this task; `None` for a root.
    pub parent: Option<(TaskId, super::id::CallId)>,
    /// Tenant of the owner.
    pub tenant: String,
    /// User id of the owner, in the spelling of the caller that created the tree.
    pub user_id: String,
    /// The session id that the API's client gave, or a generated id.
    pub session_id: String,
    /// Name of the agent in the configuration.
    pub agent: String,
    /// `sha256:…` of the agent's definition.
    pub agent_version: String,
    /// Agent names, from the root's agent to this task's agent.
    pub agent_path: Vec<String>,
    /// Status of the last `task_status` item.
    pub status: TaskStatus,
    /// Number of claims and commits of the task, except commits with [`Guard::Any`]. The version
    /// fences writes: a write names the version that the writing process has read. The store
    /// refuses the write if the row has another version now.
    pub version: i64,
    /// The `seq` of the task's last item.
    pub last_seq: i64,
    /// The columns that the API's client gave.
    pub client: ClientColumns,
    /// Number of busy tasks in the task's subtree, see [`Counters::busy`].
    pub busy: i32,
    /// Number of open requests in the task's subtree.
    pub open_requests: i32,
    /// Tokens that the task's subtree has used over the task's life.
    pub usage: Usage,
    /// Number of model answers in the task's subtree over the task's life.
    pub model_calls: i64,
    /// Final text in the last `task_status` item, if the task is completed.
    pub output: Option<String>,
    /// Failure in the last `task_status` item, if the task is failed.
    pub error: Option<super::failure::Failure>,
    /// Id of the process that holds the lease, if any.
    pub lease_owner: Option<String>,
    /// End of the lease, by the database's clock; `None` without a lease.
    pub lease_until: Option<Time>,
    /// Whether the task sleeps until a commit wakes it. Such a task has no lease, and no worker may
    /// claim it.
    pub parked: bool,
    /// The stored presence of a gate call's asker: the time until which the asker waits for the
    /// verdict. The time is 0 if the asker has left, or if the service process that stored the
    /// presence has ended. The time is [`ASKER_UNTIL_DELIVERED`] if the asker has got the result or
    /// the permit to run the call. `None` for a gate call without a stored presence, and for a task
    /// that is not a gate call.
    pub asker_until: Option<Time>,
    /// Number of takeovers of the task since its last item. A takeover is a claim of a task whose
    /// lease has run out.
    pub takeovers: i32,
    /// Number of the task's fruitless leases since its last item. A lease is fruitless if it
    /// expires after a process has begun to work on the task.
    pub fruitless: i32,
    /// On the root's row, the number of the tree's last event (not of the next event). On all other
    /// rows, 0.
    pub next_event: i64,
    /// Time of the commit of the task's first item.
    pub created_at: Time,
    /// Time of the commit of the task's last item.
    pub updated_at: Time,
}

impl TaskRow {
    /// Returns the row of a task that is not stored yet.
    #[must_use]
    pub fn unsaved(task_id: TaskId, root_task_id: TaskId, new: &NewTask) -> Self {
        Self {
            task_id,
            root_task_id,
            parent: new.parent,
            tenant: new.tenant.clone(),
            user_id: new.user_id.clone(),
            session_id: new.session_id.clone(),
            agent: new.agent.clone(),
            agent_version: new.agent_version.clone(),
            agent_path: new.agent_path.clone(),
            status: TaskStatus::Running,
            version: 0,
            last_seq: 0,
            client: new.client.clone(),
            busy: 0,
            open_requests: 0,
            usage: Usage::default(),
            model_calls: 0,
            output: None,
            error: None,
            lease_owner: None,
            lease_until: None,
            parked: false,
            asker_until: None,
            takeovers: 0,
            fruitless: 0,
            next_event: 0,
            created_at: Time::default(),
            updated_at: Time::default(),
        }
    }

    /// Returns the name of the root's agent: the first name of `agent_path`.
    #[must_use]
    pub fn root_agent(&self) -> &str {
        self.agent_path.first().map_or(&self.agent, String::as_str)
    }
}

/// A task's row and its whole journal, read in one snapshot.
#[derive(Clone, Debug)]
pub struct Journal {
    /// The task's row as of the snapshot.
    pub row: TaskRow,
    /// All items of the task in the order of `seq`: 1, 2, 3 …
    pub items: Vec<Item>,
    /// Time of the snapshot, by the database's clock.
    pub now: Time,
    /// Time up to which the history is uncertain, because a restored backup or the promotion of a
    /// standby may have lost the end of the history. `None` if the history is certain.
    pub history_uncertain_until: Option<Time>,
}
