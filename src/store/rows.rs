//! Defines the rows that a change writes, in a form for both Postgres and `SQLite`. The types of
//! these rows are called `…Line`, because `TaskRow`, `RequestRow`, `GrantRow` and `CredentialRow`
//! are rows that the store reads.

use uuid::Uuid;

use super::task_columns::texts;
use crate::task::change::{AskerPresence, Guard, IdempotencyRow, LeaseChange, NewTask, TaskChange};
use crate::task::credential::SealedCredential;
use crate::task::decision::Door;
use crate::task::grant::Grant;
use crate::task::id::{RequestId, TaskId};
use crate::task::status::{RequestStatus, TaskStatus};

#[derive(Debug)]
pub(super) struct ChangeRows {
    pub(super) root: TaskId,
    pub(super) tenant: String,
    pub(super) change: Uuid,
    /// The affected tasks. If `items` is not empty, the root is among these tasks, because the
    /// root's row counts the tree's events.
    pub(super) tasks: Vec<TaskLine>,
    pub(super) items: Vec<ItemLine>,
    pub(super) requests: Vec<RequestLine>,
    pub(super) approvers: Vec<ApproverLine>,
    /// The updates of the requests that the change answers, closes or resumes.
    pub(super) request_updates: Vec<RequestUpdateLine>,
    pub(super) decisions: Vec<DecisionLine>,
    pub(super) credentials: Vec<CredentialLine>,
    pub(super) grants: Vec<GrantLine>,
    /// The uses of standing decisions by calls that the change starts.
    pub(super) uses: Vec<UseLine>,
    /// Set for a change that requires a certain version of a stored task: the time in microseconds
    /// up to which the history was uncertain when the caller read the journal; 0 if all of it was
    /// certain. On Postgres, the change is refused if the database has another time: the database
    /// may be a standby that was promoted after the caller read the journal, and whose tasks have
    /// reached the same versions again. On `SQLite`, the time is not compared, because it changes
    /// only when a process opens the file.
    pub(super) history_fence: Option<i64>,
    /// Whether the change also writes a row of the table `notice`, because a message may be sent
    /// about one of its events.
    pub(super) gets_notice: bool,
    /// Whether the statement of `commit_postgres.rs` must write the change. If false, the statement
    /// of `commit_single.rs` may write it. Only tests set this field to true.
    pub(super) is_general: bool,
    pub(super) idempotency: Option<IdempotencyRow>,
}

/// The effect of a change on one task's row.
#[derive(Debug)]
pub(super) struct TaskLine {
    /// The change of the task, without its facts and credentials: these are in the lists of
    /// [`ChangeRows`], such as `items` and `credentials`.
    pub(super) task: TaskChange,
    /// The number of items that the change adds to the task's journal.
    pub(super) facts: i64,
    /// The number of events that the change adds to the tree, which is the number of its items. Set
    /// in the root's line; 0 in all other lines.
    pub(super) events: i64,
    /// The new status; `None` if unchanged.
    pub(super) status: Option<TaskStatus>,
    /// The `seq` of the item that sets the status; 0 if no item does.
    pub(super) status_seq: i64,
    /// For a new task, the [`NewTask::agent_path`] as JSON.
    pub(super) agent_path: Option<String>,
}

#[derive(Debug)]
pub(super) struct ItemLine {
    pub(super) task_id: Uuid,
    pub(super) seq: i64,
    /// The item's position within the change, from 1.
    pub(super) ordinal: i64,
    pub(super) kind: &'static str,
    pub(super) role: &'static str,
    pub(super) request_id: Option<Uuid>,
    pub(super) body: String,
}

#[derive(Debug)]
pub(super) struct RequestLine {
    pub(super) request_id: Uuid,
    pub(super) task_id: Uuid,
    pub(super) seq: i64,
    pub(super) kind: &'static str,
    pub(super) status: RequestStatus,
    pub(super) required: i64,
    /// Whether the first answer closes the request.
    pub(super) one_answer: bool,
    pub(super) call_id: Option<Uuid>,
    /// The `seq` of the item that closes the request; `None` if the change leaves it open.
    pub(super) closed_seq: Option<i64>,
    /// The time until the deadline, in microseconds from the commit; `None` if there is no
    /// deadline.
    pub(super) expires_in: Option<i64>,
}

#[derive(Debug)]
pub(super) struct ApproverLine {
    pub(super) request_id: Uuid,
    pub(super) task_id: Uuid,
    pub(super) kind: &'static str,
    /// The name of the user or group; `None` if the approver is the owner.
    pub(super) name: Option<String>,
    /// A copy of the request's [`RequestLine::expires_in`].
    pub(super) expires_in: Option<i64>,
    /// A copy of the request's [`RequestLine::one_answer`].
    pub(super) one_answer: bool,
}

