//! Defines the filters for the lists of tasks and of requests, and the row of a request.

use crate::task::change::TaskRow;
use crate::task::decision::Decision;
use crate::task::id::{RequestId, TaskId};
use crate::task::item::{Fact, Item};
use crate::task::request::RequestSpec;
use crate::task::request_state::RequestState;
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::time::Time;
use crate::task::user::{UserId, Viewer};

/// A request in its current state.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestRow {
    /// The request as it was opened.
    pub spec: RequestSpec,
    /// The `seq` of the item that opened the request, in the task's journal.
    pub asked_seq: i64,
    /// The task that opened the request.
    pub task_id: TaskId,
    /// The root of the task's tree.
    pub root_task_id: TaskId,
    /// The tenant of the tree.
    pub tenant: String,
    /// The owner of the tree.
    pub owner: String,
    /// The session id of the tree.
    pub session_id: String,
    /// The agents' names, from the root's agent to the agent of the task that opened the request.
    pub agent_path: Vec<String>,
    /// The stored status. After `expires_at`, the status stays `Pending` until a commit closes the
    /// request.
    pub status: RequestStatus,
    /// The time of the commit that opened the request.
    pub created_at: Time,
    /// The deadline, after which decisions are refused. `None` if the request does not expire.
    pub expires_at: Option<Time>,
    /// Whether `expires_at` had passed, by the database's clock, when this row was read.
    pub expired: bool,
    /// Whether the request was opened before a restore or the promotion of a standby. If so, the
    /// request's calls may have run in the lost part of the history.
    pub history_uncertain: bool,
    /// The decisions so far with their times, oldest first.
    pub answers: Vec<(Time, Decision)>,
}

impl RequestRow {
    /// Assembles a request from the row and the items of its task. `items` pairs each item with the
    /// time of its commit. Returns `None` unless exactly one item opens the request. The status of
    /// the result is `Pending`, even if another item closes the request. `expired` and
    /// `history_uncertain` are false until [`Self::read_at`] sets them.
    pub(crate) fn from_journal<'i>(
        row: &TaskRow,
        items: impl Iterator<Item = (Time, &'i Item)>,
        id: RequestId,
    ) -> Option<Self> {
        let mut request: Option<Self> = None;
        let mut answers = Vec::new();
        for (at, item) in items {
            if let Fact::Decision {
                request_id,
                decision,
            } = &item.fact
                && *request_id == id
            {
                answers.push((at, decision.clone()));
            }
            let Fact::InterventionRequested(spec) = &item.fact else {
                continue;
            };
            if spec.request_id != id {
                continue;
            }
            let first = Self {
                spec: spec.clone(),
                asked_seq: item.seq,
                task_id: row.task_id,
                root_task_id: row.root_task_id,
                tenant: row.tenant.clone(),
                owner: row.user_id.clone(),
                session_id: row.session_id.clone(),
                agent_path: row.agent_path.clone(),
                status: RequestStatus::Pending,
                created_at: at,
                expires_at: spec.terms.expires_in.map(|duration| at + duration),
                expired: false,
                history_uncertain: false,
                answers: Vec::new(),
            };
            if request.replace(first).is_some() {
                return None;
            }
        }
        request.map(|request| Self { answers, ..request })
    }

    /// Returns the state of the request, which says which calls are already decided.
    #[must_use]
    pub fn state(&self) -> RequestState<'_> {
        RequestState {
            spec: &self.spec,
            answers: &self.answers,
            status: self.status,
            expired: self.expired,
            history_uncertain: self.history_uncertain,
        }
    }

    /// Sets `expired` and `history_uncertain`. `now` is the time of the read. `uncertain` is the
    /// time up to which a restore or failover may have lost items; `None` if there was neither.
    pub(super) fn read_at(self, now: Time, uncertain: Option<Time>) -> Self {
        Self {
            expired: self.expires_at.is_some_and(|end| end <= now),
            history_uncertain: uncertain.is_some_and(|until| self.created_at <= until),
            ..self
        }
    }
}

/// A filter for `Store::tasks`.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// The tenant of the tasks.
    pub tenant: String,
    /// The owners of the tasks; empty for all owners.
    pub users: Vec<UserId>,
    /// The statuses of the tasks; empty for all statuses.
    pub statuses: Vec<TaskStatus>,
    /// The agents of the tasks; empty for all agents.
    pub agents: Vec<String>,
    /// The agents whose tasks are left out.
    pub without_agents: Vec<String>,
    /// The versions of agents' definitions whose tasks are left out.
    pub without_versions: Vec<String>,
    /// The session ids of the tasks; empty for all sessions.
    pub sessions: Vec<String>,
    /// The trees whose tasks are selected, with the tasks of sub-agents. If empty, the root tasks
    /// of all trees are selected.
    pub roots: Vec<TaskId>,
    /// The id of a task. If set, selects the older tasks, which have smaller ids.
    pub before: Option<TaskId>,
    /// The maximum number of tasks of a page.
    pub limit: i64,
}

/// A filter for `Store::requests` and `Store::open_requests`.
#[derive(Clone, Debug, Default)]
pub struct RequestFilter {
    /// The tenant of the requests.
    pub tenant: String,
    /// Selects the requests that this person may decide: as a named user, as a member of a group,
    /// or as the owner if the owner is an approver. Also selects the requests that the person has
    /// answered, unless `statuses` is `Pending` alone. `None` selects the requests of all people.
    /// `Store::requests` ignores the person if `roots` is not empty.
    pub person: Option<Viewer>,
    /// The statuses of the requests; empty for all statuses.
    pub statuses: Vec<RequestStatus>,
    /// The kinds of the requests, by their API names; empty for all kinds.
    pub kinds: Vec<String>,
    /// The agents (or gates) whose calls and questions led to the requests; empty for all agents
    /// and gates.
    pub agents: Vec<String>,
    /// The session ids of the requests; empty for all sessions.
    pub sessions: Vec<String>,
    /// The trees of the requests; empty for all trees.
    pub roots: Vec<TaskId>,
    /// Whether `Store::requests` also selects requests past their deadline. Such requests stay
    /// pending until a commit closes them. Matters only if `statuses` is `Pending` alone: with
    /// other statuses, these requests are always selected. `Store::open_requests` never selects
    /// them.
    pub overdue: bool,
    /// The id of a request. If set, selects the newer requests, which have greater ids.
    pub after: Option<RequestId>,
    /// The maximum number of requests of a page.
    pub limit: i64,
}
