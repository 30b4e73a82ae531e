//! The filters for the lists of tasks and of requests, and the row of a request.

use crate::task::change::TaskRow;
use crate::task::decision::Decision;
use crate::task::id::{RequestId, TaskId};
use crate::task::item::{Fact, Item};
use crate::task::request::RequestSpec;
use crate::task::request_state::RequestState;
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::time::Time;
use crate::task::user::UserId;

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
    /// Agent names from the root's agent to the agent that asked.
    pub agent_path: Vec<String>,
    /// `Pending` until the commit that closes the request, even past `expires_at`; see `expired`.
    pub status: RequestStatus,
    /// The time of the commit that opened the request.
    pub created_at: Time,
    /// The deadline: later decisions are refused. `None` if the request does not expire.
    pub expires_at: Option<Time>,
    /// Whether `expires_at` had passed, by the database's clock, when this row was read.
    pub expired: bool,
    /// Whether the request was opened before a restore or the promotion of a standby: its calls may
    /// have run in the lost part of the history.
    pub history_uncertain: bool,
    /// The decisions so far with their times, oldest first.
    pub answers: Vec<(Time, Decision)>,
}

impl RequestRow {
    /// Assembles an open request from its task's row and items, each item with the time of its
    /// commit. Returns `None` unless exactly one item opens the request. [`Self::read_at`] sets
    /// `expired` and `history_uncertain`.
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

    /// Returns the request with the answers so far, which tell the calls that are already decided.
    #[must_use]
    pub fn state(&self) -> RequestState<'_> {
        RequestState {
            spec: &self.spec,
            answers: &self.answers,
            status: self.status,
            expired: self.expired,
        }
    }

    /// Sets `expired` and `history_uncertain`. `now` is the time of the read, `uncertain` the time
    /// up to which the history is uncertain.
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
    /// Tasks of this tenant.
    pub tenant: String,
    /// Tasks of these owners; empty for all.
    pub users: Vec<UserId>,
    /// Tasks in one of these statuses; empty for any.
    pub statuses: Vec<TaskStatus>,
    /// Tasks of one of these agents; empty for any.
    pub agents: Vec<String>,
    /// No tasks of these agents.
    pub without_agents: Vec<String>,
    /// Tasks of one of these sessions; empty for any.
    pub sessions: Vec<String>,
    /// All tasks of these trees, roots and sub-agents; empty for root tasks of any tree.
    pub roots: Vec<TaskId>,
    /// Only tasks older (with a smaller id) than this task.
    pub before: Option<TaskId>,
    /// The maximum number of tasks of a page.
    pub limit: i64,
}

/// A filter for `Store::requests` and `Store::open_requests`.
#[derive(Clone, Debug, Default)]
pub struct RequestFilter {
    /// Requests of this tenant.
    pub tenant: String,
    /// Requests that this person may decide, as a named user, as a member of a group, or as the
    /// owner if the owner is an approver. Unless `statuses` is only pending, also requests that the
    /// person has answered. `None` for the requests of all people.
    pub person: Option<Viewer>,
    /// Requests in one of these statuses; empty for any.
    pub statuses: Vec<RequestStatus>,
    /// Requests of one of these kinds, by their API names; empty for any.
    pub kinds: Vec<String>,
    /// Requests by one of these agents; empty for any.
    pub agents: Vec<String>,
    /// Requests of one of these sessions; empty for any.
    pub sessions: Vec<String>,
    /// Requests of these trees; empty for any.
    pub roots: Vec<TaskId>,
    /// Whether a filter for only pending requests also selects requests past their deadline, which
    /// stay pending until a commit closes them.
    pub overdue: bool,
    /// Only requests younger (with a greater id) than this request.
    pub after: Option<RequestId>,
    /// The maximum number of requests of a page.
    pub limit: i64,
}

/// The person for whom a list is read, with everything that decides which requests are listed.
#[derive(Clone, Debug, Default)]
pub struct Viewer {
    /// The person's id; its other stored spellings count as the same person.
    pub user_id: UserId,
    /// The groups that the person is a member of; a group may be an approver.
    pub groups: Vec<String>,
    /// Whether the person may decide every request, as in a service without accounts.
    pub decides_everything: bool,
}