#[derive(Debug, Default)]
pub(super) struct RequestUpdateLine {
    pub(super) request_id: Uuid,
    /// The state that the stored request must have. Otherwise the change is refused.
    pub(super) required_state: RequiredState,
    /// The new status; `None` if this change does not close the request.
    pub(super) status: Option<RequestStatus>,
    /// The `seq` of the item that sets `status`; `None` if `status` is `None`.
    pub(super) closed_seq: Option<i64>,
    /// Whether the request's decisions have taken effect. If so, the status `responded` becomes
    /// `resumed`. It does not matter whether this change sets `responded` or the stored request
    /// already has it. Any other status stays as it is.
    pub(super) resumed: bool,
}

/// The state that a stored request must have for a change to be accepted. Deadlines are compared
/// with the database's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RequiredState {
    /// The request may be in any state.
    #[default]
    Any,
    /// The request must be pending, before or after its deadline.
    Open,
    /// The request must be pending and past its deadline.
    Overdue,
    /// The request must be pending and before its deadline. Decisions need this state.
    InTime,
}

/// A person's answer about one call or about the whole request.
#[derive(Debug)]
pub(super) struct DecisionLine {
    pub(super) request_id: Uuid,
    /// The call that the answer is about; `None` for an answer about the whole request. The stored
    /// column cannot be null. For `None`, the column gets the id of the request's call, or the
    /// request's id if the request has no call.
    pub(super) call_id: Option<Uuid>,
    pub(super) user_id: String,
    pub(super) action: &'static str,
    /// Whether this answer decides the call. False for an approval that leaves the request open
    /// because the call needs further approvals. True for any other answer.
    pub(super) settles: bool,
    pub(super) task_id: Uuid,
    pub(super) seq: i64,
}

#[derive(Debug)]
pub(super) struct CredentialLine {
    pub(super) task_id: Uuid,
    pub(super) sealed: SealedCredential,
    /// The time until the credential expires, in microseconds from the commit; `None` if the
    /// credential does not expire.
    pub(super) expires_in: Option<i64>,
}

#[derive(Debug)]
pub(super) struct GrantLine {
    pub(super) grant: Grant,
    /// The name of the root's agent.
    pub(super) agent: String,
    pub(super) by: String,
    pub(super) via: Option<String>,
    pub(super) groups: String,
    pub(super) door: Option<Door>,
    pub(super) task_id: Uuid,
    pub(super) seq: i64,
    pub(super) request_id: Uuid,
}

/// The use of a standing decision by a call that the commit starts. The commit adds `calls` to the
/// counted uses of the standing decision. `calls` is 1 for the first attempt at the call, and 0 if
/// an earlier attempt was already counted. If the standing decision is no longer valid, the store
/// refuses the whole commit.
#[derive(Debug)]
pub(super) struct UseLine {
    pub(super) grant_id: Uuid,
    pub(super) calls: i64,
}

impl RequiredState {
    pub(super) fn requires_pending(self) -> bool {
        self != Self::Any
    }
}

impl RequestUpdateLine {
    /// Sets the status with which the item `seq` closes the request.
    pub(super) fn close(&mut self, status: RequestStatus, seq: i64) {
        self.status = Some(status);
        self.closed_seq = Some(seq);
    }

    /// Returns the status that the change sets: `status`, or `Resumed` if `status` is `Responded`
    /// and `resumed` is true. `None` if `status` is `None`. In this case, the change sets no fixed
    /// status: if `resumed` is true, a stored `responded` becomes `resumed`.
    pub(super) fn end(&self) -> Option<RequestStatus> {
        if self.resumed && self.status == Some(RequestStatus::Responded) {
            return Some(RequestStatus::Resumed);
        }
        self.status
    }
}

impl TaskLine {
    /// Returns the line of a change that adds no items and sets no status. The caller may then set
    /// the other fields.
    pub(super) fn new(task: TaskChange) -> Self {
        Self {
            task,
            facts: 0,
            events: 0,
            status: None,
            status_seq: 0,
            agent_path: None,
        }
    }

    /// Returns the initial columns of the row; `None` for a task that already has a row.
    pub(super) fn new_task(&self) -> Option<&NewTask> {
        match &self.task.guard {
            Guard::New(new) => Some(new),
            Guard::Version(_) | Guard::Any => None,
        }
    }

    /// Whether the change requires a certain version of the row.
    pub(super) fn requires_version(&self) -> bool {
        matches!(self.task.guard, Guard::Version(_))
    }

    /// Whether the task becomes terminal in this change. Its credentials are then deleted.
    pub(super) fn ends(&self) -> bool {
        self.status.is_some_and(TaskStatus::is_terminal)
    }

    /// Whether this change sets a time from which a worker may claim the task: at once, when the
    /// lease ends, or at the wake-up time.
    pub(super) fn queues(&self) -> bool {
        self.task.lease != LeaseChange::Keep && !self.parks()
    }

    /// Whether this change parks the task without a wake-up time. No worker then claims the task.
    pub(super) fn parks(&self) -> bool {
        self.task.lease == LeaseChange::Park { wake_in: None }
    }
}

impl ChangeRows {
    /// Returns whether the root runs after this change; `None` if the change does not set the
    /// root's status.
    pub(super) fn root_runs(&self) -> Option<bool> {
        let mut lines = self.tasks.iter();
        let root = lines.find(|line| line.task.task_id == self.root)?;
        root.status.map(|status| status == TaskStatus::Running)
    }

    /// Returns the new presence of the asker ([`TaskChange::asker`]), if the change sets it for the
    /// root.
    pub(super) fn asker(&self) -> Option<AskerPresence> {
        let mut lines = self.tasks.iter();
        let root = lines.find(|line| line.task.task_id == self.root)?;
        root.task.asker
    }

    /// Whether the change sets nothing but the presence of the asker ([`TaskChange::asker`]) and
    /// perhaps an idempotency key. Readers of the tree are not notified of such a change.
    pub(super) fn only_changes_presence(&self) -> bool {
        let mut lines = self.tasks.iter();
        let sets_asker_alone =
            lines.all(|line| line.task.asker.is_some() && line.task.lease == LeaseChange::Keep);
        self.items.is_empty() && self.request_updates.is_empty() && sets_asker_alone
    }

    pub(super) fn affected_requests(&self) -> impl Iterator<Item = RequestId> {
        let requests = self.requests.iter().map(|line| line.request_id);
        let updated = self.request_updates.iter().map(|line| line.request_id);
        requests.chain(updated).map(RequestId)
    }

    /// Whether Postgres can store the change: a `text` of Postgres cannot contain a NUL, so none of
    /// the change's texts may contain a NUL. A NUL inside an item's JSON is escaped (`\u0000`).
    /// Postgres can store the escaped NUL, because the column has the type `text` and not `jsonb`.
    pub(super) fn is_storable(&self) -> bool {
        let tasks = self.tasks.iter().flat_map(texts);
        let people = self.decisions.iter().map(|line| &line.user_id);
        let approvers = self.approvers.iter().filter_map(|line| line.name.as_ref());
        let key = self.idempotency.iter().flat_map(|row| {
            [
                &row.tenant,
                &row.user_id,
                &row.path,
                &row.key,
                &row.body_digest,
            ]
        });
        let bodies = self.items.iter().map(|line| &line.body);
        let sealed = self.credentials.iter().map(|line| &line.sealed);
        let grants = self.grants.iter().map(|line| &line.grant);
        let grants = grants.flat_map(|grant| [&grant.tool, &grant.rule]);
        let sealed = sealed.flat_map(|sealed| [&sealed.name, &sealed.key_id, &sealed.text]);
        !tasks
            .chain(people)
            .chain(approvers)
            .chain(key)
            .chain(bodies)
            .chain(sealed)
            .chain(grants)
            .any(|text| text.contains('\0'))
    }

    /// Returns the number of lines in the lists of items, requests, approvers and decisions.
    pub(super) fn lines(&self) -> usize {
        self.items.len() + self.requests.len() + self.approvers.len() + self.decisions.len()
    }

    /// Whether the change opens this request and leaves it open.
    pub(super) fn leaves_open(&self, request_id: Uuid) -> bool {
        let pending = |line: &RequestLine| line.status == RequestStatus::Pending;
        let mut requests = self.requests.iter();
        requests.any(|line| line.request_id == request_id && pending(line))
    }

    pub(super) fn size(&self) -> usize {
        let items = self.items.iter().map(|item| item.body.len());
        let credentials = self.credentials.iter();
        let credentials = credentials.map(|line| line.sealed.text.len());
        items.chain(credentials).sum()
    }

    /// Returns the task id and the `seq` of the first item; `None` if the change has no items.
    /// After a lost commit result, the store looks for this item to find out whether the change was
    /// written.
    pub(super) fn first_item(&self) -> Option<(Uuid, i64)> {
        self.items.first().map(|item| (item.task_id, item.seq))
    }

    pub(super) fn has_grants(&self) -> bool {
        !self.grants.is_empty() || !self.uses.is_empty()
    }

    /// Whether the store would refuse to write this change a second time. This holds if the change
    /// creates a task, or if it requires a certain version of a task's row.
    pub(super) fn is_fenced(&self) -> bool {
        let mut lines = self.tasks.iter();
        lines.any(|line| !matches!(line.task.guard, Guard::Any))
    }
}
